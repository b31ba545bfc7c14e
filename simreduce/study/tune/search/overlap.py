"""Bounds of an all-reduce or a step from the seconds of its calls of NCCL alone.

NCCL's calls of one communicator take turns. So one all-reduce takes the sum of its calls, after the
first group is packed and before the last one is unpacked. In a step each group waits for its
gradients and for the group before it; a group is packed and unpacked in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simreduce.planners.packing import DdpBuckets, Fusion
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario import Scenario
from simreduce.study.tune.search.call_time import Size, text_of
from simreduce.study.tune.search.packings import MIB, Packing
from simreduce.training.reductions import FIXED
from simreduce.training.sharded.recurrence import slowest
from simreduce.training.step import STRONG
from simreduce.workload import Gradient, Workload

_COPYING = 0.97
"""The factor of bounds for copies, as measured for one size."""

_FUSED = 0.97
"""The factor of bounds for buffers, as a call may take less per byte than a larger one."""

Price = Callable[[Size], float]
"""Seconds of a call, at least."""


@dataclass(frozen=True, slots=True)
class OverlapEstimate:
    """Bounds of one scenario.

    `copying` is the seconds for each byte that is packed and unpacked; `ready` the seconds from the
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

    def bound(self, packing: Packing, price: Price) -> float:
        """Seconds that the packing takes at least where calls take `price`."""
        seconds = [sum(map(price, sizes)) for sizes in packing.sizes]
        if self.ready:
            return self._step(packing, seconds)
        ends = packing.copied[0] + packing.copied[-1] if packing.copied else 0
        return sum(seconds) + self.copying * ends / 2

    def _step(self, packing: Packing, seconds: Sequence[float]) -> float:
        packer = parse_strategy(f"nccl{packing.text}").packer
        if not self.in_turns:
            return self.alone
        if isinstance(packer, Fusion) and not self.fixed:
            return self._fused(packing, seconds)
        busy = [t + self.copying * n for t, n in zip(seconds, packing.copied, strict=True)]
        ready = [max(self.ready[i] for i in group) for group in packing.groups]
        order = list(range(len(ready)))
        if not isinstance(packer, DdpBuckets):
            order.sort(key=ready.__getitem__)
        now = 0.0
        for group in order:
            now = max(now, ready[group]) + busy[group]
        return max(now, self.compute) + self.update

    def _fused(self, packing: Packing, seconds: Sequence[float]) -> float:
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
    copying = 0.0 if scenario.repeat > 1 else _COPYING * _copying(scenario)
    question = scenario.step
    if question is None:
        return OverlapEstimate(copying)
    job, layers = question.job, question.job.model.layers
    factor = slowest(job, scenario.setup)
    now, ends = factor * sum(job.profile.forward), [0.0] * len(layers)
    for layer in reversed(range(len(layers))):
        now += factor * job.profile.backward[layer]
        ends[layer] = now if job.consistency == STRONG and job.barrier else 0.0
    ready = tuple(ends[i] for i, layer in enumerate(layers) for _ in layer.gradients)
    in_turns = question.streams in (None, 1)
    return OverlapEstimate(copying, ready, now, job.update, in_turns, question.cycle == FIXED)


def _copying(scenario: Scenario) -> float:
    """Seconds to pack and to unpack a byte.

    They are the time that two gradients in one pack take longer than a call of their size, over the
    bytes.
    """
    setup, dtype = scenario.setup, scenario.workload.gradients[0].dtype
    one = Gradient("one", 4 * MIB, dtype)
    both = Workload("two", (one, replace(one, name="other")))
    whole = Workload("whole", (replace(one, elements=2 * one.elements),))
    layout = setup.layout
    assert layout.decide is not None  # noqa: S101 - a setup's layout has it
    how = layout.decide(layout.ranks, "all_reduce", whole.nbytes, parse_strategy("nccl").nccl)
    text = text_of(how)
    packed, alone = (
        setup.simulate(setup.compile(strategy, work)).seconds
        for strategy, work in ((f"{text}+packs=1", both), (text, whole))
    )
    return max(packed - alone, 0.0) / whole.nbytes
