"""NCCL's all-gathers and all-to-alls by copy engines: right results, costs, and who runs them."""

from __future__ import annotations

from functools import cache

import pytest

import simreduce as sr
from simreduce.engine.calibrate import nccl_constants
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import StrategyError
from simreduce.plan import Executor, Kind
from simreduce.plan.ops import ENGINE
from simreduce.planners.nccl import Settings
from simreduce.planners.nccl.constants import choose_engine
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import tensor
from simreduce.training.mesh import Mesh
from simreduce.training.mesh.parts import MeshCall
from simreduce.training.mesh.passes import Costs

NAME = "symmetric:engine"
BOTH = ["all_gather", "all_to_all"]
ZERO = {"symmetric": True, "cta_policy": 2}


@cache
def _setup(machine: str, gpus: int, **nccl: object) -> Setup:
    whole = Setup(machine, BY_STRATEGY, nccl=Settings(**nccl))
    return whole.but(part=whole.layout.subset(gpus))


def _plan(setup: Setup, collective: str, nbytes: int, text: str = NAME):
    strategy = parse_strategy(text, collective)
    running = setup.running(strategy)
    return running, running.compile(strategy, tensor(nbytes, 0, setup.layout.n), collective)


def _by_kernels(plan) -> bool:
    return bool((plan.executor >= Executor.KERNEL).any())


def _by_engines(plan) -> bool:
    copies = plan.stream[(plan.kind == Kind.COPY) & (plan.stream >= 0)]
    return _by_kernels(plan) and bool((copies // len(plan.devices) & ENGINE > 0).any())


@pytest.mark.parametrize("collective", BOTH)
@pytest.mark.parametrize("machine", ["dgx-h100", "dgx-a100", "hgx-b200"])
@pytest.mark.parametrize("gpus", range(1, 9))
def test_the_result_is_right_on_every_number_of_gpus(collective, machine, gpus):
    for nbytes in (4 * gpus, 1 << 16, 1 << 27):
        assert [] == sr.verify(_plan(_setup(machine, gpus), collective, nbytes)[1])


@pytest.mark.parametrize("collective", BOTH)
def test_a_batch_costs_its_launch_and_the_rate_of_the_engines(collective):
    """Without a switch that multicasts: A100, with Hopper's constants."""
    setup, costs = _setup("dgx-a100", 8), nccl_constants(80).kernels
    floor = costs.engine_launch + 8 * costs.engine_copy
    running, plan = _plan(setup, collective, 1 << 10)
    assert floor < running.summarise(plan).seconds < floor + 3e-6
    running, plan = _plan(setup, collective, 1 << 30)
    found = running.simulate(plan)
    assert found.seconds >= floor + (7 << 27) / costs.engine_rate
    assert found.seconds >= found.floors.hardware


def test_a_switch_multicasts_small_all_gathers_only():
    """The crossing is where NCCL's model has it, 4.9 MiB of each GPU on 8 H100."""
    setup = _setup("dgx-h100", 8)
    for part, up in ((1 << 20, True), (8 << 20, False)):
        assert choose_engine(8, part, 90, multicast=True) == ("engine_mc" if up else "engine")
        _, plan = _plan(setup, "all_gather", 8 * part)
        switches = {name for name in plan.devices if "switch" in name}
        to = {plan.devices[i] for i in plan.device[plan.kind == Kind.COPY].tolist()}
        assert bool(switches & to) == up
    assert choose_engine(8, 1 << 10, 90, multicast=False) == "engine"


@pytest.mark.parametrize("collective", BOTH)
def test_nccl_takes_them_for_windows_under_the_zero_policy_since_2_28(collective):
    for nccl, taken in (
        (ZERO, True),
        ({"symmetric": True}, False),
        ({"cta_policy": 2}, False),
        ({**ZERO, "version": (2, 27)}, False),
    ):
        _, plan = _plan(_setup("dgx-h100", 8, **nccl), collective, 1 << 20, "nccl")
        assert _by_engines(plan) == taken
    reducing = sr.compile("nccl", tensor(1 << 20, 0), _setup("dgx-h100", 8, **ZERO).layout)
    assert _by_kernels(reducing)
    assert not _by_engines(reducing)


def test_they_take_no_sm_of_a_step():
    """A gather of tensor parallel ranks by NCCL's channels does."""
    call = MeshCall("tp", "all_gather", 1 << 20)
    by = [
        Costs(Setup("dgx-h100", "nccl", nccl=Settings(**nccl)), Mesh(tp=8)).of(call, 0).channels
        for nccl in ({}, ZERO)
    ]
    assert by[0] > 0 == by[1]


def test_where_they_are_refused():
    with pytest.raises(StrategyError, match="RCCL has no collectives by copy engines"):
        _plan(_setup("mi300x", 8), "all_gather", 1 << 20)
    with pytest.raises(StrategyError, match="needs NVLinks"):
        _plan(_setup("dgx1v", 8), "all_to_all", 1 << 20)
    with pytest.raises(StrategyError, match="runs on up to 64 GPUs"):
        _plan(_setup("gb200-nvl72", 72), "all_gather", 1 << 20)
    said = "the copy engine's times are nominal: no published table of it was compared"
    assert said == _setup("dgx-h100", 8).nominal([NAME])
