"""What the host of a machine does to issue the ops of its GPUs, besides the ops of the plan.

TensorFlow makes a `Slice` where an op reads a part of a value, and sends an empty message where an
op waits for one on another device without reading its value. It keeps each part of a result that
was joined in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.computing.arrays import Bools, Floats, Ints
from simreduce.engine.disturbance import Disturbance
from simreduce.engine.lowering.calls import Signatures
from simreduce.engine.runtime import Calibration
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import IN_PLACE, NO_STREAM
from simreduce.topology import Node

_VIEWERS = (Kind.COPY, Kind.ADD, Kind.SCALE, Kind.CAST)
"""Ops that read the part of an operand that they make; others read all of it."""


def find_parts(plan: Plan) -> Ints:
    """By op, the views that are made for it, of each view where it is first read; of an OUTPUT, in
    how many parts it is kept, less 1.
    """
    ops = np.arange(len(plan))
    reader, read = np.repeat(ops, np.diff(plan.operand_start)), plan.operands
    viewed = (plan.lo[reader] != plan.lo[read]) | (plan.hi[reader] != plan.hi[read])
    viewed &= np.isin(plan.kind[reader], _VIEWERS)
    reader, read = reader[viewed], read[viewed]
    views = np.stack([read, plan.lo[reader], plan.hi[reader]], axis=1)
    _, first = np.unique(views, axis=0, return_index=True)
    found = np.bincount(reader[first], minlength=len(plan))
    pieces = np.ones(len(plan), dtype=np.int64)
    in_place = (plan.kind == Kind.CONCAT) & (plan.arg == IN_PLACE)
    for op in np.flatnonzero(in_place | (plan.kind == Kind.OUTPUT)).tolist():
        pieces[op] = pieces[plan.operands_of(op)].sum()
    return np.where(plan.kind == Kind.OUTPUT, pieces - 1, found)


def find_messages(plan: Plan) -> Ints:
    """By op, how many messages it waits for. One tells a device once of an op; a COPY waits on the
    device that it reads from.
    """
    ops = np.arange(len(plan))
    stream = plan.ordered_streams
    order = np.argsort(stream, kind="stable")
    follows = (stream[order][1:] == stream[order][:-1]) & (stream[order][1:] != NO_STREAM)
    waits = np.concatenate([
        np.repeat(ops, np.diff(plan.control_start)), order[1:][follows],
    ])  # fmt: skip
    waited = np.concatenate([plan.controls, order[:-1][follows]])
    readers = np.repeat(ops, np.diff(plan.operand_start))
    read = np.isin(waits * len(plan) + waited, readers * len(plan) + plan.operands)
    at = np.where(plan.kind == Kind.COPY, plan.source, plan.device)[waits]
    apart = ~read & (plan.device[waited] != at)
    waits, told = waits[apart], np.stack([waited[apart], at[apart]], axis=1)
    order = np.argsort(waits, kind="stable")
    _, first = np.unique(told[order], axis=0, return_index=True)
    return np.bincount(waits[order][first], minlength=len(plan))


def issue_seconds(
    signatures: Signatures,
    nodes: Sequence[Node],
    calibration: Calibration,
    disturbance: Disturbance,
    holds: Bools,
) -> tuple[Floats, Bools]:
    """Seconds of a host by call, and what `holds` becomes.

    A host is held on the way by what it copies from its own memory, which is not pinned: the driver
    reads all of it first. Nothing is issued for ops of NCCL, and for CPU devices.
    """
    cpu = np.array([node.kind == "cpu" for node in nodes])
    gpu = np.array([node.kind == "gpu" for node in nodes])
    source, target = signatures.source, signatures.target
    copies = signatures.kind == Kind.COPY
    from_host, to_host = copies & cpu[source], copies & cpu[target]
    found = np.array([calibration.issuing(kind.name.lower()) for kind in Kind])[signatures.kind]
    found[to_host], found[from_host] = (
        calibration.issuing("to_host"),
        calibration.issuing("from_host"),
    )
    each = np.where(
        signatures.kind == Kind.OUTPUT, calibration.issuing("output"), calibration.issuing("slice")
    )
    found += signatures.parts * each + signatures.messages * calibration.issuing("message")
    issued = (gpu[source] | gpu[target]) & (signatures.executor == Executor.TF)
    issued[0] = False  # the call of ops that cost nothing
    found *= issued
    if disturbance.slow:
        slow = [disturbance.slow.get(node.name, 1.0) for node in nodes]
        found *= np.array(slow)[source]
    return found, np.where(issued, from_host, holds)
