"""Routing rules: networks whose structure gives routes by arithmetic, many at a time.

A rule goes with the cables of a network. It numbers the network's *ports*: port p belongs to node
`hosts[p]`, and cable `first + p` joins that node to its switch. Cable c is two links: 2c from its
first end, and 2c + 1 back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from simreduce.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simreduce.computing.arrays import AnyInts, Floats, Ints


class Bundled(NamedTuple):
    """Links in bundles, each used evenly by all transfers that use one of its links.

    One link represents each bundle: `rule` gives routes over these alone, `home` is the one that
    represents each link of the topology, and `share` the part of a transfer's bytes that it
    carries. Sharing out one link is then sharing out all of the bundle, if they carry the same.
    """

    rule: RoutingRule
    home: Ints
    share: Floats


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

    @property
    def several(self) -> bool:
        """Whether the network has equal paths, of which the rule takes one."""

    def bundled(self, links: int) -> Bundled | None:
        """Its links in bundles, over which transfers are split; None if equal paths are no bundles.

        `links` is how many the topology has.
        """

    def areas(self) -> Sequence[int]:
        """The area of the network that each switch is in; a route stays in the areas of its two
        ends. Empty where the network has no areas. The switches are the last nodes of their
        topology.
        """


@dataclass(frozen=True, slots=True)
class CutNetwork:
    """A network that has lost links between its switches, as a rule: the ports and areas are those
    of `whole`, and routes are searched.
    """

    whole: RoutingRule

    @property
    def hosts(self) -> tuple[int, ...]:
        """See `RoutingRule`."""
        return self.whole.hosts

    @property
    def first(self) -> int:
        """See `RoutingRule`."""
        return self.whole.first

    def between(self, source: Ints, target: Ints) -> tuple[Ints, AnyInts]:
        """None: what the rule gives may be cut."""
        raise InternalError(f"no rule has the routes of a network with cuts: {source}, {target}")

    @property
    def several(self) -> bool:
        """True: where the whole network has one path, detours around a cut may be as long."""
        return True

    def bundled(self, links: int) -> None:
        """None: a bundle may have lost some of its `links`."""

    def areas(self) -> Sequence[int]:
        """See `RoutingRule`."""
        return self.whole.areas()
