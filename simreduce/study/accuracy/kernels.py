"""Predicts published times of kernels that reduce, measured times of what a GPU computes, and
published times of DeepEP's dispatch and combine.

Constants are fitted to the first; `find_constant` says which ones the second amount to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import log, prod
from statistics import median
from typing import NamedTuple

from simreduce import dtypes
from simreduce.engine.calibrate.fit import FreeConstant, fit_constants
from simreduce.engine.runtime import NVLS, KernelConstants
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import InputError
from simreduce.files.published import (
    ACTIVE,
    ATTENTION,
    BYTES,
    EMPTY,
    EXPERTS,
    HOST,
    LAYERS,
    MOVES,
    PRODUCT,
    PublishedDispatch,
    PublishedKernel,
    TimedCompute,
    published_dispatches,
    published_kernels,
)
from simreduce.planners.strategy import parse_strategy
from simreduce.study.accuracy.points import Point, PointGroup
from simreduce.study.tune.sizes import tensor
from simreduce.topology import load_topology
from simreduce.training.gpus import GPUS, LOSS, NORM, PLAIN, RESIDUAL, SOFTMAX, Gpu, Kernels, gpu_of
from simreduce.training.mesh.job import EP, Mesh, MeshJob
from simreduce.training.mesh.parts import ALL_TO_ALL, DISPATCH, MeshCall, Parts, reached
from simreduce.training.mesh.passes import Costs
from simreduce.workload.decoder import Decoder

_FITTED = ("launch", "barrier", "release", "release_multicast", "load", "block")
_RATES = ("nvlink", NVLS)
_NOISE, _UNCERTAIN = 0.08, 0.35
"""The error of a measurement, and how well a constant is known before, as logarithms."""
BEFORE = {
    "nccl-hopper": KernelConstants(),
    "nccl-blackwell": KernelConstants(
        launch=2e-6, barrier=1.8e-6, load=1.6e-6, release=8e-6, release_multicast=3e-6
    ),
}
"""Where fits begin. By Hopper, the defaults: NCCL's own model has 4.5 us for a kernel
with flags and 7.8 us for one with barriers (NVIDIA/nccl src/sym_kernels.cc). On Blackwell it has
2.5 times as much where GPUs release what they wrote, and the blog on NCCL 2.27 6.3 us with flags.
"""


SOURCE = (
    "files/published/kernels.csv, without what is held out; flags as in NCCL's own model"
    " (NVIDIA/nccl src/sym_kernels.cc)"
)
"""What a calibration says of them."""


def predict_kernels(calls: Iterable[PublishedKernel]) -> Iterator[Point[PublishedKernel]]:
    """Every call, its copies too, as it is predicted."""
    return (Point(c, c.seconds, _predict(_setup(c.machine, c.gpus), c)) for c in calls)


def _predict(setup: Setup, call: PublishedKernel) -> float:
    """Seconds of a call. A copy of the tensor is a kernel that reads and writes it."""
    strategy = parse_strategy(call.strategy)
    running = setup.running(strategy)
    plan = running.compile(strategy, tensor(call.nbytes, dtypes.code("bfloat16")))
    memory = load_topology(call.machine).nodes[setup.layout.ranks[0]].memory_bandwidth
    copy = setup.constants.nccl.kernels.launch + 2 * call.nbytes / memory
    return float(running.summarise(plan).seconds) + call.copies * copy


@cache
def _setup(machine: str, gpus: int) -> Setup:
    """A machine's first GPUs."""
    whole = Setup(machine, BY_STRATEGY)
    return whole.but(part=whole.layout.subset(gpus))


def fit_kernels(generation: str) -> KernelConstants:
    """The constants of a generation that come nearest to the published times that are not held."""
    before = BEFORE[generation]
    calls = [
        call
        for call in published_kernels()
        if not (call.held or call.strategy == "nccl")
        and _setup(call.machine, call.gpus).generation == generation
    ]
    pull = _NOISE * log(10) / _UNCERTAIN
    start = {key: getattr(before, key) for key in _FITTED}
    start |= {key: before.efficiency[key] for key in _RATES}
    constants = [FreeConstant(key, at, at / 4, at * 4, pull=pull) for key, at in start.items()]

    def predict(values: Mapping[str, float]) -> Sequence[float]:
        return [_predict(_with(call, before, values), call) for call in calls]

    fit = fit_constants(constants, predict, [call.seconds for call in calls], _NOISE)
    return _changed(before, {key: float(f"{value:.3g}") for key, value in fit.values.items()})


def _changed(before: KernelConstants, values: Mapping[str, float]) -> KernelConstants:
    return replace(
        before,
        efficiency={**before.efficiency, **{key: values[key] for key in _RATES if key in values}},
        **{key: values[key] for key in _FITTED if key in values},
    )


