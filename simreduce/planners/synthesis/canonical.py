"""Canonical order of a network's ranks: the same for networks that differ in names and order only.

Colour refinement (Weisfeiler and Leman 1968) tells ranks apart by their paths and the rates of the
arcs on them. Ranks that are still alike are then set apart one after another, in every way; the
way with the least colours counts. Ways that an automorphism turns into each other are tried
once (McKay 1981). Colours are hashes of 64 bits.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from simreduce.computing.arrays import Ints, splitmix
from simreduce.computing.lists import breadth_first, grouped
from simreduce.planners.synthesis.network import Network

Colours: TypeAlias = NDArray[np.uint64]

_MOST_LEAVES = 64
"""Upper limit of orders that are compared.

The networks of all shipped machines need one. Beyond the limit the result depends on the order of
the ranks.
"""


def canonical(network: Network, root: int = -1) -> tuple[Network, tuple[int, ...]]:
    """The network with its ranks in canonical order, and the ranks by their places in it.

    `root`, if given, comes first. The names are numbers, and all ranks are one task.
    """
    order = tuple(sorted(_Search(network, root).order(), key=lambda rank: rank != root))
    n = range(network.ranks)
    users = grouped(
        (arc, (i, j))
        for i, u in enumerate(order)
        for j, v in enumerate(order)
        for arc in network.paths[u][v]
    )
    by_use = sorted(
        range(len(network.arcs)), key=lambda arc: (users.get(arc, []), network.arcs[arc][2])
    )
    arcs = {arc: i for i, arc in enumerate(by_use)}
    ends = [end for arc in by_use for end in network.arcs[arc][:2]]
    vertices = dict.fromkeys((*order, *ends, *range(len(network.names))))
    place = {vertex: i for i, vertex in enumerate(vertices)}
    made = Network(
        names=tuple(map(str, range(len(network.names)))),
        ranks=network.ranks,
        arcs=tuple(
            (place[a], place[b], rate) for a, b, rate in (network.arcs[arc] for arc in by_use)
        ),
        paths=tuple(
            tuple(tuple(sorted(arcs[arc] for arc in network.paths[u][v])) for v in order)
            for u in order
        ),
        tasks=(tuple(n),),
    )
    return made, order


class _Search:
    """A network as arrays: a row for every arc of every path, with the pair of ranks."""

    def __init__(self, network: Network, root: int) -> None:
        n = network.ranks
        rows = [(u * n + v, arc) for u, v in network.edges for arc in network.paths[u][v]]
        self.ranks = n
        self.pair, self.arc = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        self.capacity = _mix(np.array(network.capacity).view(np.uint64))
        self.users = self._sharers(np.arange(n * n, dtype=np.uint64))
        self.start = _mix((np.arange(n) == root).astype(np.uint64))
        self.leaves = 0
        self.automorphisms: list[Ints] = []
        self.trail: dict[int, bytes] = {}

    def order(self) -> tuple[int, ...]:
        """The ranks in canonical order."""
        return tuple(self._least(self._refine(self.start), 0)[1].tolist())

    def _least(self, colours: Colours, depth: int) -> tuple[bytes, Ints]:
        """The least colours of all ways to tell the ranks apart, and the order that they give."""
        cell = _first_cell(colours)
        if not len(cell):
            self.leaves += 1
            return _key(colours), np.argsort(colours)
        if self._are_twins(cell):
            return self._least(self._tell_apart(colours, *cell), depth)
        children = [(int(rank), self._tell_apart(colours, rank)) for rank in cell]
        self.trail[depth] = least = min(_key(child) for _, child in children)
        (first, child), *others = [each for each in children if _key(each[1]) == least]
        best, tried = self._least(child, depth + 1), [first]
        for rank, child in others:
            if self.leaves > _MOST_LEAVES or self._is_known(rank, tried, colours):
                continue
            tried.append(rank)
            order = self._any_order(child, depth + 1)
            if order is None or not self._is_automorphism(turn := _onto(best[1], order)):
                best = min(best, self._least(child, depth + 1), key=lambda found: found[0])
            else:
                self.automorphisms.append(turn)
        return best

    def _any_order(self, colours: Colours, depth: int) -> Ints | None:
        """An order that tells the ranks apart with the colours of the first that was found."""
        cell = _first_cell(colours)
        if not len(cell):
            return np.argsort(colours)
        if self._are_twins(cell):
            return self._any_order(self._tell_apart(colours, *cell), depth)
        children = (self._tell_apart(colours, rank) for rank in cell)
        alike = (child for child in children if _key(child) == self.trail.get(depth))
        child = next(alike, None)
        return None if child is None else self._any_order(child, depth + 1)

    def _is_known(self, rank: int, tried: list[int], colours: Colours) -> bool:
        """Whether an automorphism that keeps the colours turns `rank` into one of `tried`."""
        kept = [turn for turn in self.automorphisms if (colours[turn] == colours).all()]
        orbit = breadth_first(rank, lambda each: [int(turn[each]) for turn in kept])
        return not orbit.keys().isdisjoint(tried)

    def _are_twins(self, cell: Ints) -> bool:
        """Whether any two of these ranks may change places."""
        for other in cell[1:]:
            turn = np.arange(self.ranks)
            turn[[cell[0], other]] = other, cell[0]
            if not self._is_automorphism(turn):
                return False
        return True

    def _is_automorphism(self, turn: Ints) -> bool:
        """Whether rank r may be called turn[r], for all r at once."""
        source, target = np.divmod(np.arange(self.ranks**2), self.ranks)
        pairs = (turn[source] * self.ranks + turn[target]).astype(np.uint64)
        return bool((np.sort(self._sharers(pairs)) == np.sort(self.users)).all())

    def _sharers(self, pairs: Colours) -> Colours:
        """A colour of every arc, by its rate and the colours of the pairs that cross it."""
        colours: Colours = self.capacity.copy()
        np.add.at(colours, self.arc, _mix(pairs[self.pair]))
        return _mix(colours)

    def _tell_apart(self, colours: Colours, *ranks: np.int64) -> Colours:
        """The colours once each of `ranks` has one of its own."""
        made, several = colours.copy(), list(ranks)
        turns: Colours = np.arange(1, len(several) + 1, dtype=np.uint64)
        made[several] = _mix(made[several] + turns)
        return self._refine(made)

    def _refine(self, colours: Colours) -> Colours:
        """Colours by the paths from and to every rank, until they tell no more ranks apart."""
        arcs, told = self.capacity, 0
        while True:
            crossed = np.zeros(self.ranks**2, dtype=np.uint64)
            np.add.at(crossed, self.pair, _mix(arcs[self.arc]))
            pairs = _mix(crossed.reshape(self.ranks, -1) + _mix(colours)[:, None])
            pairs = _mix(pairs + colours)
            arcs = _mix(arcs + self._sharers(pairs.reshape(-1)))
            away, home = pairs.sum(axis=1), _mix(pairs).sum(axis=0)
            colours = _mix(_mix(colours) + away + _mix(home))
            now = len(np.unique(colours)) + len(np.unique(arcs))
            if now <= told:
                return colours
            told = now


def _first_cell(colours: Colours) -> Ints:
    """The ranks of the least colour that several have, of those that the fewest have."""
    kinds, counts = np.unique(colours, return_counts=True)
    if (counts == 1).all():
        return np.array([], dtype=np.int64)
    several = counts > 1
    colour = kinds[several][np.argmin(counts[several])]
    return np.flatnonzero(colours == colour)


def _key(colours: Colours) -> bytes:
    return np.sort(colours).astype(">u8").tobytes()


def _onto(order: Ints, other: Ints) -> Ints:
    """The permutation that turns every rank of `order` into the one at its place in `other`."""
    turn = np.empty_like(order)
    turn[order] = other
    return turn


def _mix(numbers: Colours) -> Colours:
    """A hash of every number: the first that SplitMix64 makes from it."""
    return splitmix(numbers, np.uint64(1))
