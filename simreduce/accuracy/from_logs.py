"""NCCL's constants of one machine from logs of nccl-tests."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simreduce import dtypes, units
from simreduce.accuracy.fit import Case
from simreduce.accuracy.one_machine import fit_machine
from simreduce.accuracy.predict import part_of, strategy_for
from simreduce.calibrate.files import unit_of
from simreduce.calibrate.fit import VAGUE, Fit
from simreduce.calibrate.nccl import nccl_names, with_values
from simreduce.calibrate.nccl_tests import NcclTestsLog
from simreduce.calibrate.sure import MACHINE, SIZES, spread
from simreduce.engine import Calibration
from simreduce.engine.calibration import PROTOCOLS
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.formats.documents import (
    BYTES,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
)
from simreduce.nccl import Settings
from simreduce.setup import Setup
from simreduce.tables import Table, columns, page_width
from simreduce.topology import Topology
from simreduce.tune.bench import DIVIDED, tensor

_MOST_ROWS = 24
"""Rows of a log that are fitted: more take long and say little more."""


@dataclass(frozen=True, slots=True)
class FittedLogs:
    """Constants fitted to logs; `before` and `after` are predictions of `cases` in seconds, with
    the constants of the machine's generation and with these.
    """

    calibration: Calibration
    fit: Fit
    cases: tuple[Case, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]

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
    logs: Sequence[NcclTestsLog], machine: Topology, settings: Settings, collective: str, name: str
) -> FittedLogs:
    """The constants of a machine. `collective` is that of logs which do not say theirs.

    InputError with every log that does not fit the machine.
    """
    faults = Faults()
    cases: list[Case] = []
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
        name, title, nccl=rounded, provenance=provenance,
        errors={n: float(f"{e:.3g}") for n, e in fit.errors.items() if np.isfinite(e)},
    )  # fmt: skip
    return FittedLogs(
        calibration,
        fit,
        tuple(cases),
        tuple(case.predict(base) for case in cases),
        tuple(case.predict(rounded) for case in cases),
    )


def _cases(log: NcclTestsLog, machine: Topology, settings: Settings, collective: str) -> list[Case]:
    collective = log.collective or collective
    if not collective:
        raise InputError("does not say its collective; give --collective")
    whole = part_of(machine, None)
    ranks, hosts = log.ranks or whole.n, log.hosts or len(whole.tasks)
    if hosts != len(whole.tasks) or ranks > whole.n or ranks % hosts:
        raise InputError(
            f"has {units.plural(ranks, 'rank')} on {units.plural(hosts, 'machine')}, and"
            f" {machine.name} {units.plural(whole.n, 'GPU')} in {len(whole.tasks)}"
        )
    setup = Setup(machine, "tensorflow", part=part_of(machine, ranks // hosts), nccl=settings)
    shape = setup.layout
    one = 0 < log.processes < ranks
    rows = [row for row in log.rows if row.size]
    steps = np.linspace(0, len(rows) - 1, min(_MOST_ROWS, len(rows)))
    found = []
    for i in sorted(set(steps.round().astype(int).tolist())):
        row = rows[i]
        parts = shape.n if collective in DIVIDED else 1
        workload = tensor(row.size, dtypes.code(row.dtype), parts)
        if workload.elements:
            plan = setup.compile(strategy_for(collective), workload)
            gpus = len(shape.tasks[0]) if one else 0
            found.append(Case(setup, plan, row.size, row.time, gpus, setup.slowest_link, log.name))
    if not found:
        raise InputError("has no row with an element for each rank")
    return found


def fitted_lines(found: FittedLogs, kept: str) -> list[str]:
    """The report: rows, constants, what is not determined."""
    rows = tuple(
        (
            case.group,
            case.plan.contract.collective,
            units.format_size(case.nbytes),
            units.format_duration(case.seconds),
            units.format_duration(before),
            f"{before / case.seconds - 1:+.1%}",
            units.format_duration(after),
            f"{after / case.seconds - 1:+.1%}",
        )
        for case, before, after in zip(found.cases, found.before, found.after, strict=True)
    )
    head = "log|collective|size|measured|before|error|fitted|error"
    lines = [f"# {found.calibration.title}", "#"]
    lines += Table(columns(head, left="log|collective", spare="before"), rows).lines()
    names = nccl_names(found.calibration.nccl)
    lines += ["#", "# constants, with standard errors:"]
    for name, error in found.fit.errors.items():
        lines.append(f"#   {name}: {_show(name, names[name])} +- {_show(name, error)}")
    lines += _interval_lines(found)
    lines += ["# not determined by these logs:"] * bool(found.undetermined)
    reasons: dict[str, list[str]] = {}
    for name, why in found.undetermined.items():
        reasons.setdefault(why, []).append(name)
    for why, mine in reasons.items():
        text = textwrap.wrap(f"{why}: {', '.join(mine)}", page_width(100) - 4)
        lines += [f"#   {line}" for line in text]
    return [*lines, f"# kept in {kept}"]


def _interval_lines(found: FittedLogs) -> list[str]:
    """How sure times of the collectives of the logs are, by bands of sizes."""
    bands: dict[str, list[str]] = {}
    for collective, size, (low, high) in _intervals(found):
        text = f"{low:.2f}-{high:.2f} from {units.format_size(size)}"
        bands.setdefault(collective, []).append(text)
    lines = ["# with 80 % a time at another size is so many times the prediction:"]
    return lines + [f"#   {name}: {', '.join(texts)}" for name, texts in bands.items()]


def _intervals(found: FittedLogs) -> Iterator[tuple[str, int, tuple[float, float]]]:
    """The collectives of the logs, the sizes from which an interval holds, and its ends as parts of
    a prediction.
    """
    links = {case.plan.contract.collective: case.setup.link_class for case in found.cases}
    for collective, link in links.items():
        for size in SIZES:
            yield collective, size, spread(collective, link, size, file=MACHINE)


def _show(name: str, value: float) -> str:
    unit = unit_of(name)
    if unit == "time":
        return units.format_duration(value)
    return units.format_bandwidth(value) if unit == "rate" else f"{value:.3g}"


FITTED = Document(
    "calibrate-nccl-tests",
    "`simreduce calibrate --from-nccl-tests --json`: NCCL's constants of one machine.",
    Key("calibration", TEXT, "The file that keeps them."),
    Key("title", TEXT, "What they are of."),
    Key(
        "rows",
        list_of(
            Record(
                "row",
                "A size of a log.",
                Key("log", TEXT, "The log."),
                Key("collective", TEXT, "What is done."),
                Key("size_bytes", BYTES, "The tensor."),
                Key("measured_s", SECONDS, "The time in the log."),
                Key("before_s", SECONDS, "Predicted with the constants of its generation."),
                Key("fitted_s", SECONDS, "Predicted with the fitted constants."),
            )
        ),
        "Every size that was fitted.",
    ),
    Key(
        "constants",
        map_of(
            Record(
                "constant",
                "A constant in SI units.",
                Key("value", RATIO, "Its value, in its unit."),
                Key("error", RATIO, "Its standard error, in its unit."),
            )
        ),
        "The constants by name.",
    ),
    Key(
        "intervals",
        list_of(
            Record(
                "interval",
                "How sure times of a collective are.",
                Key("collective", TEXT, "What is done."),
                Key("from_bytes", BYTES, "The size from which it holds."),
                Key("low", RATIO, "The lower end of the 80 % interval over the prediction."),
                Key("high", RATIO, "The upper end of the 80 % interval over the prediction."),
            )
        ),
        "How sure predictions are.",
    ),
    Key("not_determined", map_of(TEXT), "Constants that the logs do not determine, and why."),
    command="calibrate",
)


def fitted_document(found: FittedLogs, kept: str) -> dict[str, Any]:
    """The document of `--json`: `FITTED`."""
    names = nccl_names(found.calibration.nccl)
    return {
        **FITTED.head(),
        "calibration": kept,
        "title": found.calibration.title,
        "rows": [
            {
                "log": case.group,
                "collective": case.plan.contract.collective,
                "size_bytes": case.nbytes,
                "measured_s": case.seconds,
                "before_s": before,
                "fitted_s": after,
            }
            for case, before, after in zip(found.cases, found.before, found.after, strict=True)
        ],
        "constants": {
            name: {"value": names[name], "error": error} for name, error in found.fit.errors.items()
        },
        "intervals": [
            {"collective": collective, "from_bytes": size, "low": low, "high": high}
            for collective, size, (low, high) in _intervals(found)
        ],
        "not_determined": found.undetermined,
    }
