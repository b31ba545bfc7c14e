"""The reductions of a step, each with the gradients that it waits for.

One proved plan moves all gradients of a step, by a strategy or a mode of tf_cnn_benchmarks. This
module splits it into independent reductions: of a gradient, a pack or a bucket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.errors import InternalError
from simreduce.plan import ZEROS, Executor, Kind, Plan, split_independent
from simreduce.planners.layouts import Layout
from simreduce.planners.packing import DdpBuckets, Fusion
from simreduce.planners.strategy import Strategy, compile_plan
from simreduce.training.variable_update import STRATEGIES, Flags, variable_update
from simreduce.workload import Workload

CYCLE = 1e-3
"""`HOROVOD_CYCLE_TIME` in seconds, since 0.21; before it was 5 ms."""

ENDLESS = 1 << 62
"""Bytes of a buffer that takes all."""

FIXED = math.inf
"""A cycle that never ends: which gradients share a buffer is settled before the step, as by XLA."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """A plan that moves some gradients, by index; a read moves the variables of those gradients.

    A reduction starts when all `ranks` have all `gradients`; each rank's part when it has them, if
    ranks do not meet. A read ends on `ranks`, which wait for it. There is no plan of calls whose
    plans are too large to make; their costs are known.
    """

    plan: Plan | None
    gradients: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def moves(self) -> Plan:
        """The plan; InternalError if there is none."""
        return _required(self.plan)

    @property
    def meets(self) -> bool:
        """Whether its devices wait for each other before the first transfer, as with NCCL."""
        return self.plan is None or bool((self.plan.executor != Executor.TF).any())


@dataclass(frozen=True, slots=True)
class Method:
    """How a step reduces its gradients and reads its variables.

    `plan` is the whole, for the proof, if it is not too large. `reductions` ready at once start in
    this order; with `in_order`, none overtakes another. Up to `streams` are in flight, first ready,
    first served; 0 is no limit but the queues of the runtime. `reads` start a step.

    `servers` hold and update the variables; empty if every rank updates its own. With a `fusion`,
    ready gradients are fused into buffers and start every `cycle` seconds, as in Horovod.
    """

    name: str
    plan: Plan | None
    reductions: tuple[Reduction, ...]
    reads: tuple[Reduction, ...] = ()
    streams: int = 0
    in_order: bool = False
    fusion: Fused | None = None
    servers: tuple[str, ...] = ()

    @property
    def whole(self) -> Plan:
        """The plan of the whole; InternalError if there is none."""
        return _required(self.plan)


def _required(plan: Plan | None) -> Plan:
    if plan is None:
        raise InternalError("this call has no plan of its own")
    return plan


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Fusion of ready gradients into buffers, and the reductions of each buffer.

    Of buffers whose costs are known nobody makes plans: each is one reduction without one.
    """

    fusion: Fusion
    strategy: Strategy
    workload: Workload
    layout: Layout
    faithful: bool
    cycle: float = CYCLE
    planned: bool = True

    def buffers(self, ready: Sequence[int]) -> list[tuple[int, ...]]:
        """The gradients of each buffer, from waiting gradients in the order they became ready."""
        queue = list(reversed(ready))  # a packer expects the first ready gradient last
        groups = self.fusion.arrange([self.workload.gradients[i] for i in queue]).groups
        return [tuple(queue[i] for i in group) for group in groups]

    def reductions(self, buffer: tuple[int, ...]) -> list[Reduction]:
        """The reductions of one buffer."""
        if not self.planned:
            return [Reduction(None, tuple(sorted(buffer)), tuple(range(self.layout.n)))]
        order = buffer[::-1]  # likewise
        part = Workload(self.workload.name, tuple(self.workload.gradients[i] for i in order))
        plan = compile_plan(self.strategy, part, self.layout, faithful=self.faithful)
        found, _ = _parts(plan, part)
        return [replace(r, gradients=tuple(sorted(order[i] for i in r.gradients))) for r in found]


