"""The families of the textbooks and of today's libraries, and how they become planners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from simreduce.algorithms import (
    bidirectional_ring,
    binary_tree,
    binomial_tree,
    bruck,
    chain,
    direct,
    double_tree,
    halving_doubling,
    one_shot,
    pairwise,
    recursive_doubling,
    ring,
    scatter_all_gather,
    torus,
)
from simreduce.algorithms.family import Collective, Family, knobs
from simreduce.algorithms.planner import Options, Planner, Results, Tensors
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, Values

# fmt: off
_TABLE = (
    Family("ring", "textbook ring: reduce-scatter, then all-gather, one chunk per rank",
           all_reduce=ring.all_reduce, reduce_scatter=ring.reduce_scatter, all_gather=ring.all_gather, symmetric=True),
    Family("bidirectional_ring", "two rings, one each way round, with half of every chunk each",
           all_reduce=bidirectional_ring.all_reduce, reduce_scatter=bidirectional_ring.reduce_scatter,
           all_gather=bidirectional_ring.all_gather, channels=bidirectional_ring.CHANNELS, symmetric=True),
    torus.torus(2),
    torus.torus(3),
    Family("chain", "pipelined chain: sums go along the ranks, totals come back, chunk by chunk",
           all_reduce=chain.all_reduce, reduce=chain.reduce, broadcast=chain.broadcast, channels=2, pipelined=True),
    Family("binary_tree", "pipelined complete binary tree",
           all_reduce=binary_tree.all_reduce, reduce=binary_tree.reduce, broadcast=binary_tree.broadcast,
           channels=2, pipelined=True),
    Family("double_tree", "two pipelined binary trees, half of the data each; the inner ranks of one are leaves of the other",
           all_reduce=double_tree.all_reduce, reduce=double_tree.reduce, broadcast=double_tree.broadcast,
           channels=4, pipelined=True),
    Family("binomial_tree", "binomial tree: in every step those that have the data send it on",
           all_reduce=binomial_tree.all_reduce, reduce=binomial_tree.reduce, broadcast=binomial_tree.broadcast,
           channels=2),
    Family("scatter_all_gather", "binomial scatter, then a ring collects the parts",
           broadcast=scatter_all_gather.broadcast),
    Family("recursive_doubling", "swaps everything with partners 1, 2, 4, ... away",
           all_reduce=recursive_doubling.all_reduce, symmetric=True),
    Family("halving_doubling", "Rabenseifner: swaps halves, then doubles what each has",
           all_reduce=halving_doubling.all_reduce, reduce_scatter=halving_doubling.reduce_scatter,
           all_gather=halving_doubling.all_gather, symmetric=True),
    Family("bruck", "Bruck: goes round the circle in steps of 1, 2, 4, ...",
           all_gather=bruck.all_gather, all_to_all=bruck.all_to_all, channels=0),
    Family("direct", "everybody sends to everybody at once, part by part",
           all_reduce=direct.all_reduce, reduce_scatter=direct.reduce_scatter, all_gather=direct.all_gather,
           reduce=direct.reduce, broadcast=direct.broadcast, all_to_all=direct.all_to_all, channels=0,
           symmetric=True),
    Family("one_shot", "everybody sends everything to everybody, and each adds for itself",
           all_reduce=one_shot.all_reduce, channels=0, symmetric=True),
    Family("pairwise", "to one partner after another", all_to_all=pairwise.all_to_all),
)
# fmt: on

FAMILIES: Mapping[str, Family] = {family.name: family for family in _TABLE}
"""Every family by the name users type."""

IN_RANK_ORDER = ("reduce_scatter", "all_gather", "all_to_all")
"""Collectives whose contract fixes the rank of each part, and so the order of the ranks."""


def planner(name: str, collective: Collective) -> Planner:
    """The planner of one collective called `name`: one group of all ranks, tensor by tensor on the
    same streams.
    """

    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        ringed = [r for task in layout.ring_tasks for r in task]
        order = range(len(layout.ranks)) if name in IN_RANK_ORDER else ringed
        rank_at = np.array(order, dtype=np.int64)
        position = np.argsort(rank_at)
        results: Results = []
        for tensor in tensors:
            group = Values.of(tensor)[rank_at].reshape(1, -1)
            root = int(position[options.root])
            set_to = replace(knobs(options, group.dtype, root), machines=layout.machines)
            made = collective(b, group, set_to).reshape(-1)
            results.append(made[position] if len(made) == len(position) else made)
        return results

    return plan
