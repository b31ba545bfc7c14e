"""Ops of many groups planned at once come out as if group by group."""

from __future__ import annotations

import numpy as np

from simreduce.plan import Contract, PlanBuilder, SeparateBuilder, Values


def _plan(*, at_once: bool) -> str:
    """A copy, a sum and a second copy of three tensors on two devices."""
    b = PlanBuilder(("a", "b"))
    lo = np.array([[0, 0], [8, 8], [13, 13]])
    hi = np.array([[8, 8], [13, 13], [20, 20]])
    given = [b.inputs(np.arange(2), lo[i], hi[i]) for i in range(3)]
    tensors = Values.stack(given)

    def steps(b: PlanBuilder, values: Values) -> Values:
        mine, theirs = values[:, 0], values[:, 1]
        arrived = b.copies(mine, theirs.device, stream=b.streams(mine.device, 3))
        total = b.adds([theirs, arrived])
        return b.copies(total, mine.device, after=arrived.op)

    if at_once:
        separate = SeparateBuilder(b, 3)
        made = steps(separate, separate.lift(tensors, np.arange(3)[:, None]))
        separate.settle()
        b.outputs(separate.settled(made))
    else:
        b.outputs(Values.concatenate([steps(b, tensors[i : i + 1]) for i in range(3)]))
    return b.finish(Contract.of("all_reduce", ())).digest


def test_ops_of_groups_at_once_are_those_of_one_group_after_another():
    """Devices, streams, operands and controls included."""
    assert _plan(at_once=False) == _plan(at_once=True)


def test_nothing_done_aside_changes_nothing():
    """Values that a planner only hands back are those of the builder."""
    b = PlanBuilder(("a", "b"))
    given = b.inputs(np.arange(2), np.zeros(2, dtype=np.int64), np.full(2, 4))
    separate = SeparateBuilder(b, 2)
    lifted = separate.lift(Values.stack([given, given]), np.arange(2)[:, None])
    separate.settle()

    settled = separate.settled(lifted)
    assert given.op.tolist() == settled.op[1].tolist()
    assert given.device.tolist() == settled.device[1].tolist()
    assert 2 == len(b)
