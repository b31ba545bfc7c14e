"""What is measured and what is predicted for it: strategies and TensorFlow's own, at sizes; and
what is timed beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import simreduce as sr
from simreduce import dtypes
from simreduce.cli.progress import Progress
from simreduce.engine import Calibration
from simreduce.errors import InternalError, StrategyError
from simreduce.plan import Plan
from simreduce.strategy import Strategy, compile_plan
from simreduce.workload import Workload
from simreduce_validate.calibrating.controls import Key, like, repeated
from simreduce_validate.devices import Devices
from simreduce_validate.measuring import (
    Forecast,
    Interval,
    Record,
    median_interval,
    open_record,
    time_in_rounds,
)
from simreduce_validate.measuring.provenance import provenance as provenance_of
from simreduce_validate.running import BUILTINS, Builtin, Measurement
from simreduce_validate.running.backend import Backend
from simreduce_validate.running.program import Event

RUNTIME = "tensorflow"

BUDGET = 8.0
"""Seconds for the rounds of candidates that are timed in turns, where their number is not given."""

_IN_BUDGET = 8
"""Candidates for which that is enough; more have more."""

_FEWEST, _MOST = 7, 200

_SETTLED, _MOST_SETTLED = 4e-3, 6
"""Seconds of steps in a row, and how many at most, after which those of one process no longer feel
what came before.
"""


@dataclass(frozen=True, slots=True)
class Control:
    """Makes a case a control, which is no candidate: a plan that took `then` seconds when the
    calibration was made is timed in the rounds of candidates of the sizes `beside`, in bytes.
    """

    then: float
    beside: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be measured, and the seconds predicted for it: NaN where a builtin has no plan of
    ours for these devices, or nothing is known of them, and of controls. `repeats` is the place of
    an earlier case that is the very same: what the two differ by is noise.
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
        """Of a case that is one of ours."""
        if not isinstance(self.work, Plan):
            raise InternalError(f"{self.algorithm} is no plan")
        return self.work

    @property
    def forecast(self) -> Forecast:
        """As it is recorded."""
        plan = self.work.digest if isinstance(self.work, Plan) else ""
        predicted = self.predicted * 1e6 if math.isfinite(self.predicted) else None
        then, beside = (
            (self.control.then * 1e6, self.control.beside) if self.control else (None, ())
        )
        return Forecast(
            self.algorithm, self.nbytes, self.count, dtypes.NAMES[self.dtype], self.redop, plan, predicted, self.repeats,
            then, beside,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timing:
    """One case, measured. `events` is the timeline of one more step, empty if none was asked for. A
    sample is the median of `settled` steps, after as many that do not count; if 0, it is one step.
    """

    case: Case
    measured: Measurement
    events: tuple[Event, ...] = ()
    settled: int = 0

    @property
    def interval(self) -> Interval:
        """Between which seconds the median lies."""
        return median_interval(self.measured.seconds)

    @property
    def predicted(self) -> float:
        """Seconds."""
        return self.case.predicted

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured.median - 1

    @property
    def faults(self) -> tuple[str, ...]:
        """All that makes the time meaningless."""
        return (*self.measured.wrong, *self.measured.departures)


class Stopped(KeyboardInterrupt):
    """An interrupt while candidates are measured: what there is until then, and what it ran on."""

    def __init__(self, rows: Sequence[Timing], provenance: Mapping[str, Any]) -> None:
        super().__init__()
        self.rows, self.provenance = rows, provenance


@dataclass(frozen=True, slots=True)
class Campaign:
    """What all rows have in common."""

    devices: Devices
    calibration: Calibration
    repetitions: int | None = 20  # None: as many as `BUDGET` has time for
    warmup: int = 2
    chained: int = 1
    traced: bool = False
    faithful: bool = False  # strategies with upstream's quirks

    def cases(
        self,
        workload: Workload,
        strategies: Sequence[Strategy],
        builtins: Sequence[str] = (),
        *,
        twice: bool = False,
    ) -> list[Case]:
        """All candidates for one workload (of one dtype), with what is predicted; the first once
        more in the end, if `twice`.
        """
        dtype = workload.gradients[0].dtype
        count, layout = workload.elements, self.devices.layout
        found = []
        for strategy in strategies:
            plan = self.devices.stage.adapt(
                compile_plan(strategy, workload, layout, faithful=self.faithful)
            )
            redop = "avg" if strategy.mean else "sum"
            found.append(
                Case(strategy.text, plan, count, dtype, redop, self.predicted(plan, self.chained))
            )
        for name in builtins:
            work = Builtin(
                name, tuple(gradient.elements for gradient in workload.gradients), layout.n, dtype
            )
            redop = "avg" if work.mean else "sum"
            found.append(
                Case(name, work, count, dtype, redop, self._builtin_predicted(name, workload))
            )
        return [*found, replace(found[0], repeats=0)] if twice else found

    def with_controls(self, cases: Sequence[Case]) -> list[Case]:
        """The candidates of a group, and what is timed again in their rounds of what the
        calibration was learnt from (see `like`).
        """
        micros = repeated(self.devices, self.calibration.controls)
        then = {key: self.calibration.controls[key] for key in micros}
        beside: dict[Key, list[int]] = {}
        for nbytes in dict.fromkeys(case.nbytes for case in cases):
            for key in like(
                then, nbytes, [case.predicted for case in cases if case.nbytes == nbytes]
            ):
                beside.setdefault(key, []).append(nbytes)
        found = []
        for key, sizes in sorted(beside.items()):
            plan = self.devices.stage.adapt(micros[key].plan)
            control = Control(then[key], tuple(sizes))
            found.append(Case(key[0], plan, key[1] // 4, 0, "sum", math.nan, control=control))
        return [*cases, *found]

    @property
    def blind(self) -> bool:
        """Whether nothing is known of the devices: they are CPU devices, the calibration knows
        none, and nobody has set their links.
        """
        return (
            self.devices.stage.on_cpus
            and self.calibration.cpu is None
            and self.devices.links is None
        )

    def predicted(self, plan: Plan, times: int = 1) -> float:
        """Seconds of the plan, `times` in a row in one step, divided by that; NaN if nothing is
        known of the devices.
        """
        return math.nan if self.blind else self._simulated(plan, times)

    def fastest(self, cases: Sequence[Case]) -> list[int]:
        """The places of cases that are plans, the one predicted to be fastest first. Where nothing
        is known of the devices, what the constants make of their plans is no prediction, and yet
        better than no order.
        """
        seconds = [
            self._simulated(case.plan, self.chained) if self.blind else case.predicted
            for case in cases
        ]
        return sorted(range(len(cases)), key=seconds.__getitem__)

    def _simulated(self, plan: Plan, times: int) -> float:
        """With the constants, whether or not these know the devices."""
        whole = sr.repeat(plan, times) if times > 1 else plan
        return (
            sr.simulate(whole, self.devices.stage.machine, RUNTIME, self.calibration).seconds
            / times
        )

    def measure(
        self,
        groups: Sequence[Sequence[Case]],
        out: Path | None = None,
    ) -> tuple[list[Timing], dict[str, Any]]:
        """Every group in turns; what it ran on. All predictions are in the file `out` before
        anything is measured.

        `Stopped` if it is interrupted, with the rows of groups that are complete.
        """
        used = max(
            [self.devices.layout.n, *(_used(case.work) for group in groups for case in group)]
        )
        cases = [case for group in groups for case in group]
        with ExitStack() as stack:
            backend = stack.enter_context(self.devices.open(used))
            provenance = provenance_of(backend.provenance, self.settings)
            record = None
            if out is not None:
                record = stack.enter_context(
                    open_record(out, provenance, [case.forecast for case in cases])
                )
            rows: list[Timing] = []
            told = stack.enter_context(Progress("measured {} of {} plans"))
            told(0, len(cases))
            try:
                for group in groups:
                    rows += self._rows(backend, group, len(rows), record)
                    told(len(rows), len(cases))
            except KeyboardInterrupt:
                raise Stopped(rows, provenance) from None
        return rows, provenance

    @property
    def settings(self) -> dict[str, Any]:
        """What was asked for, for a result's provenance."""
        machine, devices = self.devices.stage.machine, self.devices
        return {
            "topology": devices.topology.name, "topology_digest": devices.topology.digest, "simulated": machine.name,
            "simulated_digest": machine.digest, "backend": devices.stage.backend, "route": devices.route,
            "runtime": RUNTIME, "calibration": self.calibration.name, "iterations": self.repetitions, "warmup": self.warmup,
            "chained": self.chained,
            **({"settled_s": _SETTLED, "most_settled": _MOST_SETTLED} if devices.stage.one_process else {}),
        }  # fmt: skip

    def _rows(
        self, backend: Backend, cases: Sequence[Case], first: int, record: Record | None
    ) -> list[Timing]:
        """Time cases in turns. The first is candidate `first` of the record."""
        candidates = [
            backend.prepare(
                case.work,
                chained=self.chained if isinstance(case.work, Plan) and not case.control else 1,
                route=self.devices.route,
            )
            for case in cases
        ]

        def note(place: int, number: int, seconds: float) -> None:
            if record:
                record.sample(first + place, number, seconds)

        seconds = [float(candidate.time(1)[0]) for candidate in candidates]
        settled = [_settled(each) if self.devices.stage.one_process else 0 for each in seconds]
        if record:
            for place, many in enumerate(settled, start=first):
                record.settled(place, many)
        rounds = self.repetitions or _rounds(
            sum(each * (2 * many or 1) for each, many in zip(seconds, settled, strict=True)),
            len(candidates),
        )
        samples = time_in_rounds(candidates, rounds, warmup=self.warmup, settled=settled, note=note)
        found = []
        for place, (case, candidate, times, many) in enumerate(
            zip(cases, candidates, samples, settled, strict=True), start=first
        ):
            traced = (
                self.traced
                and isinstance(case.work, Plan)
                and self.chained == 1
                and case.control is None
            )
            events = tuple(candidate.trace()) if traced else ()
            found.append(Timing(case, candidate.measured(times), events, many))
            if record:
                record.checked(place, found[-1].faults)
            candidate.release()
        return found

    def _builtin_predicted(self, name: str, workload: Workload) -> float:
        try:
            plan = compile_plan(BUILTINS[name], workload, self.devices.layout)
        except StrategyError:
            return math.nan
        return self.predicted(self.devices.stage.adapt(plan))


def _settled(seconds: float) -> int:
    """How many steps of so many seconds make a sample."""
    return int(min(max(math.ceil(_SETTLED / seconds), 1), _MOST_SETTLED))


def _rounds(seconds: float, candidates: int) -> int:
    """How many rounds of so many seconds there is time for."""
    budget = BUDGET * max(candidates / _IN_BUDGET, 1.0)
    return int(min(max(budget / seconds, _FEWEST), _MOST))


def _used(work: Plan | Builtin) -> int:
    """How many of its devices, from the first on, a plan needs."""
    return int(np.max(work.device, initial=0)) + 1 if isinstance(work, Plan) else work.ranks
