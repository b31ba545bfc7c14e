"""A plan taken apart: every op in a part, no part that reads another."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

import simreduce as sr
from simreduce.plan import Contract, Kind, Plan, PlanBuilder, side_by_side, split_independent
from simreduce.planners.layouts import layout
from simreduce.topology import load_topology
from simreduce.training.variable_update import Flags, variable_update
from simreduce.workload import Gradient, Workload
from tests.planners.algorithms.test_nccl_and_hybrids import tasks_of


def gradients(*elements: int) -> Workload:
    return Workload("test", tuple(Gradient(f"g{i}", n) for i, n in enumerate(elements)))


def ops(plan: Plan) -> Counter[tuple[object, ...]]:
    """What every op does, and what the ops that it reads do."""
    words = [
        (int(plan.kind[i]), int(plan.device[i]), int(plan.lo[i]), int(plan.hi[i]), int(plan.arg[i]))
        for i in range(len(plan))
    ]
    return Counter((words[i], *(words[j] for j in plan.operands_of(i))) for i in range(len(plan)))


@given(
    st.sampled_from(
        ["xring", "nccl", "ring+ddp", "hierarchical_copy+packs=3", "copy_to_gpus", "psgpu#2"]
    ),
    st.lists(st.integers(1, 300), min_size=1, max_size=5),
)
def test_the_parts_hold_every_op_once(strategy, sizes):
    """With what it reads, wherever it was."""
    plan = sr.compile(strategy, gradients(*sizes), layout(load_topology("full:4")))
    parts = split_independent(plan, loose=True)

    assert ops(plan) == sum(map(ops, parts), Counter())
    assert sum(map(len, parts)) == len(plan)


def test_gradients_that_are_reduced_by_themselves_are_parts():
    """In the order of the list; a pack keeps its gradients together."""
    shape, work = layout(load_topology("full:4")), gradients(8, 20, 12)

    assert [8, 20, 12] == [
        int((p.hi - p.lo).max()) for p in split_independent(sr.compile("copy_to_gpus", work, shape))
    ]
    assert 1 == len(split_independent(sr.compile("copy_to_gpus+packs=2", work, shape), loose=True))


def test_parts_side_by_side_take_as_long_as_the_whole():
    """What nothing joined is simulated alike."""
    machine = load_topology("full:4")
    plan = sr.compile("xring", gradients(1000, 3000, 2000), layout(machine))
    again = side_by_side(split_independent(plan), plan.devices)

    assert sr.simulate(plan, machine).seconds == pytest.approx(
        sr.simulate(again, machine).seconds, rel=1e-12
    )


def test_nccl_keeps_its_order_unless_it_is_loose():
    """The collectives of a communicator wait for each other, but read nothing of each other."""
    plan = sr.compile("nccl", gradients(80, 80, 80), layout(load_topology("full:4")))

    assert [1, 3] == [len(split_independent(plan)), len(split_independent(plan, loose=True))]
    launches = [p for p in split_independent(plan, loose=True) if len(p.controls)]
    assert 3 == len(launches)


def test_a_variable_is_in_the_part_of_everyone_who_reads_it():
    """Two workers: a push each, and for each a read that waits for nothing."""
    plan = variable_update(
        "parameter_server", gradients(100), tasks_of(2, 1), Flags(local_parameter_device="cpu")
    )
    parts = split_independent(plan, loose=True)
    reads = [p for p in parts if p.kind[0] == Kind.INPUT and p.arg[0] == len(plan.devices)]

    assert [2, 2] == [len(parts) - len(reads), len(reads)]
    assert [0, 0] == [len(p.controls) for p in reads]
    assert sum(map(len, parts)) == len(plan) + 1
    assert 1 == len(split_independent(plan))


def test_a_variable_that_nobody_reads_is_a_part_by_itself():
    """Its update is another."""
    b = PlanBuilder(("gpu0",))
    done = b.output(b.input(0, 0, 4))
    b.output(b.input(0, 4, 8, contributor=1, after=[done.op]))
    plan = b.finish(Contract.of("test", []))

    assert [[Kind.INPUT, Kind.OUTPUT]] * 2 == [
        p.kind.tolist() for p in split_independent(plan, loose=True)
    ]


def test_a_plan_of_nothing_has_no_parts():
    """As that of independent GPUs."""
    assert [] == split_independent(PlanBuilder(("gpu0",)).finish(Contract.of("independent", [])))


def test_streams_are_kept_within_a_part():
    """Ops of a part stay on the streams that the algorithm gave them."""
    plan = sr.compile("ring", gradients(80, 160), layout(load_topology("full:4")))
    streams = [np.sort(p.stream[p.stream >= 0]) for p in split_independent(plan, loose=True)]

    assert all(len(s) for s in streams)
    assert np.array_equal(np.sort(plan.stream[plan.stream >= 0]), np.sort(np.concatenate(streams)))
