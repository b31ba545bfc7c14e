"""An all-to-all that relays over other GPUs where that is faster, as store-and-forward networks do.

Where some pairs have no link, as in a DGX-1, direct sends go through the hosts. Here the part for
such a pair goes over GPUs that both are linked to, in shares of a best multicommodity flow
(`synthesis.relays`), in chunks (`pipelined_trees`). On a DGX-1V every pair gets 3/8 of a link: 8/3
M/(nB) where B is the rate of one link.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.plan import PlanBuilder, Value, Values
from simreduce.planners.algorithms.alike import plan_each
from simreduce.planners.algorithms.pipelined_trees import Load, carry, chunks
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.algorithms.shares import divide
from simreduce.planners.layouts import Layout
from simreduce.planners.synthesis.relays import all_to_all_paths
from simreduce.planners.synthesis.trees import SpanningTree


def all_to_all(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every rank sends every other its part, in shares, along paths over other ranks."""
    shares: dict[tuple[int, int], list[tuple[SpanningTree, float]]] = {}
    for path, share in all_to_all_paths(layout.network()).patterns:
        shares.setdefault((path.root, path.down[-1][1]), []).append((path, share))

    def one(tensor: Sequence[Value], _: int) -> Values:
        own = Values.of(tensor)
        parts = own.cut(len(own))
        kept = parts[np.arange(len(own)), np.arange(len(own))]
        loads: list[Load] = []
        pairs: list[tuple[int, slice]] = []
        for (giver, taker), paths in shares.items():
            first, part = len(loads), parts[giver, taker]
            loads += divide(paths, int(part.lo), int(part.hi))
            pairs.append((taker, slice(first, len(loads))))
        if not loads:
            return kept
        made = carry(b, own, loads, chunks(loads, options.chunk, own.dtype))
        arrived = [
            b.joins(made[places, taker : taker + 1].swapaxes(0, 1).reshape(1, -1))
            for taker, places in pairs
        ]
        return Values.concatenate([kept, *arrived])

    return plan_each(b, tensors, one)
