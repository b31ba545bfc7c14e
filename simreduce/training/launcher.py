"""Starts reductions: each when its gradients are ready, in order, or by Horovod's thread."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from simreduce.training.horovod import Negotiation
from simreduce.training.ledger import Ledger, Process
from simreduce.training.reductions import Method, Reduction
from simreduce.training.step import RELAXED, StepJob
from simreduce.training.transfers import Transfers


class Launcher:
    """Starts the reductions of a step. With relaxed consistency it starts those of the step before,
    whose gradients are ready from the beginning.
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
            return [self._env.process(self._in_order(method.reductions, ledger))]
        return [self._env.process(self._alone(each, ledger)) for each in method.reductions]

    def _in_order(self, reductions: Sequence[Reduction], ledger: Ledger) -> Process:
        """Start reductions one after another, each when all its devices have all its gradients."""
        started = []
        for reduction in reductions:
            if not self._relaxed:
                yield self._everywhere(reduction, ledger)
            started.append(
                self._env.process(self._transfers.reduce(reduction, ledger, self._env.now))
            )
        yield self._env.all_of(started)

    def _alone(self, reduction: Reduction, ledger: Ledger) -> Process:
        """Start a reduction when its gradients are ready: on all devices if these meet or streams
        are limited, else on the first.
        """
        if self._relaxed or self._method.streams or reduction.meets:
            if not self._relaxed:
                yield self._everywhere(reduction, ledger)
            yield from self._transfers.reduce(reduction, ledger, self._env.now)
            return
        given = ledger.gradients_of(self._last_layer(reduction), reduction.ranks)
        yield self._env.any_of([event for _, event in given])
        yield from self._transfers.reduce_early(reduction, given, ledger)

    def _last_layer(self, reduction: Reduction) -> int:
        """The layer nearest to the input, whose gradients are ready last."""
        return min(self._layer_of[i] for i in reduction.gradients)

    def _everywhere(self, reduction: Reduction, ledger: Ledger) -> simpy.Event:
        """The event when all devices of a reduction have all its gradients."""
        given = ledger.gradients_of(self._last_layer(reduction), reduction.ranks)
        return self._env.all_of([event for _, event in given])
