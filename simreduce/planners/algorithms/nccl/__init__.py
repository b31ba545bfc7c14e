"""NCCL's collectives, as channel programs.

A collective starts when all participants have arrived, and the one before it is done. NCCL chooses
an algorithm, a protocol and a number of channels for every tensor; a strategy may say them
(`nccl:tree+ll128+channels=16`). `#k` is accepted and ignored, as upstream does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simreduce import dtypes
from simreduce.errors import NotFoldable
from simreduce.plan import Executor, PlanBuilder, Value, Values
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
