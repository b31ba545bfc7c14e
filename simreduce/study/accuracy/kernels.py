"""Published times of kernels beside predictions, and the constants fitted to them.

Measured times of what a GPU computes beside predictions, and the constants they amount to.

Published times of DeepEP's dispatch and combine beside predictions; no constant is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log, prod
from statistics import median
from typing import Generic, NamedTuple, Protocol, TypeVar

from simreduce import dtypes
from simreduce.engine.calibrate.fit import FreeConstant, fit_constants
from simreduce.engine.calibration import NVLS, KernelConstants
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import InputError
from simreduce.files.published.compute import (
    ATTENTION,
    EMPTY,
    HOST,
    LAYERS,
    MOVES,
    PRODUCT,
    TimedCompute,
)
from simreduce.files.published.dispatch import (
    ACTIVE,
    BYTES,
    EXPERTS,
    PublishedDispatch,
    published_dispatches,
)
from simreduce.files.published.kernels import KERNEL_SETS, PublishedKernel, published_kernels
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.bench import tensor
from simreduce.topology import load_topology
from simreduce.training.gpus import GPUS, Gpu, gpu_of
from simreduce.training.mesh.compute import LOSS, NORM, PLAIN, RESIDUAL, SOFTMAX, Kernels
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.job import MeshJob
from simreduce.training.mesh.parts import ALL_TO_ALL, DISPATCH, MeshCall, Parts, reached
from simreduce.training.mesh.ways import EP, Mesh
from simreduce.workload.architectures.decoder import Decoder

_DTYPE = dtypes.NAMES.index("bfloat16")
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


class Judged(Protocol):
    """A prediction beside what was measured or published."""

    @property
    def error(self) -> float:
        """By what part the prediction is too long."""


P = TypeVar("P", bound=Judged)


@dataclass(frozen=True, slots=True)
class PointGroup(Generic[P]):
    """Predictions that are judged together, and their errors."""

    points: Sequence[P]

    @property
    def median(self) -> float:
        """Half of the errors are below this."""
        return median(abs(point.error) for point in self.points)

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(abs(point.error) for point in self.points)

    @property
    def bias(self) -> float:
        """The median of signed errors: above 0, predictions are too long."""
        return median(point.error for point in self.points)


class KernelPoint(NamedTuple):
    """A published call, and the seconds that are predicted, with its copies."""

    call: PublishedKernel
    predicted: float

    @property
    def error(self) -> float:
        """By what part the prediction is too long."""
        return self.predicted / self.call.seconds - 1.0

    @property
    def held(self) -> bool:
        """Whether its set takes no part in any fit."""
        return KERNEL_SETS[self.call.set].held


def predict_kernels(calls: Sequence[PublishedKernel]) -> Iterator[KernelPoint]:
    """Every call, as it is predicted."""
    for call in calls:
        yield KernelPoint(call, _predict(_setup(call.machine, call.gpus), call))


class KernelGroup(PointGroup[KernelPoint]):
    """The calls of an implementation in a set, on so many GPUs of a machine."""

    @property
    def call(self) -> PublishedKernel:
        """The smallest."""
        return self.points[0].call

    @property
    def held(self) -> bool:
        """Whether its set takes no part in any fit."""
        return self.points[0].held


def group_kernels(points: Sequence[KernelPoint]) -> list[KernelGroup]:
    """The groups, in the order of the sets."""
    found: dict[tuple[str, str, int, str], list[KernelPoint]] = {}
    for point in points:
        call = point.call
        key = call.set, call.machine, call.gpus, call.implementation
        found.setdefault(key, []).append(point)
    return [KernelGroup(group) for group in found.values()]


def _predict(setup: Setup, call: PublishedKernel) -> float:
    """Seconds of a call. A copy of the tensor is a kernel that reads and writes it."""
    strategy = parse_strategy(call.strategy)
    running = setup.running(strategy)
    plan = running.compile(strategy, tensor(call.nbytes, _DTYPE))
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
        if not (KERNEL_SETS[call.set].held or call.strategy == "nccl")
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
    plain = {key: values[key] for key in _FITTED if key in values}
    rates = {key: values[key] for key in _RATES if key in values}
    return replace(before, efficiency={**before.efficiency, **rates}, **plain)


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


class ComputePoint(NamedTuple):
    """What was timed, and the seconds that are predicted."""

    timed: TimedCompute
    predicted: float

    @property
    def error(self) -> float:
        """By what part the prediction is too long."""
        return self.predicted / self.timed.seconds - 1.0


class ComputeGroup(PointGroup[ComputePoint]):
    """What was timed of a GPU, of one group."""

    @property
    def timed(self) -> TimedCompute:
        """The first."""
        return self.points[0].timed

    @property
    def constant(self) -> str | None:
        """The key of a `compute` file that the group determines."""
        return (_PARTS | _TIMES).get(self.timed.group)

    @property
    def now(self) -> float | None:
        """What it is: a part, or seconds."""
        return getattr(_gpu(self.timed.gpu), self.constant) if self.constant else None

    @property
    def fits(self) -> float | None:
        """What it would have to be, for half of the predictions to be too long."""
        if self.now is None:
            return None
        scale = median(point.predicted / point.timed.seconds for point in self.points)
        return self.now / scale if self.timed.group in _TIMES else self.now * scale


def predict_compute(timed: Iterable[TimedCompute]) -> list[ComputePoint]:
    """Each as it is predicted by the model of meshes; InputError if a GPU is not known."""
    return [ComputePoint(each, _seconds(each)) for each in timed]


def group_compute(points: Iterable[ComputePoint]) -> list[ComputeGroup]:
    """The groups of each GPU, in order."""
    found: dict[tuple[str, str], list[ComputePoint]] = {}
    for point in points:
        found.setdefault((point.timed.gpu, point.timed.group), []).append(point)
    return [ComputeGroup(group) for group in found.values()]


@cache
def _gpu(model: str) -> Gpu:
    found = gpu_of(model)
    if found is None:
        raise InputError(f"no GPU {model!r}; known are {', '.join(GPUS)}")
    return found


def _seconds(timed: TimedCompute) -> float:
    gpu, shape = _gpu(timed.gpu), timed.shape
    kernels = Kernels(gpu, timed.bits)
    if timed.group == EMPTY:
        return gpu.kernel
    if timed.group == HOST:
        return gpu.host
    if timed.group == MOVES:
        return kernels.moves(float(prod(shape)), (_BYTES[timed.kind], 0.0)).forward
    if timed.group == ATTENTION:
        batch, tokens, heads, width = shape
        causal = "causal" in timed.kind
        found = kernels.fused_attention(batch * tokens, tokens, heads * width, causal=causal)
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
    job = MeshJob(shape, Mesh(), gpu, 1, 1, tokens, "1f1b", 1, (count,))
    parts = Parts(job)
    found = parts.attention.times + parts.feed_forward.times
    return count * (found.forward if forward else found.seconds)


class DispatchPoint(NamedTuple):
    """A published call, its seconds, and those that are predicted."""

    call: PublishedDispatch
    seconds: float
    predicted: float

    @property
    def error(self) -> float:
        """By what part the prediction is too long."""
        return self.predicted / self.seconds - 1.0


def predict_dispatches() -> Iterator[DispatchPoint]:
    """Every call, as it is predicted."""
    for call in published_dispatches():
        yield DispatchPoint(call, _published(call), _predicted(call))


def _published(call: PublishedDispatch) -> float:
    if call.seconds is not None:
        return call.seconds
    machines = len(Setup(call.machine, "nccl").layout.tasks)
    places = call.ranks if call.link == "nvlink" else machines
    counted = call.tokens * BYTES[call.direction] * reached(EXPERTS, ACTIVE, places)
    return counted / call.rate


def _predicted(call: PublishedDispatch) -> float:
    """Low-latency kernels send a copy for each expert straight to its rank."""
    straight = call.kernel == "low latency"
    costs = Costs(Setup(call.machine, "nccl"), Mesh(ep=call.ranks, dp=call.ranks, etp=1))
    nbytes = call.tokens * ACTIVE * BYTES[call.direction]
    spread = () if straight else (EXPERTS, ACTIVE)
    return costs.of(
        MeshCall(EP, ALL_TO_ALL if straight else DISPATCH, nbytes, spread=spread), 0
    ).seconds
