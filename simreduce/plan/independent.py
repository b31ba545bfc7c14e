"""A plan taken apart into the plans that have nothing to do with each other: the inverse of
`side_by_side`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, ranges, row_starts
from simreduce.plan.contract import Contract
from simreduce.plan.plan import Kind, Plan


def split_independent(plan: Plan, *, loose: bool = False) -> list[Plan]:
    """Plans that together hold every op of `plan`. None reads an op of another; in the
    order of their first ops. They keep devices and addresses, and promise nothing: what is proved
    is the whole.

    No part waits for another, either, unless it is `loose`: then parts are what reads of each
    other, and where one has to wait for another (NCCL's collectives for the one before, a variable
    for its update) is left to whoever runs them. A variable that several parts read is in each of
    them.

    Streams join nothing: an order that an algorithm keeps among the tensors of one call is lost
    between parts.
    """
    from scipy.sparse import coo_matrix  # noqa: PLC0415 - scipy takes long to load
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    n = len(plan)
    reader, read = np.repeat(np.arange(n), plan.operand_count), plan.operands
    waiter, awaited = np.repeat(np.arange(n), np.diff(plan.control_start)), plan.controls
    waits = (plan.kind == Kind.INPUT) & (np.diff(plan.control_start) > 0)
    is_read = np.zeros(n, dtype=np.bool_)
    is_read[read] = True
    shared = waits & is_read & loose  # variables after their update
    joins = (
        ~shared[read],
        (waits & ~is_read)[awaited] | (not loose),
    )  # a barrier belongs to those that wait for it
    user = np.concatenate([reader[joins[0]], waiter[joins[1]]])
    used = np.concatenate([read[joins[0]], awaited[joins[1]]])
    graph = coo_matrix((np.ones(len(user), dtype=np.int8), (user, used)), shape=(n, n))
    count, label = connected_components(graph, directed=False)
    label = label.astype(np.int64)
    again = np.unique(
        np.stack([label[reader[~joins[0]]], read[~joins[0]].astype(np.int64)]), axis=1
    )
    alone = np.flatnonzero(~shared)
    member, op = np.concatenate([label[alone], again[0]]), np.concatenate([alone, again[1]])
    order = np.lexsort((op, member))
    inside = (label[waiter] == label[awaited]) & ~shared[waiter]
    kept = np.bincount(waiter[inside], minlength=n)
    return list(_cut(plan, member[order], op[order], count, row_starts(kept), awaited[inside]))


def _cut(
    plan: Plan, member: Ints, op: Ints, count: int, waits: Ints, awaited: AnyInts
) -> Iterator[Plan]:
    """The parts; row i says that op[i] is in part member[i], and rows are in ascending order. What
    each op waits for is row op of `awaited`.
    """
    n = len(plan)
    first = row_starts(np.bincount(member, minlength=count))
    place = member * n + op

    def rows(start: AnyInts, items: AnyInts) -> tuple[Ints, Ints]:
        """Of every row: where its entries begin, and their places in the part."""
        size = np.diff(start)[op]
        found = np.searchsorted(
            place, np.repeat(member, size) * n + items[ranges(start[:-1][op], size)]
        )
        return row_starts(size), found - np.repeat(first[member], size)

    operand_start, operands = rows(plan.operand_start, plan.operands)
    control_start, controls = rows(waits, awaited)
    contract = Contract.of(plan.contract.collective, [])
    parts = [
        slice(a, b) for a, b in zip(first[:-1].tolist(), first[1:].tolist(), strict=True) if a < b
    ]
    for part in sorted(parts, key=lambda each: int(op[each.start])):
        mine = op[part]
        edges = slice(part.start, part.stop + 1)
        reads, waits = operand_start[edges], control_start[edges]
        yield Plan(
            devices=plan.devices,
            kind=plan.kind[mine],
            device=plan.device[mine],
            lo=plan.lo[mine],
            hi=plan.hi[mine],
            dtype=plan.dtype[mine],
            arg=plan.arg[mine],
            stream=plan.stream[mine],
            executor=plan.executor[mine],
            operand_start=(reads - reads[0]).astype(np.int32),
            operands=operands[reads[0] : reads[-1]].astype(np.int32),
            control_start=(waits - waits[0]).astype(np.int32),
            controls=controls[waits[0] : waits[-1]].astype(np.int32),
            contract=contract,
            machines=plan.machines,
            times=plan.times,
        )
