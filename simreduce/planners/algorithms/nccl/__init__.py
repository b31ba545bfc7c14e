"""NCCL's collectives, as channel programs.

A collective starts when all participants have arrived, and the one before it is done. NCCL chooses
an algorithm, a protocol and a number of channels for every tensor; a strategy may say them
(`nccl:tree+ll128+channels=16`). `#k` is accepted and ignored, as upstream does.

NCCL inside every task, another algorithm across the tasks: nccl/xring, nccl/rechd, nccl/pscpu.

Every task all-reduces over its GPUs; its first GPU takes part in the upper level and broadcasts
what comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simreduce import dtypes
from simreduce.errors import NotFoldable, StrategyError
from simreduce.plan import Executor, PlanBuilder, Value, Values, ValueTable
from simreduce.planners.algorithms import kernels
from simreduce.planners.algorithms.nccl import (
    point_to_point,
    point_to_point as all_pairs,
    ring,
    ring as chain,
    switches,
    tree,
    tree as pat,
)
from simreduce.planners.algorithms.nccl.paths import (
    BY_ENGINE,
    SYMMETRIC,
    check_alike,
    decided,
    fill,
    launch,
    machine_of,
    nbytes,
    rings,
    ways,
)
from simreduce.planners.algorithms.planner import Options, Planner, Results, Tensors, plan_chain
from simreduce.planners.algorithms.tensorflow import (
    gather_groups,
    needs_task_names,
    ring_all_reduce,
    shuffle,
)
from simreduce.planners.layouts import OPEN, Decision, Layout

_EXECUTORS = {"simple": Executor.NCCL, "ll": Executor.NCCL_LL, "ll128": Executor.NCCL_LL128}
_BY_PAT = {"all_gather": pat.all_gather, "reduce_scatter": pat.reduce_scatter}
_BY_RINGS: dict[str, Callable[..., Values]] = {
    "all_reduce": ring.all_reduce,
    "all_gather": ring.all_gather,
    "reduce_scatter": ring.reduce_scatter,
    "broadcast": chain.broadcast,
    "reduce": chain.reduce,
    "all_to_all": point_to_point.all_to_all,
    "send_receive": point_to_point.send_receive,
}


def planner(collective: str, algorithm: str = "") -> Planner:
    """The planner of a collective by one of NCCL's algorithms, or by the one that NCCL chooses."""

    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        wanted = options.nccl._replace(algorithm=algorithm)
        root = [options.root] if collective in ("broadcast", "reduce") else []

        def plan_next(tensor: Sequence[Value], before: Sequence[Value]) -> Sequence[Value]:
            return fill(run(b, layout, collective, tensor, before, wanted, *root), tensor, wanted)

        return plan_chain(b, tensors, plan_next)

    return plan


def run(
    b: PlanBuilder,
    layout: Layout,
    collective: str,
    values: Sequence[Value],
    before: Sequence[Value] = (),
    wanted: Decision = OPEN,
    *root: int,
) -> Values:
    """One collective of the ranks that have `values`, in ascending order, after the values
    `before`; `root` is a place among them.
    """
    given = Values.of(values)
    if len(given) * layout.machines == 1:
        return given
    ranks, machine = given.device.tolist(), machine_of(layout, given)
    place = {rank: i for i, rank in enumerate(ranks)}
    shares = len(given) * layout.machines if collective == "all_gather" else 1
    total = nbytes(given) * shares
    how = decided(layout, ranks, collective, total, wanted, given.dtype)
    if machine.max() == machine.min() and (layout.machines == 1 or layout.one_task):
        how = how._replace(slices=how.rules.slices_alone)
    if how.algorithm in (SYMMETRIC, BY_ENGINE):
        return kernels.schedule(collective, how).run(b, layout, given, before)
    channel = point_to_point.launched(how, collective, len(given) * layout.machines)
    with launch(b, _EXECUTORS[how.protocol], [*given, *before], channel) as op:
        after = (op,)
        if how.algorithm == "allpairs":
            return all_pairs.all_reduce(b, given, how, after)
        if how.algorithm in ("nvls", "nvlstree"):
            return switches.nvls_all_reduce(b, given, switches.boxes(layout, ranks), how, after)
        if how.algorithm == "collnet":
            return switches.collnet_all_reduce(b, layout, given, how, after)
        if how.algorithm == "tree":
            if layout.machines > 1:
                raise NotFoldable("machines have different places in NCCL's tree")
            paths = [
                [[place[rank] for rank in part] for part in way] for way in ways(layout, ranks)
            ]
            return tree.all_reduce(b, given, paths, how, after, machine)
        if how.algorithm == "pat":
            pat.check(layout, ranks)
            return _BY_PAT[collective](b, given, [], how, after, machine)
        share = total // dtypes.SIZES[given.dtype] // (len(given) * layout.machines)
        check_alike(layout, ranks, share, how.channels)
        orders = [[place[rank] for rank in order] for order in rings(layout, ranks)]
        return _BY_RINGS[collective](b, given, orders, how, after, machine, *root)


