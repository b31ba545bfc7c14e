"""NCCL's all-gathers and reduce-scatters by symmetric kernels: right results, costs, takers."""

from __future__ import annotations

from functools import cache
from math import inf

import pytest

import simreduce as sr
from simreduce import dtypes
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import StrategyError
from simreduce.plan import Executor, Kind
from simreduce.planners.nccl import Settings
from simreduce.planners.nccl.constants import KERNELS, choose_symmetric
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import tensor

BOTH = ("all_gather", "reduce_scatter")
EVERY = [(k.collective, f"symmetric:{k.name}") for k in KERNELS if k.collective in BOTH]
EVERY += [(collective, "symmetric") for collective in BOTH]
SWITCHED = {(k.collective, f"symmetric:{k.name}") for k in KERNELS if k.switched}


@cache
def _setup(machine: str, gpus: int, **nccl: object) -> Setup:
    whole = Setup(machine, BY_STRATEGY, nccl=Settings(**nccl))
    return whole.but(part=whole.layout.subset(gpus))


def _plan(setup: Setup, collective: str, nbytes: int, text: str, dtype: int = 0):
    strategy = parse_strategy(text, collective)
    running = setup.running(strategy)
    return running, running.compile(strategy, tensor(nbytes, dtype, setup.layout.n), collective)


def _seconds(machine: str, gpus: int, collective: str, text: str, nbytes: int) -> float:
    running, plan = _plan(_setup(machine, gpus), collective, nbytes, text)
    return running.summarise(plan).seconds


@pytest.mark.parametrize(("collective", "text"), EVERY)
@pytest.mark.parametrize("gpus", range(1, 9))
def test_the_result_is_right_on_every_number_of_gpus(collective, text, gpus):
    for nbytes in (4 * gpus, 1 << 16, 1 << 24):
        assert [] == sr.verify(_plan(_setup("dgx-h100", gpus), collective, nbytes, text)[1])


@pytest.mark.parametrize(("collective", "text"), EVERY)
def test_they_run_on_a_domain_of_72_gpus_and_where_no_switch_sums(collective, text):
    assert [] == sr.verify(_plan(_setup("gb200-nvl72", 72), collective, 1 << 20, text)[1])
    for machine in ("dgx-a100", "h100-mesh-4"):
        if (collective, text) in SWITCHED:
            with pytest.raises(StrategyError, match="needs switches that sum"):
                _plan(_setup(machine, 4), collective, 1 << 20, text)
        else:
            assert [] == sr.verify(_plan(_setup(machine, 4), collective, 1 << 20, text)[1])
    with pytest.raises(StrategyError, match="needs NVLinks"):
        _plan(_setup("dgx1v", 8), collective, 1 << 20, text)


@pytest.mark.parametrize(("collective", "text"), EVERY)
@pytest.mark.parametrize("machine", ["dgx-h100", "hgx-b200"])
def test_nothing_is_below_the_floor_and_more_bytes_take_more(collective, text, machine):
    before = 0.0
    for nbytes in (1 << 13, 1 << 17, 1 << 21, 1 << 25, 1 << 29):
        running, plan = _plan(_setup(machine, 8), collective, nbytes, text)
        found = running.simulate(plan)
        assert found.floors.hardware <= found.seconds * (1 + 1e-9)
        assert before < found.seconds
        before = found.seconds


def test_a_switch_sends_each_port_what_it_keeps_and_no_more():
    """With multicast a port sends its part once; with sums it hears its own part."""
    for collective, text, ways in (
        ("all_gather", "symmetric:stmc", (1 / 8, 1)),
        ("reduce_scatter", "symmetric:ldmc", (1, 1 / 8)),
    ):
        _, plan = _plan(_setup("dgx-h100", 8), collective, 1 << 26, text)
        moved = {True: 0, False: 0}
        for source, to, elements in plan.copies():
            if "gpu0" in (source, to):
                moved[source == "gpu0"] += 4 * elements
        assert (moved[True], moved[False]) == tuple(part * (1 << 26) for part in ways)


