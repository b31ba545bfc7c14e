"""Tensors that are alike are planned once; the plan is the same, op by op."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

import simreduce as sr
from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder
from simreduce.planners.algorithms import ALGORITHMS, planner
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_plan, has_quirks
from simreduce.workload import Gradient, Workload
from tests.thorough import examples

PAIRS = ("ring/ring", "halving_doubling/ring", "direct/chain", "binary_tree/double_tree")


def workload(sizes: list[tuple[int, int]]) -> Workload:
    one = sr.load_workload("bytes:4").gradients[0]
    gradients = tuple(
        replace(one, name=f"g{i}", elements=elements, dtype=dtype)
        for i, (elements, dtype) in enumerate(sizes)
    )
    assert isinstance(one, Gradient)
    return replace(sr.load_workload("bytes:4"), gradients=gradients)


@given(
    st.sampled_from((*ALGORITHMS, *PAIRS)),
    st.sampled_from(("", "+packs=2", "+chunk=16", "#2")),
    st.lists(st.tuples(st.sampled_from((0, 1, 7, 64)), st.integers(0, 1)), min_size=2, max_size=9),
    st.sampled_from(("full:3", "full:4", "dgx1v", "dgx-a100x2")),
    st.booleans(),
    st.sampled_from((1, 16)),
)
@settings(max_examples=examples(150), deadline=None)
def test_planned_once_or_each_the_plan_is_the_same(
    name, option, sizes, machine, faithful, repeated
):
    """Every algorithm, with tensors of few sizes in any order."""
    if machine == "dgx-a100x2" and name in {"trees", "multi_ring", "best_ring"}:
        machine = "dgx1v"
    layout, gradients = sr.layout(sr.load_topology(machine)), workload(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "_REPEATED", repeated)
        try:
            plan = compile_plan(f"{name}{option}", gradients, layout, faithful=faithful)
        except StrategyError:
            return
        patch.setattr(PlanBuilder, "is_closed", lambda *_: False)
        patch.setattr(planner, "_AT_ONCE", 1)
        each = compile_plan(f"{name}{option}", gradients, layout, faithful=faithful)

    assert each.digest == plan.digest


@given(
    st.sampled_from((*ALGORITHMS, *PAIRS)),
    st.sampled_from(("", "#2", "#3", "+packs=2", "+repack=2", "+small=64:2", "+bucket=64")),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), min_size=1, max_size=9),
    st.sampled_from(("full:3", "full:4", "dgx1v", "dgx-a100x2")),
)
@settings(max_examples=examples(150), deadline=None)
def test_strategies_without_quirks_are_the_same_upstream(name, option, sizes, machine):
    """So upstream's plan need not be made to compare the two."""
    if machine == "dgx-a100x2" and name in {"trees", "multi_ring", "best_ring"}:
        machine = "dgx1v"
    layout, gradients = sr.layout(sr.load_topology(machine)), workload(sizes)
    try:
        strategy = parse_strategy(f"{name}{option}")
        plan = compile_plan(strategy, gradients, layout)
    except StrategyError:
        return
    if not has_quirks(strategy):
        assert compile_plan(strategy, gradients, layout, faithful=True).digest == plan.digest


def test_alike_tensors_are_planned_once():
    """Of ten tensors of two sizes and three turns each, six are planned."""
    seen = []
    b = PlanBuilder(("a", "b"))
    tensors = [
        [b.input(0, i, i + 1 + i % 2), b.input(1, i, i + 1 + i % 2)] for i in range(0, 24, 2)
    ]

    def one(tensor, turn):
        seen.append((tensor[0].hi - tensor[0].lo, turn))
        return [b.copy(tensor[0], 1), b.copy(tensor[1], 0)]

    results = planner.plan_each(b, tensors, one, 3)

    assert [(1, 0), (1, 1), (1, 2)] == seen
    assert [t[0].lo for t in tensors] == [r[0].lo for r in results]
    assert len(b) == 2 * 12 + 2 * 12


@pytest.mark.parametrize("name", ["nccl", "nccl/xring", "nccl/pscpu"])
def test_the_barriers_of_tensors_planned_again_have_no_address(name):
    """NCCL's collectives begin with an empty input at 0, whatever the addresses of the tensor."""
    layout, gradients = sr.layout(sr.load_topology("dgx-a100x2")), workload([(64, 0)] * 3)
    plan = compile_plan(name, gradients, layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlanBuilder, "is_closed", lambda *_: False)
        each = compile_plan(name, gradients, layout)

    assert each.digest == plan.digest
