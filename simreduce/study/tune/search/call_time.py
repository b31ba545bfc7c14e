"""The time of one call of NCCL alone, and bounds of it.

Where the channels of a call are alike, one way round the GPUs represents all (`engine.symmetry`).
Their shares of a tensor differ by an element at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import inf
from typing import NamedTuple, TypeVar

from simreduce import dtypes
from simreduce.engine import AtLeast, LeastSeconds, Symmetry, Use
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.plan import Plan
from simreduce.planners.algorithms.nccl.paths import ways
from simreduce.planners.layouts import Decision, Layout
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario import Scenario
from simreduce.study.tune.search.best_first import NOTHING, Busy, Tried
from simreduce.topology import Folded, fold
from simreduce.workload import Gradient, Workload

_BITS = 11
"""Leading bits of the number of elements that a simulated call has."""

PRECISION = 2.0 ** (1 - _BITS)
"""The part of its size by which a simulated call may be smaller than the one it represents."""

_EACH = 8
"""Elements for each rank and channel in the small plans that rates are read from: a number that
all algorithms can cut evenly.
"""

_EXACT = 1 - 1e-6
"""The factor of bounds by rates: what rounding may add where a number of channels cuts unevenly."""

MANY = 16
"""Machines from which on a part of them is simulated first."""

_FOLDED_FROM = 4
"""Machines from which equal ones are simulated as one."""

_FEWER, _FEWEST = 8, 4
"""How many times as few machines that part has, and how many at least."""

_LARGE = 1 << 14
"""Ops of all channels from which on one way is simulated where it can represent all."""

COLLECTIVE = "all_reduce"

T = TypeVar("T")


class CallSize(NamedTuple):
    """A call: elements of a dtype."""

    elements: int
    dtype: int

    @property
    def rounded(self) -> CallSize:
        """The size of the call that is simulated for this one: at most `PRECISION` smaller."""
        shift = max(self.elements.bit_length() - _BITS, 0)
        return CallSize(self.elements >> shift << shift, self.dtype)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.elements * dtypes.SIZES[self.dtype]


class CallSetting(NamedTuple):
    """A call to simulate: among a part of the machines only if `coarse`, until `limit` seconds."""

    how: Decision
    size: CallSize
    coarse: bool = False
    limit: float = inf


def text_of(how: Decision) -> str:
    """The strategy that states a decision."""
    return f"nccl:{how.algorithm}+{how.protocol}+channels={how.channels}"


def simulate_call(scenario: Scenario, asked: CallSetting) -> Tried:
    """Simulate one call alone on the setup of a scenario."""
    return simulate_call_on(scenario.setup, asked)


def simulate_call_on(setup: Setup, asked: CallSetting) -> Tried:
    """Simulate one call alone.

    Where its plan allows that, folded machines and one of the ways round the GPUs are used. No op
    is simulated where a floor says that the limit is exceeded.
    """
    rough = asked.coarse or machines(setup) >= MANY

    def simulate(on: Setup) -> Tried:
        made, alike, ways = _smallest(on, asked.how, asked.size, rough=rough)
        found = on.summarise_within(made, asked.limit, symmetry=alike)
        if isinstance(found, AtLeast):
            begun = found.seconds <= asked.limit  # else a floor was enough
            return Tried(found.seconds, len(made) * begun, exact=False)
        whole = len(made) * ways * on.layout.machines
        link, lane = (_busiest(found.seconds, uses) for uses in (found.links, found.lanes))
        return Tried(found.seconds, len(made), not asked.coarse, whole, link, lane)

    found = _on(setup, asked.how, simulate, coarse=asked.coarse)
    return found or Tried(inf)


def _busiest(seconds: float, uses: Sequence[Use]) -> Busy:
    return (uses[0].name, uses[0].share * seconds) if uses else NOTHING


def find_rates(scenario: Scenario, how: Decision) -> LeastSeconds:
    """Bounds of every call by a decision: its latency, and its seconds for each byte."""
    size = CallSize(_EACH * scenario.setup.layout.n * how.channels, 0)

    def find(on: Setup) -> LeastSeconds:
        return on.find_rates(_plan(on, how, size))

    found = _on(_endless(scenario.setup), how, find, coarse=True) or LeastSeconds(inf, inf)
    return LeastSeconds(found.latency * _EXACT, found.busy * _EXACT / size.nbytes)


def _plan(setup: Setup, how: Decision, size: CallSize, way: int = -1) -> Plan:
    """The plan of a call; with `way`, of the channels of that way only."""
    strategy = parse_strategy(text_of(how))
    strategy = replace(strategy, nccl=strategy.nccl._replace(way=way))
    return setup.compile(strategy, Workload("call", (Gradient("call", size.elements, size.dtype),)))


def _smallest(
    setup: Setup, how: Decision, size: CallSize, *, rough: bool
) -> tuple[Plan, Symmetry | None, int]:
    """Return the plan of a call; if it is large and its ways are alike, the plan of one of them.

    With it come the symmetry by which it represents the others, and how many ways there are. By
    NVLS only if `rough`: heads whose pieces differ by an element drift apart, by up to 0.3 % of the
    time.
    """
    count = 1 if setup.disturbance.text else _count_ways(setup.layout, how)
    if how.algorithm.startswith("nvls") and not rough:
        count = 1
    if count > 1:
        part = _plan(setup, how, size, way=count - 1)
        if len(part) * count > _LARGE and (alike := _alike(setup, how)):
            return part, alike, count
    return _plan(setup, how, size), None, 1


def _count_ways(layout: Layout, how: Decision) -> int:
    """How many ways round the GPUs have channels: by NVLS, how many heads."""
    if how.algorithm.startswith("nvls"):
        return len(layout.tasks[0])
    return min(len(ways(layout, range(len(layout.ranks)))), how.channels)


@cache
def _alike(setup: Setup, how: Decision) -> Symmetry | None:
    """Return the symmetry by which one way represents all; None if they are not alike.

    Plans of a few elements for each rank and channel, cut evenly, take all links that larger ones
    take.
    """
    size = CallSize(_EACH * setup.layout.n * how.channels, 0)
    last = _count_ways(setup.layout, how) - 1
    parts = [_plan(setup, how, size, way) for way in range(last, -1, -1)]
    return setup.compare_parts(parts)


@cache
def _endless(setup: Setup) -> Setup:
    """The setup without NCCL's constants that make the bytes of small calls slower than others."""
    nccl = setup.fitted.nccl
    pauses = dict.fromkeys(nccl.slice, 0.0)
    constants = replace(nccl, first_pass=0.0, first_warps=0.0, few_threads=0.0, slice=pauses)
    return setup.but(calibration=replace(setup.fitted, nccl=constants))


