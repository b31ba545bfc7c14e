"""Predicts published times of kernels that reduce, measured times of what a GPU computes, and
published times of DeepEP's dispatch and combine.

Constants are fitted to the first; `find_constant` says which ones the second amount to.

Collectives of MPI beside an incast, measured and predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import permutations
from math import ceil, log, prod
from statistics import mean, median
from typing import NamedTuple

import numpy as np
import simpy

from simreduce import dtypes, units
from simreduce.engine import IDEAL, NOMINAL, Fabric
from simreduce.engine.background import Stream, TrafficFlows
from simreduce.engine.calibrate.fit import FreeConstant, fit_constants
from simreduce.engine.runtime import NVLS, KernelConstants
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import InputError, refuse
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import (
    ACTIVE,
    ALL_TO_ALL as ALLTOALL,
    ATTENTION,
    BYTES,
    CONVOLUTION,
    CONVOLVED,
    EMPTY,
    EXPERTS,
    HOST,
    INCAST_BYTES,
    LAYERS,
    MOVES,
    PRODUCT,
    CongestedCall,
    PublishedDispatch,
    PublishedKernel,
    SlowedKernel,
    TimedCompute,
    published_dispatches,
    published_kernels,
)
from simreduce.plan import Contract, Kind, Plan, PlanBuilder
from simreduce.planners.strategy import parse_strategy
from simreduce.study.accuracy import Point, PointGroup, group_predicted
from simreduce.study.tune.sizes import tensor
from simreduce.topology import Topology, load_topology
from simreduce.training.eager import (
    AMP,
    FP32,
    OF_INPUTS,
    OF_RESULTS,
    OF_WEIGHTS,
    Convolution,
    Launched,
)
from simreduce.training.gpus import GPUS, LOSS, NORM, PLAIN, RESIDUAL, SOFTMAX, Gpu, Kernels, gpu_of
from simreduce.training.interference import Beside
from simreduce.training.mesh import EP, Mesh, MeshJob
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
        launch=2e-6,
        barrier=1.8e-6,
        load=1.6e-6,
        release=8e-6,
        release_multicast=3e-6,
        engine_launch=32.04e-6,
        engine_copy=0.13e-6,
        engine_multicast_launch=29.14e-6,
        engine_multicast_copy=0.137e-6,
        engine_rate=779e9,
    ),
}
"""Where fits begin. By Hopper, the defaults: NCCL's own model has 4.5 us for a kernel
with flags and 7.8 us for one with barriers (NVIDIA/nccl src/sym_kernels.cc). On Blackwell it has
2.5 times as much where GPUs release what they wrote, and the blog on NCCL 2.27 6.3 us with flags.
Copy engines are not fitted: they are as in NCCL's own model.
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
    PRODUCT.format(32): "products32",
    ATTENTION: "attention",
    MOVES: "memory",
}
_TIMES = {EMPTY: "kernel", HOST: "host"}


def predict_compute(timed: Iterable[TimedCompute]) -> list[Point[TimedCompute]]:
    """Each as it is predicted by the model of meshes; InputError lists every GPU that is not known,
    and every row whose GPU has no products of its bits.
    """
    timed, faults = list(timed), Faults()
    for model in dict.fromkeys(each.gpu for each in timed):
        faults.attempt("", _gpu, model)
    for each in timed:
        gpu = gpu_of(each.gpu)
        lacks = gpu and gpu.lacks({8: "fp8", 32: FP32}.get(each.bits, AMP))
        place = f"{each.gpu}, {each.kind} {'x'.join(map(str, each.shape))}, {each.bits} bits"
        faults.check(not lacks, place, lacks or "")
    faults.raise_any()
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
    launched = Launched(gpu, FP32 if timed.bits == 32 else AMP)
    if timed.group == CONVOLVED.format(timed.bits):
        return _convolved(launched, _PASSES[timed.kind], *shape)
    if timed.bits == 32:
        return launched.product(*shape).seconds
    rows, columns, inner = shape
    return kernels.product(rows, columns, inner)


_PASSES = {
    "convolution_results": OF_RESULTS,
    "convolution_inputs": OF_INPUTS,
    "convolution_weights": OF_WEIGHTS,
}


def _convolved(
    launched: Launched, of: str, images: int, side: int, channels: int, filters: int, window: int,
    stride: int,
) -> float:  # fmt: skip
    places = ceil(side / stride) ** 2
    shape = Convolution(
        images, places, float(channels * window**2), filters, (window, window, stride)
    )
    return launched.convolved(shape, of).seconds


