"""From a strategy, a gradient list and a layout to one plan, with its contract."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.algorithms import ALGORITHMS
from simreduce.errors import StrategyError
from simreduce.layouts import Layout
from simreduce.plan import Contract, Plan, PlanBuilder, Value
from simreduce.strategy.spec import Range, assign
from simreduce.strategy.text import Strategy, parse_strategy
from simreduce.workload import Gradient, Workload


def compile_plan(strategy: str | Strategy, workload: Workload, layout: Layout) -> Plan:
    """The plan of `strategy` for `workload` on `layout`: an all-reduce of every gradient over all ranks.

    Each range of sizes is packed, reduced and unpacked on its own. Raises StrategyError for what the strategy or
    its algorithms do not accept.
    """
    if isinstance(strategy, str):
        strategy = parse_strategy(strategy)
    ranks = range(len(layout.ranks))
    b = PlanBuilder(layout.devices)
    intervals: list[tuple[int, int, int]] = []
    taken = assign(list(strategy.ranges), [g.elements for g in workload.gradients])
    for part, indices in zip(strategy.ranges, taken, strict=True):
        if not indices:
            continue
        base = intervals[-1][1] if intervals else 0
        chosen = _laid_out([workload.gradients[i] for i in indices], base)
        intervals += chosen
        gradients = [[b.input(r, lo, hi, dtype) for lo, hi, dtype in chosen] for r in ranks]
        _reduce(b, layout, strategy, part, gradients)
    divisor = len(layout.ranks) if strategy.mean else 1
    return b.finish(Contract.all_reduce(ranks, intervals, divisor))


def _laid_out(gradients: Sequence[Gradient], base: int) -> list[tuple[int, int, int]]:
    """(lo, hi, dtype) of gradients laid end to end from address `base`."""
    intervals = []
    for gradient in gradients:
        intervals.append((base, base + gradient.elements, gradient.dtype))
        base += gradient.elements
    return intervals


def _reduce(
    b: PlanBuilder, layout: Layout, strategy: Strategy, part: Range, gradients: list[list[Value]]
) -> None:
    """Pack, reduce, unpack, declare the results of one range; `gradients[rank][i]`."""
    packed = [strategy.packer.pack(b, own) for own in gradients]
    tensors = list(zip(*packed, strict=True))
    try:
        results = ALGORITHMS[part.algorithm].plan(b, layout, tensors, part.shards)
    except StrategyError as error:
        raise StrategyError([f"{strategy.text}: {p}" for p in error.problems]) from None
    for rank, own in enumerate(gradients):
        pieces = [piece for result in results for piece in result[rank]]
        for value in strategy.packer.unpack(b, pieces, own):
            b.output(b.scale(value, len(layout.ranks)) if strategy.mean else value)
