"""allreduce_merge_scope: collectives merged over one 64-byte aligned buffer."""

from __future__ import annotations

import numpy as np
import pytest

from simreduce.errors import StrategyError
from simreduce.plan import Kind, PlanBuilder, verify
from simreduce.planners.layouts import layout
from simreduce.planners.packing import ScopedAllocator
from simreduce.planners.packing.arrangement import NoPacking, pack, place
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Workload
from tests.planners.packing.lists import gradients, of_dtypes


def plan_of(strategy, listed, topology="full:4", **options):
    workload = Workload("test", tuple(listed))
    return compile_plan(strategy, workload, layout(load_topology(topology)), **options)


@pytest.mark.parametrize(
    ("count", "scope", "groups"),
    [
        (5, 2, ((0, 1), (2, 3), (4,))),
        (4, 4, ((0, 1, 2, 3),)),
        (3, 32, ((0, 1, 2),)),
        (3, 1, ((0,), (1,), (2,))),
    ],
)
def test_consecutive_gradients_share_a_scope(count, scope, groups):
    assert groups == ScopedAllocator(scope).arrange(gradients(*[8] * count)).groups


@pytest.mark.parametrize("text", ["1", "0", "-1", "-32"])
def test_less_than_one_is_one(text):
    assert ScopedAllocator(1) == ScopedAllocator.parse(text)


@pytest.mark.parametrize(
    ("dtype", "elements", "total"),
    [
        ("float32", [1, 16, 17], 16 + 16 + 32),
        ("float16", [1, 32, 33], 32 + 32 + 64),
        ("float64", [0, 1, 9], 0 + 8 + 16),
    ],
)
def test_every_field_of_the_buffer_is_a_multiple_of_64_bytes(dtype, elements, total):
    listed = gradients(*elements, dtype=dtype)
    arrangement = ScopedAllocator(8).arrange(listed)
    b = PlanBuilder(("gpu0",))
    [buffer] = pack(b, 0, arrangement, place(arrangement, listed, 1000))

    assert total == buffer.hi - buffer.lo
    assert len(b) == 1


def test_a_scope_of_one_gradient_is_left_as_it_is():
    listed = gradients(1, 1, 3)
    arrangement = ScopedAllocator(2).arrange(listed)
    tensors = pack(PlanBuilder(("gpu0",)), 0, arrangement, place(arrangement, listed, 0))

    assert [t.hi - t.lo for t in tensors] == [32, 3]


def test_mixed_dtypes_are_not_merged():
    listed = of_dtypes((4, "float32"), (4, "float16"), (4, "float32"), (4, "float32"))

    assert ScopedAllocator(2).arrange(listed).groups == ((0,), (1,), (2, 3))


def test_upstream_merges_nothing_when_one_scope_is_mixed():
    listed = of_dtypes((4, "float32"), (4, "float16"), (4, "float32"), (4, "float32"))

    assert (
        NoPacking().arrange(listed).groups
        == ScopedAllocator(2).arrange(listed, faithful=True).groups
    )


@pytest.mark.parametrize("scope", [1, 2, 3, 32])
@pytest.mark.parametrize("topology", ["full:2", "full:4", "full:5"])
@pytest.mark.parametrize("elements", [(7, 0, 33, 100, 5), (5,), (0, 0), (1000, 1, 1000)])
def test_merged_collectives_sum_without_packing_ops(scope, topology, elements):
    plan = plan_of(f"collective+merge={scope}", gradients(*elements), topology)
    in_place = plan.arg != 0

    assert verify(plan) == []
    assert not np.any(plan.kind == Kind.SLICE)
    assert np.all(in_place[plan.kind == Kind.CONCAT])
    assert -(-len(elements) // scope) == np.count_nonzero(
        (plan.kind == Kind.INPUT) & (plan.device == 0)
    )


@pytest.mark.parametrize("algorithm", ["ring", "xring", "psgpu", "copy_to_gpus", "nccl"])
def test_only_collectives_are_merged(algorithm):
    with pytest.raises(
        StrategyError, match=rf"\+merge acts on the algorithm collective only: {algorithm} puts"
    ):
        plan_of(f"{algorithm}+merge=2", gradients(8, 8))


def test_of_several_ranges_the_one_that_cannot_merge_is_named():
    with pytest.raises(StrategyError, match="collective only: psgpu"):
        plan_of("psgpu:8:collective+merge=2", gradients(8, 9))


def test_upstream_takes_no_notice_elsewhere():
    listed = gradients(8, 8, 8)

    assert plan_of("ring", listed).digest == plan_of("ring+merge=2", listed, faithful=True).digest