def _on(setup: Setup, how: Decision, work: Callable[[Setup], T], *, coarse: bool) -> T | None:
    """Work on folded machines, or else on all; if `coarse`, trees on a part of many machines.

    None if no plan is possible.
    """
    part = part_of(setup) if coarse and how.algorithm != "ring" else None
    for each in (part,) if part else (folded_of(setup), setup):
        with suppress(InputError):
            if each is not None:
                return work(each)
    return None


def machines(setup: Setup) -> int:
    """How many machines the setup's ranks are on."""
    return len(setup.layout.tasks)


@cache
def part_of(setup: Setup) -> Setup | None:
    """The setup on a few of its machines, if it has many."""
    count, n = machines(setup), setup.layout.n
    if count < MANY or n % count:
        return None
    return setup.but(part=setup.layout.subset(n // count * max(count // _FEWER, _FEWEST)))


@cache
def folded_of(setup: Setup) -> Setup | None:
    """The setup with its equal machines as one, if they are equal and nothing disturbs one."""
    whole = setup.machine
    if isinstance(whole, Folded) or setup.disturbance.text or setup.layout.n < len(whole.devices):
        return None
    with suppress(InputError):
        return setup.but(machine=fold(whole)) if machines(setup) >= _FOLDED_FROM else None
    return None
