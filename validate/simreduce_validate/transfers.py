"""The transfers of a measured step beside their predictions, joined by the op of the plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from simreduce.engine.setup import Setup
from simreduce.engine.simulator import step_cost
from simreduce.plan import Kind, Plan
from simreduce_validate.running.program import Event


class Transfer(NamedTuple):
    """A COPY, and the seconds from the first op of its step to its end, measured and predicted."""

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


def transfers(plan: Plan, setup: Setup, events: Iterable[Event]) -> list[Transfer]:
    """The COPYs of a plan that a timeline shows, in its order.

    A COPY is done when its own op at the receiver is.
    """
    result = setup.simulate(plan)
    before = step_cost(plan, setup.machine, setup.runtime, setup.calibration)
    finish = {event.name: event.finish for event in events}
    began = min((event.start for event in events), default=0.0)
    found = []
    for op in np.flatnonzero(plan.kind == Kind.COPY).tolist():
        if (done := finish.get(f"op{op}")) is not None:
            source, target = plan.device[plan.operands_of(op)[0]], plan.device[op]
            found.append(
                Transfer(
                    op=op,
                    source=plan.devices[source],
                    target=plan.devices[target],
                    nbytes=int(plan.nbytes[op]),
                    measured=done - began,
                    predicted=float(result.finish[op]) - before,
                )
            )
    return sorted(found, key=lambda each: (each.measured, each.op))
