"""Fits NCCL's constants to measured times with the simulator itself.

NCCL's constants of one machine from logs of nccl-tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from simreduce import dtypes, units
from simreduce.computing import grouped, once
from simreduce.computing.arrays import AnyInts, Floats
from simreduce.engine import Calibration, Rerun
from simreduce.engine.calibrate import nccl_names, with_values
from simreduce.engine.calibrate.fit import (
    INLIER,
    VAGUE,
    Fit,
    FreeConstant,
    find_slopes,
    fit_constants,
    weights,
)
from simreduce.engine.calibrate.logs import COLLECTIVES, NcclTestsLog
from simreduce.engine.runtime import NVLS, PROTOCOLS, NcclConstants
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import ITERATIONS
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.ops import JOINED, SWITCHED, count_blocks
from simreduce.planners.nccl import Settings
from simreduce.study.accuracy import part_of, strategy_for, workload_of
from simreduce.study.tune.sizes import BenchCalls, sends_of
from simreduce.topology import Topology
from simreduce.topology.routing import is_nvlink

T = TypeVar("T")

_UNCERTAIN = {
    "launch": 0.5,
    "post": 0.5,
    "start": 0.5,
    "latency": 0.4,
    "efficiency": 0.2,
    "channel_rate": 0.3,
    "message": 0.5,
    "join": 0.5,
    "slice": 0.5,
}
"""How well a constant is known before, by the first word of its name, as a logarithm."""
_NOISE = 0.08
"""The error of a measurement itself, as a logarithm."""
_FARTHEST = 6.0
"""Factor from the start to the bounds of a constant."""
_CHANNEL = "nccl.launch_channel"
_LAUNCH = ("nccl.launch", *(f"nccl.start.{protocol}" for protocol in (*PROTOCOLS, NVLS)))
"""Constants that add to the time: they need no simulation."""
_ADDED = (*_LAUNCH, _CHANNEL, "nccl.launch_each", "nccl.post")
_NO_LAUNCH: dict[str, Any] = {
    "launch": 0.0,
    "launch_each": 0.0,
    "launch_pair": 0.0,
    "launch_channel": 0.0,
    "start": dict.fromkeys((*PROTOCOLS, NVLS), 0.0),
}
_FEW = 6
"""With fewer times, none can be recognised as an outlier: each constant needs them all."""
_ANY = 1.0
"""Residuals up to this, as logarithms, then count in full."""


@dataclass(frozen=True, slots=True)
class FitCase:
    """A measured time and its plan.

    `link` is the slowest kind of link, and `group` what is left out of a fit as a whole.
    """

    setup: Setup
    plan: Plan
    nbytes: int
    seconds: float
    calls: BenchCalls
    link: str
    group: str

    @property
    def rerun(self) -> Rerun:
        """The plan, to be simulated often."""
        return Rerun(self.plan, self.setup.machine, self.setup.runtime, self.setup.calibration)

    def predict(self, constants: NcclConstants, rerun: Rerun | None = None) -> float:
        """Seconds with these constants."""
        return self.calls.seconds(self.plan, (rerun or self.rerun)(constants), constants)

    @property
    def channels(self) -> int:
        """Channels of the kernels that the plan launches, one after another."""
        return int(count_blocks(self._launches).sum())

    @property
    def posts(self) -> int:
        """Sends and receives that each GPU posts."""
        return sends_of(self.plan)

    @property
    def _launches(self) -> AnyInts:
        launches = (self.plan.kind == Kind.INPUT) & (self.plan.executor != Executor.TF)
        channels: AnyInts = self.plan.stream[launches] // len(self.plan.devices)
        return channels

    @property
    def names(self) -> tuple[str, ...]:
        """The constants that may matter."""
        protocols = {PROTOCOLS[e - 1] for e in self.plan.executor.tolist() if e}
        switched = bool((self._launches & SWITCHED).any())
        channels = self.plan.stream[self.plan.stream >= 0] // len(self.plan.devices)
        joins = self.link == "net" and bool((channels & JOINED).any())  # trees of machines
        kinds = {self.link, *([NVLS] if switched else [])}
        if any(is_nvlink(link) for link in self.setup.topology.links):
            kinds.add("nvlink")
        elif self.link == "net":
            kinds |= {"pci", "shm"}
        known = {
            "start": {NVLS} if switched else protocols,
            "channel_rate": {NVLS, *protocols} if switched else protocols,
            "join": protocols if joins else set(),
            "slice": kinds if "simple" in protocols else set(),
            "copy_out": set(),
        }

        def matters(name: str) -> bool:
            _, key, *parts = name.split(".")
            if len(parts) == 2:
                return parts[0] in kinds and parts[1] in protocols
            if key == "message":
                return self.link == "net"
            return parts[0] in known[key] if parts else key != "post" or self.posts > 0

        return tuple(name for name in nccl_names() if matters(name))


class CasePredictor:
    """Predicts all cases, and simulates only those whose constants have changed."""

    def __init__(self, cases: Sequence[FitCase], base: NcclConstants) -> None:
        self._cases, self._base = cases, base
        self._names = [case.names for case in cases]
        self._reruns = [case.rerun for case in cases]
        self._known: list[dict[tuple[float, ...], float]] = [{} for _ in cases]
        self.names = tuple(dict.fromkeys(name for names in self._names for name in names))

    def __call__(self, values: Mapping[str, float]) -> list[float]:
        """Seconds of every case with these constants in the place of the base's."""
        constants = with_values(self._base, values)
        every, bare = nccl_names(constants), replace(constants, **_NO_LAUNCH)
        found = []
        for case, rerun, names, known in zip(
            self._cases, self._reruns, self._names, self._known, strict=True
        ):
            launch = every[_CHANNEL] * case.channels
            launch += sum(every[name] for name in names if name in _LAUNCH)
            key = tuple(every[name] for name in names if name not in _ADDED)
            seconds = launch + once(known, key, partial(case.predict, bare, rerun))
            calls = case.calls
            found.append(
                constants.per_call(seconds, calls.gpus, case.posts, together=calls.together)
            )
        return found


