"""The published times that constants are fitted to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from simreduce.accuracy.fit import Case
from simreduce.accuracy.predict import gpus_of_a_process, machine_of, setup_for, strategy_for
from simreduce.calibrate import GENERATIONS
from simreduce.engine import NOMINAL
from simreduce.errors import InputError
from simreduce.nccl import facts
from simreduce.published import PublishedTable, published_tables
from simreduce.setup import Setup
from simreduce.tune.bench import DIVIDED, tensor

_SIZES = 9
"""Sizes of a table that are fitted, spread over all it has."""
_MOST_OPS = 24_000
"""Ops of a plan that is fitted: larger ones take too long."""
_OLDEST = (2, 5)
"""Versions of NCCL before this have no model of time, and other protocols."""


def cases_of(table: PublishedTable) -> Iterator[Case]:
    """Some sizes of a table, first and last included."""
    steps = np.linspace(0, len(table.times) - 1, min(_SIZES, len(table.times)))
    chosen = [table.times[i] for i in sorted(set(steps.round().astype(int).tolist()))]
    setup = setup_for(table, NOMINAL).but(calibration=NOMINAL)
    yield from make_cases(table, setup, chosen, _MOST_OPS)


def make_cases(
    table: PublishedTable, setup: Setup, times: list[tuple[int, float]], most_ops: int
) -> Iterator[Case]:
    """Cases of some times of a table, without those that have no plan of so few ops."""
    shape, group = setup.layout, machine_of(table.topology)
    gpus, link = gpus_of_a_process(table, shape), setup.slowest_link
    parts = shape.n if table.collective in DIVIDED else 1
    for nbytes, seconds in times:
        try:
            plan = setup.compile(strategy_for(table.collective), tensor(nbytes, table.dtype, parts))
        except InputError:  # no plan, too many ops, or less than an element for each rank
            continue
        if len(plan) <= most_ops:
            yield Case(setup, plan, nbytes, seconds, gpus, link, group, table.iterations_timed)


def chosen_tables() -> dict[str, list[PublishedTable]]:
    """The tables that constants are fitted to, by the name of the generation's calibration."""
    found: defaultdict[str, list[PublishedTable]] = defaultdict(list)
    for table in published_tables():
        if table.held or table.library or _is_old(table.nccl):
            continue
        setup = setup_for(table)
        if setup.link_class == "other_net":
            continue
        found[generation_of(setup)].append(table)
    return dict(found)


def generation_of(setup: Setup) -> str:
    """The name of the calibration that is for a machine's GPUs."""
    capability = facts(setup.machine, setup.layout.ranks).capability
    return GENERATIONS[max((g for g in GENERATIONS if g <= capability), default=min(GENERATIONS))]


def _is_old(version: str) -> bool:
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return bool(parts) and len(parts) == 2 and parts < _OLDEST and parts != (2, 0)
