"""Rabenseifner's all-reduce (2004; Thakur et al. 2005): recursive halving, then doubling.

n = 2^k: a reduce-scatter in which partners n/2, n/4, ... 1 apart swap halves of what is left, and
an all-gather in reverse: 2 log2 n a + 2 (n-1)/n M/B, half of it for each. Any other n: n - 2^k
ranks fold into neighbours first and get the result last. An all-reduce takes 2 (a + M/B) more. A
reduce-scatter or all-gather takes up to (k + 2) a + (1 + 1/n + 2 (2^k - 1)/n) M/B.
"""

from __future__ import annotations

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms import recursive_doubling as whole
from simreduce.planners.algorithms.family import Knobs, common_parts


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Halve, then double, over the ranks that are not folded."""
    return whole.all_reduce_by(b, values, knobs, _all_reduce)


def reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """A rank with another folded into it ends with both parts, and hands over the second."""
    n, channel = values.shape[1], knobs.channel
    stay, others = whole.core_of(n)
    edges = _edges(common_parts(values, knobs))
    terms = _halve(b, whole.fold(b, values, channel), edges[:, np.append(stay, n)], channel)
    own = _sum(b, [t.view(edges[:, stay], edges[:, stay + 1]) for t in terms])
    folded = [t[:, : len(others)] for t in terms]
    theirs = _sum(b, [t.view(edges[:, others], edges[:, others + 1]) for t in folded])
    return whole.unfold(b, own, theirs, values, channel)


def all_gather(b: PlanBuilder, shards: Values, knobs: Knobs) -> Values:
    """A rank with another folded into it takes over its part, and in the end tells it all."""
    stay, others = whole.core_of(shards.shape[1])
    held = shards[:, stay]
    if len(others):
        host, rest = held[:, : len(others)], held[:, len(others) :]
        brought = whole.exchange(b, shards[:, others], host, knobs.channel)
        joined = b.joins(Values.stack([host, brought], axis=2))
        held = Values.concatenate([joined, rest], axis=1)
    swap, hosts = _Swap(b, knobs.channel), slice(len(others))
    held = _double(b, held, _edges(held), swap)
    return whole.unfold(b, held, held[:, hosts], shards, knobs.channel, swap.sent[:, hosts])


def _all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    edges = _edges(common_parts(values, knobs))
    shards = _sum(b, _halve(b, values, edges, knobs.channel))
    return _double(b, shards, edges, _Swap(b, knobs.channel))


def _halve(b: PlanBuilder, held: Values, edges: Ints, channel: int) -> list[Values]:
    """Over a power of two ranks: the terms of rank r's part, edges[:, r] to edges[:, r + 1]."""
    rank, terms, swap = np.arange(held.shape[1]), [held], _Swap(b, channel)
    for distance in reversed(whole.steps(edges.shape[1] - 1)):
        held = _sum(b, terms)
        first = rank & -distance  # of the parts that a rank keeps
        kept = held.view(edges[:, first], edges[:, first + distance])
        terms = [kept, swap(held, rank ^ distance, kept)]
    return terms


def _double(b: PlanBuilder, held: Values, edges: Ints, swap: _Swap) -> Values:
    """Over a power of two: the adjacent parts of all ranks, as one on every rank."""
    rank = np.arange(held.shape[1])
    for distance in whole.steps(edges.shape[1] - 1):
        theirs = (rank ^ distance) & -distance  # the first of the parts that the partner has
        wanted = held.view(edges[:, theirs], edges[:, theirs + distance])
        arrived = swap(held, rank ^ distance, wanted)
        upper = (rank & distance) // distance  # 1 where what a rank has comes after what arrives
        pair = Values.stack([held, arrived], axis=2)
        held = b.joins(pair[:, rank[:, None], np.stack([upper, 1 - upper], axis=1)])
    return held


def _edges(cut: Values) -> Ints:
    return np.concatenate([cut.lo, cut.hi[:, -1:]], axis=1)


def _sum(b: PlanBuilder, terms: list[Values]) -> Values:
    return b.adds(terms) if len(terms) > 1 else terms[0]


class _Swap:
    """Ordered exchanges: swapped parts may differ in size. `sent`: each sender's last copy."""

    def __init__(self, b: PlanBuilder, channel: int) -> None:
        self.b, self.channel, self.sent = b, channel, np.empty((0, 0), dtype=np.int64)

    def __call__(self, held: Values, partner: Ints, wanted: Values) -> Values:
        here = held.shape[1]
        after = self.sent[:, partner % here] if self.sent.size else ()
        arrived = whole.from_partner(self.b, held, partner, wanted, self.channel, after)
        self.sent = arrived.op[:, partner % here]
        return arrived
