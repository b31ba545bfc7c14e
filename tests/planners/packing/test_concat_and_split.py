"""ConcatAndSplitPacker: one vector, cut in k packs."""

from __future__ import annotations

import pytest

from simreduce.plan import Kind, PlanBuilder
from simreduce.planners.layouts import layout
from simreduce.planners.packing import ConcatAndSplit
from simreduce.planners.packing.arrangement import pack, place
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Workload
from tests.planners.packing.lists import gradients

SPLITS = [
    (10, 3, [3, 3, 4]),
    (10, 4, [2, 2, 2, 4]),
    (8, 8, [1] * 8),
    (3, 8, [0] * 7 + [3]),
    (100, 8, [12] * 7 + [16]),
    (25_559_081, 8, [3_194_885] * 7 + [3_194_886]),
    (138_361_641, 8, [17_295_205] * 7 + [17_295_206]),
]


@pytest.mark.parametrize(("total", "count", "expected"), SPLITS)
def test_the_last_pack_gets_the_remainder(total, count, expected):
    listed = gradients(total // 3, total - total // 3)
    arrangement = ConcatAndSplit(count).arrange(listed)
    tensors = pack(PlanBuilder(("gpu0",)), 0, arrangement, place(arrangement, listed, 0))

    assert expected == [t.hi - t.lo for t in tensors]


def test_one_pack_still_concatenates_everything():
    assert ConcatAndSplit(1).arrange(gradients(1, 2, 3)).groups == ((0, 1, 2),)


def test_nothing_moves_before_all_gradients_exist():
    plan = compile_plan(
        "copy_to_gpus+packs=2",
        Workload("test", tuple(gradients(4, 4))),
        layout(load_topology("full:2")),
    )
    first_copy = list(plan.kind).index(Kind.COPY)

    assert [
        k
        for k, d in zip(plan.kind[:first_copy], plan.device, strict=False)
        if d == 0 and k != Kind.SLICE
    ] == [Kind.INPUT, Kind.INPUT, Kind.CONCAT]
