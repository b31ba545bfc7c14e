"""Steps whose reductions take turns on one stream, from the time that each takes alone.

Nothing else is in flight beside a reduction, so it takes what it takes alone, and a step is a
recurrence: a reduction starts when every rank has its gradients and the one before it has ended.
This is `simulation` without events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from simreduce.engine import IDEAL, NCCL
from simreduce.engine.setup import Setup
from simreduce.training.groups import DeviceGroup, group_ranks, mean_wait, slowdowns
from simreduce.training.step import Bucket, Span, StepJob, StepPrediction
from simreduce.training.summary import steady, time_in_flight

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
