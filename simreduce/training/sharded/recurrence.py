"""The time of a sharded step from its collectives' times, in one pass over its schedule.

This is `simulation` without events: the CPU's clock, the end of each stream and the end of the
kernels are numbers, and each instruction moves one of them. It gives the same bits where no two
collectives share a link while both are in flight. Elsewhere it is a lower bound, as sharing only
delays, and so it is with lower bounds of the collectives' times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from simreduce.engine.setup import Setup
from simreduce.training.sharded.collectives import Key, ShardedMethod
from simreduce.training.sharded.schedule import Do, Instruction
from simreduce.training.step import StepJob


def slowest(job: StepJob, setup: Setup) -> float:
    """How many times as long as the profile says the slowest rank takes."""
    slow = setup.disturbance.slow
    return max(job.slow.get(name, 1.0) * slow.get(name, 1.0) for name in setup.layout.ranks)


def compose(
    job: StepJob, method: ShardedMethod, factor: float, seconds: Callable[[Key], float]
) -> float:
    """Return the seconds of a step whose collectives take `seconds`.

    Its slowest rank takes `factor` times as long as the profile says.
    """
    clock = _Clock(job, method, factor, seconds)
    for each in method.instructions:
        clock.carry_out(each)
    return clock.end


class _Clock:
    """When the CPU, the kernels and the streams are free."""

    def __init__(
        self, job: StepJob, method: ShardedMethod, factor: float, seconds: Callable[[Key], float]
    ) -> None:
        self._job, self._method, self._factor, self._seconds = job, method, factor, seconds
        self._cpu = self._computed = 0.0
        self._tails: dict[str, float] = {}
        self._there: dict[int, float] = {}
        self._freed: deque[float] = deque()

    @property
    def end(self) -> float:
        """When all is over that was issued."""
        return max(self._cpu, self._computed, *self._tails.values(), 0.0)

    def carry_out(self, each: Instruction) -> None:
        """Issue an instruction."""
        if each.do == Do.GATHER:
            limit = self._method.sharding.limit_all_gathers
            if limit and len(self._freed) >= limit:
                self._cpu = max(self._cpu, self._freed.popleft())
            (key,) = self._method.keys(each)
            self._there[each.unit] = self._queue(key, 0.0)
        elif each.do == Do.FREE:
            self._freed.append(self._computed)
            del self._there[each.unit]
        elif each.do == Do.REDUCE:
            self._reduce(each)
        elif each.do == Do.UPDATE:
            self._cpu = self.end + self._job.update * self._factor / self._method.group
        else:
            self._compute(each)

    def _reduce(self, each: Instruction) -> None:
        done = self._computed
        for key in self._method.keys(each):
            done = self._queue(key, done)

    def _queue(self, key: Key, ready: float) -> float:
        stream = self._method.stream(key)
        start = max(self._cpu, self._tails.get(stream, 0.0), ready)
        self._tails[stream] = end = start + self._seconds(key)
        return end

    def _compute(self, each: Instruction) -> None:
        now = max(self._cpu, self._computed, self._there.get(each.unit, 0.0))
        profile = self._job.profile
        passes = profile.backward if each.do == Do.BACKWARD else profile.forward
        for layer in each.layers:
            now += passes[layer] * self._factor
        self._computed = now
