"""Packings as the calls that they make of a gradient list, and bounds from the calls' seconds.

NCCL's calls of one communicator take turns. So one all-reduce takes the sum of its calls, after the
first group is packed and before the last one is unpacked. In a step each group waits for its
gradients and for the group before it; a group is packed and unpacked in its turn.

The time of one call of NCCL alone, and bounds of it.

Where the channels of a call are alike, one way round the GPUs represents all (`engine.simulator`).
Their shares of a tensor differ by an element at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import inf
from typing import NamedTuple, TypeVar

from simreduce import dtypes
from simreduce.computing.workers import as_piece
from simreduce.engine import AtLeast, LeastSeconds, Symmetry
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.plan import Plan
from simreduce.planners.algorithms.nccl.paths import ways
from simreduce.planners.algorithms.nccl.switches import MOST_HEADS
from simreduce.planners.layouts import OPEN, Decision, Layout
from simreduce.planners.packing import DdpBuckets, Fusion
from simreduce.planners.packing.arrangement import NoPacking, Packer
from simreduce.planners.strategy import parse_strategy
from simreduce.study.advice import hanging, scaled
from simreduce.study.scenario import Scenario
from simreduce.study.tune.search.setting import Tried
from simreduce.study.tune.simulate import try_folded
from simreduce.training.calls import FIXED, CallCost, Method, Reduction, busiest_use, leading
from simreduce.training.passes import least_losses, slowest
from simreduce.training.simulation import compose_step
from simreduce.training.step import STRONG, StepJob
from simreduce.units import MIB
from simreduce.workload import Gradient, Workload

T = TypeVar("T")

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


class CallSize(NamedTuple):
    """A call: elements of a dtype."""

    elements: int
    dtype: int

    @property
    def rounded(self) -> CallSize:
        """The size of the call that is simulated for this one."""
        return CallSize(leading(self.elements), self.dtype)

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


def choice_of_nccl(setup: Setup, collective: str, nbytes: int, wanted: Decision = OPEN) -> Decision:
    """How NCCL carries out a call of all ranks of a setup, as far as that is not `wanted`."""
    layout = setup.layout
    assert layout.decide is not None  # noqa: S101 - a setup's layout has it
    return layout.decide(layout.ranks, collective, nbytes, wanted)


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
    rough = asked.coarse or len(setup.layout.tasks) >= MANY

    def simulate(on: Setup) -> Tried:
        made, alike, ways = _smallest(on, asked.how, asked.size, rough=rough)
        found = on.summarise_within(made, asked.limit, symmetry=alike)
        if isinstance(found, AtLeast):
            begun = found.seconds <= asked.limit  # else a floor was enough
            return Tried(found.seconds, len(made) * begun, exact=False)
        whole = len(made) * ways * on.layout.machines
        link = busiest_use(found.links, found.seconds)
        return Tried(found.seconds, len(made), not asked.coarse, whole, link)

    return _on(setup, asked.how, simulate, coarse=asked.coarse) or Tried(inf)


def find_rates(scenario: Scenario, how: Decision) -> LeastSeconds:
    """Bounds of every call by a decision: its latency, and its seconds for each byte."""
    setup = scenario.setup
    size = CallSize(_EACH * setup.layout.n * how.channels, 0)
    found = _on(
        _endless(setup), how, lambda on: on.find_rates(_plan(on, how, size)), coarse=True
    ) or LeastSeconds(inf, inf)
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
    drifts = how.algorithm.startswith("nvls") and not rough
    count = 1 if setup.disturbance.text or drifts else _count_ways(setup.layout, how)
    if count > 1:
        part = _plan(setup, how, size, way=count - 1)
        if len(part) * count > _LARGE and (alike := _alike(setup, how)):
            return part, alike, count
    return _plan(setup, how, size), None, 1


def _count_ways(layout: Layout, how: Decision) -> int:
    """How many ways round the GPUs have channels: by NVLS, how many heads, if all GPUs are."""
    if how.algorithm.startswith("nvls"):
        return len(layout.tasks[0]) if len(layout.tasks[0]) <= MOST_HEADS else 1
    return min(len(ways(layout, range(len(layout.ranks)))), how.channels)


@cache
def _alike(setup: Setup, how: Decision) -> Symmetry | None:
    """Return the symmetry by which one way represents all; None if they are not alike.

    Plans of a few elements for each rank and channel, cut evenly, take all links that larger ones
    take.
    """
    size = CallSize(_EACH * setup.layout.n * how.channels, 0)
    return setup.compare_parts(
        [_plan(setup, how, size, way) for way in range(_count_ways(setup.layout, how) - 1, -1, -1)]
    )


@cache
def _endless(setup: Setup) -> Setup:
    """The setup without NCCL's constants that make the bytes of small calls slower than others."""
    nccl = setup.fitted.nccl
    constants = replace(
        nccl, first_pass=0.0, first_warps=0.0, few_threads=0.0, slice=dict.fromkeys(nccl.slice, 0.0)
    )
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