def _with(call: PublishedKernel, before: KernelConstants, values: Mapping[str, float]) -> Setup:
    setup = _setup(call.machine, call.gpus)
    nccl = replace(setup.constants.nccl, kernels=_changed(before, values))
    return setup.but(calibration=replace(setup.calibration, nccl=nccl))


_BYTES = {
    "residual": RESIDUAL[0], "times": RESIDUAL[0], "copy": 4.0, "silu": 4.0, "dropout": 5.0,
    "softmax": SOFTMAX[0], "loss": LOSS[0], "adamw": 28.0,
    "gelu": PLAIN[0], "gelu_backward": PLAIN[1],
    "layer_norm": NORM[0], "rms_norm": NORM[0], "layer_norm_backward": 6.0,
    "rms_norm_backward": 6.0,
}  # fmt: skip
"""Of an element. Backward, a norm by itself reads its input and a gradient and writes one; Adam
reads a parameter, its gradient and two moments in 32 bits, and writes three of these.
"""
_PARTS = {  # what large calls of a group determine, and the largest part of a rate that they reach
    PRODUCT.format(16): "products",
    PRODUCT.format(8): "products8",
    ATTENTION: "attention",
    MOVES: "memory",
}
_TIMES = {EMPTY: "kernel", HOST: "host"}


def predict_compute(timed: Iterable[TimedCompute]) -> list[Point[TimedCompute]]:
    """Each as it is predicted by the model of meshes; InputError if a GPU is not known."""
    return [Point(each, each.seconds, _seconds(each)) for each in timed]


class ComputeConstant(NamedTuple):
    """The key of a `compute` file that times of a group determine.

    `now` is its value, a part or seconds. With `fits`, half of the predictions would be too long.
    """

    constant: str
    now: float
    fits: float


def find_constant(group: PointGroup[Point[TimedCompute]]) -> ComputeConstant | None:
    """The constant that a group determines, if it does."""
    name = group.of.group
    if (constant := (_PARTS | _TIMES).get(name)) is None:
        return None
    now: float = getattr(_gpu(group.of.gpu), constant)
    scale = median(point.predicted / point.published for point in group.points)
    return ComputeConstant(constant, now, now / scale if name in _TIMES else now * scale)


@cache
def _gpu(model: str) -> Gpu:
    if (found := gpu_of(model)) is None:
        raise InputError(f"no GPU {model!r}; known are {', '.join(GPUS)}")
    return found


def _seconds(timed: TimedCompute) -> float:
    gpu, shape = _gpu(timed.gpu), timed.shape
    kernels = Kernels(gpu, timed.bits)
    if constant := _TIMES.get(timed.group):
        return float(getattr(gpu, constant))
    if timed.group == MOVES:
        return kernels.moves(float(prod(shape)), (_BYTES[timed.kind], 0.0)).forward
    if timed.group == ATTENTION:
        batch, tokens, heads, width = shape
        found = kernels.fused_attention(
            batch * tokens, tokens, heads * width, causal="causal" in timed.kind
        )
        return found.forward if timed.kind.endswith("forward") else found.inputs
    if timed.group == LAYERS:
        return _layers(gpu, *shape, forward=timed.kind == "layers_forward")
    rows, columns, inner = shape
    return kernels.product(rows, columns, inner)


def _layers(
    gpu: Gpu, count: int, tokens: int, width: int, heads: int, groups: int, inner: int,
    *, forward: bool,
) -> float:  # fmt: skip
    shape = Decoder(count, width, heads, groups, width // heads, inner, 1, tokens)
    parts = Parts(MeshJob(shape, Mesh(), gpu, 1, 1, tokens, "1f1b", 1, (count,)))
    found = parts.attention.times + parts.feed_forward.times
    return count * (found.forward if forward else found.seconds)


def predict_dispatches() -> Iterator[Point[PublishedDispatch]]:
    """Every call, as it is predicted."""
    return (Point(call, _published(call), _predicted(call)) for call in published_dispatches())


def _published(call: PublishedDispatch) -> float:
    if call.seconds is not None:
        return call.seconds
    places = call.ranks if call.link == "nvlink" else len(Setup(call.machine, "nccl").layout.tasks)
    return call.tokens * BYTES[call.direction] * reached(EXPERTS, ACTIVE, places) / call.rate


def _predicted(call: PublishedDispatch) -> float:
    """Low-latency kernels send a copy for each expert straight to its rank."""
    straight = call.kernel == "low latency"
    costs = Costs(Setup(call.machine, "nccl"), Mesh(ep=call.ranks, dp=call.ranks, etp=1))
    nbytes = call.tokens * ACTIVE * BYTES[call.direction]
    spread = () if straight else (EXPERTS, ACTIVE)
    return costs.of(
        MeshCall(EP, ALL_TO_ALL if straight else DISPATCH, nbytes, spread=spread), 0
    ).seconds
