"""Seconds of single calls of NCCL by what it can be told: simulated where needed, else bounded.

NCCL's collectives of one communicator run one after another. So the calls of a packing take the sum
of what each takes alone, and no packing is faster than the sum of bounds. What is known of one
decision at some sizes bounds the others:

- a call takes no less than a smaller one by the same decision;
- it takes no less per byte than a larger one;
- its busiest resource carries bytes in proportion to those of the call, but for LL's first pass;
- it takes no less than among a part of many equal machines, which is quick to simulate.

Chunks are whole, and trees cut small tensors in other ways than large ones, so these can be off by
a little: such bounds are lower by the factors of `SLACK`. `tests/tune/search` tries that on random
machines and sizes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import NamedTuple

from simreduce import dtypes
from simreduce.engine import AtLeast
from simreduce.errors import InputError
from simreduce.layouts import OPEN, Decision
from simreduce.nccl import facts
from simreduce.nccl.choice import estimates, nvls_channels, plan
from simreduce.setup import Setup
from simreduce.strategy import parse_strategy
from simreduce.topology import Folded, fold
from simreduce.workload import Gradient, Workload

SLACK = {"ring": 0.97, "tree": 0.8, "nvls": 0.97, "nvlstree": 0.97}
"""The factor of bounds from other sizes, by algorithm."""

_NEAR = 4
"""Times `REFERENCE` that the first call may have."""

_WHOLE = 1 << 14
"""Bytes for each rank from which chunks are so many that resources carry bytes in proportion."""

REFERENCE = 1 << 18
"""Bytes of the first call that is simulated of every decision: most decisions are done with it."""

MANY = 16
"""Machines of which a part is simulated first."""

_FEWER = 8
"""How many times as few machines that part has."""

_CHANNELS = (1, 2, 4, 8, 12, 16, 24, 32)
"""Numbers of channels that are tried, with the most that the communicator has."""

_COLLECTIVE = "all_reduce"


class Size(NamedTuple):
    """A call: elements of a dtype."""

    elements: int
    dtype: int

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.elements * dtypes.SIZES[self.dtype]


class Known(NamedTuple):
    """A simulated call: its seconds, those of its busiest resource for its bytes, and the ops that
    were simulated, 0 if a bound was enough. Unless `exact`, it takes at least that.
    """

    seconds: float
    busy: float
    ops: int
    exact: bool = True


class Asked(NamedTuple):
    """A call to simulate: among a part of the machines only if `coarse`, until `limit` seconds."""

    how: Decision
    size: Size
    coarse: bool = False
    limit: float = inf


Do = Callable[[Sequence[Asked]], list[Known]]


def decisions(setup: Setup) -> list[Decision]:
    """What NCCL can be told on the setup's ranks: each algorithm and protocol that it allows there,
    with several numbers of channels. Before 2.5, it cannot be told.
    """
    if setup.nccl.version < (2, 5) or setup.layout.n < 2:
        return []
    at = plan(facts(setup.machine, setup.layout.ranks, setup.nccl), setup.nccl)
    step = setup.layout.decide(setup.layout.ranks, _COLLECTIVE, 1, OPEN).step  # type: ignore[misc]
    most = at.model.channels
    found = []
    for algorithm, protocol in estimates(at, _COLLECTIVE, 1 << 20):
        if algorithm not in ("ring", "tree", "nvls", "nvlstree"):
            continue
        counts = sorted({c for c in _CHANNELS if c < most} | {most})
        if algorithm.startswith("nvls"):
            counts = [nvls_channels(at)]
        found += [Decision(algorithm, protocol, channels, step) for channels in counts]
    return found


def text_of(how: Decision) -> str:
    """The strategy that states a decision."""
    return f"nccl:{how.algorithm}+{how.protocol}+channels={how.channels}"


def simulate_call(setup: Setup, asked: Asked) -> Known:
    """One call alone, on folded machines where its plan allows that."""
    size = asked.size
    gradients = (Gradient("call", size.elements, size.dtype),)
    workload, strategy = Workload("call", gradients), parse_strategy(text_of(asked.how))
    part = _part(setup) if asked.coarse else None
    for each in (part,) if part else (_folded(setup), setup):
        if each is None:
            continue
        try:
            made = each.compile(strategy, workload)
            found = each.simulate_within(made, asked.limit)
        except InputError:
            continue
        if isinstance(found, AtLeast):
            return Known(found.seconds, 0.0, 0, exact=False)
        return Known(found.seconds, found.floors.resource, len(made), exact=not asked.coarse)
    return Known(inf, 0.0, 0)


def machines(setup: Setup) -> int:
    """How many machines the setup's ranks are on."""
    return len(setup.layout.tasks)