def fit_nccl(
    cases: Sequence[FitCase], base: NcclConstants, inlier: float = INLIER
) -> tuple[NcclConstants, Fit]:
    """The constants for which predictions come nearest to the cases, and the fit.

    The prior of each constant is its value in `base`, more or less sure (`_UNCERTAIN`): what the
    cases do not determine stays as it is. A residual counts less beyond `inlier`.
    """
    predict = CasePredictor(cases, base)
    start = nccl_names(base)
    # Hosts differ in what a process takes for each GPU, which nothing tells if all have as many.
    sites, counts = ({case.group for case in cases}, {case.calls.gpus for case in cases} - {0})
    untold = ("nccl.launch_each",) if len(sites) > 1 and len(counts) < 2 else ()
    names = [name for name in predict.names if start[name] > 0 and name not in untold]
    constants = [_constant(name, start[name]) for name in names]
    fit = fit_constants(constants, predict, [case.seconds for case in cases], inlier)
    return with_values(base, fit.values), fit


def _constant(name: str, start: float) -> FreeConstant:
    kind = name.split(".")[1].partition("_")[0]
    uncertain = _UNCERTAIN["channel_rate" if kind == "channel" else kind]
    high = 1.0 if kind == "efficiency" else start * _FARTHEST
    pull = INLIER * _NOISE / uncertain * np.log(10) / INLIER
    return FreeConstant(name, start, start / _FARTHEST, max(high, start * 1.01), True, float(pull))


def sample(values: Sequence[T], most: int) -> list[T]:
    """At most so many of the values, spread over all, the first and the last one included."""
    steps = np.linspace(0, len(values) - 1, min(most, len(values)))
    return [values[i] for i in sorted(set(steps.round().astype(int).tolist()))]


def fit_machine(cases: Sequence[FitCase]) -> tuple[NcclConstants, Fit]:
    """Return a machine's constants and the fit, with its generation's constants as the prior."""
    base = cases[0].setup.constants.nccl
    off = np.log([case.predict(base) / case.seconds for case in cases])
    gpus = grouped((case.plan.contract.collective, case.setup.layout.n) for case in cases)
    base = replace(
        base,
        measured={name: tuple(sorted({*counts})) for name, counts in gpus.items()},
        misfit=float(f"{np.sqrt(np.mean(off**2)):.3g}"),
    )
    return fit_nccl(cases, base, _ANY if len(cases) < _FEW else INLIER)


def left_out_residuals(
    cases: Sequence[FitCase],
    base: NcclConstants,
    fitted: NcclConstants,
    names: Sequence[str],
    held: Sequence[FitCase] = (),
) -> Floats:
    """log(predicted / measured) of each case by constants that were fitted without its group.

    The fit without a group is one step of least squares from the constants fitted to all cases.
    Those of `held`, which took no part in it, come last.
    """
    count, cases = len(cases), [*cases, *held]
    predict = CasePredictor(cases, fitted)
    start, at = nccl_names(base), nccl_names(fitted)
    free = [name for name in names if at[name] > 0]
    logs = np.log([at[name] for name in free])
    pulls = np.array([_constant(name, start[name]).pull for name in free]) / np.log(10)
    before = np.log([start[name] for name in free])
    goal = np.log([case.seconds for case in cases])

    def residuals(x: Floats) -> Floats:
        return np.asarray(np.log(predict(dict(zip(free, np.exp(x).tolist(), strict=True)))) - goal)

    here, slopes = residuals(logs), find_slopes(residuals, logs)
    weight = weights(here[:count])
    found, groups = here.copy(), np.array([case.group for case in cases])
    for group in set(groups[:count].tolist()):
        mine = groups == group
        kept = ~mine[:count]
        j, w = slopes[:count][kept], weight[kept]
        normal = j.T @ (w[:, None] * j) + np.diag(pulls**2)
        gradient = j.T @ (w * here[:count][kept]) + pulls**2 * (logs - before)
        change = -np.linalg.solve(normal, gradient)
        found[mine] = residuals(logs + np.clip(change, -0.7, 0.7))[mine]
    return found


