"""Published times of kernels beside predictions, and the constants fitted to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import log
from statistics import median
from typing import NamedTuple

from simreduce import dtypes
from simreduce.engine.calibrate.fit import FreeConstant, fit_constants
from simreduce.engine.calibration import NVLS, KernelConstants
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.files.published.kernels import KERNEL_SETS, PublishedKernel, published_kernels
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.bench import tensor
from simreduce.topology import load_topology

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


class KernelGroup(NamedTuple):
    """The calls of an implementation in a set, on so many GPUs of a machine."""

    points: Sequence[KernelPoint]

    @property
    def call(self) -> PublishedKernel:
        """The smallest."""
        return self.points[0].call

    @property
    def held(self) -> bool:
        """Whether its set takes no part in any fit."""
        return self.points[0].held

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
