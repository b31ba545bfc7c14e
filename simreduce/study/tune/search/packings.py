"""Packings as the calls that they make of a gradient list, and bounds from the calls' seconds.

NCCL's calls of one communicator take turns. So one all-reduce takes the sum of its calls, after the
first group is packed and before the last one is unpacked. In a step each group waits for its
gradients and for the group before it; a group is packed and unpacked in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from simreduce.engine.calibrate.sure import NcclCall
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.planners.packing import DdpBuckets, Fusion, NoPacking, Packer
from simreduce.planners.strategy import parse_strategy
from simreduce.study.advice import hanging, scaled
from simreduce.study.scenario import Scenario
from simreduce.study.tune.search.call_time import CallSize, part_of, text_of
from simreduce.training.groups import slowest
from simreduce.training.reductions import FIXED
from simreduce.training.step import STRONG
from simreduce.training.turns import gradients_ready
from simreduce.workload import Gradient, Workload

MIB = 1 << 20

_COPYING = 0.97
"""The factor of bounds for copies, as measured for one size."""

_FUSED = 0.97
"""The factor of bounds for buffers, as a call may take less per byte than a larger one."""

Price = Callable[[CallSize], float]
"""Seconds of a call, at least."""


@dataclass(frozen=True, slots=True)
class GradientPacking:
    """A packer by its text, "" for none, and what it makes of the gradients.

    `groups` are gradients by index; each makes calls of `sizes`. `copied` are the bytes that are
    moved to make each group, 0 where gradients are parts of it already. `knob` is the number of
    bytes that the packer was made with, 0 for none.
    """

    text: str
    groups: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[CallSize, ...], ...]
    copied: tuple[int, ...]
    knob: int = 0

    @property
    def calls(self) -> Iterator[CallSize]:
        """Every call in order."""
        return (size for group in self.sizes for size in group)


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
        text, found.groups[::order], tuple(sizes[::order]), tuple(copied[::order]), knob
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
        try:
            packing = read_packing(text, gradients, knob)
        except InputError:
            continue
        found.setdefault((packing.groups, packing.sizes, packing.copied), packing)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class OverlapEstimate:
    """Bounds of one scenario.

    `copying` is the seconds for each byte that is packed and unpacked, as measured for one size;
    `ready` the seconds from the
    start of a step until every rank has a gradient, by gradient; `compute` and `update` the seconds
    of its passes and its end. `in_turns`: groups wait for each other; `fixed`: a fusion settles its
    buffers before the step.
    """

    copying: float
    ready: tuple[float, ...] = ()
    compute: float = 0.0
    update: float = 0.0
    in_turns: bool = True
    fixed: bool = False

    @property
    def alone(self) -> float:
        """Seconds of a step without communication."""
        return self.compute + self.update

    def bound(self, packing: GradientPacking, price: Price) -> float:
        """Seconds that the packing takes at least where calls take `price`."""
        return self._seconds(packing, price, _COPYING * self.copying)

    def compose(self, packing: GradientPacking, price: Price) -> float:
        """Seconds of the packing where calls take `price`."""
        return self._seconds(packing, price, self.copying)

    def _seconds(self, packing: GradientPacking, price: Price, copying: float) -> float:
        seconds = [sum(map(price, sizes)) for sizes in packing.sizes]
        if self.ready:
            return self._step(packing, seconds, copying)
        ends = packing.copied[0] + packing.copied[-1] if packing.copied else 0
        return sum(seconds) + copying * ends / 2

    def _step(self, packing: GradientPacking, seconds: Sequence[float], copying: float) -> float:
        packer = parse_strategy(f"nccl{packing.text}").packer
        if not self.in_turns:
            return self.alone
        if isinstance(packer, Fusion) and not self.fixed:
            return self._fused(packing, seconds)
        busy = [t + copying * n for t, n in zip(seconds, packing.copied, strict=True)]
        _, finish = self._turns(packing, busy)
        return max(*finish, self.compute) + self.update

    def _turns(
        self, packing: GradientPacking, busy: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """When each group is ready, and when it ends, in seconds."""
        ready = [max(self.ready[i] for i in group) for group in packing.groups]
        order, finish = list(range(len(ready))), ready.copy()
        if not isinstance(parse_strategy(f"nccl{packing.text}").packer, DdpBuckets):
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

    def _fused(self, packing: GradientPacking, seconds: Sequence[float]) -> float:
        """Horovod's buffers hold the gradients that happen to be ready.

        None is larger than the largest one here, and none takes less per byte.
        """
        sizes = [sum(size.nbytes for size in group) for group in packing.sizes]
        rate = min(t / max(n, 1) for t, n in zip(seconds, sizes, strict=True))
        return max(self.compute, _FUSED * rate * sum(sizes)) + self.update


def estimate_overlap(scenario: Scenario) -> OverlapEstimate:
    """The bounds of a scenario on NCCL's runtime.

    They are of its step, or of one all-reduce if it has no step.
    """
    dtype = scenario.workload.gradients[0].dtype
    copying = 0.0 if scenario.repeat > 1 else copying_of(scenario.setup, dtype)
    question = scenario.step
    if question is None:
        return OverlapEstimate(copying)
    job = question.job
    ready, now = gradients_ready(job, slowest(job, scenario.setup))
    if job.consistency != STRONG or not job.barrier:
        ready = [0.0] * len(ready)
    in_turns = question.streams in (None, 1)
    return OverlapEstimate(
        copying, tuple(ready), now, job.update, in_turns, question.cycle == FIXED
    )


@lru_cache(maxsize=64)
def copying_of(setup: Setup, dtype: int, wire: int = -1) -> float:
    """Seconds to pack and to unpack a byte, which may travel in a dtype with fewer bits.

    They are the time that two gradients in one pack take longer than a call of their size, over the
    bytes; of many machines, on a part of them.
    """
    setup, half = part_of(setup) or setup, wire not in (-1, dtype)
    one = Gradient("one", 4 * MIB, dtype)
    both = Workload("two", (one, replace(one, name="other")))
    sent = replace(one, elements=2 * one.elements, dtype=wire if half else dtype)
    whole = Workload("whole", (sent,))
    layout = setup.layout
    assert layout.decide is not None  # noqa: S101 - a setup's layout has it
    how = layout.decide(layout.ranks, "all_reduce", whole.nbytes, parse_strategy("nccl").nccl)
    text = text_of(how)
    pack = parse_strategy(f"{text}+fusion={both.nbytes},fp16" if half else f"{text}+packs=1")
    packed, alone = (
        setup.find_seconds(setup.compile(strategy, work))
        for strategy, work in ((pack, both), (text, whole))
    )
    return max(packed - alone, 0.0) / both.nbytes
