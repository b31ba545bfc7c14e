"""Summaries of simulated steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from statistics import fmean

from simreduce.training.groups import DeviceGroup, mean_wait
from simreduce.training.ledger import Ledger
from simreduce.training.reductions import Method
from simreduce.training.step import Bucket, StepJob, StepPrediction

_SAME = 1e-9


def steady(job: StepJob, times: Sequence[float]) -> bool:
    """Whether the last steps took equal times.

    These are two, or four without a barrier, where a step affects the next two.
    """
    last = times[-2:] if job.barrier else times[-4:]
    return len(last) == (2 if job.barrier else 4) and max(last) - min(last) <= _SAME * times[-1]


def summarize(
    job: StepJob,
    method: Method,
    groups: Sequence[DeviceGroup],
    done: Sequence[Ledger],
    launch: float,
    update: float,
    *,
    one: bool,
    faulty: bool,
) -> StepPrediction:
    """The prediction from the last step, or the only `one`; with faults, the slowest too."""
    ends = [0.0, *(ledger.end for ledger in done)]
    times = tuple(end - begin for begin, end in itertools.pairwise(ends))
    factors = [group.factor for group in groups for _ in group.ranks]
    place = {group.name: i for i, group in enumerate(groups)}
    settled = one or steady(job, times)

    def step(ledger: Ledger, seconds: float) -> StepPrediction:
        return StepPrediction(
            method=method.name,
            devices=len(factors),
            batch=job.batch,
            seconds=seconds,
            compute=job.compute * max(factors),
            update=update,
            launch=launch,
            communication=time_in_flight([*ledger.buckets, *ledger.reads]),
            buckets=tuple(sorted(ledger.buckets, key=lambda b: (b.start, b.finish))),
            reads=tuple(sorted(ledger.reads, key=lambda b: (b.start, b.finish))),
            spans=tuple(sorted(ledger.spans, key=lambda span: (place[span.device], span.begin))),
            simulated=times,
            settled=settled,
            waiting=mean_wait(job, factors),
            accumulate=job.accumulate,
        )

    last = step(done[-1], times[-1])
    if not settled:
        last = replace(last, seconds=fmean(last.later))
    longest = max(times)
    if faulty and longest > last.seconds * (1.0 + _SAME):
        last = replace(last, slowest=step(done[times.index(longest)], longest))
    return last


def time_in_flight(buckets: Sequence[Bucket]) -> float:
    """Seconds with at least one bucket in flight."""
    total, until = 0.0, -inf
    for start, finish in sorted((b.start, b.finish) for b in buckets):
        total += max(finish - max(start, until), 0.0)
        until = max(until, finish)
    return total
