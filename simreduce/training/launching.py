"""When reductions start: each when its gradients are there, in an order, or as Horovod's thread finds them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import simpy

from simreduce.training.books import Books, Process
from simreduce.training.moving import Moving
from simreduce.training.reductions import Fused, Method, Reduction
from simreduce.training.step import RELAXED, Job

_LOW: Any = 2
"""SimPy's priorities are 0 (urgent) and 1 (normal); its types know no other."""


class Launching:
    """What starts the reductions of a step. With relaxed consistency all gradients, of the step before, are there from its beginning."""

    def __init__(self, job: Job, method: Method, moving: Moving, layer_of: Sequence[int]) -> None:
        self._method, self._moving, self._layer_of = method, moving, layer_of
        self._env = moving.env
        self._relaxed = job.consistency == RELAXED
        self._buffers: dict[tuple[int, ...], list[Reduction]] = {}

    def begin(self, books: Books) -> list[simpy.Event]:
        """The processes of a step."""
        method = self._method
        if method.fusion is not None:
            return [self._env.process(self._negotiated(method.fusion, books))]
        if method.in_order:
            return [self._env.process(self._in_order(method.reductions, books))]
        return [self._env.process(self._alone(each, books)) for each in method.reductions]

    def _in_order(self, reductions: Sequence[Reduction], books: Books) -> Process:
        """One after another, each when all its gradients are there on all its devices."""
        moving = []
        for reduction in reductions:
            if not self._relaxed:
                yield self._everywhere(reduction, books)
            moving.append(self._env.process(self._moving.reduce(reduction, books, self._env.now)))
        yield self._env.all_of(moving)

    def _alone(self, reduction: Reduction, books: Books) -> Process:
        """When all its gradients are there: everywhere if its devices meet or it must wait for its turn, else on the first device."""
        if self._relaxed or self._method.streams or reduction.meets:
            if not self._relaxed:
                yield self._everywhere(reduction, books)
            yield from self._moving.reduce(reduction, books, self._env.now)
            return
        given = books.given(self._last_layer(reduction), reduction.ranks)
        yield self._env.any_of([event for _, event in given])
        yield from self._moving.reduce_as_given(reduction, given, books)

    def _last_layer(self, reduction: Reduction) -> int:
        """The layer whose gradients come last is the nearest to the input."""
        return min(self._layer_of[i] for i in reduction.gradients)

    def _everywhere(self, reduction: Reduction, books: Books) -> simpy.Event:
        """When all devices of a reduction have all its gradients."""
        given = books.given(self._last_layer(reduction), reduction.ranks)
        return self._env.all_of([event for _, event in given])

    def _negotiated(self, rule: Fused, books: Books) -> Process:
        """Horovod's background thread: every cycle, start what has become ready on all ranks since the one before."""
        arrived: list[int] = []
        times: dict[int, float] = {}
        bell = [self._env.event()]

        def arrive(layer: int) -> Process:
            if not self._relaxed:
                yield self._env.all_of([computed[layer] for computed in books.computed])
            mine = [i for i in reversed(range(len(self._layer_of))) if self._layer_of[i] == layer]
            arrived.extend(mine)
            times.update(dict.fromkeys(mine, self._env.now))
            if not bell[0].triggered:
                bell[0].succeed()

        for layer in sorted(set(self._layer_of), reverse=True):
            self._env.process(arrive(layer))
        moving: list[simpy.Event] = []
        left = len(self._layer_of)
        while left:
            yield bell[0]
            yield _Cycle(self._env, self._to_cycle(rule.cycle))
            ready, bell[0] = list(arrived), self._env.event()
            arrived.clear()
            left -= len(ready)
            for reduction in (r for buffer in rule.buffers(ready) for r in self._fused(rule, buffer)):
                waited_since = max(times[i] for i in reduction.gradients)
                moving.append(self._env.process(self._moving.reduce(reduction, books, waited_since)))
        yield self._env.all_of(moving)

    def _fused(self, rule: Fused, buffer: tuple[int, ...]) -> list[Reduction]:
        """The reductions of a buffer, compiled when it first occurs."""
        if buffer not in self._buffers:
            self._buffers[buffer] = rule.reductions(buffer)
        return self._buffers[buffer]

    def _to_cycle(self, cycle: float) -> float:
        """Seconds to the next cycle; they begin at whole multiples."""
        return max(ceil(self._env.now / cycle) * cycle - self._env.now, 0.0) if cycle else 0.0


class _Cycle(simpy.Event):
    """After `delay` seconds, and after all else at that instant: what is ready just then is in time."""

    def __init__(self, env: simpy.Environment, delay: float) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority=_LOW, delay=delay)
