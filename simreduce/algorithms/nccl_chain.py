"""NCCL's broadcast and reduce: pieces follow one another along each ring, from the root or to it.

A piece is one step, 512 KiB of Simple.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.algorithms.nccl_lanes import STEP, Lane, join, lanes, pieces
from simreduce.layouts import Decision
from simreduce.plan import PlanBuilder, Values


def broadcast(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    root: int,
) -> Values:
    """The root's value on every rank."""
    made = []
    for way, lane in lanes(ways, how.channels):
        held, chain = _share(lane, given, how), _from(way, root)
        seen = [b.slices(held[:, root])]
        for rank in chain[1:]:
            stream = b.streams(seen[-1].device, lane.channel)
            waits = after if len(seen) == 1 else ()
            seen.append(b.copies(seen[-1], held.device[:, rank], stream=stream, after=waits))
        made.append(Values.stack(seen, axis=1)[:, np.argsort(chain), None])
    return join(b, made)


def reduce(
    b: PlanBuilder,
    given: Values,
    ways: Sequence[Sequence[int]],
    how: Decision,
    after: Sequence[int],
    root: int,
) -> Values:
    """The sum on the root."""
    made = []
    for way, lane in lanes(ways, how.channels):
        held, chain = _share(lane, given, how), _from(way, root)
        total, waits = held[:, chain[1]], after
        for rank in (*chain[2:], root):
            stream = b.streams(total.device, lane.channel)
            arrived = b.copies(total, held.device[:, rank], stream=stream, after=waits)
            total, waits = b.adds([arrived, held[:, rank]]), ()
        made.append(total[:, None, None])
    return join(b, made)


def _from(way: Sequence[int], root: int) -> Sequence[int]:
    """The ring from the root on."""
    start = way.index(root)
    return [*way[start:], *way[:start]]


def _share(lane: Lane, given: Values, how: Decision) -> Values:
    """The lane's share of every rank's value, by piece and rank."""
    count = pieces(given, lane.of, STEP[how.protocol], len(given) * min(lane.of, 8))
    return lane.share(given).cut(count).swapaxes(0, 1)
