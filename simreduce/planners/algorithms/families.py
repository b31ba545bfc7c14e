"""The families of textbooks and libraries, and how they become planners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms import (
    direct,
    doubling,
    ring,
    torus,
    trees,
)
from simreduce.planners.algorithms.family import NAMES, Collective, Family, knobs
from simreduce.planners.algorithms.planner import Options, Planner, Results, Tensors, plan_together
from simreduce.planners.layouts import Layout


def _family(name: str, module: ModuleType, summary: str, **facts: Any) -> Family:
    """A family whose collectives are the functions of `module` that are called like them."""
    functions: dict[str, Any] = {each: getattr(module, each, None) for each in NAMES}
    return Family(name, summary, **functions, **facts)


# fmt: off
_TABLE = (
    _family("ring", ring, "textbook ring: reduce-scatter, then all-gather, one chunk per rank",
            symmetric=True),
    Family("bidirectional_ring", "two rings, one each way round, with half of every chunk each",
           all_reduce=ring.bidirectional_all_reduce,
           reduce_scatter=ring.bidirectional_reduce_scatter,
           all_gather=ring.bidirectional_all_gather,
           channels=ring.BIDIRECTIONAL_CHANNELS, symmetric=True),
    torus.torus(2),
    torus.torus(3),
    Family("chain", "pipelined chain: sums go along the ranks, totals come back",
           **trees.CHAIN, channels=2, pipelined=True),
    Family("binary_tree", "pipelined complete binary tree",
           **trees.BINARY_TREE, channels=2, pipelined=True),
    Family("double_tree",
           "two pipelined binary trees, half of the data each; "
           "the inner ranks of one are leaves of the other",
           **trees.DOUBLE_TREE, channels=4, pipelined=True),
    Family("binomial_tree", "binomial tree: in every step those that have the data send it on",
           **trees.BINOMIAL_TREE, channels=2),
    Family("scatter_all_gather", "binomial scatter, then a ring collects the parts",
           broadcast=trees.scatter_all_gather),
    Family("recursive_doubling", "swaps everything with partners 1, 2, 4, ... away",
           all_reduce=doubling.recursive_doubling, symmetric=True),
    Family("halving_doubling", "Rabenseifner: swaps halves, then doubles what each has",
           all_reduce=doubling.halving_doubling, reduce_scatter=doubling.halving_reduce_scatter,
           all_gather=doubling.doubling_all_gather, symmetric=True),
    Family("bruck", "Bruck: goes round the circle in steps of 1, 2, 4, ...",
           all_gather=doubling.bruck_all_gather, all_to_all=doubling.bruck_all_to_all, channels=0),
    _family("direct", direct, "everybody sends to everybody at once, part by part",
            channels=0, symmetric=True),
    Family("one_shot", "everybody sends everything to everybody; each adds for itself",
           all_reduce=direct.one_shot, channels=0, symmetric=True),
    Family("pairwise", "to one partner after another", all_to_all=direct.pairwise),
)
# fmt: on

FAMILIES: Mapping[str, Family] = {family.name: family for family in _TABLE}
"""Every family by the name users type."""

IN_RANK_ORDER = ("reduce_scatter", "all_gather", "all_to_all")
"""Collectives whose contract fixes the rank of each part, and so the order of the ranks."""


def planner(name: str, collective: Collective) -> Planner:
    """The planner of a collective: one group of all ranks, all tensors on the same streams."""

    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        in_rings = [r for task in layout.ring_tasks for r in task]
        order = range(len(layout.ranks)) if name in IN_RANK_ORDER else in_rings
        rank_at = np.array(order, dtype=np.int64)
        position = np.argsort(rank_at)

        def many(b: PlanBuilder, tensors: Values) -> Values:
            set_to = knobs(options, tensors.dtype, int(position[options.root]))
            made = collective(b, tensors[:, rank_at], replace(set_to, machines=layout.machines))
            made = made.reshape(len(tensors), -1)
            return made[:, position] if made.shape[1] == len(position) else made

        return plan_together(b, tensors, many, options.chunk)

    return plan
