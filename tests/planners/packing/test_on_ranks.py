"""What is planned once for all ranks is what planning for each of them gives, op by op."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given, strategies as st

from simreduce.plan import Contract, Kind, PlanBuilder, ValueTable, builder
from simreduce.planners.packing.arrangement import on_each

RANKS = 5


def tensors(b: PlanBuilder, odd: list[tuple[int, int, int]]) -> ValueTable:
    """By rank, in columns, values of the same intervals, but for those of `odd`: (rank, which, more
    elements) of which 0 more means that the rank is given one value twice.
    """
    found = []
    for rank in range(RANKS):
        mine = [b.input(rank, 8 * i, 8 * i + 8) for i in range(3)]
        mine.append(mine[0])
        for other, which, more in odd:
            if other == rank:
                mine[which] = b.input(rank, 8 * which, 8 * which + 8 + more) if more else mine[0]
        found.append(mine)
    return ValueTable.of_columns(found)


@given(
    odd=st.lists(st.tuples(st.integers(0, RANKS - 1), st.integers(1, 3), st.integers(0, 2))),
    at_once=st.integers(1, 20),
    stranger=st.booleans(),
)
def test_it_makes_what_each_rank_by_itself_makes(odd, at_once, stranger):
    """Also where some ranks are given other values, or the ops use one that was not given."""

    def plan(*, once: bool):
        b = PlanBuilder([f"gpu{i}" for i in range(RANKS)])
        values, strange = tensors(b, odd), b.barrier(0, ()) if stranger else None

        def make(rank: int, mine):
            after = () if strange is None else (strange,)
            joined = b.add([mine[0], b.zeros(rank, 0, 8)])
            narrow = b.slice(mine[1], 9, 12, after=after)
            return [mine[2], joined, narrow, mine[3], mine[0]]

        made = (
            on_each(b, values, make)
            if once
            else ValueTable.of_columns([make(r, values.column(r)) for r in range(RANKS)])
        )
        return b.finish(Contract.of("nothing", [])).digest, list(map(list, made))

    with mock.patch.object(builder, "BLOCK", at_once):
        digest, made = plan(once=True)
    assert (digest, made) == plan(once=False)


def test_contributions_of_a_rank_are_its_own():
    """Without anything given: every rank makes its INPUT."""
    b = PlanBuilder(["a", "b", "c"])
    on_each(b, ValueTable.empty(3), lambda rank, _: [b.input(rank, 0, 4)])
    plan = b.finish(Contract.of("nothing", []))

    assert plan.kind.tolist() == [Kind.INPUT] * 3
    assert plan.arg.tolist() == plan.device.tolist() == [0, 1, 2]
    assert np.diff(plan.operand_start).tolist() == [0, 0, 0]
