"""The expected size of a plan, against the plan itself."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine.setup import Setup
from simreduce.errors import InputError, PlanTooLarge
from simreduce.plan.ops import BYTES, most_ops
from simreduce.planners.algorithms.families import FAMILIES
from simreduce.planners.strategy import compiler, parse_strategy
from simreduce.workload import Gradient, Workload
from tests.thorough import examples


def workload(elements: int, count: int = 1) -> Workload:
    return Workload("some", tuple(Gradient(f"g{i}", elements, 0) for i in range(count)))


def build(setup: Setup) -> compiler.Compile:
    return lambda strategy, some, few: setup.but(part=few).compile(strategy, some)


@settings(deadline=None, max_examples=examples(30))
@given(
    st.sampled_from([name for name, family in FAMILIES.items() if family.all_reduce]),
    st.sampled_from([48, 64, 128]),
)
def test_the_ops_of_many_ranks_are_known_by_few(name, n):
    setup, tensor = Setup(f"switch:{n}", "ideal"), workload(128 * 3 * 1024)
    strategy = parse_strategy(f"{name}+chunk=64KiB" if FAMILIES[name].pipelined else name)
    made = len(setup.compile(strategy, tensor))
    expected = compiler.expected_ops(strategy, tensor, setup.layout, build(setup))

    assert made / 2 <= expected <= made * 2


# Chunks pass on in parts, whose number halves with every doubling of the machines, up to 8 of them:
# few machines know half of the ops of 16.
_HALF = pytest.param("nccl:ring", 1 << 16, marks=pytest.mark.xfail(strict=True))


@cache
def h100x16() -> Setup:
    return Setup("dgx-h100x16")


@pytest.mark.parametrize(
    ("strategy", "elements"),
    [
        *((name, 1 << power) for name in ("nccl", "nccl:nvlstree") for power in (8, 16, 20)),
        ("nccl:ring", 1 << 8),
        _HALF,
        ("nccl:ring", 1 << 20),
    ],
)
def test_the_ops_of_nccl_on_many_machines_are_known_by_few(strategy, elements):
    """With the algorithm that all of them choose, which is not that of one machine."""
    setup, tensors = h100x16(), workload(elements, 3)
    made = len(setup.compile(strategy, tensors))
    asked = parse_strategy(strategy)
    expected = compiler.expected_ops(asked, tensors, setup.layout, build(setup))

    assert made / 1.5 <= expected <= made * 1.5


@pytest.mark.parametrize("options", ["", "+packs=3", "+bucket=64KiB"])
def test_the_ops_of_many_gradients_are_known_by_few(options):
    setup, tensors = Setup("switch:8"), workload(256, 3000)
    strategy = parse_strategy(f"ring{options}")
    made = len(setup.compile(strategy, tensors))
    expected = compiler.expected_ops(strategy, tensors, setup.layout, build(setup))

    assert made / 1.5 <= expected <= made * 1.5


@pytest.mark.parametrize(
    ("machine", "strategy", "tensors"),
    [
        ("switch:4096", "ring", lambda: workload(1 << 28)),
        pytest.param("switch:8", "ring", lambda: workload(256, 1_000_000), marks=pytest.mark.slow),
        ("dgx1vx16", "ring+packs=4096", lambda: workload(1 << 28)),
    ],
)
def test_what_does_not_fit_is_refused_unbuilt(monkeypatch, machine, strategy, tensors):
    monkeypatch.setenv("SIMREDUCE_MEMORY", "1G")
    with pytest.raises(PlanTooLarge, match=r"about [0-9,]+ ops and take about [0-9,.]+ GB"):
        Setup(machine).compile(strategy, tensors())


def test_the_memory_is_what_the_variable_says(monkeypatch):
    monkeypatch.setenv("SIMREDUCE_MEMORY", "2G")
    assert most_ops() == (2 << 30) // BYTES
    monkeypatch.setenv("SIMREDUCE_MEMORY", "much")
    with pytest.raises(InputError, match="SIMREDUCE_MEMORY: 'much' is not a size"):
        most_ops()
    monkeypatch.delenv("SIMREDUCE_MEMORY")
    assert most_ops() > 0
