"""What ops wait for."""

from __future__ import annotations

from simreduce_validate.running.processes import waits

from simreduce.plan import Contract, PlanBuilder


def test_ops_wait_for_control_edges_and_for_the_op_before_in_their_stream():
    """Two streams: each op of one waits for the last of the same, whatever lies between; what it
    reads is not told.
    """
    b = PlanBuilder(["gpu0", "gpu1"])
    one, other = b.stream(0), b.stream(1)
    here, there = b.input(0, 0, 4), b.input(1, 4, 8)
    first = b.copy(here, 1, stream=one)
    between = b.copy(there, 0, stream=other)
    second = b.copy(here, 1, 0, 2, stream=one, after=[there.op])
    last = b.copy(there, 0, 4, 6, stream=other)
    free = b.copy(here, 1, 2, 4)
    plan = b.finish(Contract.of("none", ()))

    assert {
        first.op: [],
        between.op: [],
        second.op: [there.op, first.op],
        last.op: [between.op],
        free.op: [],
    } == {op: found for op, found in waits(plan) if op not in (here.op, there.op)}
    assert list(range(len(plan))) == [op for op, _ in waits(plan)]
