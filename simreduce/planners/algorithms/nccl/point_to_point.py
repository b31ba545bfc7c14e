"""NCCL's sends from rank to rank: all-to-all, send and receive, all-pairs all-reduce.

An all-to-all is a group of sends and receives, which a channel does one after another. In round k
every rank sends to the k-th after it; up to 8 rounds are under way.

The all-pairs all-reduce that RCCL's MSCCL has for eight GPUs, in the two shots of `direct`.

Every GPU sends each other one its part, adds what it is sent, and sends the sum to all, over a
connection to each (ROCm/rccl tools/msccl-algorithms allreduce-allpairs-8n). By LL the flags travel
with the data: 2a + 2 (n-1)/n M/B over n - 1 links each of B/(n-1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.ops import LAST, PEER, SWITCHED, UNALIGNED, merged_channel
from simreduce.planners.algorithms.nccl.paths import nbytes
from simreduce.planners.algorithms.planner import Knobs, parts
from simreduce.planners.layouts import Decision

_AT_ONCE = 8
"""Peers that a rank sends to at the same time, at most."""

_MOST = 32
"""Channels that the sends of one rank share, at most, unless one alone has more."""


def launched(how: Decision, collective: str, ranks: int) -> int:
    """The channel that represents all channels of a collective's kernels.

    Kernels of an all-to-all have as many channels for each peer, the rank itself included.
    """
    blocks = how.channels
    if collective == "all_to_all":
        blocks = min(blocks * ranks, max(blocks, _MOST))
    return merged_channel(0, blocks) + SWITCHED * (how.algorithm in ("nvls", "nvlstree"))


def _send(
    b: PlanBuilder,
    values: Values,
    to: Ints,
    how: Decision,
    number: Ints | int,
    after: Sequence[int],
) -> Values:
    """The values on the devices `to`, over connections of these numbers. A last channel that is not
    filled is done before the others.
    """
    number = number + PEER + UNALIGNED * (nbytes(values) % 16 > 0)
    part = how.part // dtypes.SIZES[values.dtype]
    full = int(values.elements.max(initial=0)) // part if part else 0
    shares = [(values, merged_channel(0, how.channels))]
    if 0 < full < how.channels:
        middle = np.minimum(values.lo + full * part, values.hi)
        shares = [
            (values.view(values.lo, middle), merged_channel(0, full)),
            (values.view(middle, values.hi), merged_channel(_AT_ONCE, how.channels - full)),
        ]
    made = [
        b.copies(share, to, stream=b.streams(share.device, channel + number), after=after)
        for share, channel in shares
    ]
    return made[0] if len(made) == 1 else b.joins(Values.stack(made, axis=-1))


def all_to_all(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
) -> Values:
    """By rank and sender, the part that the sender gave for it."""
    n = len(given)
    ranks, peers = np.arange(n), np.arange(1, n)
    part = given.cut(n)
    target = (ranks[:, None] + peers) % n
    sent = part[ranks[:, None], target]
    moved = _send(b, sent, given.device[target], how, peers % min(n - 1, _AT_ONCE), after)
    own = b.slices(part[ranks, ranks])
    # Rank r hears from r - k in round k.
    source = (ranks[:, None] - peers) % n
    found = Values.concatenate([own[:, None], moved[source, peers - 1]], axis=1)
    order = np.argsort(np.concatenate([ranks[:, None], source], axis=1), axis=1)
    return found[ranks[:, None], order].reshape(-1)


def send_receive(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    machine: Ints,
) -> Values:
    """By rank, what the rank before it gave; the first hears from the last."""
    moved = _send(b, given, np.roll(given.device, -1), how, 0, after)
    return moved[np.roll(np.arange(len(given)), 1)]


def all_reduce(b: PlanBuilder, given: Values, how: Decision, after: Sequence[int]) -> Values:
    """The sum on every rank; `given` by rank."""
    n, blocks = len(given), max(how.channels // max(len(given) - 1, 1), 1)
    whole: Values = parts(given[None], Knobs())[0, ...]
    rank = np.arange(n)

    def send(values: Values, far: int, last: int) -> Values:
        """By receiver, what each rank sends to the one `far` above it."""
        streams = b.streams(values.device, merged_channel(far, blocks) + last)
        sent = b.copies(values, given.device[(rank + far) % n], stream=streams, after=after)
        return sent[(rank - far) % n]

    arrived = [send(whole[rank, (rank + far) % n], far, 0) for far in range(1, n)]
    sums = b.adds([whole[rank, rank], *arrived])
    every = Values.stack([sums, *(send(sums, far, LAST) for far in range(1, n))], axis=1)
    # Part p of rank r came from p, which is r - p below it.
    return b.joins(every[rank[:, None], (rank[:, None] - rank) % n])
