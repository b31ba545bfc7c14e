"""All-reduces by kernels that read and write the memory of peers: right sums, where they run, what
they cost.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import simreduce as sr
from simreduce import dtypes
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import StrategyError
from simreduce.plan import Executor, Kind
from simreduce.planners.algorithms.kernels import SYMMETRIC_KERNELS
from simreduce.planners.nccl import Settings
from simreduce.planners.nccl.constants import KERNELS, choose_symmetric
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario_files import load_meshes
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.sizes import tensor
from simreduce.workload import Gradient, Workload
from tests.thorough import examples

NAMED = [f"symmetric:{name}" for name in SYMMETRIC_KERNELS["all_reduce"]]
OF_EIGHT = ["oneshot", "twoshot"]
SWITCHED = ["multimem", "symmetric:agxllmc_r", "symmetric:rsxldmc_agxstmc"]
EVERY = [*OF_EIGHT, "multimem", "symmetric", *NAMED]


@cache
def _setup(machine: str, gpus: int, **nccl: bool) -> Setup:
    whole = Setup(machine, BY_STRATEGY, nccl=Settings(**nccl))
    return whole.but(part=whole.layout.subset(gpus))


def _plan(machine: str, gpus: int, strategy: str, nbytes: int):
    setup, asked = _setup(machine, gpus), parse_strategy(strategy)
    running = setup.running(asked)
    return running, running.compile(asked, tensor(nbytes, 0))


def _seconds(machine: str, gpus: int, strategy: str, nbytes: int) -> float:
    running, plan = _plan(machine, gpus, strategy, nbytes)
    return running.summarise(plan).seconds


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("gpus", range(1, 9))
def test_the_sum_is_right_on_every_number_of_gpus_and_for_any_size(strategy, gpus):
    """Also of several tensors, one after another, and of means."""
    layout = _setup("dgx-h100", gpus).layout
    for sizes in ([0], [1], [gpus - 1], [gpus], [1000], [3, 0, 1 << 18, 7]):
        workload = Workload("test", tuple(Gradient(f"g{i}", size) for i, size in enumerate(sizes)))
        for mean in ("", "+mean"):
            assert [] == sr.verify(sr.compile(f"{strategy}{mean}", workload, layout))


def test_a_domain_of_72_gpus_has_symmetric_kernels_and_multimem_only():
    layout = Setup("gb200-nvl72").layout
    for strategy in ("symmetric", "symmetric:rsxldmc_agxstmc", "multimem"):
        assert [] == sr.verify(sr.compile(strategy, tensor(1 << 16, 0), layout))
    for strategy in OF_EIGHT:
        with pytest.raises(StrategyError, match="runs on up to 8 GPUs, and these are 72"):
            sr.compile(strategy, tensor(1 << 16, 0), layout)


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("machine", ["a100-pcie-8", "dgx-h100x2", "dgx1v"])
def test_gpus_that_no_nvlinks_join_are_refused(strategy, machine):
    """Over PCIe and a network, and where some pairs only are linked."""
    with pytest.raises(StrategyError, match=r"needs NVLinks or NVSwitches|runs on up to 8"):
        sr.compile(strategy, tensor(1 << 16, 0), Setup(machine).layout)


@pytest.mark.parametrize("strategy", SWITCHED)
@pytest.mark.parametrize("machine", ["dgx-a100", "v100-mesh-4"])
def test_what_has_switches_sum_needs_switches_that_sum(strategy, machine):
    with pytest.raises(StrategyError, match="needs switches that sum"):
        sr.compile(strategy, tensor(1 << 16, 0), Setup(machine).layout)


@pytest.mark.parametrize("machine", ["dgx-a100", "v100-mesh-4", "h100-mesh-4"])
def test_what_reads_and_writes_peers_needs_no_switch(machine):
    layout = Setup(machine).layout
    for strategy in ("oneshot", "twoshot", "symmetric", "symmetric:rsxld_agxst"):
        assert [] == sr.verify(sr.compile(strategy, tensor(1 << 16, 0), layout))


def test_kernels_and_their_barriers_are_what_the_plan_holds():
    """A launch; of two shots a barrier between them; of flags in the data, no other executor."""
    for strategy, launches in (("oneshot", 1), ("twoshot", 2), ("multimem", 1)):
        _, plan = _plan("dgx-h100", 4, strategy, 1 << 20)
        own = plan.executor == Executor.KERNEL
        assert launches == np.count_nonzero(own & (plan.kind == Kind.INPUT))
        assert own[plan.kind == Kind.COPY].all()
    _, plan = _plan("dgx-h100", 4, "symmetric:agxll_r", 1 << 10)
    assert (plan.executor[plan.kind == Kind.COPY] == Executor.KERNEL_LL).all()
    assert not plan.by_channels


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(EVERY),
    st.sampled_from(["dgx-h100", "hgx-b200"]),
    st.integers(2, 8),
    st.lists(st.integers(1, 1 << 24), min_size=2, max_size=2),
)
def test_more_bytes_never_take_less_and_nothing_is_below_the_floor(strategy, machine, gpus, sizes):
    """NCCL's choice among kernels may jump down: it is NCCL's own model that decides."""
    small, large = sorted(nbytes // (4 * gpus) * 4 * gpus for nbytes in sizes)
    running, plan = _plan(machine, gpus, strategy, large)
    result = running.simulate(plan)
    if strategy != "symmetric" and small:
        assert _seconds(machine, gpus, strategy, small) <= result.seconds * (1 + 1e-9)
    assert result.floors.hardware <= result.seconds * (1 + 1e-9) or large == 0


@pytest.mark.parametrize("machine", ["dgx-h100", "hgx-h200", "hgx-b200"])
@pytest.mark.parametrize("gpus", [4, 6, 8])
def test_one_shot_is_for_small_tensors_two_for_large_ones(machine, gpus):
    def seconds(strategy: str, nbytes: int) -> float:
        return _seconds(machine, gpus, strategy, nbytes)

    assert seconds("oneshot", 1 << 13) < seconds("twoshot", 1 << 13) / 1.5
    assert seconds("twoshot", 1 << 25) < seconds("oneshot", 1 << 25)
    assert seconds("multimem", 1 << 23) < seconds("twoshot", 1 << 23)
    assert seconds("symmetric", 1 << 13) < seconds("nccl", 1 << 13) / 2


def _crossing(machine: str, gpus: int, first: str, then: str) -> int:
    """The first power of two at which `then` is the faster."""
    sizes = (1 << i for i in range(12, 27))
    return next(
        s for s in sizes if _seconds(machine, gpus, then, s) < _seconds(machine, gpus, first, s)
    )


@pytest.mark.parametrize(("machine", "nbytes"), [("dgx-h100", 512 << 10), ("hgx-b200", 2 << 20)])
def test_one_shot_and_two_shot_cross_where_tensorrt_llm_measured(machine, nbytes):
    """TensorRT-LLM's table of the faster one on 8 GPUs, by its own benchmarks: TensorRT-LLM
    cpp/tensorrt_llm/common/customAllReduceUtils.h, read 2026-11. Within a factor of 2.
    """
    assert nbytes / 2 <= _crossing(machine, 8, "oneshot", "twoshot") <= nbytes * 2


@pytest.mark.parametrize(
    ("gpus", "sizes"), [(4, (16 << 10, 64 << 10, 512 << 10)), (8, (16 << 10, 64 << 10, 128 << 10))]
)
def test_custom_and_symmetric_kernels_cross_where_vllm_measured(gpus, sizes):
    """Symmetric ones win up to 16 KiB and from 512 KiB (4 GPUs) or 128 KiB (8) on, vLLM's between:
    vllm-project/vllm pull 33839, H100. Within a factor of 2.
    """

    def symmetric_wins(nbytes: int) -> bool:
        custom, own = (_seconds("dgx-h100", gpus, s, nbytes) for s in ("oneshot", "symmetric"))
        return own < custom

    small, between, large = sizes
    assert symmetric_wins(small)
    assert not symmetric_wins(between)
    assert symmetric_wins(large * 2)


def test_planners_and_nccls_model_have_the_same_kernels():
    planned = [(c, name) for c, each in SYMMETRIC_KERNELS.items() for name in each]
    assert [(kernel.collective, kernel.name) for kernel in KERNELS] == planned


def test_nccl_takes_a_symmetric_kernel_for_registered_windows_only():
    before = _setup("dgx-h100", 8)
    after = _setup("dgx-h100", 8, symmetric=True)
    asked, work = parse_strategy("nccl"), tensor(1 << 13, 0)
    plans = [setup.running(asked).compile(asked, work) for setup in (before, after)]
    assert plans[0].by_channels
    assert not plans[1].by_channels
    for setup, kernels in (
        (before.but(nccl=Settings(symmetric=True, version=(2, 26))), False),
        (Setup("dgx-h100x2", BY_STRATEGY, nccl=Settings(symmetric=True)), False),
        (after, True),
    ):
        plan = setup.running(asked).compile(asked, work)
        assert plan.by_channels != kernels
        assert [] == sr.verify(plan)
    ring = parse_strategy("nccl:ring")
    assert after.running(ring).compile(ring, work).by_channels


@pytest.mark.parametrize("multicast", [True, False])
@pytest.mark.parametrize("capability", [90, 100])
def test_nccl_takes_flags_for_small_tensors_and_switches_for_large_ones(multicast, capability):
    def taken(nbytes: int, gpus: int = 8) -> str:
        own = [kernel for kernel in KERNELS if kernel.collective == "all_reduce"]
        return choose_symmetric(gpus, nbytes, capability, own, multicast=multicast)

    assert taken(1 << 10) == ("agxllmc_r" if multicast else "agxll_r")
    assert taken(1 << 26) == ("rsxldmc_agxstmc" if multicast else "rsxld_agxst")
    assert taken(1 << 26, gpus=2) == "rsxld_agxst"


def test_tensor_parallel_ranks_of_a_step_take_symmetric_kernels(tmp_path):
    """With `[nccl] symmetric = 1` their sums take less; nothing else of the step changes."""
    text = """
