"""From a strategy, a gradient list and a layout to one plan, with its contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from simreduce.computing.arrays import blocks
from simreduce.errors import (
    InputError,
    InternalError,
    NotFoldable,
    OptionNotTaken,
    PlanTooLarge,
    StrategyError,
    UnevenParts,
)
from simreduce.plan import (
    Contract,
    Plan,
    PlanBuilder,
    SeparateBuilder,
    Value,
    Values,
    ValueTable,
    verify,
    wrong_elements,
)
from simreduce.plan.ops import most_ops, too_large
from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES, Options, Results, Tensors
from simreduce.planners.layouts import Decide, Decision, Layout
from simreduce.planners.packing import ConcatAndSplit, DdpBuckets, ScopedAllocator, SmallTensors
from simreduce.planners.packing.arrangement import (
    GradientSpan,
    NoPacking,
    Packer,
    pack_all,
    place,
    unpack_all,
)
from simreduce.planners.strategy import (
    AUTOMATIC,
    INTENDED,
    Range,
    Strategy,
    assign,
    check_library,
    parse_strategy,
    resolve,
)
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
    b = PlanBuilder(layout.devices, layout.machines)
    fields: dict[int, GradientSpan] = {}
    made: list[ValueTable] = []
    taken = assign(list(strategy.ranges), [g.elements for g in workload.gradients])
    base, divisor = 0, layout.n if strategy.mean else 1
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
        base = max(f.end for f in placed)
    if made:
        _declare(b, ValueTable.concatenate(made)[np.argsort(list(fields))], divisor)
    intervals = [fields[i][:3] for i in sorted(fields)]
    return b.finish(Contract.all_reduce(range(len(layout.ranks)), intervals, divisor))


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
    unpacked = unpack_all(b, arrangement, ValueTable.of(reduced).columns(0, ranks), groups)
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
    for made in map(Values.of, results):
        b.outputs(b.scales(made, layout.n) if strategy.mean else made)
    divisor = layout.n if strategy.mean else 1
    return b.finish(_contract(collective, layout, intervals, root, divisor))


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
    more: Mapping[str, tuple[int, ...]] = {
        "reduce": (root, divisor), "reduce_scatter": (divisor,), "broadcast": (root,),
    }  # fmt: skip
    make: Callable[..., Contract] = getattr(Contract, collective)
    return make(range(len(layout.ranks)), intervals, *more.get(collective, ()))


PROVED_ON = (4, 3, 2)
"""Numbers of machines to prove a folded plan's strategy on; the first that it accepts counts."""


