"""The families of textbooks and libraries, and how they become planners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms import (
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
from simreduce.planners.algorithms.family import NAMES, Collective, Family, knobs
from simreduce.planners.algorithms.planner import Options, Planner, Results, Tensors
from simreduce.planners.algorithms.together import plan_together
from simreduce.planners.layouts import Layout


def _family(name: str, module: ModuleType, summary: str, **facts: Any) -> Family:
    """A family whose collectives are the functions of `module` that are called like them."""
    functions: dict[str, Any] = {each: getattr(module, each, None) for each in NAMES}
    return Family(name, summary, **functions, **facts)


# fmt: off
_TABLE = (
    _family("ring", ring, "textbook ring: reduce-scatter, then all-gather, one chunk per rank",
            symmetric=True),
    _family("bidirectional_ring", bidirectional_ring,
            "two rings, one each way round, with half of every chunk each",
            channels=bidirectional_ring.CHANNELS, symmetric=True),
    torus.torus(2),
    torus.torus(3),
    _family("chain", chain, "pipelined chain: sums go along the ranks, totals come back",
            channels=2, pipelined=True),
    _family("binary_tree", binary_tree, "pipelined complete binary tree",
            channels=2, pipelined=True),
    _family("double_tree", double_tree,
            "two pipelined binary trees, half of the data each; "
            "the inner ranks of one are leaves of the other",
            channels=4, pipelined=True),
    _family("binomial_tree", binomial_tree,
            "binomial tree: in every step those that have the data send it on", channels=2),
    _family("scatter_all_gather", scatter_all_gather,
            "binomial scatter, then a ring collects the parts"),
    _family("recursive_doubling", recursive_doubling,
            "swaps everything with partners 1, 2, 4, ... away", symmetric=True),
    _family("halving_doubling", halving_doubling,
            "Rabenseifner: swaps halves, then doubles what each has", symmetric=True),
    _family("bruck", bruck, "Bruck: goes round the circle in steps of 1, 2, 4, ...", channels=0),
    _family("direct", direct, "everybody sends to everybody at once, part by part",
            channels=0, symmetric=True),
    _family("one_shot", one_shot, "everybody sends everything to everybody; each adds for itself",
            channels=0, symmetric=True),
    _family("pairwise", pairwise, "to one partner after another"),
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