def method_for_strategy(
    strategy: Strategy,
    workload: Workload,
    layout: Layout,
    *,
    faithful: bool = False,
    streams: int | None = None,
    cycle: float = CYCLE,
) -> Method:
    """Return an all-reduce of all gradients by `strategy`.

    Without `streams`, DDP and Horovod reduce one bucket at a time, as NCCL does on one
    communicator. With a `FIXED` cycle, the buffers are the packer's.
    """
    plan = compile_plan(strategy, workload, layout, faithful=faithful)
    found, _ = _parts(plan, workload)
    packer = strategy.packer
    copies = plan.kind == Kind.COPY
    only_nccl = copies.any() and (plan.executor[copies] != Executor.TF).all()
    alone = isinstance(packer, DdpBuckets | Fusion) or bool(only_nccl)
    return Method(
        strategy.text,
        plan,
        tuple(
            found
            if isinstance(packer, DdpBuckets)
            else sorted(found, key=lambda r: -r.gradients[0])
        ),
        streams=int(alone) if streams is None else streams,
        in_order=isinstance(packer, DdpBuckets),
        fusion=Fused(packer, strategy, workload, layout, faithful, cycle)
        if isinstance(packer, Fusion) and cycle != FIXED
        else None,
    )


def method_for_mode(
    mode: str,
    workload: Workload,
    layout: Layout,
    flags: Flags,
    *,
    streams: int | None = None,
    cycle: float = CYCLE,
) -> Method:
    """The method of tf_cnn_benchmarks' `--variable_update=mode`; `horovod` fuses by default.

    Variables on servers are read at the start of the next step (`parameter_server`) or, after a
    barrier for each, at the end of this one (`distributed_replicated`).
    """
    if mode == "horovod" and not flags.packing:
        flags = replace(flags, packing="fusion")
    if mode in STRATEGIES:
        strategy = STRATEGIES[mode](layout, flags)
        found = method_for_strategy(
            strategy, workload, layout, faithful=flags.faithful, streams=streams, cycle=cycle
        )
        return replace(found, name=f"{mode}, {strategy.text}")
    plan = variable_update(mode, workload, layout, flags)
    reductions, reads = _parts(plan, workload, loose=mode == "parameter_server")
    latest = sorted(reductions, key=lambda r: -r.gradients[0])
    return Method(
        mode, plan, tuple(latest), tuple(reads), streams=streams or 0, servers=_servers(plan)
    )


def _servers(plan: Plan) -> tuple[str, ...]:
    """The devices with new values of variables."""
    updated = (plan.kind == Kind.INPUT) & (plan.arg == len(plan.devices))
    return tuple(plan.devices[device] for device in np.unique(plan.device[updated]).tolist())


def _parts(
    plan: Plan, workload: Workload, *, loose: bool = True
) -> tuple[list[Reduction], list[Reduction]]:
    """The reductions of a plan, in the order of their first ops, and its reads."""
    variable = len(plan.devices)  # the contributor that represents a variable's new value
    places = _Places.of(plan, workload)
    reductions, reads = list[Reduction](), list[Reduction]()
    for part in split_independent(plan, loose=loose):
        inputs = np.flatnonzero((part.kind == Kind.INPUT) & (part.arg != ZEROS))
        given = inputs[part.arg[inputs] != variable]
        starts, ends = (
            (given, given) if len(given) else (inputs, np.flatnonzero(part.kind == Kind.OUTPUT))
        )
        spans = set(zip(part.lo[starts].tolist(), part.hi[starts].tolist(), strict=True))
        owners = tuple(sorted({i for lo, hi in spans for i in places.between(lo, hi)}))
        ranks = tuple(np.unique(part.device[ends]).tolist())
        if owners:
            (reductions if len(given) else reads).append(Reduction(part, owners, ranks))
    return reductions, reads


class _Places(NamedTuple):
    """Gradients by address: order[k] has [lo[k], hi[k]), ascending, in every `period`."""

    order: Ints
    lo: Ints
    hi: Ints
    period: int

    @staticmethod
    def of(plan: Plan, workload: Workload) -> _Places:
        """From the contract of an all-reduce, which has gradients by rank in the order of the list.

        Other modes lay out the list end to end, again and again.
        """
        period = int(plan.hi.max(initial=0)) + 1
        size = np.array([g.elements for g in workload.gradients], dtype=np.int64)
        if plan.contract.collective == "all_reduce":
            lo = plan.contract.lo[: len(size)].astype(np.int64)
        else:
            lo = np.cumsum(size) - size
            period = max(workload.elements, 1)
        order = np.lexsort((size, lo)).astype(np.int64)
        return _Places(order, lo[order], (lo + size)[order], period)

    def between(self, lo: int, hi: int) -> list[int]:
        """The gradients with an address in [lo, hi).

        For an empty interval, they are the empty gradients there.
        """
        base = lo - lo % self.period
        lo, hi = lo - base, hi - base
        inside = slice(np.searchsorted(self.hi, lo, "right"), np.searchsorted(self.lo, hi, "left"))
        here = (self.lo == lo) & (self.hi == lo) if lo == hi else inside
        return [int(i) for i in self.order[here]]
