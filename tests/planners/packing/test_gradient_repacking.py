"""gradient_repacking: as ConcatAndSplit, with compaction to float16 on the way."""

from __future__ import annotations

import numpy as np
import pytest

from simreduce import dtypes
from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from simreduce.planners.layouts import layout
from simreduce.planners.packing import ConcatAndSplit, GradientRepacking
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Workload
from tests.planners.packing.lists import gradients, of_dtypes

ALGORITHMS = ["copy_to_gpus", "xring", "ring", "psgpu#2"]


def plan_of(strategy, listed, topology="full:4"):
    return compile_plan(strategy, Workload("test", tuple(listed)), layout(load_topology(topology)))


def test_without_compaction_it_is_concat_and_split():
    listed = gradients(5, 6, 7)

    assert ConcatAndSplit(3).arrange(listed) == GradientRepacking(3).arrange(listed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("packs", [1, 3])
def test_compaction_halves_what_moves_and_gives_float32_back(algorithm, packs):
    listed = gradients(24, 12, 36)
    plain = plan_of(f"{algorithm}+repack={packs}", listed)
    compact = plan_of(f"{algorithm}+repack={packs},fp16", listed)
    moved = [p.nbytes[p.kind == Kind.COPY] for p in (plain, compact)]

    assert moved[0].sum() > 0
    assert moved[0].tolist() == (2 * moved[1]).tolist()
    assert set(compact.dtype[compact.kind == Kind.OUTPUT]) == {dtypes.code("float32")}
    assert verify(compact) == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_packs_casts_every_gradient_alone(algorithm):
    listed = gradients(24, 12, 36)
    plan = plan_of(f"{algorithm}+repack=0,fp16", listed)
    casts = plan.kind == Kind.CAST

    assert GradientRepacking(0, fp16=True).arrange(listed).groups == ((0,), (1,), (2,))
    assert 2 * 4 * len(listed) == np.count_nonzero(casts)
    assert not np.any((plan.dtype == 0) & (plan.kind == Kind.COPY))
    assert verify(plan) == []


def test_the_vector_is_cast_once_on_the_way_out_and_once_on_the_way_back():
    plan = plan_of("copy_to_gpus+repack=8,fp16", gradients(40, 40))

    assert [
        (plan.hi - plan.lo)[(plan.kind == Kind.CAST) & (plan.device == d)].tolist()
        for d in range(4)
    ] == [[80, 80]] * 4


def test_other_dtypes_come_back_as_they_were():
    plan = plan_of("ring+repack=0,fp16", of_dtypes((8, "float64"), (8, "float16"), (8, "bfloat16")))
    outputs = (plan.kind == Kind.OUTPUT) & (plan.device == 0)

    assert [dtypes.NAMES[d] for d in plan.dtype[outputs]] == ["float64", "float16", "bfloat16"]
    assert verify(plan) == []


@pytest.mark.parametrize(
    ("strategy", "dtype", "says"),
    [
        ("ring+repack=8", "float16", "does not repack float16 variables; use packs=K"),
        ("ring+repack=8,fp16", "float16", "does not repack float16 variables; use packs=K"),
        ("ring+repack=0,fp16", "int32", "fp16 is for floating-point gradients, not for int32"),
    ],
)
def test_what_it_does_not_accept(strategy, dtype, says):
    with pytest.raises(StrategyError, match=says):
        plan_of(strategy, gradients(8, 8, dtype=dtype))
