"""From a strategy, a gradient list and a layout to one plan, with its contract."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.computing.arrays import blocks
from simreduce.errors import InternalError, OptionNotTaken, StrategyError
from simreduce.plan import Contract, Plan, PlanBuilder, SeparateBuilder, Value, ValueTable
from simreduce.planners.algorithms import ALGORITHMS, Options, Results, Tensors
from simreduce.planners.layouts import Layout
from simreduce.planners.packing import (
    DdpBuckets,
    GradientSpan,
    NoPacking,
    Packer,
    ScopedAllocator,
    SmallTensors,
    place,
)
from simreduce.planners.packing.on_ranks import pack_all, unpack_all
from simreduce.planners.strategy.automatic import AUTOMATIC, INTENDED
from simreduce.planners.strategy.spec import Range, assign
from simreduce.planners.strategy.text import Strategy, parse_strategy, resolve
from simreduce.workload import Gradient, Workload


def compile_plan(
    strategy: str | Strategy, workload: Workload, layout: Layout, *, faithful: bool = False
) -> Plan:
    """The plan of `strategy` for `workload` on `layout`.

    It is an all-reduce of every gradient over all ranks. Each range of sizes is packed, reduced and
    unpacked on its own; on every device the results (OUTPUTs) come in the order of the gradient
    list. `faithful` reproduces upstream's quirks instead of what a user intends, wrong sums
    included (`verify` shows them). Raises StrategyError for what the strategy or its algorithms do
    not accept.
    """
    if isinstance(strategy, str):
        strategy = parse_strategy(strategy)
    if strategy.collective != "all_reduce":
        raise InternalError(
            f"{strategy}: a strategy for {strategy.collective} is compiled by compile_collective"
        )
    if strategy.chunk and not strategy.pipelined:
        raise OptionNotTaken(f"{strategy.text}: {strategy.spec} sends no chunks; leave out +chunk")
    if strategy.spec in AUTOMATIC:
        strategy = resolve(strategy, layout)
        faithful = faithful and strategy.spec.partition("#")[0] not in INTENDED
    ranks = range(len(layout.ranks))
    b = PlanBuilder(layout.devices, layout.machines)
    fields: dict[int, GradientSpan] = {}
    made: list[ValueTable] = []
    places: list[int] = []
    taken = assign(list(strategy.ranges), [g.elements for g in workload.gradients])
    base = 0
    for part, indices in zip(strategy.ranges, taken, strict=True):
        if not indices:
            continue
        chosen = [workload.gradients[i] for i in indices]
        try:
            order, placed, reduced = _reduce(
                b, layout, strategy, part, chosen, base, faithful=faithful
            )
        except StrategyError as error:
            raise type(error)([f"{strategy.text}: {p}" for p in error.problems]) from None
        fields.update({indices[i]: f for i, f in zip(order, placed, strict=True)})
        made.append(reduced)
        places += [indices[i] for i in order]
        base = max(f.end for f in placed)
    if made:
        _declare(
            b, ValueTable.concatenate(made)[np.argsort(places)], layout.n if strategy.mean else 1
        )
    intervals = [fields[i][:3] for i in sorted(fields)]
    return b.finish(Contract.all_reduce(ranks, intervals, layout.n if strategy.mean else 1))


def _reduce(
    b: PlanBuilder,
    layout: Layout,
    strategy: Strategy,
    part: Range,
    gradients: Sequence[Gradient],
    base: int,
    *,
    faithful: bool,
) -> tuple[list[int], list[GradientSpan], ValueTable]:
    """Pack, reduce and unpack one range. Per gradient in address order: its index, its field, and
    by rank the values that hold its result.
    """
    ranks = len(layout.ranks)
    packer = _packer(strategy.packer, part.algorithm, faithful=faithful)
    arrangement = packer.arrange(gradients, faithful=faithful)
    groups = place(arrangement, gradients, base)
    tensors = pack_all(b, ranks, arrangement, groups)
    # Ranges whose algorithm sends no chunks have no use for the size of one.
    chunk = strategy.chunk if ALGORITHMS[part.algorithm].pipelined else 0
    options = Options(part.shards, faithful, chunk, nccl=strategy.nccl)
    serial = isinstance(packer, DdpBuckets)
    reduced = _reduce_tensors(b, layout, part.algorithm, tensors, options, serial=serial)
    results = ValueTable.of(reduced).columns(0, ranks)
    unpacked = unpack_all(b, arrangement, results, groups)
    order = [i for group in arrangement.groups for i in group]
    return order, [f for group in groups for f in group], unpacked


def _declare(b: PlanBuilder, results: ValueTable, divisor: int) -> None:
    """Declare values results, row by row, each divided by `divisor`."""
    for values in results.by_dtype():
        if divisor == 1:
            b.outputs(values)
            continue
        for some in blocks(len(values)):
            # One after another, each with what divides it.
            group = np.arange(values[some].lo.size).reshape(values[some].shape)
            separate = SeparateBuilder(b, group.size)
            separate.outputs(separate.scales(separate.lift(values[some], group), divisor))
            separate.settle()


def _reduce_tensors(
    b: PlanBuilder,
    layout: Layout,
    algorithm: str,
    tensors: Tensors,
    options: Options,
    *,
    serial: bool,
) -> Results:
    """The sums of all tensors. `serial`: on every rank each waits for the one before, as on one
    stream.
    """
    reduce = ALGORITHMS[algorithm].reduce
    if not serial or algorithm.partition(":")[0] == "nccl":  # whose tensors wait anyway
        return reduce(b, layout, tensors, options)
    results: list[Sequence[Value]] = []
    for tensor in tensors:
        held = list(tensor)
        if results:
            before = {value.device: value.op for value in results[-1]}
            held = [b.hold(value, [before[value.device]]) for value in held]
        results += reduce(b, layout, [held], options)
    return results


def has_quirks(strategy: Strategy) -> bool:
    """Whether upstream may make another plan of it (`faithful`)."""
    return (
        strategy.spec in AUTOMATIC
        or isinstance(strategy.packer, (SmallTensors, ScopedAllocator))
        or any(part.shards < 1 or ALGORITHMS[part.algorithm].quirks for part in strategy.ranges)
    )


def _packer(packer: Packer, algorithm: str, *, faithful: bool) -> Packer:
    """The packer as `algorithm` gets it: merging acts on collectives only, upstream ignores it
    elsewhere.
    """
    if not isinstance(packer, ScopedAllocator) or algorithm == "collective":
        return packer
    if faithful:
        return NoPacking()
    raise OptionNotTaken(
        f"+merge acts on the algorithm collective only: {algorithm} puts every gradient in a name "
        "scope of its own, "
        "so nothing would be merged; use collective, or pack with +packs, +small or +bucket"
    )
