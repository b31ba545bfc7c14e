"""Fractional packings by column generation: the best shares of patterns (trees, rings) under the
capacities of arcs.

max t with t <= the shares of the patterns of every group, and no arc carrying more than its
capacity. There are too many patterns to list, so the programme starts with a few and `price` adds
the cheapest of every group at the current prices of the arcs (Dantzig and Wolfe 1960). Prices at
which no new pattern pays off prove that the shares are best. Prices are smoothed towards the best
proof so far (Wentges 1997), which saves most of the rounds.

Canonical order of a network's ranks: the same for networks that differ in names and order only.

Colour refinement (Weisfeiler and Leman 1968) tells ranks apart by their paths and the rates of the
arcs on them. Ranks that are still alike are then set apart one after another, in every way; the
way with the least colours counts. Ways that an automorphism turns into each other are tried
once (McKay 1981). Colours are hashes of 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from simreduce.computing import breadth_first, grouped
from simreduce.computing.arrays import Floats, Ints, splitmix
from simreduce.planners.synthesis import Edge, Network
from simreduce.planners.synthesis.optimum import maximise, maximise_first

P = TypeVar("P", bound=Hashable)
GAP = 2e-4
"""Relative gap to the bound at which the search stops."""
LOST = 7e-4
"""Fraction of the rate that may be given up for fewer patterns."""
_LIGHT_ROUNDS = 12
_SMOOTH = 0.6


@dataclass(frozen=True, slots=True)
class Packing(Generic[P]):
    """Patterns with their shares, the rate of every group, and a proved upper bound of it."""

    patterns: tuple[tuple[P, float], ...]
    rate: float
    bound: float

    def turned(self, turn: Callable[[P], P]) -> Packing[P]:
        """Each pattern as `turn` makes it, with its share."""
        patterns = tuple((turn(pattern), share) for pattern, share in self.patterns)
        return Packing(patterns, self.rate, self.bound)


@dataclass(frozen=True, slots=True)
class PackingProblem(Generic[P]):
    """A packing problem. `load` counts how often a pattern crosses each arc, `group` numbers its
    group, and at the same rate patterns of less `weight` are better. `price` returns patterns that
    are cheap at prices of the arcs, the cheapest of every group among them if `exact`; `light`
    returns some that are both cheap and light. `bound` is an upper bound of the rate known before;
    `price` is called at most `rounds` times.
    """

    capacity: tuple[float, ...]
    groups: int
    load: Callable[[P], Mapping[int, int]]
    group: Callable[[P], int]
    weight: Callable[[P], float]
    price: Callable[[Sequence[float]], Iterable[P]]
    exact: bool = True
    bound: float = math.inf
    rounds: int = 3000
    light: Callable[[Sequence[float]], Iterable[P]] = lambda _: ()


def pack(problem: PackingProblem[P], seeds: Iterable[P]) -> Packing[P]:
    """The best shares found. Their bound is what prices prove, infinite if `price` is not exact."""
    pool = _Pool(problem)
    pool.extend(seeds)
    bound, anchor = problem.bound, None
    if problem.exact:
        # Where all arcs are alike, these prices are best, and the seeds may be.
        even = 1.0 / np.array(problem.capacity)
        proved = pool.prove(problem.price([float(p) for p in even]), even)
        if proved <= pool.solve()[0] * (1 + GAP):
            return pool.prune(min(bound, proved))
    for _ in range(problem.rounds):
        rate, _, prices = pool.solve()
        if bound <= rate * (1 + GAP):
            break
        tries = [prices] if anchor is None else [_SMOOTH * anchor + (1 - _SMOOTH) * prices, prices]
        for y in tries:
            found = list(problem.price([float(p) for p in y]))
            proved = pool.prove(found, y)
            if problem.exact and proved < bound:
                bound, anchor = proved, y
            if pool.extend(found):
                break
        else:
            break
    return pool.prune(bound)


class _Pool(Generic[P]):
    """The patterns found so far, as columns of a linear programme. Capacities are relative to the
    greatest.
    """

    def __init__(self, problem: PackingProblem[P]) -> None:
        self.problem = problem
        self.unit = max(problem.capacity)
        self.patterns: dict[P, int] = {}
        self.columns: list[Floats] = []

    def extend(self, patterns: Iterable[P]) -> bool:
        """Add patterns; return whether any of them is new."""
        before = len(self.patterns)
        for pattern in patterns:
            if pattern not in self.patterns:
                column = np.zeros(len(self.problem.capacity) + self.problem.groups)
                for arc, times in self.problem.load(pattern).items():
                    column[arc] = times
                column[len(self.problem.capacity) + self.problem.group(pattern)] = -1.0
                self.columns.append(column)
                self.patterns[pattern] = len(self.patterns)
        return len(self.patterns) > before

    def solve(self, chosen: Sequence[int] | None = None) -> tuple[float, Floats, Floats]:
        """The best rate with the patterns `chosen`, their shares, and the price of every arc."""
        m, groups = len(self.problem.capacity), self.problem.groups
        columns = self.columns if chosen is None else [self.columns[i] for i in chosen]
        rate = np.concatenate([np.zeros(m), np.ones(groups)])
        table = np.stack([rate, *columns], axis=1)
        limit = np.concatenate([np.array(self.problem.capacity) / self.unit, np.zeros(groups)])
        value, point, prices = maximise_first(table, limit)
        return value * self.unit, point[1:] * self.unit, prices[:m]

    def prove(self, cheapest: Iterable[P], y: Floats) -> float:
        """The bound that prices `y` prove, at which a cheapest pattern of every group is there."""
        least = np.full(self.problem.groups, np.inf)
        for pattern in cheapest:
            group, load = self.problem.group(pattern), self.problem.load(pattern)
            least[group] = min(least[group], sum(y[arc] * times for arc, times in load.items()))
        # Prices that make every pattern dear enough, times this, are dual to the programme: its
        # value is a bound.
        worth, cost = float(np.dot(y, self.problem.capacity)), float(least.sum())
        return worth / cost if cost > 1e-12 * worth else math.inf

    def prune(self, bound: float) -> Packing[P]:
        """Few and light patterns at nearly the best rate: the lightest shares, less one by one the
        smallest that the others make up for.
        """
        solve = cache(self.solve)  # what the others make up for is asked for again
        rate, _, _ = solve()
        target = rate * (1 - LOST)
        chosen = self._lightest(rate * (1 - LOST / 3))
        group = [self.problem.group(pattern) for pattern in self.patterns]
        settled: set[int] = set()
        while True:
            value, shares, _ = solve(chosen)
            kept = [(i, x) for i, x in zip(chosen, shares, strict=True) if x > 1e-9 * value]
            chosen = tuple(i for i, _ in kept)
            open_ = [(x, i) for i, x in kept if i not in settled]
            if not open_:
                break
            least = min(open_)[1]
            fewer = tuple(i for i in chosen if i != least)
            covers = len({group[i] for i in fewer}) == self.problem.groups
            if covers and solve(fewer)[0] >= target:
                chosen = fewer
            else:
                settled.add(least)
        order = sorted(kept, key=lambda each: (group[each[0]], -each[1], each[0]))
        names = list(self.patterns)
        return Packing(tuple((names[i], float(x)) for i, x in order), value, max(bound, value))

    def _lightest(self, rate: float) -> tuple[int, ...]:
        """The patterns of the least weight, by their shares, that make `rate`."""
        m = len(self.problem.capacity)
        limit = (
            np.concatenate([np.array(self.problem.capacity), np.full(self.problem.groups, -rate)])
            / self.unit
        )
        for _ in range(_LIGHT_ROUNDS):
            weight = np.array([self.problem.weight(pattern) for pattern in self.patterns])
            _, shares, prices = maximise(-weight, np.stack(self.columns, axis=1), limit)
            if not self.extend(self.problem.light([float(p) for p in prices[:m]])):
                break
        return tuple(np.flatnonzero(shares > 1e-9).tolist())


Costs = Sequence[Sequence[float]]
"""`costs[u][v]` of the edge from u to v; infinite where there is none."""


def spanning_tree(
    costs: Costs, root: int, close: float, deepest: float = math.inf
) -> list[Edge] | None:
    """Edges (parent, child) of a cheapest tree, parents first; `costs` are symmetric. None if it
    does not span.

    Of edges whose costs differ by less than `close`, the one nearest to the root is taken: the tree
    is shallow. No rank is deeper than `deepest`; with that, the tree is cheap but need not be the
    cheapest.

    Prim 1957. Those of networkx cannot prefer shallow ones.
    """
    n = len(costs)
    depth = {root: 0}
    offer = [(costs[root][v], 0, root) for v in range(n)]
    edges: list[Edge] = []
    while len(depth) < n:
        outside = [v for v in range(n) if v not in depth]
        least = min(offer[v][0] for v in outside)
        if math.isinf(least):
            return None
        child = min(
            (v for v in outside if offer[v][0] <= least + close), key=lambda v: (offer[v][1], v)
        )
        parent = offer[child][2]
        edges.append((parent, child))
        depth[child] = depth[parent] + 1
        if depth[child] >= deepest:
            continue
        row = costs[child]
        for v in outside:
            cost, height, _ = offer[v]
            if row[v] < cost - close or (row[v] <= cost + close and depth[child] < height):
                offer[v] = (row[v], depth[child], child)
    return edges


def arborescence(costs: Costs, root: int) -> list[Edge] | None:
    """Edges (parent, child) of a cheapest tree that leads away from `root`, parents first. None if
    it does not span.

    Chu and Liu 1965, Edmonds 1967. networkx takes 16 times (32 ranks) to 43 times (8 ranks) as
    long.
    """
    n = len(costs)
    weights = {
        (u, v): cost
        for u, row in enumerate(costs)
        for v, cost in enumerate(row)
        if v not in (u, root) and cost < math.inf
    }
    before = _cheapest(set(range(n)), weights, root, n)
    return None if before is None else in_order(before, root)


def in_order(before: Mapping[int, int], root: int) -> list[Edge]:
    """(parent, child) by child -> parent, breadth first."""
    children = grouped((parent, child) for child, parent in sorted(before.items()))
    reached = breadth_first(root, lambda vertex: children.get(vertex, ()))
    return [(parent, child) for child, parent in reached.items() if child != root]


def _cheapest(
    vertices: set[int], weights: Mapping[Edge, float], root: int, fresh: int
) -> dict[int, int] | None:
    """The parent of every child in a cheapest arborescence; `fresh` is a number for the first
    vertex made by contraction.
    """
    best: dict[int, tuple[float, int]] = {}
    for (u, v), weight in weights.items():
        if v not in best or (weight, u) < best[v]:
            best[v] = (weight, u)
    if len(best) < len(vertices) - 1:
        return None
    parents = {v: u for v, (_, u) in best.items()}
    cycle = _cycle(parents, root)
    if not cycle:
        return parents
    contracted: dict[Edge, tuple[float, Edge]] = {}
    for (u, v), weight in weights.items():
        if u in cycle and v in cycle:
            continue
        reduced = weight - best[v][0] if v in cycle else weight
        edge = (fresh if u in cycle else u, fresh if v in cycle else v)
        offer = (reduced, (u, v))
        if edge not in contracted or offer < contracted[edge]:
            contracted[edge] = offer
    inner = _cheapest(
        (vertices - cycle) | {fresh},
        {edge: cost for edge, (cost, _) in contracted.items()},
        root,
        fresh + 1,
    )
    if inner is None:
        return None
    before = {v: best[v][1] for v in cycle}
    for v, u in inner.items():
        tail, head = contracted[u, v][1]
        before[head] = tail
    return before


def _cycle(before: Mapping[int, int], root: int) -> set[int]:
    """The vertices of one cycle of child -> parent, empty if there is none."""
    clear = {root}
    for start in sorted(before):
        path: list[int] = []
        v = start
        while v not in clear and v not in path:
            path.append(v)
            v = before[v]
        if v not in clear:
            return set(path[path.index(v) :])
        clear.update(path)
    return set()


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
        child = next((child for child in children if _key(child) == self.trail.get(depth)), None)
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