_MOST_ROWS = 24
"""Rows of a log that are fitted: more take long and say little more."""


@dataclass(frozen=True, slots=True)
class FittedLogs:
    """Constants fitted to logs, to keep in the file `kept`.

    `before` and `after` are predictions of `cases` in seconds, with the constants of the machine's
    generation and with these.
    """

    calibration: Calibration
    fit: Fit
    cases: tuple[FitCase, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    kept: str

    @property
    def undetermined(self) -> dict[str, str]:
        """The constants that the logs do not determine, with the reason."""
        names, found = nccl_names(self.calibration.nccl), dict(self.fit.vague)
        found |= {
            name: f"standard error {error / names[name]:.0%}"
            for name, error in self.fit.errors.items()
            if error > VAGUE * names[name]
        }
        used = {PROTOCOLS[int(e) - 1] for case in self.cases for e in set(case.plan.executor) if e}
        return found | dict.fromkeys(
            [f"nccl.*.{protocol}" for protocol in PROTOCOLS if protocol not in used],
            "no row of the logs uses this protocol",
        )


def fit_logs(
    logs: Sequence[NcclTestsLog],
    machine: Topology,
    settings: Settings,
    collective: str,
    path: Path,
) -> FittedLogs:
    """The constants of a machine, to keep at `path`.

    `collective` is that of logs which do not say theirs.

    InputError with every log that does not fit the machine.
    """
    faults = Faults()
    asked = machine, settings, collective
    found = [faults.attempt(log.name, _cases, log, *asked) or [] for log in logs]
    cases = [case for some in faults.require(found) for case in some]
    base = cases[0].setup.constants.nccl
    osu = {each.startswith("osu_") for log in logs for each in log.programs}
    measured = "OSU's tables" if osu == {True} else "logs" if True in osu else "nccl-tests"
    nccl, fit = fit_machine(cases)
    rounded = with_values(nccl, {n: float(f"{v:.4g}") for n, v in fit.values.items()})
    calibration = Calibration(
        path.stem,
        f"NCCL on {machine.name}, fitted to {units.plural(len(cases), 'row')} of {measured}",
        nccl=rounded,
        provenance={
            "logs": ", ".join(log.name for log in logs),
            "machine": f"{machine.name} ({machine.digest})",
            "method": "robust least squares on log(predicted / measured), from the constants of the"
            " machine's generation",
        },
        errors={n: float(f"{e:.3g}") for n, e in fit.errors.items() if np.isfinite(e)},
    )
    return FittedLogs(
        calibration,
        fit,
        tuple(cases),
        tuple(case.predict(base) for case in cases),
        tuple(case.predict(rounded) for case in cases),
        str(path),
    )


def _cases(
    log: NcclTestsLog, machine: Topology, settings: Settings, collective: str
) -> list[FitCase]:
    collective = log.collective or collective
    if not collective:
        programs = ", ".join(f"{each}_perf" for each in COLLECTIVES)
        named = f"{', '.join(log.programs)}, and " if log.programs else ""
        raise InputError(
            f"its collective is not found: it names {named}none of {programs}; give --collective "
            f"{'|'.join(COLLECTIVES.values())}"
        )
    whole = part_of(machine, None)
    ranks, hosts = log.ranks or whole.n, log.hosts or len(whole.tasks)
    if hosts != len(whole.tasks) or ranks > whole.n or ranks % hosts:
        raise InputError(
            f"has {units.plural(ranks, 'rank')} on {units.plural(hosts, 'machine')}, and"
            f" {machine.name} {units.plural(whole.n, 'GPU')} in {len(whole.tasks)}"
        )
    setup = Setup(machine, "tensorflow", part=part_of(machine, ranks // hosts), nccl=settings)
    shape = setup.layout
    each = log.gpus_of_a_thread or 1
    calls = BenchCalls.by_threads(
        shape.n // hosts // each, shape, log.iterations or ITERATIONS, settings.release
    )
    found = []
    for row in sample([row for row in log.rows if row.size], _MOST_ROWS):
        size = row.size * (shape.n if log.of_one_rank else 1)
        workload = workload_of(collective, size, dtypes.code(row.dtype), shape.n)
        if workload.elements:
            plan = setup.compile(strategy_for(collective), workload)
            found.append(FitCase(setup, plan, size, row.time, calls, setup.slowest_link, log.name))
    if not found:
        raise InputError("has no row with an element for each rank")
    return found
