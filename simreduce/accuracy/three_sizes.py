"""Errors after a calibration on three sizes of each table: what a short run of nccl-tests gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simreduce import units
from simreduce.accuracy.chosen import make_cases
from simreduce.accuracy.one_machine import fit_machine
from simreduce.accuracy.predict import machine_of, setup_for
from simreduce.calibrate.sure import MACHINE, OTHER_NET, spread
from simreduce.formats.documents import (
    BYTES,
    FLAG,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
)
from simreduce.published import PublishedTable
from simreduce.tables import Table, columns
from simreduce.workers import in_processes

_LEAST = 6
"""Sizes of a table that is calibrated: three are fitted, the others compared."""
_MOST_OPS = 200_000
"""Ops of a plan: larger ones take too long."""
_LARGE = 1 << 20
LIMITS = {False: 0.10, True: 0.05}
"""The greatest median error up to 1 MiB and above."""
LIMIT_90 = 0.20
_MOST_LISTED = 12
_LEGEND_INSIDE = (
    "# inside: within the 80 % interval of calibrated machines, by the errors on all other machines"
)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A size of a table that was not fitted: errors (0.1 is 10 % too long) with the constants of
    the machine's generation, and with those fitted to three other sizes of the table. `low` and
    `high` are what the interval's ends are to the latter, by errors on other machines.
    """

    table: PublishedTable
    link: str
    nbytes: int
    before: float
    after: float
    low: float = 1.0
    high: float = 1.0

    @property
    def bracketed(self) -> bool:
        """Whether the network has software of its own."""
        return self.link == OTHER_NET

    @property
    def several(self) -> bool:
        """Whether there are several machines."""
        return self.link in ("net", OTHER_NET)

    @property
    def inside(self) -> bool:
        """Whether the interval covers the published time."""
        return self.low <= 1 / (1 + self.after) <= self.high


def calibrate_on_three(
    tables: Sequence[PublishedTable], workers: int = 1
) -> Iterator[list[Calibrated]]:
    """The sizes of each table besides its smallest, its middle and its largest one, to which the
    constants of the machine's generation are fitted. Empty for a table with few sizes.
    """
    yield from in_processes(_calibrated, list(tables), workers)


def _calibrated(table: PublishedTable) -> list[Calibrated]:
    if len(table.times) < _LEAST:
        return []
    setup = setup_for(table)
    cases = list(make_cases(table, setup, list(table.times), _MOST_OPS))
    if len(cases) < _LEAST:
        return []
    known = sorted({0, len(cases) // 2, len(cases) - 1})
    base, link = setup.constants.nccl, setup.link_class
    fitted, _ = fit_machine([cases[i] for i in known])
    machine = machine_of(table.topology)
    return [
        Calibrated(
            table,
            link,
            case.nbytes,
            case.predict(base) / case.seconds - 1,
            case.predict(fitted) / case.seconds - 1,
            *spread(table.collective, link, case.nbytes, machine, MACHINE),
        )
        for i, case in enumerate(cases)
        if i not in known
    ]


def three_sizes_lines(found: Sequence[Calibrated]) -> list[str]:
    """The errors by number of machines and size, over all collectives."""
    groups: defaultdict[tuple[bool, bool, bool], list[Calibrated]] = defaultdict(list)
    for each in found:
        groups[each.bracketed, each.several, each.nbytes > _LARGE].append(each)
    rows = []
    for (bracketed, several, large), mine in sorted(groups.items()):
        before, after = (np.abs([getattr(p, name) for p in mine]) for name in ("before", "after"))
        limit = LIMITS[large]
        missed = np.median(after) > limit or np.quantile(after, 0.9) > LIMIT_90
        rows.append(
            (
                ("several" if several else "one") + (" (EFA, ...)" if bracketed else ""),
                f"{'>' if large else '<='} {units.format_size(_LARGE)}",
                str(len({p.table.name for p in mine})),
                str(len(mine)),
                *(f"{e:.1%}" for e in (np.median(before), np.quantile(before, 0.9))),
                *(f"{e:.1%}" for e in (np.median(after), np.quantile(after, 0.9))),
                f"{np.mean([p.inside for p in mine]):.0%}",
                "-" if bracketed else f"{limit:.0%}, {LIMIT_90:.0%}",
                "*" if missed and not bracketed else "",
            )
        )
    legend = (
        "# calibrated: constants fitted to the smallest, the middle and the largest size of each"
        " table; the other sizes are compared"
    )
    head = "machines|size|tables|points|median|90 %|calibrated|90 % then|inside|limits|"
    table = Table(
        columns(head, left="machines|size", spare="tables|points|limits"), tuple(rows)
    ).lines()
    return [*table, legend, _LEGEND_INSIDE, *_worst_lines(found)]


THREE_SIZES = Document(
    "accuracy-three-sizes",
    "`simreduce accuracy nccl --three-sizes --json`: errors with constants fitted to three sizes "
    "of each table. An error of 0.1 is 10 % too long.",
    Key(
        "points",
        list_of(
            Record(
                "point",
                "A size that was not fitted.",
                Key("table", TEXT, "The published table."),
                Key("topology", TEXT, "The machine."),
                Key("collective", TEXT, "What is done."),
                Key("link", TEXT, "The class of the links that matter."),
                Key("size_bytes", BYTES, "The tensor."),
                Key("error_before", RATIO, "The error with the constants of its generation."),
                Key("error_calibrated", RATIO, "The error with the fitted constants."),
                Key("interval_low", RATIO, "The interval's lower end over the prediction."),
                Key("interval_high", RATIO, "The interval's upper end over the prediction."),
            )
        ),
        "Every size that was not fitted.",
    ),
    Key("complete", FLAG, "False if the command was stopped and tables are missing."),
    command="accuracy nccl",
)


def three_sizes_document(found: Sequence[Calibrated], *, complete: bool = True) -> dict[str, Any]:
    """The document of `--json`: `THREE_SIZES`."""
    points = [
        {
            "table": each.table.name,
            "topology": each.table.topology,
            "collective": each.table.collective,
            "link": each.link,
            "size_bytes": each.nbytes,
            "error_before": each.before,
            "error_calibrated": each.after,
            "interval_low": each.low,
            "interval_high": each.high,
        }
        for each in found
    ]
    return {**THREE_SIZES.head(), "points": points, "complete": complete}


def _worst_lines(found: Sequence[Calibrated]) -> list[str]:
    """The tables that are farthest off once they are calibrated."""
    tables: defaultdict[str, list[float]] = defaultdict(list)
    for each in found:
        tables[each.table.name].append(abs(each.after))
    far = {name: float(np.quantile(errors, 0.9)) for name, errors in tables.items()}
    worst = [name for name in sorted(far, key=lambda n: -far[n]) if far[name] > LIMIT_90]
    if not worst:
        return []
    lines = [f"# 90th percentile then more than {LIMIT_90:.0%}, of {len(tables)} tables:"]
    return lines + [f"#   {name}: {far[name]:.0%}" for name in worst[:_MOST_LISTED]]
