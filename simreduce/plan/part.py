"""The part of a plan that some of its ops need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simreduce.computing.arrays import AnyInts, ranges, row_starts
from simreduce.computing.compiling.loops import sweep, worth_compiling
from simreduce.plan.contract import Contract
from simreduce.plan.plan import Plan

_NO_IDS: AnyInts = np.zeros(0, dtype=np.int32)


def part_for(plan: Plan, ops: AnyInts) -> Plan:
    """`ops` and all that they wait for, directly or not, in the same order and on the same streams.
    It promises nothing.
    """
    needed = np.zeros(len(plan), dtype=np.int8)
    needed[ops] = 1
    reads = (
        plan.operand_start,
        plan.operands,
        plan.control_start if len(plan.controls) else _NO_IDS,
        plan.controls,
    )
    sweep(
        mark_needed,
        [np.asarray(column, dtype=np.int32) for column in reads],
        [needed],
        compiled=worth_compiling(mark_needed, len(plan)),
    )
    kept = np.flatnonzero(needed)
    place = np.cumsum(needed, dtype=np.int32) - 1
    columns = ("kind", "device", "lo", "hi", "dtype", "arg", "stream", "executor")
    operand_start, operands = _rows(plan.operand_start, plan.operands, kept, needed)
    control_start, controls = _rows(plan.control_start, plan.controls, kept, needed)
    return replace(
        plan,
        **{name: getattr(plan, name)[kept] for name in columns},
        operand_start=operand_start,
        operands=place[operands],
        control_start=control_start,
        controls=place[controls],
        contract=Contract.of(plan.contract.collective, ()),
    )


def mark_needed(
    operand_start: Any, operands: Any, control_start: Any, controls: Any, needed: Any
) -> None:
    """Mark with 1 all that marked ops read or wait for. numba may compile it. `control_start` is
    empty if no op has any.
    """
    for back in range(len(needed)):
        op = len(needed) - 1 - back
        if needed[op] == 1:
            for at in range(operand_start[op], operand_start[op + 1]):
                needed[operands[at]] = 1
            if len(control_start) > 0:
                for at in range(control_start[op], control_start[op + 1]):
                    needed[controls[at]] = 1


def _rows(
    start: AnyInts, entries: AnyInts, kept: AnyInts, needed: AnyInts
) -> tuple[AnyInts, AnyInts]:
    """The rows of the ops that are kept, without entries that are not: controls may be against
    program order.
    """
    count = np.diff(start)[kept]
    mine = entries[ranges(start[:-1][kept], count)]
    there = needed[mine] == 1
    row = np.repeat(np.arange(len(kept)), count)
    return row_starts(np.bincount(row[there], minlength=len(kept))).astype(np.int32), mine[there]
