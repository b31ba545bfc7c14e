"""NCCL's constants of one machine from logs of nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simreduce import dtypes, units
from simreduce.engine import Calibration
from simreduce.engine.calibrate.fit import VAGUE, Fit
from simreduce.engine.calibrate.nccl import nccl_names, with_values
from simreduce.engine.calibrate.nccl_tests import COLLECTIVES, NcclTestsLog
from simreduce.engine.calibration import PROTOCOLS
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.files.formats import Faults
from simreduce.files.published import ITERATIONS
from simreduce.planners.nccl import NcclSettings
from simreduce.study.accuracy.fit import FitCase, fit_machine, sample
from simreduce.study.accuracy.predict import part_of, strategy_for, workload_of
from simreduce.study.tune.bench import BenchCalls
from simreduce.topology import Topology

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
        for name, error in self.fit.errors.items():
            if error > VAGUE * names[name]:
                found[name] = f"standard error {error / names[name]:.0%}"
        used = {PROTOCOLS[int(e) - 1] for case in self.cases for e in set(case.plan.executor) if e}
        for protocol in PROTOCOLS:
            if protocol not in used:
                found[f"nccl.*.{protocol}"] = "no row of the logs uses this protocol"
        return found


def fit_logs(
    logs: Sequence[NcclTestsLog],
    machine: Topology,
    settings: NcclSettings,
    collective: str,
    path: Path,
) -> FittedLogs:
    """The constants of a machine, to keep at `path`.

    `collective` is that of logs which do not say theirs.

    InputError with every log that does not fit the machine.
    """
    faults = Faults()
    cases: list[FitCase] = []
    for log in logs:
        cases += faults.attempt(log.name, _cases, log, machine, settings, collective) or []
    faults.raise_any()
    base = cases[0].setup.constants.nccl
    nccl, fit = fit_machine(cases)
    rounded = with_values(nccl, {n: float(f"{v:.4g}") for n, v in fit.values.items()})
    provenance = {
        "logs": ", ".join(log.name for log in logs),
        "machine": f"{machine.name} ({machine.digest})",
        "method": "robust least squares on log(predicted / measured), from the constants of the"
        " machine's generation",
    }
    title = f"NCCL on {machine.name}, fitted to {units.plural(len(cases), 'row')} of nccl-tests"
    calibration = Calibration(
        path.stem, title, nccl=rounded, provenance=provenance,
        errors={n: float(f"{e:.3g}") for n, e in fit.errors.items() if np.isfinite(e)},
    )  # fmt: skip
    return FittedLogs(
        calibration,
        fit,
        tuple(cases),
        tuple(case.predict(base) for case in cases),
        tuple(case.predict(rounded) for case in cases),
        str(path),
    )


def _cases(
    log: NcclTestsLog, machine: Topology, settings: NcclSettings, collective: str
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
        workload = workload_of(collective, row.size, dtypes.code(row.dtype), shape.n)
        if workload.elements:
            plan = setup.compile(strategy_for(collective), workload)
            found.append(
                FitCase(setup, plan, row.size, row.time, calls, setup.slowest_link, log.name)
            )
    if not found:
        raise InputError("has no row with an element for each rank")
    return found
