"""Starts reductions: each when its gradients are ready, in order, or by Horovod's thread."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import simpy

from simreduce.engine.events import LOW, Moment
from simreduce.training.ledger import Ledger, Process
from simreduce.training.reductions import Fused, Method, Reduction
from simreduce.training.step import RELAXED, StepJob
from simreduce.training.transfers import Transfers


class Launcher:
    """Starts the reductions of a step.

    With relaxed consistency it starts the reductions of the step before, whose gradients are ready
    from the beginning.
    """

    def __init__(
        self, job: StepJob, method: Method, transfers: Transfers, layer_of: Sequence[int]
    ) -> None:
        self._method, self._transfers, self._layer_of = method, transfers, layer_of
        self._env = transfers.env
        self._relaxed = job.consistency == RELAXED
        self._negotiation = (
            Negotiation(method.fusion, transfers, layer_of) if method.fusion else None
        )

    def begin(self, ledger: Ledger) -> list[simpy.Event]:
        """Start the processes of a step."""
        method = self._method
        if self._negotiation is not None:
            return [self._env.process(self._negotiation.step(ledger, at_once=self._relaxed))]
        if method.in_order:
            return [self._env.process(self._run_in_order(method.reductions, ledger))]
        return [self._env.process(self._run_alone(each, ledger)) for each in method.reductions]

    def _run_in_order(self, reductions: Sequence[Reduction], ledger: Ledger) -> Process:
        """Start reductions one after another, each when all its devices have all its gradients."""
        started = []
        for reduction in reductions:
            if not self._relaxed:
                yield self._ready_everywhere(reduction, ledger)
            started.append(
                self._env.process(self._transfers.reduce(reduction, ledger, self._env.now))
            )
        yield self._env.all_of(started)

    def _run_alone(self, reduction: Reduction, ledger: Ledger) -> Process:
        """Start a reduction when its gradients are ready.

        They must be ready on all devices if these meet or streams are limited, else on the first.
        """
        if self._relaxed or self._method.streams or reduction.meets:
            if not self._relaxed:
                yield self._ready_everywhere(reduction, ledger)
            yield from self._transfers.reduce(reduction, ledger, self._env.now)
            return
        given = ledger.gradients_of(self._last_layer(reduction), reduction.ranks)
        yield self._env.any_of([event for _, event in given])
        yield from self._transfers.reduce_early(reduction, given, ledger)

    def _last_layer(self, reduction: Reduction) -> int:
        """The layer nearest to the input, whose gradients are ready last."""
        return min(self._layer_of[i] for i in reduction.gradients)

    def _ready_everywhere(self, reduction: Reduction, ledger: Ledger) -> simpy.Event:
        """The event when all devices of a reduction have all its gradients."""
        given = ledger.gradients_of(self._last_layer(reduction), reduction.ranks)
        return self._env.all_of([event for _, event in given])


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
                r for buffer in self._rule.buffers(ready) for r in self._reductions_of(buffer)
            ):
                waited_since = max(times[i] for i in reduction.gradients)
                started.append(
                    self._env.process(self._transfers.reduce(reduction, ledger, waited_since))
                )
        yield self._env.all_of(started)

    def _reductions_of(self, buffer: tuple[int, ...]) -> list[Reduction]:
        """The reductions of a buffer, compiled on first use."""
        if buffer not in self._buffers:
            self._buffers[buffer] = self._rule.reductions(buffer)
        return self._buffers[buffer]


def to_cycle(now: float, cycle: float) -> float:
    """Seconds from `now` to the next whole multiple of `cycle`, 0 at one."""
    if not cycle:
        return 0.0
    return max(ceil(now / cycle * (1.0 - _ROUNDING)) * cycle - now, 0.0)