def test_small_ones_have_flags_and_large_ones_go_through_the_switch():
    """As NCCL's model has it; flags need no barrier."""
    for collective, flags, large in (
        ("all_gather", "llmc", "stmc"), ("reduce_scatter", "ll", "ldmc"),
    ):  # fmt: skip
        own = [kernel for kernel in KERNELS if kernel.collective == collective]
        for capability in (90, 100):
            taken = [
                choose_symmetric(8, nbytes, capability, own, multicast=True)
                for nbytes in (1 << 10, 1 << 26)
            ]
            assert [flags, large] == taken
            without = choose_symmetric(8, 1 << 26, capability, own, multicast=False)
            assert without == {"all_gather": "st", "reduce_scatter": "ld"}[collective]
        small = _seconds("dgx-h100", 8, collective, f"symmetric:{flags}", 1 << 10)
        assert small < _seconds("dgx-h100", 8, collective, f"symmetric:{large}", 1 << 10)
        assert small == _seconds("dgx-h100", 8, collective, "symmetric", 1 << 10)


@pytest.mark.parametrize("collective", BOTH)
def test_nccl_takes_them_for_windows_since_2_27(collective):
    for nccl, taken in (
        ({"symmetric": True}, True),
        ({}, False),
        ({"symmetric": True, "version": (2, 26)}, False),
        ({"symmetric": True, "algorithms": (("", frozenset({"ring"})),)}, False),
    ):
        _, plan = _plan(_setup("dgx-h100", 8, **nccl), collective, 1 << 20, "nccl")
        assert (plan.executor >= Executor.KERNEL).any() == taken
        assert [] == sr.verify(plan)
    _, flagged = _plan(_setup("dgx-h100", 8, symmetric=True), collective, 1 << 12, "nccl")
    assert (flagged.executor[flagged.kind == Kind.COPY] == Executor.KERNEL_LL).all()


def test_reduce_scatters_are_of_floats_and_rccl_has_none():
    whole = dtypes.code("float64")
    with pytest.raises(StrategyError, match="symmetric reduce-scatters are of floats"):
        _plan(_setup("dgx-h100", 8), "reduce_scatter", 1 << 20, "symmetric", whole)
    assert _plan(_setup("dgx-h100", 8), "all_gather", 1 << 20, "symmetric", whole)
    for collective in BOTH:
        with pytest.raises(StrategyError, match="RCCL has no symmetric kernel for"):
            _plan(_setup("mi300x", 8), collective, 1 << 20, "symmetric")


@pytest.mark.parametrize("collective", BOTH)
def test_their_times_are_nominal_and_have_no_interval(collective):
    what = collective.replace("_", "-")
    said = f"the symmetric {what}'s times are nominal: no published table of it was compared"
    work = tensor(1 << 20, 0, 8)
    for nccl, text, expected in (
        ({}, "symmetric", said),
        ({}, f"symmetric:{'st' if collective == 'all_gather' else 'ld'}", said),
        ({"symmetric": True}, "nccl", said),
        ({"symmetric": True}, "nccl:ring", ""),
        ({}, "nccl", ""),
    ):
        setup = _setup("dgx-h100", 8, **nccl)
        strategy = parse_strategy(text, collective)
        assert expected == setup.nominal([text], setup.calls_of(strategy, work))
        known = setup.interval(1 << 20, 1.0, collective, algorithm=strategy.algorithm)
        if strategy.reduced_by_nccl:
            assert (known is None) == bool(expected)
    reducing = parse_strategy("symmetric")
    setup = _setup("dgx-h100", 8)
    assert "" == setup.nominal(["symmetric"], setup.calls_of(reducing, work))
    assert inf > setup.call(1 << 20, collective).seconds > 0
