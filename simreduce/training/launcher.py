"""When reductions start: each when its gradients are there, in an order, or as Horovod's thread
finds them.
"""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from simreduce.training.horovod import Negotiation
from simreduce.training.ledger import Ledger, Process
from simreduce.training.reductions import Method, Reduction
from simreduce.training.step import RELAXED, StepJob
from simreduce.training.transfers import Transfers


class Launcher:
    """What starts the reductions of a step. With relaxed consistency all gradients, of the step
    before, are there from its beginning.
    """

    def __init__(
        self, job: StepJob, method: Method, moving: Transfers, layer_of: Sequence[int]
    ) -> None:
        self._method, self._moving, self._layer_of = method, moving, layer_of
        self._env = moving.env
        self._relaxed = job.consistency == RELAXED
        self._negotiation = Negotiation(method.fusion, moving, layer_of) if method.fusion else None

    def begin(self, ledger: Ledger) -> list[simpy.Event]:
        """The processes of a step."""
        method = self._method
        if self._negotiation is not None:
            return [self._env.process(self._negotiation.step(ledger, at_once=self._relaxed))]
        if method.in_order:
            return [self._env.process(self._in_order(method.reductions, ledger))]
        return [self._env.process(self._alone(each, ledger)) for each in method.reductions]

    def _in_order(self, reductions: Sequence[Reduction], ledger: Ledger) -> Process:
        """One after another, each when all its gradients are there on all its devices."""
        moving = []
        for reduction in reductions:
            if not self._relaxed:
                yield self._everywhere(reduction, ledger)
            moving.append(self._env.process(self._moving.reduce(reduction, ledger, self._env.now)))
        yield self._env.all_of(moving)

    def _alone(self, reduction: Reduction, ledger: Ledger) -> Process:
        """When all its gradients are there: everywhere if its devices meet or it must wait for its
        turn, else on the first device.
        """
        if self._relaxed or self._method.streams or reduction.meets:
            if not self._relaxed:
                yield self._everywhere(reduction, ledger)
            yield from self._moving.reduce(reduction, ledger, self._env.now)
            return
        given = ledger.given(self._last_layer(reduction), reduction.ranks)
        yield self._env.any_of([event for _, event in given])
        yield from self._moving.reduce_as_given(reduction, given, ledger)

    def _last_layer(self, reduction: Reduction) -> int:
        """The layer whose gradients come last is the nearest to the input."""
        return min(self._layer_of[i] for i in reduction.gradients)

    def _everywhere(self, reduction: Reduction, ledger: Ledger) -> simpy.Event:
        """When all devices of a reduction have all its gradients."""
        given = ledger.given(self._last_layer(reduction), reduction.ranks)
        return self._env.all_of([event for _, event in given])