topology = "dgx-h100"
workload = "transformer:layers=4,hidden=8192,heads=64,vocab=1024,seq=2048"
[step]
mesh = ["tp=8"]
global_batch = 1
sequence_parallel = false
[nccl]
symmetric = {}
"""
    took = []
    for symmetric in (0, 1):
        path = tmp_path / f"{symmetric}.toml"
        path.write_text(text.format(symmetric), "utf-8")
        took.append(rank_meshes(load_meshes(str(path))).recommended.seconds)
    assert took[1] < took[0]


@pytest.mark.parametrize("machine", ["mi300x", "mi355x"])
def test_amd_gpus_have_one_shot_and_two_shot_kernels_and_one_symmetric_kernel(machine):
    layout = Setup(machine).layout
    for strategy in OF_EIGHT:
        assert [] == sr.verify(sr.compile(strategy, tensor(1 << 16, 0), layout))
    with pytest.raises(StrategyError, match="needs switches that sum"):
        sr.compile("multimem", tensor(1 << 16, 0), layout)
    of_rccl = "symmetric:rsxld_agxst"
    for strategy in {*NAMED} - {of_rccl}:
        with pytest.raises(StrategyError, match=r"RCCL has no .*; its kernel is rsxld_agxst"):
            sr.compile(strategy, tensor(1 << 16, 0), layout)
    newer = Setup(machine, nccl=Settings(version=(2, 28))).layout
    for strategy in ("symmetric", of_rccl):
        assert [] == sr.verify(sr.compile(strategy, tensor(1 << 16, 0), newer))
    for version, taken in (((2, 27), False), ((2, 28), True)):
        setup = Setup(machine, nccl=Settings(symmetric=True, version=version))
        plan = sr.compile("nccl", tensor(1 << 16, 0), setup.layout)
        assert (plan.executor >= Executor.KERNEL).any() == taken
    with pytest.raises(StrategyError, match=r"RCCL has symmetric kernels from 2\.28 on"):
        sr.compile("symmetric", tensor(1 << 16, 0), layout)


@pytest.mark.parametrize(
    ("machine", "strategy", "nccl", "said"),
    [
        ("mi300x", "oneshot", False, "times of oneshot are nominal"),
        ("dgx-a100", "symmetric:agxll_r", False, "times of symmetric are nominal"),
        ("dgx-a100", "nccl", True, "times of symmetric are nominal"),
        ("dgx-a100", "nccl", False, ""),
        ("dgx-h100", "oneshot", True, ""),
        ("hgx-b200", "multimem", False, "times of multimem are nominal"),
    ],
)
def test_times_by_constants_of_another_generation_are_nominal(machine, strategy, nccl, said):
    setup = Setup(machine, BY_STRATEGY, nccl=Settings(symmetric=nccl))
    found = setup.nominal([strategy])
    assert found.startswith(said)
    assert bool(found) == bool(said)
    fitted = setup.but(calibration="nccl-hopper")
    assert fitted.nominal([strategy]) == ""


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
def test_symmetric_all_reduces_are_of_floats_of_at_most_32_bits(dtype):
    """NCCL takes its channels for others, where buffers are symmetric windows too."""
    given = tensor(1 << 16, dtypes.NAMES.index(dtype))
    for strategy in ("symmetric", "symmetric:rsxldmc_agxstmc"):
        with pytest.raises(StrategyError, match="floats of at most 32 bits"):
            sr.compile(strategy, given, Setup("dgx-h100").layout)
    windows = Setup("dgx-h100", nccl=Settings(symmetric=True)).layout
    taken = {
        name: (sr.compile("nccl", tensor(1 << 16, code), windows).executor >= Executor.KERNEL).any()
        for name, code in (("float32", 0), (dtype, dtypes.NAMES.index(dtype)))
    }
    assert taken == {"float32": True, dtype: False}