def proved_on_few(strategy: Strategy, workload: Workload, shape: Layout) -> tuple[int, int]:
    """The number of unfolded machines that `strategy` was proved on, and the wrong elements there.

    Every rank has as large a part of the workload there as on the folded machines of `shape`.
    """
    refused: StrategyError | None = None
    for machines in PROVED_ON:
        if machines > shape.machines:
            continue
        parts = [
            replace(g, elements=g.elements // shape.machines * machines) for g in workload.gradients
        ]
        few = replace(workload, gradients=tuple(parts))
        small = replace(shape.few(machines), decide=_of_all(shape, machines, shape.machines))
        try:
            plan = compile_collective(strategy.collective, strategy, few, small)
        except StrategyError as error:
            refused = error
            continue
        return machines, wrong_elements(verify(plan))
    assert refused is not None  # noqa: S101 - two machines at least are folded
    raise refused


def _of_all(shape: Layout, few: int = 1, machines: int = 1) -> Decide | None:
    """Return a choice for a few ranks that repeats NCCL's choice among all ranks of `shape`, for
    tensors of as many times the bytes as there are `machines` for each of `few`.
    """
    decide = shape.decide
    if decide is None:
        return None

    def of_all(_: tuple[str, ...], collective: str, nbytes: int, wanted: Decision) -> Decision:
        return decide(shape.ranks, collective, nbytes // few * machines, wanted)

    return of_all


_SURE = 2
"""A plan is refused unbuilt if its expected ops, divided by this, are still too many."""

_SMALL = 1 << 24
"""Plans that seem to have fewer ops are built at once."""

LONG = 1 << 22
"""Ops of a plan that takes several seconds to build, prove and simulate."""

_TRIED = 30_000
"""Ops of a plan that is large enough to go by."""

_GRADIENTS = 256
"""Gradients of the plans that are tried."""

_PACKS = 64
"""Packs of the plans that are tried."""

Compile = Callable[[Strategy, Workload, Layout], Plan]


def check_size(strategy: Strategy, workload: Workload, layout: Layout, build: Compile) -> None:
    """PlanTooLarge if the plan of all ranks, folded or not, would surely take more memory than
    there is. `build` makes other plans.
    """
    if _rough(strategy, workload, layout) < _SMALL:
        return
    ops = _expected(strategy, workload, layout, build)
    if ops > _SURE * most_ops():
        raise too_large(ops, "about")


def _expected(strategy: Strategy, workload: Workload, layout: Layout, build: Compile) -> int:
    """`expected_ops`, of many packs by a few of them."""
    packer, times = strategy.packer, 1.0
    packs = packer.packs if isinstance(packer, ConcatAndSplit) else 1
    if packs > _PACKS and len(workload.gradients) == 1:
        # As large packs, but fewer.
        times = packs / _PACKS
        strategy = replace(strategy, packer=ConcatAndSplit(_PACKS))
        (one,) = workload.gradients
        part = replace(one, elements=max(one.elements * _PACKS // packs, 1))
        workload = replace(workload, gradients=(part,))
    return int(times * expected_ops(strategy, workload, layout, build))


def many_ops(strategy: Strategy, workload: Workload, layout: Layout, build: Compile) -> int:
    """About how many ops the plan of all ranks has; 0 if they are at most `LONG`."""
    if _rough(strategy, workload, layout) * 16 < LONG:
        return 0
    ops = _expected(strategy, workload, layout, build)
    return ops if ops > LONG else 0


def _rough(strategy: Strategy, workload: Workload, layout: Layout) -> int:
    """More ops than most plans have."""
    tensors = max(len(workload.gradients), getattr(strategy.packer, "packs", 1))
    chunks = workload.nbytes // strategy.chunk if strategy.chunk else 1
    return layout.n**2 * max(tensors, chunks)


def expected_ops(strategy: Strategy, workload: Workload, layout: Layout, build: Compile) -> int:
    """The ops of a plan of all ranks, by plans of few of them and of few gradients: they grow by a
    power of the ranks, and linearly with further gradients. 0 if there are no small plans.
    """
    gradients = workload.gradients
    some, fewer = (
        replace(workload, gradients=gradients[:count]) for count in (_GRADIENTS, _GRADIENTS // 2)
    )
    count = layout.machines if layout.machines > 1 else len(layout.tasks)
    # One machine by itself is no measure: there is nothing to send to others.
    each, units = layout.n // count, 2 if count > 4 else 1
    if count == 1:
        each, count, units = 1, layout.n, 2
    found: list[int] = []
    while units < count and not (len(found) > 1 and found[-1] > _TRIED):
        few = layout.few(units) if layout.machines > 1 else layout.subset(each * units)
        few = replace(few, decide=_of_all(layout))
        try:
            found.append(len(build(strategy, some, few)))
            more = (
                found[-1] - len(build(strategy, fewer, few)) if len(gradients) > _GRADIENTS else 0
            )
        except PlanTooLarge:
            raise
        except InputError:
            return 0
        units *= 2
    if len(found) < 2 or not found[-2]:
        return 0
    ops = found[-1] + more * max(len(gradients) - _GRADIENTS, 0) / (_GRADIENTS // 2)
    growth = math.log2(found[-1] / found[-2])
    return int(ops * (count / (units // 2)) ** min(max(growth, 0), 3))
