"""Errors after a calibration on three sizes of each table: what a short run of nccl-tests gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simreduce import units
from simreduce.accuracy.chosen import make_cases
from simreduce.accuracy.fit import fit_nccl
from simreduce.accuracy.predict import setup_for
from simreduce.calibrate.sure import OTHER_NET
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


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A size of a table that was not fitted: errors (0.1 is 10 % too long) with the constants of
    the machine's generation, and with those fitted to three other sizes of the table.
    """

    table: PublishedTable
    several: bool
    bracketed: bool
    nbytes: int
    before: float
    after: float


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
    base = cases[0].setup.constants.nccl
    fitted, _ = fit_nccl([cases[i] for i in known], base)
    several = len(setup.layout.tasks) > 1
    return [
        Calibrated(
            table,
            several,
            setup.link_class == OTHER_NET,
            case.nbytes,
            case.predict(base) / case.seconds - 1,
            case.predict(fitted) / case.seconds - 1,
        )
        for i, case in enumerate(cases)
        if i not in known
    ]


def three_sizes_lines(found: Iterable[Calibrated]) -> list[str]:
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
                "-" if bracketed else f"{limit:.0%}, {LIMIT_90:.0%}",
                "*" if missed and not bracketed else "",
            )
        )
    legend = (
        "# calibrated: constants fitted to the smallest, the middle and the largest size of each"
        " table; the other sizes are compared"
    )
    head = "machines|size|tables|points|median|90 %|calibrated|90 % then|limits|"
    return [*Table(columns(head, left="machines|size"), tuple(rows)).lines(), legend]