def _layers(
    gpu: Gpu, count: int, tokens: int, width: int, heads: int, groups: int, inner: int,
    *, forward: bool,
) -> float:  # fmt: skip
    shape = Decoder(count, width, heads, groups, width // heads, inner, 1, tokens)
    parts = Parts(MeshJob(shape, Mesh(), gpu, 1, 1, tokens, "1f1b", 1, (count,)))
    found = parts.attention.times + parts.feed_forward.times
    return count * (found.forward if forward else found.seconds)


def predict_interference(timed: Iterable[SlowedKernel]) -> list[Point[SlowedKernel]]:
    """How many times as long each takes beside what it ran beside; InputError if a GPU is not
    known, or if blocks leave it no SM.
    """
    timed = list(timed)
    refuse(
        f"{each.gpu}, {each.kind} {'x'.join(map(str, each.shape))}: {each.blocks} blocks leave none"
        f" of {units} SMs"
        for each in timed
        if each.blocks >= (units := _gpu(each.gpu).units)
    )
    return [Point(each, each.seconds / each.alone, _slowdown(each)) for each in timed]


def _slowdown(timed: SlowedKernel) -> float:
    gpu = _gpu(timed.gpu).next_to(Beside(timed.blocks, timed.moved))
    slowed, shape = gpu.slowed, timed.shape
    if timed.group == MOVES:
        return slowed.moves
    if timed.group == ATTENTION:
        batch, tokens, heads, _ = shape
        return slowed.attention(batch * tokens, heads)
    if timed.group == CONVOLUTION:
        images, channels, rows, columns = shape
        places = int(timed.kind[-1]) ** 2
        _, tiles = Launched(gpu, AMP).tiled(images * rows * columns, channels, places * channels)
        return slowed.unpaired(tiles)
    return slowed.product(*shape)


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


@dataclass(frozen=True, slots=True)
class System:
    """A system's network and its MPI.

    `span` is over how many places its nodes are dealt evenly; 0: they are neighbours. A message
    takes `latency` seconds, a copy at `copies` bytes/s up to `eager` bytes, and above that
    `rendezvous` seconds before its bytes move; of several at once each waits `gap` seconds for the
    one before. A host sends at `rate` bytes/s, to many at `rate_to_many`.
    """

    network: str
    span: int = 0
    latency: float = 1.4e-6
    copies: float = 2.6e9
    eager: int = 16 << 10
    rendezvous: float = 7e-6
    gap: float = 0.25e-6
    rate: float = 24.4e9
    rate_to_many: float = 24.4e9

    def before(self, nbytes: int) -> float:
        """Seconds before the bytes of a message move."""
        return self.latency + nbytes / self.copies if nbytes <= self.eager else self.rendezvous


SYSTEMS: Mapping[str, System] = {
    # Nodes were dealt over some 680 of 3,456 (the runs' logs), which are four groups.
    "leonardo": System(
        "dragonfly_plus:720,p=10,leaves=18,spines=18,equal_cost=first,congestion=tree,congested=0.75",
        span=680,
        rendezvous=8.5e-6,
    ),
    # Neighbours, 64 of them x[348-411] (the runs' logs). How many share a leaf, and how thin its
    # up-links are, is not public: times of 64 nodes are the first that show a second one, alone.
    "cresco8": System(
        "fat_tree:760,radix=38,oversubscription=2,equal_cost=first,congestion=tree,congested=0.75",
        rendezvous=6e-6,
    ),
    "lumi": System(
        "dragonfly:1024,p=16,a=32,h=16,equal_cost=split,congestion=isolated",
        span=1000,
        latency=2.8e-6,
        copies=6e9,
        rendezvous=8.2e-6,
        gap=0.8e-6,
        rate=22.7e9,
        rate_to_many=10e9,
    ),
}
"""What is known of systems. Constants of MPI, and the part of the time that trees stand, are read
off the shipped times; networks are from De Sensi et al. 2024, arXiv 2408.14090.
"""


LEAST = 64 << 10
"""Bytes from which slowdowns are judged."""
_SMALLEST = 32 << 10
"""Bytes from which calls are predicted: smaller messages hardly load a link."""
_DEALS = 4
_DEALT_BY = 13
"""As the nodes of a run are seldom known, a slowdown is the mean of those on so many dealings."""


@dataclass(frozen=True, slots=True)
class CongestionPoint(Point[CongestedCall]):
    """How many times as long a call takes beside the incast, and the seconds predicted alone."""

    alone: float


def group_congestion(points: Iterable[CongestionPoint]) -> dict[str, PointGroup[CongestionPoint]]:
    """The calls of each system from `LEAST` bytes on, in order."""
    return group_predicted((p for p in points if p.of.nbytes >= LEAST), lambda p: p.of.system)


def congestible(
    calls: Sequence[CongestedCall], systems: Mapping[str, System]
) -> tuple[list[CongestedCall], dict[str, int]]:
    """The calls that can be predicted, and how many there are of each system that is not known.

    InputError if a network has too few nodes for its calls, or none is left.
    """
    large = [call for call in calls if call.nbytes >= _SMALLEST]
    strange = Counter(call.system for call in large if call.system not in systems)
    known = [call for call in large if call.system in systems]
    faults = Faults()
    for name in dict.fromkeys(call.system for call in known):
        most = max(call.nodes for call in known if call.system == name)
        there = len(load_topology(systems[name].network).devices)
        faults.check(most <= there, name, f"{systems[name].network} has fewer than {most} nodes")
    faults.check(known or strange, "", f"no call of {units.format_size(_SMALLEST)} or more")
    faults.check(
        known or not strange,
        "",
        f"systems known are {', '.join(systems)}, not {', '.join(map(repr, strange))};"
        " --machine SYSTEM=TOPOLOGY says the network of another",
    )
    return faults.require(known), dict(strange)


def predict_congestion(
    calls: Sequence[CongestedCall], systems: Mapping[str, System] = SYSTEMS
) -> Iterator[CongestionPoint]:
    """Every call, of systems that are known."""
    for call in calls:
        system = systems[call.system]
        machine = _network(
            system.network, system.rate_to_many if call.collective == ALLTOALL else system.rate
        )
        took = []
        for deal in range(_DEALS):
            nodes = _nodes(machine, system, call.nodes, deal)
            ranks = [nodes[i * call.nodes // call.ranks] for i in range(call.ranks)]
            others = [node for node in nodes if node not in ranks]
            took.append([_run(machine, system, call, ranks, some) for some in ([], others)])
        slowdown = mean(beside / alone for alone, beside in took)
        yield CongestionPoint(call, call.slowdown, slowdown, mean(alone for alone, _ in took))


@lru_cache(maxsize=16)
def _network(text: str, rate: float) -> Topology:
    """A network whose cables have no latency and carry so many bytes/s; it keeps its routes."""
    return load_topology(text, {"latency": "0", "bandwidth": f"{rate / 1e9:g} GB/s"})


def _nodes(machine: Topology, system: System, count: int, deal: int) -> list[str]:
    """Nodes of a run: dealt over the span, or neighbours from somewhere on."""
    if not system.span:
        first = min(deal * _DEALT_BY, len(machine.devices) - count)
        return list(machine.devices[first : first + count])
    places = np.random.default_rng(deal).choice(
        min(max(system.span, count), len(machine.devices)), count, replace=False
    )
    return [machine.devices[i] for i in sorted(places.tolist())]


def _run(
    machine: Topology, system: System, call: CongestedCall, ranks: Sequence[str],
    others: Sequence[str],
) -> float:  # fmt: skip
    """Seconds of the collective while all `others` send to the first of them."""
    env = simpy.Environment()
    fabric = Fabric(env, machine, NOMINAL, IDEAL)
    run = _all_to_all if call.collective == ALLTOALL else _ring
    over = env.process(run(fabric, system, ranks, call.nbytes))
    if len(others) > 1:
        pairs = tuple((other, others[0]) for other in others[1:])
        Stream("incast", pairs, INCAST_BYTES).send_on(TrafficFlows(fabric), over)
    env.run(until=over)
    return float(env.now)


def _all_to_all(
    fabric: Fabric, system: System, ranks: Sequence[str], nbytes: int
) -> Generator[simpy.Event, None, None]:
    """All messages at once, each posted after the one before."""
    yield fabric.env.timeout(system.before(nbytes) + system.gap * (len(ranks) - 1))
    b = PlanBuilder(tuple(ranks))
    for source, target in permutations(range(len(ranks)), 2):
        b.copy(b.input(source, 0, 1), target)
    yield _submit(fabric, b.finish(Contract.of("all_to_all", [])), nbytes)


def _ring(
    fabric: Fabric, system: System, ranks: Sequence[str], nbytes: int
) -> Generator[simpy.Event, None, None]:
    """What has come goes on when it is there and what was sent before is gone."""
    n, each = len(ranks), max(nbytes // len(ranks), 1)
    b = PlanBuilder(tuple(ranks))
    here = [b.input(i, 0, 1) for i in range(n)]
    sent: list[list[int]] = [[]] * n
    for _ in range(n - 1):
        here = [b.copy(here[i - 1], i, after=sent[i - 1]) for i in range(n)]
        sent = [[here[(i + 1) % n].op] for i in range(n)]
    yield _submit(fabric, b.finish(Contract.of("all_gather", [])), each, system.before(each))


def _submit(fabric: Fabric, plan: Plan, nbytes: int, latency: float = 0.0) -> simpy.Event:
    """Copies of so many bytes, after so many seconds each."""
    lowered, copies = fabric.lower(plan), plan.kind == Kind.COPY
    waits = np.zeros(len(lowered.calls.cap))
    waits[lowered.call[copies]] = latency
    calls = replace(lowered.calls, latency=lowered.calls.latency + waits)
    return fabric.submit(
        plan, lowered=replace(lowered, calls=calls, amount=np.where(copies, float(nbytes), 0.0))
    )
