"""The transfers of a step: parts of the plan, submitted to the fabric one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

import numpy as np
import simpy

from simreduce.engine import Fabric, Timeline
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.results.path import waited_until
from simreduce.plan import Kind, Plan, side_by_side
from simreduce.training.groups import DeviceGroup
from simreduce.training.ledger import Ledger, Process
from simreduce.training.reductions import Reduction
from simreduce.training.step import Bucket


class Lowering:
    """Lowers each plan once.

    Plans known from the start are lowered together, which is faster; with jitter, which depends on
    op numbers, each alone. All share the working set of the `whole` step.
    """

    def __init__(self, fabric: Fabric, whole: Plan, plans: Sequence[Plan]) -> None:
        self._fabric = fabric
        self._working_set = fabric.measure_working_set(whole)
        self._known: dict[int, tuple[Plan, Lowered]] = {}
        plans = list({id(plan): plan for plan in plans}.values())
        if not plans or fabric.disturbance.jitter:
            return
        devices = dict.fromkeys(name for plan in plans for name in plan.devices)
        joint = fabric.lower(side_by_side(plans, tuple(devices)), working_set=self._working_set)
        first = 0
        for plan in plans:
            self._known[id(plan)] = plan, joint.part(plan, first)
            first += len(plan)

    def of(self, plan: Plan) -> Lowered:
        """A lowered plan."""
        if id(plan) not in self._known:
            self._known[id(plan)] = (
                plan,
                self._fabric.lower(plan, len(self._known), self._working_set),
            )
        return self._known[id(plan)][1]

    def lanes(self, plans: Iterable[Plan]) -> set[str]:
        """The names of all lanes that `plans` take."""
        found: set[str] = set()
        for lowered in map(self.of, plans):
            found |= {lowered.lane_names[i] for i in np.unique(lowered.calls.lanes).tolist()}
        return found


class Transfers:
    """Reductions and reads. Up to `streams` reductions run at once, in order of request; 0: all."""

    def __init__(
        self,
        fabric: Fabric,
        lowering: Lowering,
        streams: int,
        nbytes: Sequence[int],
        layer_of: Sequence[int],
        *,
        closely: bool = False,
    ) -> None:
        self.fabric, self.env, self._lowering = fabric, fabric.env, lowering
        self._closely = closely
        self._queue = simpy.Resource(fabric.env, streams) if streams else None
        self._nbytes, self._layer_of = nbytes, layer_of

    def read(self, read: Reduction, ledger: Ledger, before: Ledger | None) -> Process:
        """Bring variables to the devices that compute with them.

        The step `before`, if it is in flight, has to update them first.
        """
        if before is not None:
            layers = {self._layer_of[i] for i in read.gradients}
            yield self.env.all_of([before.updated[layer] for layer in layers])
        begin = self.env.now
        yield self.fabric.submit(read.plan, lowered=self._lowering.of(read.plan))
        bucket = self._bucket(read, ledger, begin, begin)
        ledger.reads.append(bucket)
        ledger.moved.append((bucket, read.plan, None))

    def reduce(self, reduction: Reduction, ledger: Ledger, ready: float) -> Process:
        """Reduce gradients that all devices have since `ready`, once a stream is free."""
        if self._queue is None:
            yield from self._reduce(reduction, ledger, ready)
            return
        with self._queue.request() as turn:
            yield turn
            yield from self._reduce(reduction, ledger, ready)

    def _reduce(self, reduction: Reduction, ledger: Ledger, ready: float) -> Process:
        start = self.env.now
        timeline = yield self.fabric.submit(
            reduction.plan, lowered=self._lowering.of(reduction.plan)
        )
        self._done(reduction, ledger, ready, start, timeline)

    def reduce_early(
        self,
        reduction: Reduction,
        ready: Collection[tuple[DeviceGroup, simpy.Event]],
        ledger: Ledger,
    ) -> Process:
        """Reduce as soon as some devices are `ready`; inputs of the others follow when they are."""
        start, plan = self.env.now, reduction.plan
        inputs = plan.device[plan.kind == Kind.INPUT]
        late = [
            (np.flatnonzero(np.isin(inputs, list(group.ranks))), event)
            for group, event in ready
            if not event.triggered
        ]
        held = np.concatenate([places for places, _ in late]) if late else None
        done = self.fabric.submit(plan, lowered=self._lowering.of(plan), held=held)
        for places, event in late:
            event.callbacks.append(partial(self._release, done, places))
        timeline = yield done
        self._done(reduction, ledger, start, start, timeline)

    def _release(self, done: simpy.Event, places: np.ndarray, _: simpy.Event) -> None:
        self.fabric.release(done, places)

    def _done(
        self, reduction: Reduction, ledger: Ledger, ready: float, start: float, timeline: Timeline
    ) -> None:
        bucket = self._bucket(reduction, ledger, ready, start)
        ledger.buckets.append(bucket)
        ledger.moved.append((bucket, reduction.plan, self._since(reduction, ledger, timeline)))
        ledger.count_reduced([self._layer_of[i] for i in reduction.gradients])

    def _since(self, what: Reduction, ledger: Ledger, timeline: Timeline) -> float | None:
        """When a reduction that has just ended was let go on by another or by a kernel."""
        if not self._closely:
            return None
        found = waited_until(self._lowering.of(what.plan), timeline)
        return None if found is None else found - ledger.begin

    def _bucket(self, what: Reduction, ledger: Ledger, ready: float, start: float) -> Bucket:
        """The record of a transfer that has just ended."""
        return Bucket(
            what.gradients,
            what.ranks,
            sum(self._nbytes[i] for i in what.gradients),
            ready - ledger.begin,
            start - ledger.begin,
            self.env.now - ledger.begin,
        )
