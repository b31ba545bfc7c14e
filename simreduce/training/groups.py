"""Groups simulated as one because their members do the same at the same time: ranks, and reads of
one layer. Summaries of the steps that they take.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from types import MappingProxyType

from simreduce.engine import Disturbance
from simreduce.engine.setup import Setup
from simreduce.plan import side_by_side
from simreduce.training.executions import BACKWARD, COMPUTE, FORWARD, ExecutionNode
from simreduce.training.executor import Ran, length_of
from simreduce.training.gpus import least_gpu, slowest_of
from simreduce.training.reductions import Method, Reduction
from simreduce.training.step import (
    Ledger,
    PathPiece,
    Span,
    StepJob,
    StepPrediction,
    device_label,
)


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Ranks that compute `factor` times as long as the profile; `device` is their first."""

    ranks: frozenset[int]
    name: str
    device: str
    factor: float


def group_ranks(
    ranks: Sequence[str], factors: Sequence[float], *, apart: bool
) -> list[DeviceGroup]:
    """One group for each slowdown; one for each rank if ranks queue or wait apart."""
    equal: dict[tuple[float, int], list[int]] = {}
    for rank, factor in enumerate(factors):
        equal.setdefault((factor, rank if apart else -1), []).append(rank)
    return [
        DeviceGroup(
            frozenset(members),
            device_label([ranks[rank] for rank in members], len(ranks)),
            ranks[members[0]],
            factor,
        )
        for (factor, _), members in equal.items()
    ]


def nodes_of(
    nodes: Sequence[ExecutionNode], groups: Sequence[DeviceGroup]
) -> dict[int, tuple[ExecutionNode, ...]]:
    """The nodes of each rank, without what other groups compute on the lanes of their names.

    What only joins others takes no time and no lane: who comes after it comes after these.
    """
    found: dict[int, tuple[ExecutionNode, ...]] = {}
    for group in groups:
        others = {each.name for each in groups} - {group.name}
        own, stands_for = list[ExecutionNode](), list[tuple[int, ...]]()
        for node in nodes:
            after = tuple(dict.fromkeys(i for j in node.after for i in stands_for[j]))
            joins = node.kind == COMPUTE and node.seconds is None
            if not joins and node.lane not in others:
                own.append(node._replace(after=after))
                after = (len(own) - 1,)
            stands_for.append(after if node.lane not in others else ())
        found |= dict.fromkeys(group.ranks, tuple(own))
    return dict(sorted(found.items()))


def slowdowns(job: StepJob, disturbance: Disturbance, names: Sequence[str]) -> list[float]:
    """How many times as long as the profile says each of these devices takes; where they differ by
    chance, the slowest stands for all.
    """
    slow, all_ = disturbance.slow, slowest_of(len(names), job.spread, job.part)
    return [all_ * job.slow.get(name, 1.0) * slow.get(name, 1.0) for name in names]


def slowest(job: StepJob, setup: Setup) -> float:
    """How many times as long as the profile says the slowest rank takes."""
    return max(slowdowns(job, setup.disturbance, setup.layout.ranks))


def loses_of(job: StepJob, setup: Setup) -> Callable[[int], float]:
    """By what part of their speed a job's kernels slow down beside so many channels of NCCL's;
    nothing if a GPU is not known. Of several kinds the one with the fewest SMs counts.
    """
    gpu = job.gpu or least_gpu(setup)
    return partial(gpu.loses, interference=job.interference) if gpu else lambda _: 0.0


def merged_reads(job: StepJob, method: Method) -> list[Reduction]:
    """The reads of a step, with the same ranks' reads of one layer as one.

    A layer waits for all of them, and simulating one is faster.
    """
    layer_of = job.layer_of
    equal: dict[tuple[tuple[int, ...], frozenset[int]], list[Reduction]] = {}
    for read in method.reads:
        layers = frozenset(layer_of[i] for i in read.gradients)
        equal.setdefault((read.ranks, layers), []).append(read)
    return [
        Reduction(
            side_by_side([read.moves for read in each], each[0].moves.devices),
            tuple(sorted(i for read in each for i in read.gradients)),
            ranks,
        )
        for (ranks, _), each in equal.items()
    ]


_SAME = 1e-9


def steady(job: StepJob, times: Sequence[float]) -> bool:
    """Whether the last steps took equal times.

    These are two, or four without a barrier, where a step affects the next two.
    """
    last = times[-2:] if job.barrier else times[-4:]
    return len(last) == (2 if job.barrier else 4) and max(last) - min(last) <= _SAME * times[-1]


def summarize(
    job: StepJob,
    name: str,
    groups: Sequence[DeviceGroup],
    done: Sequence[Ledger],
    launch: float,
    update: float,
    path: tuple[PathPiece, ...],
    *,
    one: bool,
    faulty: bool,
) -> StepPrediction:
    """The prediction from the last step, or the only `one`; with faults, the slowest too."""
    ends = [0.0, *(ledger.end for ledger in done)]
    times = tuple(end - begin for begin, end in itertools.pairwise(ends))
    factors = [group.factor for group in groups for _ in group.ranks]
    mean = fmean(factors) / slowest_of(len(factors), job.spread, job.part)
    place = {group.name: i for i, group in enumerate(groups)}
    settled = one or steady(job, times)

    def step(ledger: Ledger, seconds: float) -> StepPrediction:
        moved = [*ledger.buckets, *ledger.reads]
        return StepPrediction(
            method=name,
            devices=len(factors),
            batch=job.batch,
            seconds=seconds,
            compute=job.compute * max(factors),
            update=update,
            launch=launch,
            communication=length_of((b.start, b.finish) for b in moved),
            buckets=tuple(sorted(ledger.buckets, key=lambda b: (b.start, b.finish))),
            reads=tuple(sorted(ledger.reads, key=lambda b: (b.start, b.finish))),
            spans=tuple(sorted(ledger.spans, key=lambda span: (place[span.device], span.begin))),
            simulated=times,
            settled=settled,
            waiting=job.compute * (max(factors) - mean),
            accumulate=job.accumulate,
            interference=lost_beside(job, groups, ledger.spans),
        )

    last = replace(step(done[-1], times[-1]), path=path)
    if not settled:
        last = replace(last, seconds=fmean(last.later))
    longest = max(times)
    if faulty and longest > last.seconds * (1.0 + _SAME):
        last = replace(last, slowest=step(done[times.index(longest)], longest))
    return last


def spans_of(
    ran: Iterable[Ran], since: Mapping[int, float] = MappingProxyType({}), begun: float = 0.0
) -> list[Span]:
    """The passes of layers among what has run, in seconds from when the step has `begun`.

    Those that waited in queues go on `since` then, by the identity of nodes.
    """
    return [
        Span(
            each.node.lane, each.node.name, each.node.phase == BACKWARD,
            since.get(id(each.node), each.begin) - begun, each.end - begun,
        )
        for each in ran
        if each.node.phase in (FORWARD, BACKWARD)
    ]  # fmt: skip


def lost_beside(job: StepJob, groups: Sequence[DeviceGroup], spans: Iterable[Span]) -> float:
    """Seconds that the slowest devices' passes take longer than alone, beside collectives."""
    slowest = max(groups, key=lambda group: group.factor)
    busy = sum(span.end - span.begin for span in spans if span.device == slowest.name)
    lost = busy - job.compute * slowest.factor
    return lost if lost > _SAME * busy else 0.0
