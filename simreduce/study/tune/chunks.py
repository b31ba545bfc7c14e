"""Finds the fastest chunk size of a pipelined strategy: theory first, then simulation near it.

A pipeline of depth d whose busiest port needs F seconds for all bytes takes (d-1+k)(a + F/k) for k
chunks, least for k = sqrt((d-1) F/a). The plan without chunks gives a and d by three figures: its
time d(a + F), F, and its time d a with infinitely fast links. Where trees share a tensor, F/k is
that of a tree's chunk. The sizes tried are 2^i and 3 * 2^i bytes, never so small that the plan
would be huge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from simreduce import units
from simreduce.engine import CALM, Summary
from simreduce.engine.setup import Setup
from simreduce.plan import Kind, Plan
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.study.question import Question
from simreduce.study.tune.plan_cache import PlanCache
from simreduce.workload import Workload

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
        strategy = self.strategy
        return (
            len(self.workload.gradients) == len(strategy.ranges) == 1 and strategy.packing == "none"
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
            near = [i for i in (at, at - step, at + step) if i in rungs]
            fastest = min(near, key=lambda i: self._time(rung(i), depth))
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
        if chunk not in self.seconds:
            strategy = _set_chunks(self.strategy, chunk)
            self.seconds[chunk] = self._long(strategy, depth)
        return self.seconds[chunk]

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
