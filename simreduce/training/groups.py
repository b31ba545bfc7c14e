"""What is simulated as one, because it does the same at the same time: devices, and reads of one
layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.plan import side_by_side
from simreduce.training.reductions import Reduction
from simreduce.training.step import device_label


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that compute alike, `factor` times as long as the profile says; `device` is the first
    of them.
    """

    ranks: frozenset[int]
    name: str
    device: str
    factor: float


def groups(ranks: Sequence[str], factors: Sequence[float], *, apart: bool) -> list[Group]:
    """All ranks that are equally slow are one group; if they queue or wait by themselves (`apart`),
    each is one.
    """
    alike: dict[tuple[float, int], list[int]] = {}
    for rank, factor in enumerate(factors):
        alike.setdefault((factor, rank if apart else -1), []).append(rank)
    return [
        Group(
            frozenset(members),
            device_label([ranks[rank] for rank in members], len(ranks)),
            ranks[members[0]],
            factor,
        )
        for (factor, _), members in alike.items()
    ]


def by_layer(reads: Sequence[Reduction], layer_of: Sequence[int]) -> list[Reduction]:
    """What the same ranks read of one layer is one read: a layer waits for all of it, and one is
    quicker than three.
    """
    together: dict[tuple[tuple[int, ...], frozenset[int]], list[Reduction]] = {}
    for read in reads:
        layers = frozenset(layer_of[i] for i in read.gradients)
        together.setdefault((read.ranks, layers), []).append(read)
    return [
        Reduction(
            side_by_side([read.plan for read in each], each[0].plan.devices),
            tuple(sorted(i for read in each for i in read.gradients)),
            ranks,
        )
        for (ranks, _), each in together.items()
    ]
