"""The lanes (queues) that calls hold."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simreduce.arrays import Ints, row_starts
from simreduce.engine.lowering.cores import CPU, CoreWork
from simreduce.engine.lowering.signatures import Signatures
from simreduce.engine.lowering.sites import Site
from simreduce.engine.runtime import Call, Runtime, nccl_pipes
from simreduce.plan import Executor, Kind


class Lanes(NamedTuple):
    """Row c of `lane` is [start[c], start[c + 1]): `early[c]` lanes, and then pipes."""

    start: Ints
    early: Ints
    lane: Ints


def number_lanes(
    signatures: Signatures, site: Site, runtime: Runtime, cores: CoreWork, numbers: dict[str, int]
) -> Lanes:
    """The lanes of every call, followed by its pipes, as CSR rows; and how many of a row are lanes.

    `numbers` gives lanes their numbers by name. New names get the next numbers.
    """
    owner = {
        call: (f"{name} {CPU}",)
        for call, name, s in zip(
            cores.calls.tolist(), cores.owner, cores.in_turn.tolist(), strict=True
        )
        if s
    }
    if not runtime.queues and not signatures.executor.any():
        none = np.zeros(len(signatures.kind) + 1, dtype=np.int64)
        return Lanes(none, none[1:], none[:0])
    nodes = site.nodes
    rows: list[list[int]] = [[]]
    early = [0]
    rows_of_signatures = np.stack(signatures, axis=1)[1:].tolist()
    for number, (executor, kind, source, target, channel, _, away, _) in enumerate(
        rows_of_signatures, start=1
    ):
        here, there = nodes[source], nodes[target]
        if away > 1 and here.machine != there.machine:
            there = replace(there, machine=f"{here.machine}+{away}")
        call = Call(Executor(executor), Kind(kind), here, there, channel)
        lanes: tuple[str, ...] = ()
        pipes = nccl_pipes(call)
        if call.executor == Executor.TF:
            lanes, pipes = (*runtime.lanes(call), *owner.get(number, ())), runtime.pipes(call)
        elif channel >= 0 and not {here.kind, there.kind} <= {"gpu", "cpu"}:
            lanes, pipes = pipes, lanes  # of switches that sum: latencies do not overlap
        rows.append([numbers.setdefault(name, len(numbers)) for name in (*lanes, *pipes)])
        early.append(len(lanes))
    return Lanes(
        start=row_starts(np.array([len(row) for row in rows])),
        early=np.array(early, dtype=np.int64),
        lane=np.array([lane for row in rows for lane in row], dtype=np.int64),
    )
