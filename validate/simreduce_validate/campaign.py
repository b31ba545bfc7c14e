"""A campaign measures cases on real devices, in turns, beside what is predicted for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import simreduce as sr
from simreduce import units
from simreduce.app.cli.reply import Progress
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.plan import Plan
from simreduce.planners.strategy import Strategy
from simreduce.workload import Workload
from simreduce_validate.calibrating.controls import Key, choose_controls, control_plans
from simreduce_validate.cases import Case, Control, Timing
from simreduce_validate.devices import Devices
from simreduce_validate.measuring import ResultWriter, open_record, time_in_rounds
from simreduce_validate.measuring.provenance import provenance
from simreduce_validate.running import BUILTINS, Builtin
from simreduce_validate.running.backend import Backend, Executable
from simreduce_validate.running.builtin import NCCL
from simreduce_validate.running.protocol import FirstStep

BUDGET = 8.0
"""Seconds for all rounds of candidates timed in turns, where their number is not given."""

_IN_BUDGET = 8
"""Candidates for which the budget is enough. More candidates get more."""

_FEWEST, _MOST = 7, 200

_SETTLED, _MOST_SETTLED = 4e-3, 6
"""Within one process, caches forget the candidate before after 4 ms of steps, or after 6 steps."""


_ROOM = 0.5
"""The part of the memory for candidates that are ready at once. What a step makes on its way, and
TensorFlow itself, take the rest.
"""


class Interruption(KeyboardInterrupt):
    """An interrupt during a campaign, with the timings so far and their provenance."""

    def __init__(self, timings: Sequence[Timing], provenance: Mapping[str, Any]) -> None:
        super().__init__()
        self.timings, self.provenance = timings, provenance


@dataclass(frozen=True)
class Campaign:
    """What all timings of a validation or a calibration have in common.

    `setup` is what predictions simulate, see `Devices.setup`.
    A step reduces `chained` times in a row. `repetitions` is the number of rounds; None takes as
    many as `BUDGET` has time for. `traced` keeps a timeline of every plan. `faithful` compiles
    strategies with upstream's quirks. `watch` gets every sample as it comes: the place of its case,
    the seconds and the case's first step.
    """

    devices: Devices
    setup: Setup
    repetitions: int | None = 20
    warmup: int = 2
    chained: int = 1
    traced: bool = False
    faithful: bool = False
    watch: Callable[[int, float, FirstStep], None] = lambda _place, _seconds, _first: None

    def compile(self, strategy: Strategy | str, workload: Workload) -> Plan:
        """The plan of a strategy, as these devices run it.

        Raises StrategyError if they cannot.
        """
        plan = self.setup.compile(strategy, workload, faithful=self.faithful)
        return self.devices.stage.adapt(plan)

    def cases(
        self,
        workload: Workload,
        strategies: Sequence[Strategy],
        builtins: Sequence[str] = (),
        *,
        twice: bool = False,
    ) -> list[Case]:
        """The candidates for one workload of one dtype, with their predictions.

        `twice` repeats the first candidate at the end, which shows the noise.
        """
        dtype, count = workload.gradients[0].dtype, workload.elements
        elements = tuple(gradient.elements for gradient in workload.gradients)
        found = []
        for strategy in strategies:
            plan, redop = self.compile(strategy, workload), "avg" if strategy.mean else "sum"
            predicted = self.predict(plan, self.chained)
            # NCCL's plans are simulated, its ops are what runs.
            by_nccl = plan.executor.any()
            work = Builtin(NCCL, elements, self.devices.layout.n, dtype) if by_nccl else plan
            found.append(Case(strategy.text, work, count, dtype, redop, predicted))
        for name in builtins:
            work = Builtin(name, elements, self.devices.layout.n, dtype)
            redop = "avg" if work.mean else "sum"
            predicted = self._predict_builtin(name, workload)
            found.append(Case(name, work, count, dtype, redop, predicted))
        return [*found, replace(found[0], repeats=0)] if twice else found

    def with_controls(self, cases: Sequence[Case]) -> list[Case]:
        """The candidates of a group, then the controls to time in the same rounds.

        `choose_controls` says which plans of the calibration these are.
        """
        micros = control_plans(self.devices, self.setup.calibration.controls)
        then = {key: self.setup.calibration.controls[key] for key in micros}
        beside: dict[Key, list[int]] = {}
        for nbytes in dict.fromkeys(case.nbytes for case in cases):
            predicted = [case.predicted for case in cases if case.nbytes == nbytes]
            for key in choose_controls(then, nbytes, predicted):
                beside.setdefault(key, []).append(nbytes)
        found = []
        for key, sizes in sorted(beside.items()):
            plan = self.devices.stage.adapt(micros[key].plan)
            control = Control(then[key], tuple(sizes))
            found.append(Case(key[0], plan, key[1] // 4, 0, "sum", math.nan, control=control))
        return [*cases, *found]

    @property
    def blind(self) -> bool:
        """Whether predictions are impossible.

        The devices are CPU devices that the calibration does not know, and no rate was set for
        their links.
        """
        return (
            self.devices.stage.on_cpus
            and self.setup.calibration.cpu is None
            and self.devices.links is None
        )

    def predict(self, plan: Plan, times: int = 1) -> float:
        """Seconds of a plan that a step does `times` in a row, divided by `times`; NaN if blind."""
        return math.nan if self.blind else self._simulate(plan, times)

    def order(self, cases: Sequence[Case]) -> list[int]:
        """The places of cases that are plans, by prediction, the fastest first.

        A blind campaign orders them by what its constants make of their plans: no prediction, but
        better than no order.
        """
        seconds = [
            self._simulate(case.plan, self.chained) if self.blind else case.predicted
            for case in cases
        ]
        return sorted(range(len(cases)), key=seconds.__getitem__)

    def _simulate(self, plan: Plan, times: int) -> float:
        whole = sr.repeat(plan, times) if times > 1 else plan
        return self.setup.simulate(whole).seconds / times

    def _predict_builtin(self, name: str, workload: Workload) -> float:
        try:
            return self.predict(self.compile(BUILTINS[name], workload))
        except StrategyError:
            return math.nan

    def measure(
        self,
        groups: Sequence[Sequence[Case]],
        out: Path | None = None,
        opened: Backend | None = None,
    ) -> tuple[list[Timing], dict[str, Any]]:
        """Time each group in turns, on devices that are `opened` already or for this only; returns
        the timings and their provenance.

        All predictions are in the file `out` before the first measurement. Raises `Interruption`
        with the complete groups.
        """
        cases = [case for group in groups for case in group]
        with ExitStack() as stack:
            used = self.devices_used([case.work for case in cases])
            backend = opened or stack.enter_context(self.devices.open(used))
            about = provenance(backend.provenance, self.settings)
            record = None
            if out is not None:
                forecasts = [case.forecast for case in cases]
                record = stack.enter_context(open_record(out, about, forecasts))
            timings: list[Timing] = []
            show = stack.enter_context(Progress("measured {} of {} plans"))
            show(0, len(cases))
            try:
                for group in groups:
                    timings += self._time_group(backend, group, len(timings), record, show)
                    show(len(timings), len(cases))
            except KeyboardInterrupt:
                raise Interruption(timings, about) from None
        return timings, about

    def devices_used(self, works: Iterable[Plan | Builtin]) -> int:
        """How many devices these need, counted from the first; all ranks at least."""
        return max([self.devices.layout.n, *map(_devices_used, works)])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that a result's provenance records."""
        machine, devices = self.setup.machine, self.devices
        settled = {"settled_s": _SETTLED, "most_settled": _MOST_SETTLED}
        return {
            "topology": devices.topology.name,
            "topology_digest": devices.topology.digest,
            "simulated": machine.name,
            "simulated_digest": machine.digest,
            "backend": devices.stage.backend,
            "route": devices.route,
            "runtime": self.setup.runtime.name,
            "calibration": self.setup.calibration.name,
            "iterations": self.repetitions,
            "warmup": self.warmup,
            "chained": self.chained,
            **(settled if devices.stage.one_process else {}),
        }

    def _time_group(
        self,
        backend: Backend,
        cases: Sequence[Case],
        first: int,
        record: ResultWriter | None,
        show: Progress,
    ) -> list[Timing]:
        """Time cases in turns. The first is number `first` of the record.

        What has no room in memory at once is timed part by part, all with as many rounds.
        """
        found: list[Timing] = []
        rounds = self.repetitions
        for part in split_by_share([backend.share(case.work) for case in cases]):
            here = cases[part.start : part.stop]
            place = first + part.start
            found += self._time_part(backend, here, place, record, show, rounds, len(cases))
            rounds = len(found[0].measured.seconds)
        return found

    def _time_part(
        self,
        backend: Backend,
        cases: Sequence[Case],
        first: int,
        record: ResultWriter | None,
        show: Progress,
        rounds: int | None,
        of: int,
    ) -> list[Timing]:
        """Time cases that are ready at once, of a group of so many."""

        def name(doing: str, place: int) -> None:
            case = cases[place]
            show.name(f"{doing} {case.algorithm} of {units.exact_size(case.nbytes)}")

        candidates = []
        for place, case in enumerate(cases):
            name(f"building {place + 1} of {len(cases)},", place)
            candidates.append(self._prepare(backend, case))
        seconds = [float(candidate.time(1)[0]) for candidate in candidates]
        settled = [_steps(each) if self.devices.stage.one_process else 0 for each in seconds]

        def note(place: int, number: int, sample: float) -> None:
            name(f"timing round {number + 1} of {rounds},", place)
            if record:
                record.sample(first + place, number, sample)
            self.watch(first + place, sample, candidates[place].prepared)

        if record:
            for place, many in enumerate(settled, start=first):
                record.settled(place, many)
        a_round = sum(each * (2 * many or 1) for each, many in zip(seconds, settled, strict=True))
        rounds = rounds or _rounds(a_round * of / len(cases), of)
        samples = time_in_rounds(candidates, rounds, warmup=self.warmup, settled=settled, note=note)
        found = []
        for place, (case, candidate) in enumerate(zip(cases, candidates, strict=True)):
            name(f"checking {place + 1} of {len(cases)},", place)
            events = tuple(candidate.trace()) if self._keeps_events(case) else ()
            measured = candidate.measured(samples[place])
            found.append(Timing(case, measured, events, settled[place]))
            if record:
                record.checked(first + place, found[-1].faults)
            candidate.release()
        return found

    def _prepare(self, backend: Backend, case: Case) -> Executable:
        chained = self.chained if isinstance(case.work, Plan) and not case.control else 1
        return backend.prepare(case.work, chained=chained, route=self.devices.route)

    def _keeps_events(self, case: Case) -> bool:
        is_candidate = isinstance(case.work, Plan) and case.control is None
        return self.traced and self.chained == 1 and is_candidate


def split_by_share(shares: Sequence[float]) -> list[range]:
    """Candidates in a row that half of the memory has room for, as ranges of their places; one
    candidate at least. `shares` says which part of the memory each may need.
    """
    found, start, held = [], 0, 0.0
    for place, share in enumerate(shares):
        if place > start and held + share > _ROOM:
            found.append(range(start, place))
            start, held = place, 0.0
        held += share
    return [*found, range(start, len(shares))]


def _steps(seconds: float) -> int:
    """How many steps of this length make a sample."""
    return int(min(max(math.ceil(_SETTLED / seconds), 1), _MOST_SETTLED))


def _rounds(seconds: float, candidates: int) -> int:
    """How many rounds of this length the budget has time for."""
    budget = BUDGET * max(candidates / _IN_BUDGET, 1.0)
    return int(min(max(budget / seconds, _FEWEST), _MOST))


def _devices_used(work: Plan | Builtin) -> int:
    """How many devices a plan needs, counted from the first."""
    return int(np.max(work.device, initial=0)) + 1 if isinstance(work, Plan) else work.ranks
