"""Rings whose planners finish one piece's way round after another, by array arithmetic."""

from __future__ import annotations

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, SeparateBuilder, Values


def walks(b: PlanBuilder, own: Values, path: Ints, *, own_first: bool = False) -> Values:
    """The sums of all pieces on all ranks; `own` is by tensor, rank and piece.

    Piece k goes along the ranks path[k]. Each adds its own to what arrives (or with `own_first`
    what arrives to its own), and the sum goes on to the others. One piece comes after another in
    program order.
    """
    n, piece = own.shape[1], np.arange(own.shape[2])
    separate = SeparateBuilder(b, len(piece))
    own = separate.lift(own, piece)
    held = own[:, path[:, 0], piece]
    op = own.op.copy()
    for hop in range(1, path.shape[1]):
        here = own[:, path[:, hop], piece]
        held = separate.copies(held, here.device)
        if hop < n:
            held = separate.adds([here, held] if own_first else [held, here])
        if hop >= n - 1:
            op[:, path[:, hop], piece] = held.op
    separate.settle()
    return separate.settled(own.with_ops(op))


def paths(order: Ints, start: Ints) -> Ints:
    """The ranks that each piece passes, by piece.

    Piece k passes the ranks of order[k] from the place start[k] on, to the rank where the sum is,
    and then goes round once more, to the last rank without it.
    """
    n = order.shape[1]
    place = (start[:, None] + np.arange(2 * n - 1)) % n
    found: Ints = np.take_along_axis(order, place, axis=1)
    return found
