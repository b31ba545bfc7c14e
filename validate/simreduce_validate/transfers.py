"""Every transfer of a step as it was measured, beside what is predicted for it: joined by the op of
the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

import simreduce as sr
from simreduce.engine import Calibration, runtime_named
from simreduce.engine.simulation import step_cost
from simreduce.plan import Kind, Plan
from simreduce.topology import Topology
from simreduce_validate.campaign import RUNTIME
from simreduce_validate.running.program import Event


class Transfer(NamedTuple):
    """A COPY, and when it was done after the first op of its step began: measured and predicted, in
    seconds.
    """

    op: int
    source: str
    target: str
    nbytes: int
    measured: float
    predicted: float

    @property
    def residual(self) -> float:
        """Predicted less measured."""
        return self.predicted - self.measured


def transfers(
    plan: Plan, machine: Topology, calibration: Calibration, events: Iterable[Event]
) -> list[Transfer]:
    """The COPYs of a plan that a timeline shows, in its order. A COPY is done when its own op at
    the receiver is.
    """
    result = sr.simulate(plan, machine, RUNTIME, calibration)
    before = step_cost(plan, machine, runtime_named(RUNTIME), calibration)
    finish = {event.name: event.finish for event in events}
    began = min((event.start for event in events), default=0.0)
    found = []
    for op in np.flatnonzero(plan.kind == Kind.COPY).tolist():
        if (done := finish.get(f"op{op}")) is not None:
            source, target = (
                plan.devices[d] for d in (plan.device[plan.operands_of(op)[0]], plan.device[op])
            )
            found.append(
                Transfer(
                    op,
                    source,
                    target,
                    int(plan.nbytes[op]),
                    done - began,
                    float(result.finish[op]) - before,
                )
            )
    return sorted(found, key=lambda each: (each.measured, each.op))
