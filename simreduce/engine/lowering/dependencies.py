"""Who waits for whom in a plan: its operands, controls and streams turned round, once they are seen
to fit it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simreduce.arrays import AnyInts, blocks
from simreduce.engine.kernel import compiled
from simreduce.engine.lowering.waiting import follow
from simreduce.errors import PlanError
from simreduce.plan import Plan
from simreduce.plan.plan import NO_STREAM

_NO_IDS: AnyInts = np.zeros(0, dtype=np.int32)


def turned_round(plan: Plan) -> tuple[AnyInts, AnyInts, AnyInts]:
    """How many ops each one waits for; and, as rows, who waits for it."""
    n, streams = len(plan), int(plan.stream.max(initial=NO_STREAM)) + 1
    reads = (
        plan.operand_start,
        plan.operands,
        plan.control_start if len(plan.controls) else _NO_IDS,
        plan.controls,
        plan.stream if streams else _NO_IDS,
    )
    _check_order(plan)
    last, seen = np.empty(streams, dtype=np.int32), np.empty(n, dtype=np.int32)
    waits, start = np.zeros(n, dtype=np.int32), np.zeros(n + 1, dtype=np.int32)
    # Memory that is never touched costs nothing.
    found = np.empty(len(plan.operands) + len(plan.controls) + n * (streams > 0), dtype=np.int32)
    total = compiled.fill(
        follow, n, [_ids(column) for column in reads], [last, seen, waits, start, found]
    )
    found.resize(total, refcheck=False)
    return waits.astype(_narrowest(waits)), start, found


def _check_order(plan: Plan) -> None:
    """PlanError for ops that read others than those before them, or wait for ones that are not
    there: compiled code would go by such numbers as by addresses. Controls may be against the
    order, and then end in a Deadlock.
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
    """As the compiled function wants them; nothing is copied where they are so already."""
    return np.require(column, np.int32, ["C", "W"])


def _narrowest(counts: AnyInts) -> np.dtype[np.signedinteger[Any]]:
    """The dtype that takes least memory."""
    return next(
        d for d in map(np.dtype, ("i1", "i2", "i4")) if counts.max(initial=0) <= np.iinfo(d).max
    )
