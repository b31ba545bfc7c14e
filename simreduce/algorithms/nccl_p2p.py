"""NCCL's all-to-all, a group of sends and receives, of which a channel does one after another; and
send and receive, every rank to the next.

In round k every rank sends to the k-th after it; up to 8 rounds are under way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.layouts import Decision
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.plan import merged_channel

_AT_ONCE = 8
"""Peers that a rank sends to at the same time, at most."""


def all_to_all(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
) -> Values:
    """By rank and sender, the part that the sender gave for it."""
    n = len(given)
    ranks, peers = np.arange(n), np.arange(1, n)
    rounds = min(n - 1, _AT_ONCE)
    blocks = how.channels  # of each pair
    part = given.cut(n)
    target = (ranks[:, None] + peers) % n
    channel = merged_channel(0, blocks) + peers % rounds
    sent = part[ranks[:, None], target]
    stream = b.streams(sent.device, channel)
    moved = b.copies(sent, given.device[target], stream=stream, after=after)
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
) -> Values:
    """By rank, what the rank before it gave; the first hears from the last."""
    n = len(given)
    stream = b.streams(given.device, merged_channel(0, how.channels))
    moved = b.copies(given, np.roll(given.device, -1), stream=stream, after=after)
    return moved[(np.arange(n) - 1) % n]
