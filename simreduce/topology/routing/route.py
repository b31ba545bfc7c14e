"""Routes: one with its figures, and many as rows of links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, ranges, row_starts
from simreduce.topology.elements import Link
from simreduce.topology.routing.search import Path

Share: TypeAlias = "tuple[Link, float]"
"""A link, and the part of a transfer's bytes that takes it."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path: link ids in order, the sum of their latencies (s), the least of their bandwidths
    (bytes/s).

    `holds_lane` is true when all links hold their sender's lane; `path` names the nodes, both ends
    included. Among the links are the tolls that the copy pays. `shares` are the parts of the bytes
    that the links carry: 1 unless they are split over equal paths. Then `path` is the first of
    these, and `bandwidth` and `latency` are for all together.
    """

    links: tuple[int, ...]
    shares: tuple[float, ...]
    latency: float
    bandwidth: float
    holds_lane: bool
    path: Path


class Routes(NamedTuple):
    """Many routes; the links of route i are `links[start[i]:start[i + 1]]`.

    `shares` has one number for each link, None where all are 1; `holds_lane[i]` is as in `Route`.
    `bundled` says that a link may represent a bundle (`Bundled`): all bytes then cross one of it.
    """

    start: Ints
    links: AnyInts
    holds_lane: Bools
    shares: Floats | None = None
    bundled: bool = False

    @property
    def crossing(self) -> Floats | float:
        """The part of the bytes that pays the latency of each link."""
        return 1.0 if self.shares is None or self.bundled else self.shares


def whole_route(source: str, links: Sequence[Link]) -> Route:
    """The route of these links from a node on, of all bytes."""
    path = (source, *(link.target for link in links if not link.is_toll))
    return shared_route(path, [(link, 1.0) for link in links])


def shared_route(path: Path, shares: Sequence[Share]) -> Route:
    """The route of these links, each with the part of the bytes that takes it."""
    return Route(
        links=tuple(link.id for link, _ in shares),
        shares=tuple(share for _, share in shares),
        latency=math.fsum(link.latency * share for link, share in shares),
        bandwidth=min((link.bandwidth / share for link, share in shares), default=math.inf),
        holds_lane=all(link.holds_lane for link, _ in shares),
        path=path,
    )


class RouteRows(NamedTuple):
    """The links of many routes, and their shares, None where all are 1; as in `Routes`."""

    start: Ints
    links: AnyInts
    shares: Floats | None = None

    def pick(self, begin: Ints, size: Ints) -> RouteRows:
        """The rows of `size` links that begin at these entries."""
        places = ranges(begin, size)
        shares = None if self.shares is None else self.shares[places]
        return RouteRows(row_starts(size), self.links[places], shares)

    def take(self, which: Ints) -> RouteRows:
        """The rows of these numbers."""
        return self.pick(self.start[which], np.diff(self.start)[which])


def list_rows(found: Iterable[Iterable[tuple[int, float]]]) -> RouteRows:
    """Rows of links with their shares."""
    rows = [list(row) for row in found]
    links = np.array([link for row in rows for link, _ in row], dtype=np.int32)
    shares = np.array([share for row in rows for _, share in row], dtype=np.float64)
    start = row_starts(np.array([len(row) for row in rows], dtype=np.int64))
    return RouteRows(start, links, shares if (shares != 1.0).any() else None)


def join_rows(count: int, *parts: tuple[Bools, RouteRows]) -> RouteRows:
    """`count` rows, each of the next rows, end to end, of the parts that have it."""
    start = np.zeros(count + 1, dtype=np.int64)
    for at, rows in parts:
        start[1:][at] += np.diff(rows.start)
    np.cumsum(start, out=start)
    links, shares = np.empty(start[-1], dtype=np.int32), None
    if any(rows.shares is not None for _, rows in parts):
        shares = np.ones(start[-1])
    free = start[:-1].copy()
    for at, rows in parts:
        size = np.diff(rows.start)
        places = ranges(free[at], size)
        free[at] += size
        links[places] = rows.links
        if shares is not None and rows.shares is not None:
            shares[places] = rows.shares
    return RouteRows(start, links, shares)
