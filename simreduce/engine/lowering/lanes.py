"""The lanes (queues) that calls hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import Bools, Ints, row_starts
from simreduce.engine.lowering.cores import CPU, CoreWork
from simreduce.engine.lowering.lane_names import number_alike
from simreduce.engine.lowering.nccl import NET, Sends
from simreduce.engine.lowering.signatures import Signatures
from simreduce.engine.lowering.sites import Site
from simreduce.engine.runtime import Call, Runtime, named_lanes
from simreduce.plan import Executor, Kind
from simreduce.topology import Node

_FEW = 256
"""Up to so many calls it takes less time to look at one after another."""
_EXECUTORS, _KINDS = tuple(Executor), tuple(Kind)
"""By number."""


class Lanes(NamedTuple):
    """Row c of `lane` is [start[c], start[c + 1]): `early[c]` lanes, and then pipes."""

    start: Ints
    early: Ints
    lane: Ints


def number_lanes(
    signatures: Signatures,
    site: Site,
    runtime: Runtime,
    cores: CoreWork,
    sends: Sends,
    numbers: dict[str, int],
) -> Lanes:
    """The lanes of every call, followed by its pipes, as CSR rows; and how many of a row are lanes.

    `numbers` gives lanes their numbers by name. New names get the next numbers.
    """
    if not runtime.queues and not signatures.executor.any():
        none = np.zeros(len(signatures.kind) + 1, dtype=np.int64)
        return Lanes(none, none[1:], none[:0])
    turns = zip(cores.calls.tolist(), cores.owner, cores.in_turn.tolist(), strict=True)
    owner = {call: f"{name} {CPU}" for call, name, in_turn in turns if in_turn}
    far = np.zeros(len(signatures.kind), dtype=np.bool_)
    far[sends.calls[sends.kind == NET]] = True
    if len(signatures.kind) <= _FEW or owner:
        return _number_each(signatures, far, site.nodes, runtime, owner, numbers)
    none = np.zeros(1, dtype=np.int64)
    start, early, lane = number_alike(signatures, far, site.nodes, runtime, numbers)
    return Lanes(np.concatenate([none, start]), np.concatenate([none, early]), lane)


def _number_each(
    signatures: Signatures,
    far: Bools,
    nodes: Sequence[Node],
    runtime: Runtime,
    owner: dict[int, str],
    numbers: dict[str, int],
) -> Lanes:
    """`number_lanes`, one call after another; `owner` has the lanes of cores, by call."""
    rows: list[list[int]] = [[]]
    early = [0]
    rows_of_signatures = np.stack(signatures, axis=1)[1:].tolist()
    over_network = far.tolist()
    for number, (executor, kind, source, target, channel, _, away, *_) in enumerate(
        rows_of_signatures, start=1
    ):
        here, there = nodes[source], nodes[target]
        if away > 1 and here.machine != there.machine:
            there = replace(there, machine=f"{here.machine}+{away}")
        role = _EXECUTORS[executor], _KINDS[kind]
        call = Call(*role, here, there, channel, over_network[number])
        lanes, pipes = named_lanes(call, runtime)
        if executor == Executor.TF and number in owner:
            lanes = (*lanes, owner[number])
        rows.append([numbers.setdefault(name, len(numbers)) for name in (*lanes, *pipes)])
        early.append(len(lanes))
    return Lanes(
        start=row_starts(np.array([len(row) for row in rows])),
        early=np.array(early, dtype=np.int64),
        lane=np.array([lane for row in rows for lane in row], dtype=np.int64),
    )
