"""From a strategy and a gradient list to a plan: order, addresses, contract."""

from __future__ import annotations

import numpy as np
import pytest

from simreduce.errors import StrategyError
from simreduce.plan import ZEROS, Kind, Plan, verify
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload


def _workload(*elements: int, dtype: int = 0) -> Workload:
    return Workload("test", tuple(Gradient(f"g{i}", n, dtype) for i, n in enumerate(elements)))


def _plan(strategy: str, *elements: int, machine: str = "full:4", dtype: int = 0) -> Plan:
    return compile_plan(strategy, _workload(*elements, dtype=dtype), layout(load_topology(machine)))


def _inputs(plan: Plan, rank: int) -> list[tuple[int, int]]:
    ids = np.flatnonzero((plan.kind == Kind.INPUT) & (plan.device == rank) & (plan.arg != ZEROS))
    return [(int(plan.lo[op]), int(plan.hi[op])) for op in ids]


def test_gradients_lie_end_to_end_in_their_order():
    """One interval each, from address 0, the same on every rank."""
    plan = _plan("ring", 5, 7, 3)

    assert [[(0, 5), (5, 12), (12, 15)]] * 4 == [_inputs(plan, rank) for rank in range(4)]


def test_ranges_lie_one_after_the_other():
    """First what the first range takes, in its own order, then the rest: small gradients move to
    the front.
    """
    plan = _plan("psgpu:10:ring", 20, 5, 30, 10)

    assert [(0, 5), (5, 15), (15, 35), (35, 65)] == _inputs(plan, 0)


def test_an_empty_gradient_has_an_address_and_no_width():
    """It is a promise like the others."""
    plan = _plan("ring", 4, 0, 4)

    assert [(0, 4), (4, 4), (4, 8)] == _inputs(plan, 0)
    assert [] == verify(plan)


def test_the_contract_is_an_all_reduce_over_all_ranks():
    """Every rank ends with every gradient's interval, summed over all, in its dtype."""
    plan = _plan("ring", 5, 7, dtype=1)
    contract = plan.contract

    assert "all_reduce" == contract.collective
    assert (frozenset(range(4)),) == contract.sets
    assert [(rank, lo, hi, 1, 1) for rank in range(4) for lo, hi in ((0, 5), (5, 12))] == [
        tuple(
            int(column[i])
            for column in (
                contract.device,
                contract.lo,
                contract.hi,
                contract.dtype,
                contract.divisor,
            )
        )
        for i in range(len(contract))
    ]


@pytest.mark.parametrize("text", ["ring+mean", "xring+packs=2+mean", "psgpu:6:copy_to_gpus+mean"])
def test_mean_divides_every_result_by_the_number_of_ranks(text):
    """The contract says so, and the plan scales each result where it ends up."""
    plan = _plan(text, 5, 7)
    plain = _plan(text.removesuffix("+mean"), 5, 7)
    scales = np.flatnonzero(plan.kind == Kind.SCALE)

    assert {4} == {int(divisor) for divisor in plan.contract.divisor}
    assert {4} == {int(plan.arg[op]) for op in scales}
    assert np.count_nonzero(plain.kind == Kind.OUTPUT) == len(scales)
    assert plain.copies() == plan.copies()
    assert [] == verify(plan)


@pytest.mark.parametrize(
    ("ranges", "alone"),
    [
        ("pscpu:0:ring", "ring"),
        ("pscpu:4:psgpu:4:ring", "ring"),
        ("ring:-1:pscpu", "ring"),
        ("ring:1M:pscpu", "ring"),
        ("xring:7:ring:3:psgpu+packs=2", "xring+packs=2"),
    ],
)
def test_a_range_that_receives_nothing_leaves_no_trace(ranges, alone):
    """The plan is the one without it, bit for bit; nothing is asked of its algorithm."""
    assert _plan(alone, 5, 7).digest == _plan(ranges, 5, 7).digest


def test_a_range_that_receives_nothing_is_not_asked_whether_it_could():
    """The runtime ring refuses a single GPU only when it is given something to do there."""
    plan = _plan("collective:4:ring", 5, 7, machine="full:1")

    assert [] == verify(plan)
    with pytest.raises(StrategyError, match="2 GPUs or more"):
        _plan("collective:5:ring", 5, 7, machine="full:1")


def test_each_range_is_packed_on_its_own():
    """Two packs of the small gradients, two of the large ones: no transfer mixes them."""
    plan = _plan("reduce_to_one:10:reduce_to_one+packs=2", 100, 4, 300, 8, machine="full:2")

    assert [
        ("gpu1", "gpu0", 6),
        ("gpu1", "gpu0", 200),
        ("gpu0", "gpu1", 6),
        ("gpu0", "gpu1", 200),
    ] == sorted(set(plan.copies()), key=lambda copy: (copy[0] == "gpu0", copy[2]))


def test_what_the_machine_does_not_allow_names_the_strategy():
    """So that it can be found in a list of them."""
    with pytest.raises(
        StrategyError, match=r"^xring#9\+packs=2: the number of sub-chunks must be from 1"
    ):
        _plan("xring#9+packs=2", 10, machine="full:8")


def test_a_strategy_may_be_given_read_or_as_text():
    """Both make the same plan."""
    shape, workload = layout(load_topology("full:3")), _workload(10)

    one = compile_plan("ring+mean", workload, shape)
    assert one.digest == compile_plan(parse_strategy("ring+mean"), workload, shape).digest


def test_the_plan_of_the_same_question_has_the_same_digest():
    """And that of another one has another."""
    assert _plan("xring", 10, 20).digest == _plan("xring", 10, 20).digest
    assert 5 == len(
        {
            _plan(*question).digest
            for question in (
                ("xring", 10, 20),
                ("xring", 20, 10),
                ("ring", 10, 20),
                ("xring+mean", 10, 20),
                ("xring+packs=2", 10, 20),
            )
        }
    )
