"""What a campaign times, and what a timing says: values only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simreduce import dtypes
from simreduce.errors import InternalError
from simreduce.plan import Plan
from simreduce_validate.measuring import Forecast, Interval, median_interval
from simreduce_validate.running import Builtin, Measurement
from simreduce_validate.running.program import Event


@dataclass(frozen=True, slots=True)
class Control:
    """Makes a case a control, which is no candidate.

    A control is a plan that took `then` seconds when the calibration was made. It is timed again in
    the rounds of the candidates whose sizes in bytes are `beside`.
    """

    then: float
    beside: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """What to measure, and the predicted seconds.

    The prediction is NaN for controls, for a builtin that no plan of ours stands for on these
    devices, and where the calibration does not know the devices. `repeats` is the place of an
    earlier case that is the same: the two differ by noise only.
    """

    algorithm: str
    work: Plan | Builtin
    count: int
    dtype: int
    redop: str
    predicted: float
    repeats: int | None = None
    control: Control | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.count * dtypes.SIZES[self.dtype]

    @property
    def plan(self) -> Plan:
        """The plan of a case that is not a builtin."""
        if not isinstance(self.work, Plan):
            raise InternalError(f"{self.algorithm} is no plan")
        return self.work

    @property
    def forecast(self) -> Forecast:
        """The case as a result file records it."""
        control = self.control
        return Forecast(
            algorithm=self.algorithm,
            size_bytes=self.nbytes,
            count=self.count,
            type=dtypes.NAMES[self.dtype],
            redop=self.redop,
            plan=self.work.digest if isinstance(self.work, Plan) else "",
            predicted_us=self.predicted * 1e6 if math.isfinite(self.predicted) else None,
            repeats=self.repeats,
            then_us=control.then * 1e6 if control else None,
            beside=control.beside if control else (),
        )


@dataclass(frozen=True, slots=True)
class Timing:
    """One case, measured.

    `events` is the timeline of one more step, empty without `--transfers`. A sample is the median
    of `settled` steps after as many warm-up steps; if 0, it is one step.
    """

    case: Case
    measured: Measurement
    events: tuple[Event, ...] = ()
    settled: int = 0

    @property
    def interval(self) -> Interval:
        """The median in seconds, with its bounds."""
        return median_interval(self.measured.seconds)

    @property
    def predicted(self) -> float:
        """Predicted seconds, or NaN."""
        return self.case.predicted

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured.median - 1

    @property
    def faults(self) -> tuple[str, ...]:
        """Every reason why the time means nothing."""
        return (*self.measured.wrong, *self.measured.departures)
