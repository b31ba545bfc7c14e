"""Lower bounds of strategies, and simulations that end once a strategy cannot win.

Equal machines are folded into one where GPUs are many, or plans too large to hold.

A pipelined strategy without a chunk size gets the fastest: theory first, then simulation near it. A
pipeline of depth d whose busiest port needs F seconds for all bytes takes (d-1+k)(a + F/k) for k
chunks, least for k = sqrt((d-1) F/a). The plan without chunks gives a and d by three figures: its
time d(a + F), F, and its time d a with infinitely fast links. Where trees share a tensor, F/k is
that of a tree's chunk. The sizes tried are 2^i and 3 * 2^i bytes, never so small that the plan
would be huge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simreduce import units
from simreduce.computing import once
from simreduce.engine import CALM, AtLeast, Summary
from simreduce.engine.setup import Setup
from simreduce.errors import NotFoldable, PlanTooLarge, TopologyError
from simreduce.plan import Kind, Plan, repeat
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.study.ranking import Limit, Postponed, Question
from simreduce.study.tune.plan_cache import PlanCache
from simreduce.topology import Folded, Topology, fold
from simreduce.workload import Workload

MOST_UNFOLDED = 1 << 15
"""The most GPUs in machines of several: each takes 60 kB and 2 ms of a core."""

FOLDED_FROM = 64
"""From this many equal GPUs on one switch on, one is simulated for all."""


def try_folded(setup: Setup) -> Setup | None:
    """The setup with its equal machines as one; None if they cannot be folded."""
    with suppress(PlanTooLarge):
        return folded(setup, PlanTooLarge([]))
    return None


def folded_alike(setup: Setup) -> Setup | None:
    """Return the setup with its equal GPUs folded into one; None if they cannot be.

    They must be many, each a machine by itself, and undisturbed. Times are the same to the bit;
    times of machines with several GPUs may differ in the last bits.
    """
    if setup.layout.n < FOLDED_FROM or not setup.disturbance.calm:
        return None
    one = try_folded(setup)
    return one if one and len(one.machine.devices) == 1 else None


def folded(setup: Setup, why: PlanTooLarge) -> Setup:
    """The setup with its equal machines as one, for a plan that is too large to hold.

    Raises `why`, with what keeps the machines from being folded.
    """
    if isinstance(setup.machine, Folded):
        raise why
    try:
        one = fold(setup.machine)
    except TopologyError as error:
        raise PlanTooLarge([*why.problems, *error.problems]) from None
    if setup.layout.n < len(setup.machine.devices):
        raise PlanTooLarge(
            [*why.problems, "and with some of the GPUs only, the machines cannot be folded"]
        )
    return _on(setup, one)


def unfolded(setup: Setup, why: NotFoldable) -> Setup:
    """Return the setup with all the equal machines that one represents.

    Raises `why` if they cannot be held.
    """
    if not isinstance(setup.machine, Folded) or setup.machine.whole is None:
        raise why
    if len(setup.machine.devices) > 1 and setup.layout.n > MOST_UNFOLDED:
        many = f"and {setup.layout.n} GPUs are too many to simulate one by one"
        raise NotFoldable([*why.problems, f"{many}; try {MOST_UNFOLDED} or fewer"])
    return _on(setup, setup.machine.whole())


def _on(setup: Setup, machine: Topology | Folded) -> Setup:
    """The setup on the same machine, folded or whole, with rings in the same order."""
    return setup.but(machine=machine, part=replace(layout(machine), order=setup.layout.order))


LARGEST = 200_000
"""Upper limit of ops in a plan that is searched for."""

MOST_SIMULATED = 30_000
"""The same for plans that are simulated as a whole, again and again."""

_STEPS = (8, 4, 2, 1)
"""Rungs to the neighbours that are tried, first far ones: where trees share links there are
plateaus and dips. The last is for one tensor only.
"""

_PROBED = 64
"""Upper limit of chunks in the plan that shows how many pieces share a tensor."""

_MEASURED = 4
"""Number of the best sizes that are then simulated as a whole."""

_REFINED = 2
"""Number of the best of these around which sizes between the rungs are simulated too."""

WORTH = 1.002
"""Among chunk sizes within this factor of the fastest, the largest wins (or no chunks at all): it
has the fewest ops.
"""


def with_best_chunk(
    strategy: Strategy,
    workload: Workload,
    setup: Setup,
    *,
    root: int = 0,
    cache: PlanCache | None = None,
) -> Strategy:
    """`strategy` with the `+chunk=` it is fastest with if nothing disturbs.

    It is unchanged if it sends no chunks, has a size for them or is no faster with any.
    """
    if strategy.chunk or not strategy.pipelined:
        return strategy
    cache = cache or PlanCache()
    calm = setup.but(disturbance=CALM)
    best = cache.once(
        ("chunk", strategy, workload, calm, root),
        _Trials(strategy, workload, calm, root, cache).best,
    )
    return _set_chunks(strategy, best) if best else strategy


def rung(i: int) -> int:
    """Bytes of the i-th size worth trying: 2, 3, 4, 6, 8, 12, 16, ..."""
    return (2 + i % 2) << (i // 2)


def _set_chunks(strategy: Strategy, nbytes: int) -> Strategy:
    return parse_strategy(f"{strategy.text}+chunk={units.short_size(nbytes)}", strategy.collective)


@dataclass(frozen=True, slots=True)
class _Trials:
    """Simulations of one strategy by chunk size in bytes; 0 is without chunks."""

    strategy: Strategy
    workload: Workload
    setup: Setup
    root: int
    cache: PlanCache
    seconds: dict[int, float] = field(default_factory=dict)

    def best(self) -> int:
        """The best chunk size, 0 if none is worth it."""
        whole = self._plan(self.strategy, self.workload)
        largest = max(g.nbytes for g in self.workload.gradients)
        rungs = [i for i in range(2 * largest.bit_length()) if rung(i) < largest]
        tensor = self.workload.nbytes / len(self.workload.gradients)
        limit = LARGEST if self._one_tensor else MOST_SIMULATED
        share = self._share(
            whole, [i for i in rungs if len(whole) * (1 + tensor / rung(i)) <= limit]
        )
        rungs = [i for i in rungs if len(whole) * (1 + share * tensor / rung(i)) <= limit]
        if not rungs:
            return 0
        result = self.setup.summarise(whole)
        self.seconds[0] = result.seconds
        if not result.floors.resource:
            return 0
        depth, chunks = self._rule(whole, result)
        at = min(
            rungs, key=lambda i: abs(math.log(rung(i) * chunks / (share * self.workload.nbytes)))
        )
        for step in _STEPS if self._one_tensor else _STEPS[:-1]:
            at = self._climb(at, step, rungs, depth / share)
        if share < 1.0:
            self._measure([rung(i) for i in rungs])
        fastest = min(self.seconds.values())
        near = [chunk for chunk, seconds in self.seconds.items() if seconds <= fastest * WORTH]
        return 0 if 0 in near else max(near)

    @property
    def _one_tensor(self) -> bool:
        """Whether all that is reduced is one tensor.

        A smaller one would then be reduced in the same way.
        """
        return (
            len(self.workload.gradients) == len(self.strategy.ranges) == 1
            and self.strategy.packing == "none"
        )

    def _share(self, whole: Plan, rungs: Sequence[int]) -> float:
        """The part of a tensor that is cut into chunks as a whole.

        Trees that work side by side have a share each. The number of copies in a chunked plan shows
        it; 1 if it is not known.
        """
        size = self.workload.nbytes
        some = [i for i in rungs if size / rung(i) <= _PROBED]
        if not some or not self._one_tensor:
            return 1.0
        plan = self._plan(_set_chunks(self.strategy, rung(some[0])), self.workload)
        copies, once = (int(np.count_nonzero(p.kind == Kind.COPY)) for p in (plan, whole))
        return min(copies / max(once, 1) * rung(some[0]) / size, 1.0)

    def _climb(self, at: int, step: int, rungs: Iterable[int], depth: float) -> int:
        """The first rung from `at` on whose neighbours `step` below and above are no faster."""
        while True:
            fastest = min(
                [i for i in (at, at - step, at + step) if i in rungs],
                key=lambda i: self._time(rung(i), depth),
            )
            if fastest == at:
                return at
            at = fastest

    def _measure(self, sizes: Sequence[int]) -> None:
        """Simulate the most promising sizes as a whole, then neighbours of the best.

        It goes on while a neighbour is better.

        Trees that share links do not grow as evenly as one pipeline: a part of the tensor can
        misjudge a size by some percent, and there are peaks between the rungs.
        """
        best = sorted(self.seconds, key=self.seconds.__getitem__)[:_MEASURED]
        measured = {chunk: self._whole(chunk) for chunk in best if chunk}
        while measured:
            at = sizes.index(min(measured, key=measured.__getitem__))
            near = [chunk for chunk in sizes[max(at - 1, 0) : at + 2] if chunk not in measured]
            if not near:
                break
            measured |= {chunk: self._whole(chunk) for chunk in near}
        for chunk in sorted(measured, key=measured.__getitem__)[:_REFINED]:
            at = sizes.index(chunk)
            between = [(a + b) // 2 for a, b in pairwise(sizes[max(at - 1, 0) : at + 2])]
            measured |= {each: self._whole(each) for each in between if each not in measured}
        whole = self.seconds[0]
        self.seconds.clear()
        self.seconds.update({0: whole, **measured})

    def _whole(self, chunk: int) -> float:
        return self.setup.find_seconds(self._plan(_set_chunks(self.strategy, chunk), self.workload))

    def _rule(self, whole: Plan, result: Summary) -> tuple[float, float]:
        """The depth of the pipeline, and how many chunks the theory wants."""
        count = len(self.workload.gradients)
        busy = result.floors.resource
        idle = self.setup.find_seconds(replace(whole, lo=whole.hi))  # with infinitely fast links
        depth = max((result.seconds - idle) / busy, 1.0)
        per_chunk = idle / (depth + count - 1)
        chunks = math.sqrt((depth - 1) * busy / per_chunk) if per_chunk else math.inf
        return depth, min(max(chunks, 1.0), float(self.workload.nbytes))

    def _time(self, chunk: int, depth: float) -> float:
        """Seconds with chunks of `chunk` bytes.

        A long pipeline of one tensor is measured at two lengths that fill it, from which time grows
        evenly.
        """
        return once(
            self.seconds, chunk, lambda: self._long(_set_chunks(self.strategy, chunk), depth)
        )

    def _long(self, strategy: Strategy, depth: float) -> float:
        one = self.workload.gradients[0]
        fill = 2 * math.ceil(2 * depth + 4) * max(strategy.chunk * one.elements // one.nbytes, 1)
        if not self._one_tensor or one.elements <= 3 * fill:
            return self.setup.find_seconds(self._plan(strategy, self.workload))
        parts = [Workload("part", (replace(one, elements=n),)) for n in (fill, 2 * fill)]
        short, long = (self.setup.find_seconds(self._plan(strategy, part)) for part in parts)
        return short + (long - short) * (one.elements / fill - 1)

    def _plan(self, strategy: Strategy, workload: Workload) -> Plan:
        return self.cache.compile(Question(strategy, workload, self.setup, root=self.root))


LONG = 1 << 17
"""A plan of more transfers takes long: it is simulated only as far as it may win."""

_SEARCHES = 128
"""Plans of one tensor that a search for a chunk size is worth."""

_QUICK = 1 << 16
"""Plans with fewer transfers between all pairs of ranks, for each tensor, never take long."""

_HUGE = 1 << 22
"""Plans with more of them may take long to make."""


def interval_of(
    setup: Setup, strategy: Strategy, nbytes: int, seconds: float
) -> tuple[float, float] | None:
    """Seconds that a call of NCCL by a strategy takes with 80 %, where it is predicted to take
    these; None where nothing is known of errors.
    """
    if strategy.is_nominal:
        return None
    return setup.interval(
        nbytes, seconds, strategy.collective, algorithm=strategy.algorithm,
        protocol=strategy.nccl.protocol,
    )  # fmt: skip


class PredictedPlan(NamedTuple):
    """A strategy with its chunk size, its plan and its prediction.

    The plan is of one collective, and the prediction of `times` of them in a row.
    """

    strategy: Strategy
    plan: Plan
    result: Summary


HUGE = Postponed(1 << 62)
"""The answer for plans that take long to make."""


def lower_bound(question: Question) -> AtLeast:
    """A lower bound in seconds: the highest floor of a strategy's plan, which is not simulated.

    Without a chunk size, it holds for chunks of every size.

    The prediction is never below it. Raises as `Setup.compile` does.
    """
    return question.setup.find_floor(question.compile(), in_chunks=is_searched(question.strategy))


def simulate_up_to(
    question: Question, limit: float, cache: PlanCache | None = None
) -> PredictedPlan | AtLeast:
    """The prediction if one collective takes at most `limit` seconds; else what it takes at least.

    Pipelined strategies without a chunk size get the best one for an undisturbed run, and none is
    looked for if no chunks would be fast enough. Within the limit, all is the same as without one.
    """
    cache, setup, times = cache or PlanCache(), question.setup, question.times
    if limit < math.inf and is_searched(question.strategy) and isinstance(setup.machine, Topology):
        floor = lower_bound(question)
        if floor.seconds > limit:
            return floor
    question = _with_chunks(question, cache)
    plan = cache.compile(question)
    if limit == math.inf:
        return PredictedPlan(question.strategy, plan, cache.summarise(setup, plan, times))
    result = setup.summarise_within(repeat(plan, times) if times > 1 else plan, limit * times)
    return (
        AtLeast(result.seconds / times, result.reason)
        if isinstance(result, AtLeast)
        else PredictedPlan(question.strategy, plan, result)
    )


def simulate_within(
    question: Question, limit: Limit, cache: PlanCache | None = None
) -> PredictedPlan | AtLeast | Postponed:
    """As `simulate_up_to`; without a limit, what takes long is postponed."""
    cache, setup, strategy = cache or PlanCache(), question.setup, question.strategy
    if limit is not None or not isinstance(setup.machine, Topology):
        return simulate_up_to(question, math.inf if limit is None else limit, cache)
    packs, gradients = int(getattr(strategy.packer, "packs", 1)), len(question.workload.gradients)
    pairs = setup.layout.n**2 * (gradients if strategy.packing == "none" else packs)
    if pairs >= _HUGE and setup.many_ops(strategy, question.workload):
        return HUGE
    if gradients == 1 and pairs >= _QUICK and is_searched(strategy):
        transfers = cache.compile(question).transfers * _SEARCHES
        if transfers > LONG:
            return Postponed(transfers)
    question = _with_chunks(question, cache)
    plan = cache.compile(question)
    if plan.transfers > LONG:
        return Postponed(plan.transfers)
    return PredictedPlan(question.strategy, plan, cache.summarise(setup, plan, question.times))


def _with_chunks(question: Question, cache: PlanCache) -> Question:
    """With the best chunk size, if one is looked for.

    NotFoldable where it must be looked for on all of the machines.
    """
    if not is_searched(question.strategy):
        return question
    if not isinstance(question.setup.machine, Topology):
        if cache.compile(question).transfers > LARGEST:
            return question  # as the search on all machines does
        raise NotFoldable(
            f"{question.strategy.text}: the size of its chunks is looked for on all machines; "
            "+chunk= sets one"
        )
    asked = question.strategy, question.workload, question.setup
    return replace(question, strategy=with_best_chunk(*asked, root=question.root, cache=cache))


def is_searched(strategy: Strategy) -> bool:
    """Whether a chunk size is looked for."""
    return strategy.pipelined and not strategy.chunk