def halving_doubling(b: PlanBuilder, values: Sequence[Value]) -> list[Value]:
    """The sum of `values` on the device of each. Their number must be a power of two that divides
    the elements.

    tf_cnn_benchmarks' `build_recursive_hd_all_reduce`: halving with the nearest partner first, then
    doubling. Upstream leaves the halving splits without a device; they are placed on the owner of
    what they split, as intended.
    """
    n, size = len(values), values[0].hi - values[0].lo
    if n & (n - 1):
        raise StrategyError(f"needs a power of two of tasks, not {n}")
    if size % n:
        raise StrategyError(
            f"every tensor must be divisible by the {n} tasks; one has {size} elements"
        )
    held = list(values)
    spans = [1 << hop for hop in range(n.bit_length() - 1)]
    for span in spans:
        for left in (d for d in range(n) if d % (2 * span) < span):
            right = left + span
            half = (held[left].hi - held[left].lo) // 2
            (left_first, left_second), (right_first, right_second) = (
                b.split(held[d], [half, half]) for d in (left, right)
            )
            held[left] = b.add([left_first, b.copy(right_first, left_first.device)])
            held[right] = b.add([b.copy(left_second, right_second.device), right_second])
    for span in reversed(spans):
        for left in (d for d in range(n) if d % (2 * span) < span):
            pair = held[left], held[left + span]
            for d in (left, left + span):
                held[d] = b.concat([b.copy(half_value, values[d].device) for half_value in pair])
    return held


Upper = Callable[[PlanBuilder, Sequence[Value]], list[Value]]


def nccl_xring(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """A ring over the tasks' first GPUs; one task needs none."""
    if len(layout.tasks) > 1 and options.shards != 1:
        raise StrategyError("the ring across has one GPU per task, so it takes 1 sub-chunk only")

    def upper(b: PlanBuilder, firsts: Sequence[Value]) -> list[Value]:
        if len(firsts) == 1:
            return list(firsts)
        return list(ring_all_reduce(b, Values.of(firsts)[None, :], [range(len(firsts))])[0, :])

    return _hybrid(b, layout, tensors, options, upper)


def nccl_rechd(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Recursive halving-doubling over the tasks' first GPUs. `#k` is ignored."""
    return _hybrid(b, layout, tensors, options, halving_doubling)


def nccl_pscpu(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """A shuffle over the CPUs of all tasks, even of one. `#k` is only checked."""
    hosts = layout.host_devices("nccl/pscpu")
    gather_groups(hosts, options.shards)
    return _hybrid(b, layout, tensors, options, lambda b, firsts: shuffle(b, firsts, hosts))


def _hybrid(
    b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options, upper: Upper
) -> Results:
    needs_task_names(layout, options)

    def plan_next(tensor: Sequence[Value], before: Sequence[Value]) -> Values:
        return _one(b, layout, Values.of(tensor), before[layout.n :], upper)

    return ValueTable.of(plan_chain(b, tensors, plan_next)).columns(0, layout.n)


def _one(
    b: PlanBuilder, layout: Layout, tensor: Values, before: Sequence[Value], upper: Upper
) -> Values:
    """By rank, the values that hold the result; then the results of the tasks' all-reduces.

    These all-reduces come after the all-reduces of the tensor before.
    """
    firsts: list[Value] = []
    sums: list[Values] = []
    for task in layout.tasks:
        begin = sum(map(len, sums))
        sums.append(
            run(b, layout, "all_reduce", tensor[np.array(task)], before[begin : begin + len(task)])
        )
        first, *others = sums[-1]
        firsts.append(b.hold(first, [value.op for value in others]))
    results: list[Value] = []
    for total, task in zip(upper(b, firsts), layout.tasks, strict=True):
        place = task.index(total.device)
        there = Values.of([total] * len(task)).on(np.array(task))
        results += run(b, layout, "broadcast", there, (), OPEN, place)
    return Values.concatenate([Values.of(results), *sums])
