"""How ranks have an NVSwitch sum: each is the head of an equal part, whose sum the switch gives it,
and which it sends back to be multicast.
"""

from __future__ import annotations

import numpy as np

from simreduce.arrays import Ints
from simreduce.plan import PlanBuilder, Values


def through_heads(b: PlanBuilder, chunks: Values, switch: Ints, channel: int) -> Values:
    """By rank and chunk, the sum of which every rank has an equal part sent back by the switch."""
    ranks = chunks.device
    there = np.broadcast_to(switch, ranks.shape)
    rose = b.copies(chunks, there, stream=b.streams(ranks, channel))
    parts = b.adds([rose[i, ...] for i in range(len(rose))]).cut(len(rose)).swapaxes(0, 1)
    held = b.copies(parts, ranks, stream=b.streams(ranks, channel + 1))
    back = b.copies(held, there, stream=b.streams(ranks, channel + 2))
    whole = b.joins(back.swapaxes(0, 1))[None]
    return b.copies(whole, ranks, stream=b.streams(ranks, channel + 3))
