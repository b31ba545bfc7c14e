"""The compute of a step: every layer forward, then backward, on every group of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.engine import Fabric
from simreduce.training.groups import DeviceGroup
from simreduce.training.ledger import Ledger, Process, Waits
from simreduce.training.step import Span, StepJob


@dataclass(frozen=True, slots=True)
class Passes:
    """`queued`: kernels share the device's queue with the ops of reductions."""

    fabric: Fabric
    job: StepJob
    groups: Sequence[DeviceGroup]
    queued: bool

    def run(self, number: int, ledger: Ledger, waits: Waits) -> Process:
        """Run both passes of one group; forward passes wait for `waits`.

        A layer's gradients are ready when its backward pass ends.
        """
        profile = self.job.profile
        for layer, seconds in enumerate(profile.forward):
            if events := waits.get((number, layer)):
                yield self.fabric.env.all_of(events)
            yield from self._kernel(number, layer, seconds, ledger, backward=False)
        for layer in reversed(range(len(profile.backward))):
            yield from self._kernel(number, layer, profile.backward[layer], ledger, backward=True)
            ledger.computed[number][layer].succeed()

    def _kernel(
        self, number: int, layer: int, seconds: float, ledger: Ledger, *, backward: bool
    ) -> Process:
        """Run one pass of a layer."""
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
