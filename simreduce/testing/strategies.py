"""Hypothesis strategies for plans, machines, and what else a simulation takes.

Figures come in two sorts. *Round* ones are few small multiples of powers of two, so that different
ops end at the very same instant, again and again. *Any* figures are nearly all different, so that
hardly anything ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from simreduce.computing.arrays import Floats
from simreduce.engine import (
    IDEAL,
    NCCL,
    TENSORFLOW,
    Calibration,
    LinkConstants,
    Processor,
    Runtime,
)
from simreduce.engine.calibrate import DISPATCHED
from simreduce.engine.runtime import ISSUED, LINK_KINDS, NVLS, PROTOCOLS, Call, NcclConstants
from simreduce.plan import Executor, Kind, Plan, PlanBuilder, Value
from simreduce.testing import NO_CONTRACT
from simreduce.topology import Cable, Node, Topology, build

T = TypeVar("T")


@cache
def _count(least: int, most: int) -> st.SearchStrategy[int]:
    """A number. Made once for each range: to make a strategy takes longer than to draw from it."""
    return st.integers(least, most)


def _one_of(draw: st.DrawFn, items: Sequence[T]) -> T:
    return items[draw(_count(0, len(items) - 1))]


_BOOLEANS = st.booleans()


@dataclass(frozen=True)
class FigureRanges:
    """What numbers a simulation is made of; `unit` is the elements between two cuts of the address
    space.
    """

    bandwidth: st.SearchStrategy[float]
    delay: st.SearchStrategy[float]
    unit: st.SearchStrategy[int]


ROUND = FigureRanges(
    bandwidth=st.sampled_from([2.0**30, 2.0**31, 3 * 2.0**30]),
    delay=st.sampled_from([0.0, 2.0**-20, 2.0**-19, 3 * 2.0**-20]),
    unit=st.sampled_from([2**8, 2**12]),
)
ANY = FigureRanges(
    bandwidth=st.integers(10**9, 10**11).map(float),
    delay=st.integers(0, 50_000).map(lambda ns: ns * 1e-9),
    unit=st.integers(1, 100_000),
)


def _two_ends(call: Call) -> tuple[str, ...]:
    if call.kind in (Kind.INPUT, Kind.OUTPUT):
        return ()
    if call.kind != Kind.COPY:
        return (f"{call.target.name} work",)
    return (f"{call.source.name} out {call.channel}", f"{call.target.name} in")


TWO_ENDED = Runtime("two-ended", _two_ends, dispatch=True, local=True)
"""A copy holds a lane at each end, so ops are first in one queue while they wait in another;
channels send apart.
"""


def _posts(call: Call) -> tuple[str, ...]:
    return (f"{call.source.name} posts",) if call.kind == Kind.COPY else ()


def _wires(call: Call) -> tuple[str, ...]:
    """Two pipes, so that an op is first in one queue while it waits in another; sums have one too,
    but no lane.
    """
    if call.kind == Kind.COPY:
        return (f"{call.source.name} wire", f"{call.target.name} door")
    return (f"{call.target.name} sums",) if call.kind == Kind.ADD else ()


PIPED = Runtime("piped", _posts, dispatch=True, local=True, pipes=_wires)
"""What latency is over must queue again for its bytes."""


def _one_wire(call: Call) -> tuple[str, ...]:
    return () if call.kind in (Kind.INPUT, Kind.OUTPUT) else ("wire",)


ONE_WIRE = Runtime("one wire", _posts, dispatch=True, local=True, pipes=_one_wire)
"""Everything goes through one pipe, where ops arrive in another order than they were ready."""

runtimes = st.sampled_from([IDEAL, TENSORFLOW, NCCL, TWO_ENDED, PIPED, ONE_WIRE])


class SimulationInput(NamedTuple):
    """All that a simulation of one plan takes."""

    plan: Plan
    topology: Topology
    runtime: Runtime
    calibration: Calibration
    ready: Floats


@cache
def _or(value: float | None, others: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(value), others)


@st.composite
def topologies(
    draw: st.DrawFn,
    figures: FigureRanges,
    most_gpus: int = 5,
    least_gpus: int = 1,
    least_machines: int = 1,
) -> Topology:
    """One or two machines: GPUs on a bus to their host, some linked directly, the hosts joined by a
    network.
    """
    gpus = draw(_count(least_gpus, most_gpus))
    machines = draw(_count(least_machines, 2))
    memory = _or(math.inf, figures.bandwidth)
    nodes = [
        Node(f"cpu{m}", "cpu", memory_bandwidth=draw(memory), machine=str(m))
        for m in range(machines)
    ]
    nodes += [
        Node(f"gpu{g}", "gpu", memory_bandwidth=draw(memory), machine=str(g * machines // gpus))
        for g in range(gpus)
    ]

    def cable(a: str, b: str, link_class: str, holds: bool) -> Cable:
        rate = draw(figures.bandwidth)
        return Cable(a, b, link_class, draw(_count(1, 2)), rate, rate, draw(figures.delay), holds)

    cables = [cable("cpu0", "cpu1", "network", draw(_BOOLEANS))] if machines == 2 else []
    on_bus = nodes[machines:]
    cables += [cable(f"cpu{node.machine}", node.name, "bus", draw(_BOOLEANS)) for node in on_bus]
    pairs = [
        (a.name, b.name) for i, a in enumerate(on_bus) for b in on_bus[:i] if a.machine == b.machine
    ]
    for _ in range(draw(_count(0, 8)) if pairs else 0):
        cables.append(cable(*_one_of(draw, pairs), "peer", draw(_BOOLEANS)))
    return build("random", "", "a test", nodes, cables)


@st.composite
def calibrations(draw: st.DrawFn, figures: FigureRanges) -> Calibration:
    """Dispatch costs for some kinds of op, other figures for some link classes; hosts may issue."""
    return Calibration(
        "random",
        dispatch=draw(_by_name(DISPATCHED, figures.delay)),
        links=draw(_by_name(_LINKS, _link_constants(figures))),
        cpu=draw(processors(figures)) if draw(_BOOLEANS) else None,
        nccl=draw(nccl_constants(figures)),
        issue=draw(_by_name(tuple(ISSUED), figures.delay)) if draw(_BOOLEANS) else {},
    )


_LINKS = ("bus", "bus:d2h", "bus:h2d", "peer", "peer:h2d", "network", "cpu0>cpu1", "cpu0>gpu0")


@cache
def _by_name(names: Sequence[str], value: st.SearchStrategy[T]) -> st.SearchStrategy[dict[str, T]]:
    return st.dictionaries(st.sampled_from(names), value)


@cache
def _link_constants(figures: FigureRanges) -> st.SearchStrategy[LinkConstants]:
    return st.builds(LinkConstants, _or(None, figures.bandwidth), _or(None, figures.delay))


_EFFICIENCIES = st.sampled_from([0.25, 0.5, 1.0])


@st.composite
def nccl_constants(draw: st.DrawFn, figures: FigureRanges) -> NcclConstants:
    """Launches, latencies, efficiencies and rates of channels by protocol and kind of link."""
    keys = [(link, protocol) for link in LINK_KINDS for protocol in PROTOCOLS]

    def each(names: Sequence[Any], value: st.SearchStrategy[float]) -> dict[Any, float]:
        few = [draw(value) for _ in range(draw(_count(1, 3)))]  # for many names
        return {name: few[i % len(few)] for i, name in enumerate(names)}

    return NcclConstants(
        launch=draw(figures.delay),
        launch_channel=draw(figures.delay),
        start=each((*PROTOCOLS, NVLS), figures.delay),
        latency=each(keys, figures.delay),
        efficiency=each(keys, _EFFICIENCIES),
        channel_rate=each((*PROTOCOLS, NVLS), figures.bandwidth),
        unaligned_peer=draw(_or(math.inf, figures.bandwidth)),
    )


_RATED = ("copy", "transfer", "add", "slice", "concat", "scale", "cast")


@st.composite
def processors(draw: st.DrawFn, figures: FigureRanges) -> Processor:
    """Cores of CPU devices; of some kinds of op it is not known how fast their bytes move."""
    return Processor(
        cores=_one_of(draw, (1.0, 2.0, 4.0)),
        moving=_one_of(draw, (1.0, 1.5, 2.0, math.inf)),
        shared=draw(_BOOLEANS),
        message=draw(figures.delay),
        rates=draw(_by_name(_RATED, figures.bandwidth)),
        own_cache=_one_of(draw, (0, 64, 4096)),
        past_own=draw(_or(math.inf, figures.bandwidth)),
        cache=_one_of(draw, (0, 64, 4096)),
        memory=draw(_or(math.inf, figures.bandwidth)),
    )


_CUTS = 6
_VERBS = ("input", *["copy"] * 6, *["add"] * 3, "concat", "slice", "scale", "cast", "output")


@st.composite
def plans(
    draw: st.DrawFn, devices: Sequence[str], figures: FigureRanges, most_ops: int = 40
) -> Plan:
    """A DAG with copies of views, n-ary adds, joins, streams and control edges; some values are
    empty.
    """
    b = PlanBuilder(devices)
    unit = draw(figures.unit)
    values = [_input(draw, b, unit)]
    for _ in range(draw(_count(1, most_ops))):
        value = _VERB[_one_of(draw, _VERBS)](draw, b, unit, values)
        if value is not None and value not in values:
            values.append(value)
        b.executor = _one_of(draw, (Executor.TF, b.executor, *Executor))
    return _with_controls(draw, b.finish(NO_CONTRACT))


def _interval(draw: st.DrawFn, lo: int, hi: int, unit: int) -> tuple[int, int]:
    """Mostly all of it; else a part, which may be empty."""
    if draw(_count(0, 3)):
        return lo, hi
    first = draw(_count(lo // unit, hi // unit))
    return first * unit, draw(_count(first, hi // unit)) * unit


def _stream(draw: st.DrawFn, b: PlanBuilder) -> int:
    if draw(_count(0, 2)):
        return -1
    return b.stream(draw(_count(0, len(b.devices) - 1)), draw(_count(0, 1)))


def _input(draw: st.DrawFn, b: PlanBuilder, unit: int, _: object = None) -> Value:
    lo, hi = _interval(draw, 0, _CUTS * unit, unit)
    return b.input(draw(_count(0, len(b.devices) - 1)), lo, hi)


def _copy(draw: st.DrawFn, b: PlanBuilder, unit: int, values: list[Value]) -> Value:
    value = _one_of(draw, values)
    others = [d for d in range(len(b.devices)) if d != value.device]
    if not others:
        return b.slice(value, value.lo, value.hi)
    target = _one_of(draw, others)
    lo, hi = _interval(draw, value.lo, value.hi, unit)
    return b.copy(value, target, lo, hi, stream=_stream(draw, b))


def _alike(values: list[Value], one: Value) -> list[Value]:
    return [v for v in values if (v.device, v.dtype) == (one.device, one.dtype)]


def _add(draw: st.DrawFn, b: PlanBuilder, unit: int, values: list[Value]) -> Value:  # noqa: ARG001 - as the other verbs
    first = _one_of(draw, values)
    terms = [v for v in _alike(values, first) if max(v.lo, first.lo) < min(v.hi, first.hi)]
    chosen = [first]
    for _ in range(draw(_count(0, 4)) if terms else 0):
        value = _one_of(draw, terms)
        if max(v.lo for v in [*chosen, value]) < min(v.hi for v in [*chosen, value]):
            chosen.append(value)
    return b.add(chosen, stream=_stream(draw, b))


def _concat(draw: st.DrawFn, b: PlanBuilder, unit: int, values: list[Value]) -> Value | None:
    first = _one_of(draw, values)
    after = [v for v in _alike(values, first) if v.lo == first.hi and v is not first]
    if after:
        return b.concat([first, _one_of(draw, after)])
    if first.lo == first.hi:
        return None
    middle = draw(_count(first.lo // unit, first.hi // unit)) * unit
    return b.concat([b.slice(first, first.lo, middle), b.slice(first, middle, first.hi)])


def _slice(draw: st.DrawFn, b: PlanBuilder, unit: int, values: list[Value]) -> Value:
    value = _one_of(draw, values)
    return b.slice(value, *_interval(draw, value.lo, value.hi, unit))


_VERB: Mapping[str, Callable[..., Value | None]] = {
    "input": _input, "copy": _copy, "add": _add, "concat": _concat, "slice": _slice,
    "scale": lambda draw, b, _, values: b.scale(_one_of(draw, values), 2),
    "cast": lambda draw, b, _, values: b.cast(_one_of(draw, values), draw(_count(0, 2))),
    "output": lambda draw, b, _, values: b.output(_one_of(draw, values)),
}  # fmt: skip


def _with_controls(draw: st.DrawFn, plan: Plan) -> Plan:
    """The plan with some ops, INPUTs too, waiting for earlier ones that they do not read."""
    n = len(plan)
    waits: list[list[int]] = [[] for _ in range(n)]
    for _ in range(draw(_count(0, 4)) if n > 1 else 0):
        later = draw(_count(1, n - 1))
        waits[later].append(draw(_count(0, later - 1)))
    return with_controls(plan, waits)


def with_controls(plan: Plan, waits: Sequence[Sequence[int]]) -> Plan:
    """The plan with these control predecessors, per op, and no others."""
    start = np.cumsum([0, *(len(w) for w in waits)])
    flat = [earlier for w in waits for earlier in w]
    return replace(
        plan, control_start=start.astype(np.int32), controls=np.array(flat, dtype=np.int32)
    )


@st.composite
def readies(draw: st.DrawFn, plan: Plan, figures: FigureRanges) -> Floats:
    """When each INPUT may begin."""
    count = int(np.count_nonzero(plan.kind == Kind.INPUT))
    if draw(_BOOLEANS):
        return np.zeros(count)
    return np.array([draw(figures.delay) for _ in range(count)])


@st.composite
def scenes(
    draw: st.DrawFn, figures: FigureRanges, most_gpus: int = 5, most_ops: int = 40
) -> SimulationInput:
    """A plan on a machine, with everything that it takes to time it."""
    topology = draw(topologies(figures, most_gpus))
    plan = draw(plans((*topology.devices, *topology.hosts), figures, most_ops))
    return SimulationInput(
        plan, topology, draw(runtimes), draw(calibrations(figures)), draw(readies(plan, figures))
    )


either_scenes = st.one_of(scenes(ROUND), scenes(ANY))
