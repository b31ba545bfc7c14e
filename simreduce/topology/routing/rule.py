"""Routing rules: networks whose structure gives routes by arithmetic, many at a time.

A rule goes with the cables of a network. It numbers the network's *ports*: port p belongs to node
`hosts[p]`, and cable `first + p` joins that node to its switch. Cable c is two links: 2c from its
first end, and 2c + 1 back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simreduce.computing.arrays import AnyInts, Ints


class RoutingRule(Protocol):
    """`hosts` are places of nodes in their topology; `first` numbers the cable of port 0."""

    @property
    def hosts(self) -> tuple[int, ...]: ...

    @property
    def first(self) -> int: ...

    def between(self, source: Ints, target: Ints) -> tuple[Ints, AnyInts]:
        """The links from port to port, as rows: where each begins (and the last ends), and all link
        ids.
        """

    def areas(self) -> Sequence[int]:
        """The area of the network that each switch is in; a route stays in the areas of its two
        ends. Empty where the network has no areas. The switches are the last nodes of their
        topology.
        """