@cache
def part_of(setup: Setup) -> Setup | None:
    """The setup on a few of its machines, if it has many."""
    count, n = len(setup.layout.tasks), setup.layout.n
    if count < MANY or n % count:
        return None
    return setup.but(part=setup.layout.subset(n // count * max(count // _FEWER, _FEWEST)))


@cache
def folded_of(setup: Setup) -> Setup | None:
    """The setup with its equal machines as one, if they are equal and nothing disturbs one."""
    few = len(setup.layout.tasks) < _FOLDED_FROM
    return None if few or setup.disturbance.text else try_folded(setup)


_COPYING = 0.97
"""The factor of bounds for copies, as measured for one size."""

_FUSED = 0.97
"""The factor of bounds for buffers, as a call may take less per byte than a larger one."""

Price = Callable[[CallSize], float]
"""Seconds of a call, at least."""


@dataclass(frozen=True, slots=True)
class GradientPacking:
    """A `packer` by its text, "" for none, and what it makes of the gradients.

    `groups` are gradients by index; each makes calls of `sizes`. `copied` are the bytes that are
    moved to make each group, 0 where gradients are parts of it already. `knob` is the number of
    bytes that the packer was made with, 0 for none.
    """

    text: str
    groups: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[CallSize, ...], ...]
    copied: tuple[int, ...]
    packer: Packer
    knob: int = 0

    @property
    def calls(self) -> Iterator[CallSize]:
        """Every call in order."""
        return (size for group in self.sizes for size in group)

    def method(self, ranks: int, name: str = "") -> Method:
        """The reductions of its groups, which take turns on one stream."""
        whole = tuple(range(ranks))
        calls = tuple(Reduction(None, tuple(sorted(group)), whole) for group in self.groups)
        return Method(name, None, calls, streams=1, in_order=isinstance(self.packer, DdpBuckets))

    def costs(
        self, cost: Callable[[CallSize], CallCost], copying: float
    ) -> dict[tuple[int, ...], CallCost]:
        """The cost of each group, by its gradients in order: its calls, and its copies at `copying`
        seconds for each byte.
        """
        return {
            tuple(sorted(group)): CallCost.in_turn([*map(cost, sizes)], copying * copied)
            for group, sizes, copied in zip(self.groups, self.sizes, self.copied, strict=True)
        }


def read_packing(text: str, gradients: Sequence[Gradient], knob: int = 0) -> GradientPacking:
    """The calls of `nccl` with a packer, such as `+ddp=25`.

    InputError if it refuses these gradients.
    """
    return packing_of(parse_strategy(f"nccl{text}").packer, gradients, text, knob)


def packing_of(
    packer: Packer, gradients: Sequence[Gradient], text: str = "", knob: int = 0
) -> GradientPacking:
    """The calls of NCCL with a packer; see `read_packing`."""
    found = packer.arrange(gradients)
    sizes, copied = [], []
    for group in found.groups:
        elements = sum(gradients[i].elements for i in group)
        first = gradients[group[0]].dtype
        dtype = first if found.wire is None else found.wire
        each = elements // found.pieces
        parts = [each] * (found.pieces - 1) + [elements - each * (found.pieces - 1)]
        sizes.append(tuple(CallSize(part, dtype) for part in parts))
        packs = len(group) > 1 or found.pieces > 1 or dtype != first
        moves = found.buffers or (packs and not found.align)
        copied.append(sum(gradients[i].nbytes for i in group) * moves)
    # Without a packer, reductions start in the order in which gradients get ready.
    order = -1 if isinstance(packer, NoPacking) else 1
    return GradientPacking(
        text, found.groups[::order], tuple(sizes[::order]), tuple(copied[::order]), packer, knob
    )


def distinct(
    texts: Iterable[tuple[str, int]], gradients: Sequence[Gradient]
) -> list[GradientPacking]:
    """The packings of these texts and knobs that differ.

    A packing is left out if it makes the same calls of the same gradients and copies as much as one
    before.
    """
    found: dict[object, GradientPacking] = {}
    for text, knob in texts:
        with suppress(InputError):
            packing = read_packing(text, gradients, knob)
            found.setdefault((packing.groups, packing.sizes, packing.copied), packing)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class OverlapEstimate:
    """Bounds of one scenario.

    `copying` is the seconds for each byte that is packed and unpacked, as measured for one size;
    `ready` the seconds from the start of a `step` until every rank has a gradient, by gradient;
    `compute` and `update` the seconds of its passes and its end. `in_turns`: groups wait for each
    other; `fixed`: a fusion settles its buffers before the step.
    """

    copying: float
    ready: tuple[float, ...] = ()
    compute: float = 0.0
    update: float = 0.0
    in_turns: bool = True
    fixed: bool = False
    step: tuple[StepJob, Setup] | None = None

    @property
    def alone(self) -> float:
        """Seconds of a step without communication."""
        return self.compute + self.update

    def bound(self, packing: GradientPacking, price: Price, lost: Price = lambda _: 0.0) -> float:
        """Seconds that the packing takes at least where calls take `price`.

        Beside a call kernels lose the seconds `lost`, or if nothing computes, all of its time: so
        it is of calls whose gradients are there when the last pass ends.
        """
        found = self._seconds(packing, price, _COPYING * self.copying)
        if not self.ready or not self.in_turns or self._is_dynamic(packing):
            return found
        spent = self.alone
        for group, sizes in zip(packing.groups, packing.sizes, strict=True):
            late = max(self.ready[i] for i in group) >= self.compute
            spent += sum(map(price if late else lost, sizes))
        return max(found, spent)

    def loses(self, channels: int) -> float:
        """By what part of their speed kernels of the step slow down at least beside so many
        channels.
        """
        return least_losses(*self.step)(channels) if self.step else 0.0

    def _is_dynamic(self, packing: GradientPacking) -> bool:
        """Whether buffers hold what happens to be ready."""
        return isinstance(packing.packer, Fusion) and not self.fixed

    def compose(self, packing: GradientPacking, cost: Callable[[CallSize], CallCost]) -> float:
        """Seconds of the packing where calls have their `cost`."""
        if self.step is None or not self.in_turns or self._is_dynamic(packing):
            return self._seconds(packing, lambda size: cost(size).seconds, self.copying)
        job, setup = self.step
        costs = packing.costs(cost, self.copying)
        return compose_step(job, packing.method(setup.layout.n), setup, costs.__getitem__).seconds

    def _seconds(self, packing: GradientPacking, price: Price, copying: float) -> float:
        seconds = [sum(map(price, sizes)) for sizes in packing.sizes]
        if not self.ready:
            ends = packing.copied[0] + packing.copied[-1] if packing.copied else 0
            return sum(seconds) + copying * ends / 2
        if not self.in_turns:
            return self.alone
        if self._is_dynamic(packing):
            # Buffers hold the gradients that happen to be ready. None is larger than the largest
            # one here, and none takes less per byte.
            sizes = [sum(size.nbytes for size in group) for group in packing.sizes]
            rate = min(t / max(n, 1) for t, n in zip(seconds, sizes, strict=True))
            return max(self.compute, _FUSED * rate * sum(sizes)) + self.update
        _, finish = self._turns(
            packing, [t + copying * n for t, n in zip(seconds, packing.copied, strict=True)]
        )
        return max(*finish, self.compute) + self.update

    def _turns(
        self, packing: GradientPacking, busy: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """When each group is ready, and when it ends, in seconds."""
        ready = [max(self.ready[i] for i in group) for group in packing.groups]
        order, finish = list(range(len(ready))), ready.copy()
        if not isinstance(packing.packer, DdpBuckets):
            order.sort(key=ready.__getitem__)
        now = 0.0
        for group in order:
            now = finish[group] = max(now, ready[group]) + busy[group]
        return ready, finish

    def calls(
        self, packing: GradientPacking, call: Callable[[int], NcclCall], seconds: float
    ) -> list[NcclCall]:
        """The calls that a time of these `seconds` hangs on, by their shares; `call` has their own
        estimates, by bytes.
        """
        calls = [[call(size.nbytes) for size in sizes] for sizes in packing.sizes]
        if not self.ready:
            return scaled([each for group in calls for each in group], seconds)
        ready, finish = self._turns(packing, [sum(c.seconds for c in group) for group in calls])
        places = hanging(ready, finish)
        left = seconds - self.update - min((ready[place] for place in places), default=0.0)
        return scaled([each for place in places for each in calls[place]], max(left, 0.0))


def estimate_overlap(scenario: Scenario) -> OverlapEstimate:
    """The bounds of a scenario on NCCL's runtime.

    They are of its step, or of one all-reduce if it has no step.
    """
    dtype = scenario.workload.gradients[0].dtype
    copying = 0.0 if scenario.repeat > 1 else copying_of(scenario.setup, dtype)
    if (question := scenario.step) is None:
        return OverlapEstimate(copying)
    job = question.job
    ready, now = job.ready(slowest(job, scenario.setup))
    if job.consistency != STRONG or not job.barrier:
        ready = [0.0] * len(ready)
    in_turns = question.streams in (None, 1)
    return OverlapEstimate(
        copying, tuple(ready), now, job.update, in_turns, question.cycle == FIXED,
        (job, scenario.setup),
    )  # fmt: skip


@as_piece
@lru_cache(maxsize=64)
def copying_of(setup: Setup, dtype: int, wire: int = -1) -> float:
    """Seconds to pack and to unpack a byte, which may travel in a dtype with fewer bits.

    They are the time that two gradients in one pack take longer than a call of their size, over the
    bytes; of many machines, on a part of them.
    """
    setup, half = part_of(setup) or setup, wire not in (-1, dtype)
    one = Gradient("one", 4 * MIB, dtype)
    both = Workload("two", (one, replace(one, name="other")))
    whole = Workload(
        "whole", (replace(one, elements=2 * one.elements, dtype=wire if half else dtype),)
    )
    text = text_of(choice_of_nccl(setup, COLLECTIVE, whole.nbytes, parse_strategy("nccl").nccl))
    pack = parse_strategy(f"{text}+fusion={both.nbytes},fp16" if half else f"{text}+packs=1")
    packed, alone = (
        setup.find_seconds(setup.compile(strategy, work))
        for strategy, work in ((pack, both), (text, whole))
    )
    return max(packed - alone, 0.0) / both.nbytes
