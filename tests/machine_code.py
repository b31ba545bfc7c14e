"""Compile every loop that tests run as machine code, before any test starts: `make machine-code`.

The workers of pytest then load the code from its files, and no test waits for numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import simreduce as sr
from simreduce.computing.loops import native
from simreduce.engine.bounds import longest
from simreduce.engine.kernel import store
from simreduce.engine.lowering import fill_successors
from simreduce.plan import residues
from simreduce.plan.plan import mark_needed
from simreduce.training.distributions import Constant
from simreduce.training.replicas import ReplicasJob, SyncSettings, recurrence
from simreduce.training.replicas.network import delays

COLUMNS: dict[Callable[..., Any], tuple[str, ...]] = {
    fill_successors: ("i1 i1 i1 i1 i1 i1 i1 i1 i1 i1",),
    longest: ("i1 d1 d1 d1 i1 i1 d1",),
    mark_needed: ("i1 i1 i1 i1 b1",),
    residues.collect: ("i1 l1 q", "l1 l1 q"),
    residues.cover: ("i1 i1 l1",),
    residues.find_extra: ("i1 i1 i1 l1 b1 q q b1", "i1 l1 l1 l1 b1 q q b1"),
    residues.is_malformed: (
        "b1 i1 i1 i1 b1 q i1 q i1 i1 i1 i1",
        "b1 i1 i1 i1 b1 q i1 q l1 i1 i1 i1",
        "b1 i1 l1 l1 b1 q i1 q i1 i1 i1 i1",
    ),
    residues.judge: ("i1 i1 i1 b1 q i1 l1 l1 b1 l1 q q b1 b1",),
    residues.look_up: ("i1 l1 i1 i1", "l1 l1 i1 i1"),
    residues.run: (
        "b1 i1 i1 i1 i1 l1 l1 q q i1 i1",
        "b1 i1 i1 l1 i1 l1 l1 q q i1 i1",
        "b1 l1 l1 i1 i1 l1 l1 q q i1 i1",
        "b1 l1 l1 l1 i1 l1 l1 q q i1 i1",
    ),
    residues.tally: ("i1 i1 i1 l1 q q i1 b1", "i1 l1 l1 l1 q q i1 b1"),
}
"""The types of the columns that loops are given: numpy's letter and the dimensions, q for a number.
Short plans have narrow columns.
"""


def main() -> None:
    """Compile the loops over columns, the kernel, and the loop of replicas."""
    for loop, kinds in COLUMNS.items():
        for types in map(str.split, kinds):
            native(loop)._load(",".join(types), tuple(map(_sample, types)))
    store.WORTH = store.SMALL = recurrence._WORTH = 0
    sr.simulate(sr.compile("ring", "bytes:1K", "switch:2"), "switch:2")
    job = ReplicasJob(SyncSettings(1), delays(1, 1), (Constant(1.0),))
    recurrence.DelayRuns(job, 1, 1).run(0)


def _sample(kind: str) -> Any:
    return 0 if kind == "q" else np.zeros((1,) * int(kind[1]), dtype=kind[0])


if __name__ == "__main__":
    main()
