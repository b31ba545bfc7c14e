"""Horovod's steps as a recurrence: cycles of its background thread, buffers, and one stream.

This is `negotiation.Negotiation` without events, where nothing but the stream makes a buffer wait.
At each whole multiple of the cycle the gradients that every rank has are fused up to the threshold;
the buffers take their turns on one stream. A step ends when its passes and its buffers have, and
the update. The next begins then, at another place of its first cycle, so steps are followed until
two in a row take equal times, as in `simulation`.

Steps whose reductions take turns on one stream, from the time that each takes alone.

Nothing else is in flight beside a reduction, so it takes what it takes alone, and a step is a
recurrence: a reduction starts when every rank has its gradients and the one before it has ended.
This is `simulation` without events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

from simreduce.engine import IDEAL, NCCL
from simreduce.engine.setup import Setup
from simreduce.planners.packing import Fusion
from simreduce.planners.strategy import Strategy
from simreduce.training.groups import (
    DeviceGroup,
    group_ranks,
    mean_wait,
    slowdowns,
    slowest,
    steady,
    time_in_flight,
)
from simreduce.training.negotiation import to_cycle
from simreduce.training.reductions import Fused, Method
from simreduce.training.simulation import MOST_STEPS
from simreduce.training.step import STRONG, Bucket, Span, StepJob, StepPrediction
from simreduce.workload import Gradient, Workload

Ready = tuple[tuple[int, ...], float]
"""Gradients by index, and when every rank has all of them, in seconds of the step."""


class Turn(NamedTuple):
    """A reduction of these gradients; seconds from the start of the step."""

    gradients: tuple[int, ...]
    ready: float
    start: float
    finish: float


def is_calm(setup: Setup) -> bool:
    """Whether a reduction by NCCL takes as long whenever it starts."""
    calm = not setup.disturbance.jitter and not setup.disturbance.faults
    return calm and setup.runtime in (NCCL, IDEAL)


def gradients_ready(job: StepJob, factor: float) -> tuple[list[float], float]:
    """When each gradient is ready in the last pass of a step, and the end of its passes.

    The slowest rank takes `factor` times as long as the profile says.
    """
    layers, profile = job.model.layers, job.profile
    now = factor * (sum(profile.forward) + (job.accumulate - 1) * profile.seconds)
    ends = [0.0] * len(layers)
    for layer in reversed(range(len(layers))):
        now += factor * profile.backward[layer]
        ends[layer] = now
    return [ends[i] for i, layer in enumerate(layers) for _ in layer.gradients], now


def take_turns(
    asked: Iterable[Ready], seconds: Callable[[tuple[int, ...]], float], *, in_order: bool
) -> list[Turn]:
    """The turns of reductions that take `seconds`: `in_order`, or as they become ready."""
    waiting = list(asked) if in_order else sorted(asked, key=lambda each: each[1])
    turns, free, since = list[Turn](), 0.0, 0.0
    for gradients, ready in waiting:
        since = max(since, ready)
        start = max(free, ready)
        free = start + seconds(gradients)
        turns.append(Turn(gradients, since, start, free))
    return turns


def predict_turns(
    name: str,
    job: StepJob,
    setup: Setup,
    turns: Sequence[Turn],
    times: Sequence[float] = (),
) -> StepPrediction:
    """The step with these turns, by the method `name`; `times` of all steps, the last one its own.

    Without `times`, all steps are alike.
    """
    factors = slowdowns(job, setup.disturbance, setup.layout.ranks)
    groups = group_ranks(setup.layout.ranks, factors, apart=False)
    spans = [span for group in groups for span in _passes(job, group)]
    nbytes = [gradient.nbytes for gradient in job.model.workload.gradients]
    ranks = tuple(range(len(factors)))
    buckets = tuple(
        Bucket(
            tuple(sorted(turn.gradients)), ranks, sum(nbytes[i] for i in turn.gradients), *turn[1:]
        )
        for turn in turns
    )
    update = job.update * max(factors)
    ends = (each.end for each in spans), (turn.finish for turn in turns)
    times = times or (max((end for some in ends for end in some), default=0.0) + update,)
    settled = len(times) == 1 or steady(job, times)
    return StepPrediction(
        method=name,
        devices=len(factors),
        batch=job.batch,
        seconds=times[-1] if settled else fmean(times[len(times) // 2 :]),
        compute=job.compute * max(factors),
        update=update,
        communication=time_in_flight(buckets),
        buckets=buckets,
        reads=(),
        spans=tuple(spans),
        simulated=tuple(times),
        settled=settled,
        waiting=mean_wait(job, factors),
        accumulate=job.accumulate,
        composed=True,
    )


def _passes(job: StepJob, group: DeviceGroup) -> list[Span]:
    """The passes of all layers on a group, one after another."""
    profile, layers, now, spans = job.profile, job.model.layers, 0.0, list[Span]()
    order = [(layer, False) for layer in range(len(layers))]
    order += [(layer, True) for layer in reversed(range(len(layers)))]
    for layer, backward in order * job.accumulate:
        seconds = (profile.backward if backward else profile.forward)[layer] * group.factor
        if seconds > 0.0:
            begin, now = now, now + seconds
            spans.append(Span(group.name, layers[layer].name, backward, begin, now))
    return spans


_ENDLESS = 1 << 62
"""Bytes of a buffer that takes all."""

Buffers = Callable[[Sequence[int]], Sequence[tuple[int, ...]]]
"""The buffers of gradients that are ready, by index, in the order in which they became ready."""


def can_tick(job: StepJob) -> bool:
    """Whether the recurrence holds: steps with a barrier that reduce their own gradients, once."""
    return job.barrier and job.consistency == STRONG and (job.accumulate == 1 or job.no_sync)


def takes_turns(job: StepJob, method: Method, setup: Setup) -> bool:
    """Whether a step is Horovod's, and its buffers take turns on an undisturbed machine."""
    alone = method.fusion is not None and method.streams == 1 and can_tick(job)
    return alone and is_calm(setup)


