"""Collectives besides all-reduce: from a strategy, tensors and a layout to a plan with the
collective's contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np

from simreduce.errors import NotFoldable, StrategyError, UnevenParts
from simreduce.plan import Contract, Plan, PlanBuilder, Value, Values
from simreduce.planners.algorithms import COLLECTIVES, Options
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy.compile import compile_plan
from simreduce.planners.strategy.text import Strategy, check_library, parse_strategy
from simreduce.workload import Workload

FOLDED = ("all_gather", "reduce_scatter")
"""Collectives besides all-reduces that equal machines may be folded for, by some algorithms."""


def compile_collective(
    collective: str,
    strategy: str | Strategy,
    workload: Workload,
    layout: Layout,
    *,
    root: int = 0,
    faithful: bool = False,
) -> Plan:
    """The plan of one collective over all ranks, for every tensor of the workload.

    A tensor is what nccl-tests counts as its size: the whole before a reduce-scatter, after an
    all-gather, what one rank sends in an all-to-all or to the next rank. `root` is the rank that
    broadcasts or receives a reduction; `faithful` is for all-reduces.
    Raises StrategyError for what the strategy, its algorithm or the layout do not accept.
    """
    if isinstance(strategy, str):
        strategy = parse_strategy(strategy, collective)
    check_library(strategy, layout)
    if collective == "all_reduce":
        return compile_plan(strategy, workload, layout, faithful=faithful)
    if layout.machines > 1 and collective not in FOLDED:
        kinds = " and ".join(name.replace("_", "-") for name in FOLDED)
        raise NotFoldable(
            f"{strategy.text}: all-reduce, {kinds} are folded, and this is {collective}"
        )
    if not 0 <= root < layout.n:
        raise StrategyError(f"root {root}: the ranks are 0 to {layout.n - 1}")
    (part,) = strategy.ranges
    b = PlanBuilder(layout.devices, layout.machines)
    rows = (
        layout.n if collective in ("all_to_all", "send_receive") else 1
    )  # every rank's own tensor has addresses of its own
    edges = [0, *accumulate(g.elements * rows for g in workload.gradients)]
    intervals = [
        (lo, hi, g.dtype) for (lo, hi), g in zip(pairwise(edges), workload.gradients, strict=True)
    ]
    tensors: list[Sequence[Value]] = [
        _inputs(b, collective, layout, *interval, root) for interval in intervals
    ]
    options = Options(part.shards, chunk=strategy.chunk, root=root, nccl=strategy.nccl)
    try:
        results = COLLECTIVES[collective][part.algorithm].reduce(b, layout, tensors, options)
    except StrategyError as error:
        raise type(error)([f"{strategy.text}: {p}" for p in error.problems]) from None
    for result in results:
        made = Values.of(result)
        b.outputs(b.scales(made, layout.n) if strategy.mean else made)
    return b.finish(
        _contract(collective, layout, intervals, root, layout.n if strategy.mean else 1)
    )


def _inputs(
    b: PlanBuilder, collective: str, layout: Layout, lo: int, hi: int, dtype: int, root: int
) -> Values:
    """The inputs of every rank; of equal machines, only the inputs of the first machine's ranks."""
    n, ranks = layout.n, np.arange(len(layout.ranks))
    if layout.machines > 1 and (hi - lo) % n:
        raise UnevenParts(f"{hi - lo} elements are no {n} equal parts; try a size that {n} divides")
    if collective in ("all_gather", "all_to_all", "send_receive"):
        edges = lo + (hi - lo) * np.arange(n + 1) // n
        return b.inputs(ranks, edges[ranks], edges[ranks + 1], dtype)
    if collective == "broadcast":
        there = b.input(root, lo, hi, dtype)
        return Values(np.full(n, there.op), ranks, np.full(n, lo), np.full(n, hi), dtype)
    return b.inputs(ranks, lo, hi, dtype)


def _contract(
    collective: str,
    layout: Layout,
    intervals: Sequence[tuple[int, int, int]],
    root: int,
    divisor: int,
) -> Contract:
    """The contract; of equal machines that are folded, as if there were no others."""
    ranks = range(len(layout.ranks))
    if collective == "reduce":
        return Contract.reduce(ranks, intervals, root, divisor)
    if collective == "reduce_scatter":
        return Contract.reduce_scatter(ranks, intervals, divisor)
    if collective == "broadcast":
        return Contract.broadcast(ranks, intervals, root)
    make: Callable[..., Contract] = getattr(Contract, collective)
    return make(ranks, intervals)
