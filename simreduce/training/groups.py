"""Groups simulated as one because their members do the same at the same time.

They hold ranks, and reads of one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from simreduce.engine import Disturbance
from simreduce.engine.setup import Setup
from simreduce.plan import side_by_side
from simreduce.training.reductions import Reduction
from simreduce.training.spread import slowest_of
from simreduce.training.step import StepJob, device_label


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


def slowdowns(job: StepJob, disturbance: Disturbance, names: Sequence[str]) -> list[float]:
    """How many times as long as the profile says each of these devices takes; where they differ by
    chance, the slowest stands for all.
    """
    slow, all_ = disturbance.slow, slowest_of(len(names), job.spread, job.part)
    return [all_ * job.slow.get(name, 1.0) * slow.get(name, 1.0) for name in names]


def mean_wait(job: StepJob, factors: Sequence[float]) -> float:
    """Seconds that devices with these `slowdowns` wait on average for the slowest."""
    mean = fmean(factors) / slowest_of(len(factors), job.spread, job.part)
    return job.compute * (max(factors) - mean)


def slowest(job: StepJob, setup: Setup) -> float:
    """How many times as long as the profile says the slowest rank takes."""
    return max(slowdowns(job, setup.disturbance, setup.layout.ranks))


def merge_reads(reads: Sequence[Reduction], layer_of: Sequence[int]) -> list[Reduction]:
    """Merge the same ranks' reads of one layer.

    A layer waits for all of them, and simulating one is faster.
    """
    equal: dict[tuple[tuple[int, ...], frozenset[int]], list[Reduction]] = {}
    for read in reads:
        layers = frozenset(layer_of[i] for i in read.gradients)
        equal.setdefault((read.ranks, layers), []).append(read)
    return [
        Reduction(
            side_by_side([read.plan for read in each], each[0].plan.devices),
            tuple(sorted(i for read in each for i in read.gradients)),
            ranks,
        )
        for (ranks, _), each in equal.items()
    ]