@cache
def _part(setup: Setup) -> Setup | None:
    """The setup on a few of its machines, if it has many."""
    count, n = machines(setup), setup.layout.n
    if count < MANY or n % count:
        return None
    return setup.but(part=setup.layout.subset(n // count * (count // _FEWER)))


@cache
def _folded(setup: Setup) -> Setup | None:
    """The setup with its equal machines as one, if they are equal and nothing disturbs one."""
    whole = setup.machine
    if isinstance(whole, Folded) or setup.disturbance.text or setup.layout.n < len(whole.devices):
        return None
    if len(setup.layout.tasks) < 4:
        return None
    try:
        return setup.but(machine=fold(whole))
    except InputError:
        return None


@dataclass(slots=True)
class Calls:
    """What is known of calls on one setup. `counted` is how many have been simulated, `spent` with
    how many ops; from `effort` ops on, no more are.
    """

    setup: Setup
    choices: Sequence[Decision]
    effort: float = inf
    known: dict[tuple[Decision, Size], float] = field(default_factory=dict)
    counted: int = 0
    spent: int = 0
    _least: dict[tuple[Decision, Size], float] = field(default_factory=dict)
    _near: dict[Decision, list[tuple[int, float]]] = field(default_factory=dict)
    _busy: dict[Decision, float] = field(default_factory=dict)
    _coarse: set[tuple[Decision, Size]] = field(default_factory=set)

    def own(self, size: Size) -> Decision:
        """What NCCL chooses by itself."""
        layout = self.setup.layout
        assert layout.decide is not None  # noqa: S101 - a setup's layout has it
        return layout.decide(layout.ranks, _COLLECTIVE, size.nbytes, OPEN)

    def bound(self, how: Decision, size: Size) -> float:
        """Seconds that the call takes at least by this decision; exact if it was simulated."""
        if (exact := self.known.get((how, size))) is not None:
            return exact
        near, nbytes = self._near.get(how), size.nbytes
        found = [self._least.get((how, size), 0.0)]
        if near:
            at = bisect_left(near, (nbytes, 0.0))
            others = [self._busy.get(how, 0.0) * nbytes]
            if at:
                others.append(near[at - 1][1])
            if at < len(near):
                others.append(near[at][1] * nbytes / max(near[at][0], 1))
            found.append(SLACK[how.algorithm] * max(others))
        return max(found)

    def least(self, size: Size) -> float:
        """Seconds that the call takes at least, whatever NCCL is told."""
        return min((self.bound(how, size) for how in self.choices), default=0.0)

    def near_own(self, size: Size) -> Decision:
        """The choice nearest to NCCL's own."""
        own = self.own(size)
        alike = [how for how in self.choices if how[:2] == own[:2]]
        return min(alike or self.choices, key=lambda how: abs(how.channels - own.channels))

    def best(self, size: Size) -> tuple[float, Decision]:
        """The fastest decision for a size among those that were simulated, or else the one nearest
        to NCCL's own; and its seconds, or bound.
        """
        known = [(self.known[how, size], how) for how in self.choices if (how, size) in self.known]
        if not known:
            how = self.near_own(size)
            return self.bound(how, size), how
        return min(known, key=lambda each: each[0])

    def first(self, sizes: Iterable[Size], do: Do) -> None:
        """Simulate every decision once, at a small size: one of these, if one is small."""
        some = min(sizes, key=lambda size: abs(size.nbytes - REFERENCE))
        if some.nbytes > _NEAR * REFERENCE:
            some = Size(REFERENCE // dtypes.SIZES[some.dtype], some.dtype)
        self.ask([Asked(how, some) for how in self.choices], do)

    def settle(self, sizes: Iterable[Size], do: Do) -> None:
        """Simulate until the fastest decision of every one of these sizes is known, or the effort
        is spent.
        """
        pending = list(dict.fromkeys(sizes))
        if self.spent < self.effort:
            self.ask([Asked(self.near_own(size), size) for size in pending], do)
        while pending and self.spent < self.effort:
            asked = {size: each for size in pending if (each := self._next(size))}
            self.ask(list(asked.values()), do)
            pending = list(asked)

    def _next(self, size: Size) -> Asked | None:
        """The most promising decision that may still be the fastest."""
        bounds = [(self.bound(how, size), (how, size) not in self.known) for how in self.choices]
        at = min(range(len(bounds)), key=bounds.__getitem__)
        if not bounds[at][1]:
            return None
        how = self.choices[at]
        best = min((self.known.get((each, size), inf) for each in self.choices), default=inf)
        coarse = machines(self.setup) >= MANY and (how, size) not in self._coarse
        return Asked(how, size, coarse, best / SLACK[how.algorithm] if coarse else best)

    def ask(self, asked: Sequence[Asked], do: Do) -> None:
        """Simulate those that are not known."""
        new = [each for each in asked if (each.how, each.size) not in self.known]
        for each, found in zip(new, do(new) if new else [], strict=True):
            key = each.how, each.size
            self.counted += found.ops > 0
            self.spent += found.ops
            if not found.exact:
                least = found.seconds * (SLACK[each.how.algorithm] if each.coarse else 1.0)
                insort(self._near.setdefault(each.how, []), (each.size.nbytes, least))
                self._least[key] = max(self._least.get(key, 0.0), least)
                self._coarse.add(key)
                continue
            self.known[key] = found.seconds
            insort(self._near.setdefault(each.how, []), (each.size.nbytes, found.seconds))
            if each.size.nbytes >= _WHOLE * self.setup.layout.n:
                slope = self._slope(each, found)
                self._busy[each.how] = min(self._busy.get(each.how, inf), slope)

    def _slope(self, asked: Asked, found: Known) -> float:
        """Seconds for each byte that the busiest resource takes at least, also of larger calls."""
        first = self.setup.constants.nccl.first_pass if asked.how.protocol == "ll" else 0.0
        return found.busy / asked.size.nbytes / (1.0 + first)
