"""Lowers the plans of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simreduce.engine import Fabric
from simreduce.engine.lowering.lowered import Lowered
from simreduce.plan import Plan, side_by_side


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

    def queues_behind(self, ranks: Iterable[str], plans: Iterable[Plan]) -> bool:
        """Whether `plans` take lanes of the kernels of `ranks`."""
        kernels = {lane for name in ranks for lane in self._fabric.compute_lanes(name)}
        return bool(kernels & self.lanes(plans))

    def lanes(self, plans: Iterable[Plan]) -> set[str]:
        """The names of all lanes that `plans` take."""
        found: set[str] = set()
        for lowered in map(self.of, plans):
            found |= {lowered.lane_names[i] for i in np.unique(lowered.calls.lanes).tolist()}
        return found
