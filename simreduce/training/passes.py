"""What devices compute in a step: every layer forward, then backward, on every group of devices
that do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.engine import Fabric
from simreduce.training.groups import Group
from simreduce.training.ledger import Ledger, Process, Waits
from simreduce.training.step import Span, StepJob


@dataclass(frozen=True, slots=True)
class Passes:
    """`queued`: kernels are in one queue with what else is executed on the device."""

    fabric: Fabric
    job: StepJob
    groups: Sequence[Group]
    queued: bool

    def passes(self, number: int, ledger: Ledger, waits: Waits) -> Process:
        """The layers of one group, whose forward passes wait for `waits`. Their gradients are there
        when their backward pass is done.
        """
        profile = self.job.profile
        for layer, seconds in enumerate(profile.forward):
            if awaited := waits.get((number, layer)):
                yield self.fabric.env.all_of(awaited)
            yield from self._kernel(number, layer, seconds, ledger, backward=False)
        for layer in reversed(range(len(profile.backward))):
            yield from self._kernel(number, layer, profile.backward[layer], ledger, backward=True)
            ledger.computed[number][layer].succeed()

    def _kernel(
        self, number: int, layer: int, seconds: float, ledger: Ledger, *, backward: bool
    ) -> Process:
        """One pass of a layer."""
        env, group = self.fabric.env, self.groups[number]
        begin = env.now
        if seconds <= 0.0:
            return
        seconds *= group.factor
        if self.queued:
            timeline = yield self.fabric.compute(group.device, seconds)
            begin = float(timeline.start[0])
        else:
            yield env.timeout(seconds)
        name = self.job.model.layers[layer].name
        ledger.spans.append(
            Span(group.name, name, backward, begin - ledger.begin, env.now - ledger.begin)
        )
