"""Rings whose planners finish one piece's way round after another, by array arithmetic."""

from __future__ import annotations

import numpy as np

from simreduce.arrays import Ints
from simreduce.plan import Aside, PlanBuilder, Values


def walks(b: PlanBuilder, own: Values, path: Ints, *, own_first: bool = False) -> Values:
    """The sums of all pieces on all ranks; `own` is by tensor, rank and piece.

    Piece k goes along the ranks path[k], each of which adds its own to what arrives (or with
    `own_first` what arrives to its own), and the sum on to the others. One piece comes after
    another in program order.
    """
    n, piece = own.shape[1], np.arange(own.shape[2])
    aside = Aside(b, len(piece))
    own = aside.lift(own, piece)
    held = own[:, path[:, 0], piece]
    op = own.op.copy()
    for hop in range(1, path.shape[1]):
        here = own[:, path[:, hop], piece]
        held = aside.copies(held, here.device)
        if hop < n:
            held = aside.adds([here, held] if own_first else [held, here])
        if hop >= n - 1:
            op[:, path[:, hop], piece] = held.op
    aside.settle()
    return aside.settled(own.with_ops(op))


def paths(order: Ints, start: Ints) -> Ints:
    """By piece, the ranks that it passes: those of order[k] from the place start[k] on, to the rank
    where the sum is and once more round to the last without it.
    """
    n = order.shape[1]
    place = (start[:, None] + np.arange(2 * n - 1)) % n
    found: Ints = np.take_along_axis(order, place, axis=1)
    return found