def tick_step(job: StepJob, method: Method, setup: Setup, most: int = MOST_STEPS) -> float:
    """Return the seconds of a step that `takes_turns`, with alike buffers simulated once.

    Of `most` steps that do not become equal, it is the mean of the later half.
    """
    fusion, known = method.fusion, dict[tuple[int, ...], float]()
    assert fusion is not None  # noqa: S101 - the caller has looked
    # Whatever the threshold: what a buffer takes depends on what is in it.
    own, gradients = Fusion(_ENDLESS, fusion.fusion.fp16), fusion.workload.gradients
    spec = fusion.strategy.spec
    strategy = replace(fusion.strategy, text=spec, packing="fusion", packer=own)

    def seconds(buffer: tuple[int, ...]) -> float:
        if buffer not in known:
            held = tuple((gradients[i].elements, gradients[i].dtype) for i in buffer)
            known[buffer] = _buffer_seconds(setup, strategy, held, faithful=fusion.faithful)
        return known[buffer]

    return tick(job, slowest(job, setup), fusion.cycle, fusion.buffers, seconds, most)


@lru_cache(maxsize=1 << 14)
def _buffer_seconds(
    setup: Setup, strategy: Strategy, held: tuple[tuple[int, int], ...], *, faithful: bool
) -> float:
    """Seconds of a buffer with gradients of these elements and dtypes, in this order.

    Layers that are alike have buffers that are alike.
    """
    gradients = tuple(Gradient(f"g{i}", *each) for i, each in enumerate(held))
    assert isinstance(strategy.packer, Fusion)  # noqa: S101 - the caller has made it
    fused = Fused(
        strategy.packer, strategy, Workload("buffer", gradients), setup.layout, faithful=faithful
    )
    parts = fused.reductions(tuple(range(len(gradients))))
    return sum(setup.simulate(part.plan).seconds for part in parts)


def tick(
    job: StepJob,
    factor: float,
    cycle: float,
    buffers: Buffers,
    seconds: Callable[[tuple[int, ...]], float],
    most: int = MOST_STEPS,
) -> float:
    """Seconds of a step whose buffers take `seconds`.

    Its slowest rank takes `factor` times as long as the profile says. Of steps that never become
    equal, it is the mean of the later half.
    """
    times, _ = follow(job, factor, cycle, buffers, seconds, most)
    return times[-1] if steady(job, times) else fmean(times[len(times) // 2 :])


def follow(
    job: StepJob,
    factor: float,
    cycle: float,
    buffers: Buffers,
    seconds: Callable[[tuple[int, ...]], float],
    most: int = MOST_STEPS,
) -> tuple[list[float], list[Turn]]:
    """The seconds of each step as in `tick`, and the turns of the last."""
    layers = job.model.layers
    layer_of = [i for i, layer in enumerate(layers) for _ in layer.gradients]
    mine = {
        layer: [i for i in reversed(range(len(layer_of))) if layer_of[i] == layer]
        for layer in set(layer_of)
    }
    begin, times, turns = 0.0, list[float](), list[Turn]()
    while len(times) < most and not steady(job, times):
        arrivals, now = _arrivals(job, factor, begin, mine)
        free, at, turns = 0.0, 0, []
        while at < len(arrivals):
            first = arrivals[at][0]
            tick_at = first + to_cycle(first, cycle)
            ready: list[int] = []
            since: dict[int, float] = {}
            while at < len(arrivals) and arrivals[at][0] <= tick_at:
                ready += arrivals[at][1]
                since |= dict.fromkeys(arrivals[at][1], arrivals[at][0] - begin)
                at += 1
            for buffer in buffers(ready):
                start = max(free, tick_at)
                free = start + seconds(buffer)
                waited = max(since[i] for i in buffer)
                turns.append(Turn(buffer, waited, start - begin, free - begin))
        end = max(now, free) + job.update * factor
        times.append(end - begin)
        begin = end
    return times, turns


def _arrivals(
    job: StepJob, factor: float, begin: float, mine: dict[int, list[int]]
) -> tuple[list[tuple[float, list[int]]], float]:
    """When the gradients of each layer are ready, and the end of the passes of a step."""
    profile, now = job.profile, begin + (job.accumulate - 1) * job.profile.seconds * factor
    for each in profile.forward:
        now += each * factor
    found = []
    for layer in reversed(range(len(job.model.layers))):
        now += profile.backward[layer] * factor
        if layer in mine:
            found.append((now, mine[layer]))
    return found, now
