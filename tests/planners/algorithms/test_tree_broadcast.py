"""tree_broadcast against the rule of hierarchical_tree_broadcaster.cc."""

from __future__ import annotations

import pytest

from simreduce.plan import Contract, Kind, PlanBuilder, verify
from simreduce.training.cross_device.one_device import tree_broadcast, tree_targets


def broadcast_plan(tasks, source):
    devices = sorted(d for task in tasks for d in task)
    b = PlanBuilder([f"d{i}" for i in devices])
    held = tree_broadcast(b, b.input(source, 0, 10), tasks, source)
    for device in devices:
        b.output(held[device])
    return b.finish(Contract.broadcast(devices, [(0, 10, 0)], source))


def edges(plan):
    """Who sends to whom, by number."""
    sends: dict[int, list[int]] = {}
    for source, target, elements in plan.copies():
        assert elements == 10
        sends.setdefault(int(source[1:]), []).append(int(target[1:]))
    return sends


@pytest.mark.parametrize(
    ("size", "source", "sends"),
    [
        (8, 0, {0: [1, 2], 1: [3, 4], 2: [5, 6], 3: [7]}),
        (8, 3, {3: [0, 1], 0: [2], 1: [4, 5], 2: [6, 7]}),
        (4, 1, {1: [0], 0: [2, 3]}),
        (5, 4, {4: [0, 1], 0: [2, 3]}),
        (2, 1, {1: [0]}),
        (1, 0, {}),
    ],
)
def test_the_tree_of_one_task(size, source, sends):
    assert sends == edges(broadcast_plan([range(size)], source))


def test_the_source_keeps_its_place_in_a_large_tree():
    assert tree_targets(3, 17, 3) == [0, 1, 8, 9]


@pytest.mark.parametrize("size", range(1, 18))
def test_one_task_verifies_from_every_source(size):
    for source in range(size):
        plan = broadcast_plan([range(size)], source)

        assert verify(plan) == []
        assert size - 1 == plan.transfers


@pytest.mark.parametrize(
    "tasks",
    [
        [[0, 1], [2, 3]],
        [[0], [1], [2]],
        [[0, 1, 2], [3], [4, 5]],
        [range(4 * t, 4 * t + 4) for t in range(5)],
    ],
)
def test_several_tasks_verify_from_every_source(tasks):
    devices = [d for task in tasks for d in task]
    for source in devices:
        plan = broadcast_plan([list(task) for task in tasks], source)

        assert verify(plan) == []
        assert len(devices) - 1 == plan.transfers


def test_heads_come_first_then_every_task():
    """Two tasks of four, source 5: its task's tree is rooted at 5, the other's at its first device,
    0.
    """
    plan = broadcast_plan([[0, 1, 2, 3], [4, 5, 6, 7]], 5)

    assert edges(plan) == {5: [0, 4], 0: [1, 2], 1: [3], 4: [6, 7]}


def test_a_head_ends_its_sends_across_before_it_sends_inside():
    plan = broadcast_plan([[0, 1], [2, 3]], 0)
    copies = [op for op in range(len(plan)) if plan.kind[op] == Kind.COPY]
    across, inside = copies[0], copies[1]

    assert [across] == plan.controls[
        plan.control_start[inside] : plan.control_start[inside + 1]
    ].tolist()
