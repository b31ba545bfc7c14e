"""Horovod's background thread: every cycle it reduces the gradients ready on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import simpy

from simreduce.engine.events import LOW, Moment
from simreduce.training.ledger import Ledger, Process
from simreduce.training.reductions import Fused, Reduction
from simreduce.training.transfers import Transfers

_ROUNDING = 1e-12
"""Relative error allowed at the boundary of a cycle."""


class Negotiation:
    """The background thread, step after step."""

    def __init__(self, rule: Fused, transfers: Transfers, layer_of: Sequence[int]) -> None:
        self._rule, self._transfers, self._layer_of = rule, transfers, layer_of
        self._env = transfers.env
        self._buffers: dict[tuple[int, ...], list[Reduction]] = {}

    def step(self, ledger: Ledger, *, at_once: bool) -> Process:
        """Run the reductions of a step; with `at_once` all gradients are ready at its beginning."""
        arrived: list[int] = []
        times: dict[int, float] = {}
        bell = [self._env.event()]

        def arrive(layer: int) -> Process:
            if not at_once:
                yield self._env.all_of([computed[layer] for computed in ledger.computed])
            mine = [i for i in reversed(range(len(self._layer_of))) if self._layer_of[i] == layer]
            arrived.extend(mine)
            times.update(dict.fromkeys(mine, self._env.now))
            if not bell[0].triggered:
                bell[0].succeed()

        for layer in sorted(set(self._layer_of), reverse=True):
            self._env.process(arrive(layer))
        started: list[simpy.Event] = []
        left = len(self._layer_of)
        while left:
            yield bell[0]
            # After all else at that instant: what is ready just then is in time.
            now = self._env.now
            yield Moment(self._env, now + to_cycle(now, self._rule.cycle), LOW)
            ready, bell[0] = list(arrived), self._env.event()
            arrived.clear()
            left -= len(ready)
            for reduction in (
                r for buffer in self._rule.buffers(ready) for r in self._fused(buffer)
            ):
                waited_since = max(times[i] for i in reduction.gradients)
                started.append(
                    self._env.process(self._transfers.reduce(reduction, ledger, waited_since))
                )
        yield self._env.all_of(started)

    def _fused(self, buffer: tuple[int, ...]) -> list[Reduction]:
        """The reductions of a buffer, compiled on first use."""
        if buffer not in self._buffers:
            self._buffers[buffer] = self._rule.reductions(buffer)
        return self._buffers[buffer]


def to_cycle(now: float, cycle: float) -> float:
    """Seconds from `now` to the next whole multiple of `cycle`, 0 at one."""
    if not cycle:
        return 0.0
    return max(ceil(now / cycle * (1.0 - _ROUNDING)) * cycle - now, 0.0)
