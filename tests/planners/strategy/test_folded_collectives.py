"""All-gathers and reduce-scatters of equal machines, one of which stands for all."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine import NCCL, TENSORFLOW, Runtime
from simreduce.engine.setup import Setup
from simreduce.errors import NotFoldable
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_collective, proved_on_few
from simreduce.topology import fold
from simreduce.workload import Gradient, Workload
from tests.thorough import examples


@cache
def whole_and_folded(machine: str, runtime: Runtime) -> tuple[Setup, Setup]:
    setup = Setup(machine, runtime)
    return setup, setup.but(machine=fold(setup.machine), part=None)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.sampled_from(["all_gather", "reduce_scatter"]),
    st.sampled_from([("nccl", NCCL), ("ring", TENSORFLOW), ("ring", NCCL), ("direct", NCCL)]),
    st.sampled_from(["dgx1vx3", "dgx-a100x2", "dgx-h100x4", "switch:5"]),
    st.integers(1, 1 << 18) | st.integers(1, 1 << 13).map(lambda part: 32 * part),
)
def test_one_machine_takes_as_long_as_all(collective, how, machine, each):
    """Of whole parts; and the strategy is proved on few. Machines that a ring crosses in two ways
    are not folded where these differ.
    """
    name, runtime = how
    setup, one = whole_and_folded(machine, runtime)
    work = Workload("w", (Gradient("w", each * setup.layout.n, 3),))
    strategy = parse_strategy(name, collective)
    plan = compile_collective(collective, strategy, work, setup.layout)
    try:
        part = compile_collective(collective, strategy, work, one.layout)
    except NotFoldable:
        assert name == "nccl"
        assert machine not in ("switch:5", "dgx-h100x4") or each % 32
        return

    assert one.simulate(part).seconds == pytest.approx(setup.simulate(plan).seconds, rel=1e-9)
    assert (min(4, one.layout.machines), 0) == proved_on_few(strategy, work, one.layout)


@pytest.mark.parametrize(
    ("collective", "name"), [("all_gather", "bruck"), ("reduce_scatter", "halving_doubling")]
)
def test_what_is_not_the_same_on_every_machine_is_not_folded(collective, name):
    """Some families treat ranks unlike; other collectives are never folded."""
    one = Setup(fold(Setup("switch:8").machine))
    work = Workload("w", (Gradient("w", 800),))
    with pytest.raises(NotFoldable, match=name):
        compile_collective(collective, parse_strategy(name, collective), work, one.layout)
    with pytest.raises(NotFoldable, match="801 elements are no 8 equal parts"):
        compile_collective(collective, "ring", Workload("w", (Gradient("w", 801),)), one.layout)
    with pytest.raises(NotFoldable, match="all_to_all"):
        compile_collective("all_to_all", "pairwise", work, one.layout)
