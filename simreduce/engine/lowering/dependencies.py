"""Who waits for whom in a plan. An op waits for its operands, its controls and the op before it on
its stream, each counted once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simreduce.computing.arrays import AnyInts, blocks
from simreduce.computing.compiling.loops import sweep, worth_compiling
from simreduce.errors import PlanError
from simreduce.plan import Plan
from simreduce.plan.plan import NO_STREAM

_NONE = -1
_NO_IDS: AnyInts = np.zeros(0, dtype=np.int32)


def find_successors(plan: Plan, stream: AnyInts) -> tuple[AnyInts, AnyInts, AnyInts]:
    """How many ops each one waits for, and the CSR rows of the ops that wait for it. `stream` has
    the stream of each op that is in order, else `NO_STREAM`.
    """
    n, streams = len(plan), int(stream.max(initial=NO_STREAM)) + 1
    reads = (
        plan.operand_start,
        plan.operands,
        plan.control_start if len(plan.controls) else _NO_IDS,
        plan.controls,
        stream if streams else _NO_IDS,
    )
    _check_order(plan)
    last, seen = np.empty(streams, dtype=np.int32), np.zeros(n, dtype=np.int32)
    waits, start = np.zeros(n, dtype=np.int32), np.zeros(n + 1, dtype=np.int32)
    # Memory that is never touched costs nothing.
    found = np.empty(len(plan.operands) + len(plan.controls) + n * (streams > 0), dtype=np.int32)
    total = sweep(
        fill_successors,
        [_ids(column) for column in reads],
        [last, seen, waits, start, found],
        compiled=worth_compiling(fill_successors, n),
    )
    found.resize(total, refcheck=False)
    return waits.astype(_narrowest(waits)), start, found


def fill_successors(
    operand_start: Any, operands: Any, control_start: Any, controls: Any, stream: Any,
    last: Any, seen: Any, waits: Any, start: Any, successors: Any,
) -> int:  # fmt: skip
    """Fill `waits` with how many ops each one waits for, and the rows of `successors` that begin at
    `start` with the ops that wait for it, ascending. Returns the number of all successors.

    numba may compile it, so it uses only what numba understands.

    `start` has a place more than there are ops. `last`, an entry per stream, is room for its latest
    op, and `seen`, zeros, an entry per op, for a mark of the latest op of many predecessors that
    was found to wait for it; `control_start` and `stream` are empty if no op has any.
    """
    ops = len(seen)
    for filling in (False, True):
        for op in range(len(last)):
            last[op] = _NONE
        for op in range(ops):
            reads = operand_start[op + 1] - operand_start[op]
            obeys = control_start[op + 1] - control_start[op] if len(control_start) > 0 else 0
            on = stream[op] if len(stream) > 0 else _NONE
            before = reads + obeys + (on != _NONE)
            mark = op + 1 + ops * filling
            first = _NONE
            for i in range(before):
                if i < reads:
                    used = operands[operand_start[op] + i]
                elif i < reads + obeys:
                    used = controls[control_start[op] + i - reads]
                else:
                    used = last[on]
                if used in (_NONE, first):
                    continue
                if before > 2:  # of two, the first is remembered, which takes no memory
                    if seen[used] == mark:
                        continue
                    seen[used] = mark
                first = used
                if filling:
                    successors[start[used]] = op
                    waits[op] += 1
                start[used] += 1
            if on != _NONE:
                last[on] = op
        # Counts become where rows begin; filling moves that to where they end, which is where the
        # next begin.
        total = 0
        for op in range(len(start)):
            count = start[op]
            start[op] = total
            total = count if filling else total + count
    return total


def _check_order(plan: Plan) -> None:
    """Raises PlanError if an op reads one that does not come before it, or waits for one that does
    not exist: compiled code would use such numbers as addresses.

    Controls may be against the order, and then end in a Deadlock.
    """
    for start, waited in ((plan.operand_start, plan.operands), (plan.control_start, plan.controls)):
        if (
            len(start) != len(plan) + 1
            or start[0] != 0
            or start[-1] != len(waited)
            or (np.diff(start) < 0).any()
        ):
            raise PlanError("the rows of what ops read or wait for do not fit the plan")
        if len(waited) and (waited.min() < 0 or waited.max() >= len(plan)):
            raise PlanError("an op reads or waits for one that is not there")
    if _too_late(plan.operand_start, plan.operands):
        raise PlanError("an op reads one that does not come before it")
    if plan.stream.min(initial=NO_STREAM) < NO_STREAM:
        raise PlanError("a stream has a number below -1")


def _too_late(start: AnyInts, read: AnyInts) -> bool:
    for some in blocks(len(start) - 1):
        edges = start[some.start : some.stop + 1]
        readers = np.repeat(np.arange(some.start, some.stop, dtype=np.int32), np.diff(edges))
        if (read[edges[0] : edges[-1]] >= readers).any():
            return True
    return False


def _ids(column: AnyInts) -> AnyInts:
    """The column as the compiled function wants it, copied only if it is not so already."""
    return np.ascontiguousarray(column, dtype=np.int32)


def _narrowest(counts: AnyInts) -> np.dtype[np.signedinteger[Any]]:
    """The smallest dtype that holds the counts."""
    return next(
        d for d in map(np.dtype, ("i1", "i2", "i4")) if counts.max(initial=0) <= np.iinfo(d).max
    )
