"""The families of textbooks and libraries, and how they become planners.

Any two make an algorithm by levels; BlueConnect is one, too. `inner/outer` runs one family inside
every task and another across the tasks.

Where the inner family scatters and gathers and all tasks have p ranks, every rank crosses with its
own part: reduce-scatter inside, all-reduce of S/p by p groups at once, all-gather inside. With a
ring inside: 2(p-1)(ai + S/(p Bi)) + T(S/p), where T is the outer family's time. Else one rank of
every task crosses: reduce to it, all-reduce of S, broadcast (the leaders of NCCL 2.4 and Horovod's
hierarchical all-reduce). A family that has no reduce all-reduces, or uses `direct`; one that has no
broadcast uses `direct`.

With a chunk size the tensor is cut in k chunks and the three phases work on different ones at a
time, on channels of their own: where inside and outside share no link the time goes to that of the
slowest phase. Any number of tasks from 2 of any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, groupby
from types import ModuleType
from typing import Any

import numpy as np

from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms import (
    direct,
    doubling,
    ring,
    torus,
    trees,
)
from simreduce.planners.algorithms.planner import (
    NAMES,
    Collective,
    Family,
    Knobs,
    Options,
    Planner,
    Results,
    Tensors,
    by_row,
    chunk_count,
    knobs,
    plan_together,
)
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


def fits(inner: Family, outer: Family) -> bool:
    """Whether the two make an all-reduce: the inner one sums, and the outer one all-reduces."""
    sums = inner.all_reduce or inner.reduce or (inner.reduce_scatter and inner.all_gather)
    return bool(sums and outer.all_reduce)


def two_level(inner: Family, outer: Family) -> Planner:
    """The planner of `inner/outer`, of two families that fit."""
    across = outer.all_reduce
    assert across  # noqa: S101 - or the two do not fit

    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        if layout.task_count == 1:
            raise StrategyError(
                f"all GPUs are in one task, so there is nothing to cross; try {inner.name} alone"
            )
        by_size = groupby(sorted(layout.ring_tasks, key=len), key=len)
        tasks = [np.array(list(alike), dtype=np.int64) for _, alike in by_size]
        place = np.argsort(np.concatenate([alike.reshape(-1) for alike in tasks]))

        def many(b: PlanBuilder, tensors: Values) -> Values:
            chunk = knobs(options, tensors.dtype).chunk
            count = chunk_count(int(tensors.elements[0, 0]), chunk, layout.n)
            chunks = tensors.cut(count)
            made = [
                one_chunk(b, [chunks[:, alike, i] for alike in tasks], layout.machines)
                for i in range(count)
            ]
            return b.joins(Values.stack(made, axis=-1)[:, place])

        return plan_together(b, tensors, many, options.chunk)

    def one_chunk(b: PlanBuilder, tasks: list[Values], machines: int) -> Values:
        """From shape (tensors, tasks, ranks) for each size of a task to (tensors, all ranks) in
        that order; only those across know of `machines`.
        """
        inwards, back = _inside(inner, alike=len(tasks) == 1)
        summed = [by_row(inwards, b, values, Knobs(0)) for values in tasks]
        lines = Values.concatenate(summed, axis=1).swapaxes(1, 2)
        crossed = by_row(across, b, lines, Knobs(inner.channels, machines=machines)).swapaxes(1, 2)
        set_to = Knobs(inner.channels + outer.channels)
        results = []
        ends = accumulate(values.shape[1] for values in tasks)
        for values, end in zip(tasks, ends, strict=True):
            mine = crossed[:, end - values.shape[1] : end]
            # What the first of a task has is the first's; the others' entries say where they are.
            made = by_row(back, b, mine.on(values.device), set_to)
            results.append(made.reshape(len(values), -1))
        return Values.concatenate(results, axis=1)

    return plan


def _inside(family: Family, *, alike: bool) -> tuple[Collective, Collective]:
    """How sums come to the ranks that cross, all of a task or its first, and how results come back
    from there.
    """
    if alike and family.reduce_scatter and family.all_gather:
        return family.reduce_scatter, family.all_gather
    whole = family.all_reduce

    def first(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
        return whole(b, values, knobs)[:, :1] if whole else direct.reduce(b, values, knobs)

    return family.reduce or first, family.broadcast or direct.broadcast


def blueconnect(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """An all-reduce on the grid of tasks and the ranks in them.

    Cho et al. 2019: reduce-scatter level by level, from inside the tasks outwards, and all-gather
    back. The levels p1, p2, ... are the ranks of a task, then the prime factors of the number of
    tasks, the least first, so that neighbouring tasks come before distant ones: 6 tasks of 8 are 8,
    2, 3. At level i a rank has 1/(p1 ... p(i-1)) of the tensor left and sends 2(pi-1)/pi of that,
    in steps of one message: sum 2(pi-1)(ai + S/(p1 ... pi Bi)), whatever is faster inside than
    outside. One task has one level: the ring. Tasks of unequal size make no grid and are refused.
    """
    inside, *others = sorted({len(task) for task in layout.tasks})
    if others:
        raise StrategyError(
            f"blueconnect needs as many GPUs in every task, and here they have {inside} to "
            f"{others[-1]}; "
            "a two-level algorithm (inner/outer) takes any"
        )
    axes = (*torus.prime_factors(len(layout.tasks))[::-1], inside)

    def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
        return torus.all_reduce_by_axis(b, values, axes, knobs.channel)

    return planner("all_reduce", all_reduce)(b, layout, tensors, options)
