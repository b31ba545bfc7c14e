"""NCCL's broadcast and reduce: pieces follow one another along each ring, from the root or to it.

A piece is what a block passes on before it looks for more: a step of Simple, 512 KiB. With LL and
LL128 flags travel with the data, so a block passes on parts of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.algorithms.nccl_lanes import Lane, join, lanes, pieces, step_bytes
from simreduce.layouts import Decision
from simreduce.plan import PlanBuilder, Values

_PIECES = {"simple": 1, "ll": 4, "ll128": 4}
"""Of a step. Threads of a block hold 1/8 of a step of LL and 1/16 of LL128 at once; a NIC waits for
the step. Published broadcasts and reduces through 7 and 14 hops lie between.
"""

_OPS = 12_000
"""Copies of one collective, about: a chain is filled piece by piece, so few would be too slow."""


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
    copies = len(given) * min(lane.of, 8)
    count = pieces(given, lane.of, step_bytes(how) // _PIECES[how.protocol], copies, most=_OPS)
    return lane.share(given).cut(count).swapaxes(0, 1)
