"""Compute beside what moves, by hand."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given, strategies as st

from simreduce.training.executions import COLLECTIVE, COMPUTE, Execution, ExecutionNode
from simreduce.training.executor import run_nodes

PARTS = st.floats(0.0, 0.9)
SECONDS = st.floats(0.0, 100.0)


def _work(seconds, lane="GPU", after=()):
    return ExecutionNode("work", COMPUTE, after, lane, seconds)


def _sum(lane="NCCL", after=()):
    return ExecutionNode("sum", COLLECTIVE, after, lane, collective="all_reduce", nbytes=1)


def _ends(nodes, seconds, part, ranks=2):
    """When each node of the first rank ends; all that moves takes `seconds`."""
    env = simpy.Environment()
    execution = Execution("test", dict.fromkeys(range(ranks), tuple(nodes)), ranks)
    ran = run_nodes(
        execution, env, lambda _node, _group: env.timeout(seconds), lambda _node, _group: part
    )
    ends = {id(each.node): each.end for each in ran if each.rank == 0}
    return [ends[id(node)] for node in nodes]


@given(work=SECONDS, moved=SECONDS, part=PARTS)
def test_compute_loses_the_part_of_its_speed_while_something_moves(work, moved, part):
    """What it did not do meanwhile it does after."""
    [computed, summed] = _ends([_work(work), _sum()], moved, part)

    assert summed == moved
    done = work / (1.0 - part)
    assert computed == pytest.approx(done if done <= moved else work + part * moved, abs=1e-9)


@given(before=SECONDS, work=SECONDS, moved=SECONDS, part=PARTS)
def test_what_begins_during_compute_slows_the_rest_of_it(before, work, moved, part):
    """A collective that waits for another lane."""
    nodes = [_work(before + work), _work(before, "CPU"), _sum(after=(1,))]
    computed = _ends(nodes, moved, part)[0]
    # The work of the other lane is done at `before`, as nothing moves until then.
    rest = work / (1.0 - part)

    assert computed == pytest.approx(
        before + (rest if rest <= moved else work + part * moved), abs=1e-9
    )


@given(work=SECONDS, moved=SECONDS, lanes=st.integers(1, 3))
def test_what_moves_at_once_slows_together(work, moved, lanes):
    """Each takes a quarter."""
    nodes = [_work(work), *(_sum(f"NCCL {i}") for i in range(lanes))]
    computed, part = _ends(nodes, moved, 0.25)[0], 0.25 * lanes
    done = work / (1.0 - part)

    assert computed == pytest.approx(done if done <= moved else work + part * moved, abs=1e-9)


@given(work=st.lists(SECONDS, max_size=5), moved=SECONDS)
def test_nothing_is_slower_without_the_law(work, moved):
    """To the bit: whatever moves, compute takes its own time."""
    nodes = [_sum("first"), *(_work(each) for each in work), _sum("second")]
    found, total = _ends(nodes, moved, 0.0), 0.0
    for each, end in zip(work, found[1:-1], strict=True):
        total += each
        assert end == total
