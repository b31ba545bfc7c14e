"""From a plan on a machine to the arrays that the kernel runs.

Lowering: from a plan on a topology to the arrays that the kernel runs.

It depends on a runtime and a calibration. An op waits for its operands, its controls and the op
before it on its stream, each counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, blocks, row_starts
from simreduce.computing.loops import sweep, worth_compiling
from simreduce.engine.disturbance import CALM, Disturbance
from simreduce.engine.kernel.tables import NONE
from simreduce.engine.lowering.calls import (
    Calls,
    Signatures,
    group_ops,
    scatter_costs,
    steps_of_kernels,
)
from simreduce.engine.lowering.demands import find_uses, number_lanes
from simreduce.engine.lowering.gpu_kernels import (
    Sends,
    add_costs,
    add_kernel_costs,
    limit_by_windows,
    spare_first_messages,
    with_first_passes,
)
from simreduce.engine.lowering.issuing import find_messages, find_parts, issue_seconds
from simreduce.engine.lowering.resources import (
    CoreWork,
    Resources,
    Site,
    add_core_flows,
    core_speed,
    find_core_work,
    find_site,
)
from simreduce.engine.runtime import Calibration, NcclConstants, Runtime
from simreduce.errors import PlanError
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import NO_IDS, NO_STREAM
from simreduce.topology import Folded, Topology


def find_successors(plan: Plan, stream: AnyInts) -> tuple[AnyInts, AnyInts, AnyInts]:
    """How many ops each one waits for, and the CSR rows of the ops that wait for it. `stream` has
    the stream of each op that is in order, else `NO_STREAM`.
    """
    n, streams = len(plan), int(stream.max(initial=NO_STREAM)) + 1
    reads = (
        plan.operand_start,
        plan.operands,
        plan.control_start if len(plan.controls) else NO_IDS,
        plan.controls,
        stream if streams else NO_IDS,
    )
    _check_order(plan)
    last, seen = np.empty(streams, dtype=np.int32), np.zeros(n, dtype=np.int32)
    waits, start = np.zeros(n, dtype=np.int32), np.zeros(n + 1, dtype=np.int32)
    # Memory that is never touched costs nothing.
    found = np.empty(len(plan.operands) + len(plan.controls) + n * (streams > 0), dtype=np.int32)
    total = sweep(
        fill_successors,
        [np.ascontiguousarray(column, dtype=np.int32) for column in reads],
        [last, seen, waits, start, found],
        compiled=worth_compiling(fill_successors, n),
    )
    found.resize(total, refcheck=False)
    narrow = np.min_scalar_type(-1 - int(waits.max(initial=0)))  # signed
    return waits.astype(narrow), start, found


def fill_successors(
    operand_start: Any, operands: Any, control_start: Any, controls: Any, stream: Any,
    last: Any, seen: Any, waits: Any, start: Any, successors: Any,
) -> int:  # fmt: skip
    """Fill `waits` with how many ops each one waits for, and the rows of `successors` that begin at
    `start` with the ops that wait for it, ascending. Returns the number of all successors.

    numba may compile it, so it uses only what numba understands.

    `start` has a place more than there are ops. `last`, an entry per stream, is room for its latest
    op, and `seen`, zeros, an entry per op, for a mark of the latest op of many predecessors that
    was found to wait for it; `control_start` and `stream` are empty if no op has any.
    """
    ops = len(seen)
    for filling in (False, True):
        for op in range(len(last)):
            last[op] = NONE
        for op in range(ops):
            reads = operand_start[op + 1] - operand_start[op]
            obeys = control_start[op + 1] - control_start[op] if len(control_start) > 0 else 0
            on = stream[op] if len(stream) > 0 else NONE
            before = reads + obeys + (on != NONE)
            mark = op + 1 + ops * filling
            first = NONE
            for i in range(before):
                if i < reads:
                    used = operands[operand_start[op] + i]
                elif i < reads + obeys:
                    used = controls[control_start[op] + i - reads]
                else:
                    used = last[on]
                if used in (NONE, first):
                    continue
                if before > 2:  # of two, the first is remembered, which takes no memory
                    if seen[used] == mark:
                        continue
                    seen[used] = mark
                first = used
                if filling:
                    successors[start[used]] = op
                    waits[op] += 1
                start[used] += 1
            if on != NONE:
                last[on] = op
        # Counts become where rows begin; filling moves that to where they end, which is where the
        # next begin.
        total = 0
        for op in range(len(start)):
            count = start[op]
            start[op] = total
            total = count if filling else total + count
    return total


def _check_order(plan: Plan) -> None:
    """Raises PlanError if an op reads one that does not come before it, or waits for one that does
    not exist: compiled code would use such numbers as addresses.

    Controls may be against the order, and then end in a Deadlock.
    """
    for start, waited in ((plan.operand_start, plan.operands), (plan.control_start, plan.controls)):
        if (
            len(start) != len(plan) + 1
            or start[0] != 0
            or start[-1] != len(waited)
            or (np.diff(start) < 0).any()
        ):
            raise PlanError("the rows of what ops read or wait for do not fit the plan")
        if len(waited) and (waited.min() < 0 or waited.max() >= len(plan)):
            raise PlanError("an op reads or waits for one that is not there")
    if _too_late(plan.operand_start, plan.operands):
        raise PlanError("an op reads one that does not come before it")
    if plan.stream.min(initial=NO_STREAM) < NO_STREAM:
        raise PlanError("a stream has a number below -1")


def _too_late(start: AnyInts, read: AnyInts) -> bool:
    for some in blocks(len(start) - 1):
        edges = start[some.start : some.stop + 1]
        readers = np.repeat(np.arange(some.start, some.stop, dtype=np.int32), np.diff(edges))
        if (read[edges[0] : edges[-1]] >= readers).any():
            return True
    return False


@dataclass(frozen=True, slots=True)
class Lowered:
    """One plan, ready to run: `call[op]` is its place in `calls`.

    An op waits for its operands, its controls and the op before it on its stream, each counted
    once. AnyInts of ops are 32 bits wide where they fit.
    """

    call: AnyInts
    calls: Calls
    amount: Floats
    waits: AnyInts  # how many ops each one waits for
    successor_start: AnyInts
    successors: AnyInts  # ascending in every row
    lane_names: tuple[str, ...]
    stream: AnyInts  # that orders each op, or NO_STREAM

    def part(self, plan: Plan, first: int) -> Lowered:
        """Return the lowering of `plan`, which has this plan's ops from `first` on.

        It has the working set of this plan. Not for plans with jitter, which depends on the ids of
        ops.
        """
        mine = slice(first, first + len(plan))
        which, call = np.unique(self.call[mine], return_inverse=True)
        dependencies = self._dependencies(plan, first)
        return Lowered(
            call.astype(self.call.dtype),
            self.calls.select(which),
            self.amount[mine],
            *dependencies,
            self.lane_names,
            self.stream[mine],
        )

    def _dependencies(self, plan: Plan, first: int) -> tuple[AnyInts, AnyInts, AnyInts]:
        """The waits and successors of a part.

        A stream may run through several parts, so a part that has streams is searched anew.
        """
        if (stream := self.stream[first : first + len(plan)]).max(initial=NO_STREAM) > NO_STREAM:
            return find_successors(plan, stream)
        start = self.successor_start[first : first + len(plan) + 1]
        successors = self.successors[start[0] : start[-1]] - np.int32(first)
        return self.waits[first : first + len(plan)], start - start[0], successors

    @property
    def by_op(self) -> Calls:
        """The costs, lanes and uses of each op."""
        return self.calls.select(self.call)


def hold_lanes(
    lanes: Sequence[Ints], seconds: Sequence[float], lane_names: tuple[str, ...]
) -> Lowered:
    """Ops that move no bytes: each holds its `lanes` for so many seconds."""
    n, none = len(seconds), np.zeros(0, dtype=np.int64)
    count, nothing = np.array([len(each) for each in lanes]), np.zeros(n, dtype=np.int64)
    calls = Calls(
        overhead=np.array(seconds, dtype=np.float64),
        work=np.zeros(n),
        latency=np.zeros(n),
        holds=np.ones(n, dtype=np.bool_),
        cap=np.full(n, np.inf),
        paced=np.zeros(n, dtype=np.bool_),
        lane_start=row_starts(count),
        early=count,
        lanes=np.concatenate(lanes),
        use_start=row_starts(nothing),
        uses=none,
        weight=np.zeros(0),
    )
    return Lowered(
        np.arange(n), calls, np.zeros(n), nothing, row_starts(nothing), none, lane_names, none
    )


def lower(
    plan: Plan,
    topology: Topology | Folded,
    runtime: Runtime,
    calibration: Calibration,
    resources: Resources,
    lanes: dict[str, int] | None = None,
    disturbance: Disturbance = CALM,
    working_set: Mapping[str, float] | None = None,
) -> Lowered:
    """Costs, lanes and resources of every op.

    Raises InputError if the topology lacks a device of the plan, or if only one of the two is
    folded.

    `lanes` numbers the lanes by name; give the same dict again to number several plans alike.
    `working_set` is measured on the step that the plan is a part of (see `measure_working_set`);
    None if the plan is the whole step.
    """
    numbers = {} if lanes is None else lanes
    found, cores = lower_unpriced(
        plan, topology, runtime, calibration, resources, numbers, disturbance, working_set
    )
    lowered = found.priced(calibration.nccl)
    call, calls, amount = lowered.call, lowered.calls, lowered.amount
    if processor := calibration.cpu:
        speed = core_speed(processor, resources.capacity)
        moving = resources.moving.values()
        call, calls, amount = add_core_flows(call, amount, calls, cores, moving, speed, disturbance)
    if disturbance.jitter:
        call, calls = scatter_costs(call, calls, disturbance)
    return replace(lowered, call=call, calls=calls, amount=amount)


@dataclass(frozen=True, slots=True)
class Unpriced:
    """A plan without what NCCL's constants add to it."""

    lowered: Lowered
    signatures: Signatures
    sends: Sends

    def priced(self, constants: NcclConstants) -> Lowered:
        """With what these constants add."""
        found = self.lowered
        calls = add_costs(found.calls, self.signatures, self.sends, constants)
        known = self.signatures, self.sends, constants
        calls = limit_by_windows(calls, found.amount, found.call, *known)
        calls = spare_first_messages(calls, found.call, *known)
        calls = add_kernel_costs(calls, self.signatures, self.sends, constants.kernels)
        amount = with_first_passes(found.amount, found.call, self.signatures, self.sends, constants)
        return replace(found, calls=calls, amount=amount)


def lower_unpriced(
    plan: Plan,
    topology: Topology | Folded,
    runtime: Runtime,
    calibration: Calibration,
    resources: Resources,
    numbers: dict[str, int],
    disturbance: Disturbance = CALM,
    working_set: Mapping[str, float] | None = None,
) -> tuple[Unpriced, CoreWork]:
    """The first part of `lower`, which no time of NCCL's matters to, and the work of cores."""
    runtime, own = runtime.issued(calibration), runtime
    issued = None if runtime is own else (find_parts(plan), find_messages(plan))
    site = find_site(plan, topology, calibration.nccl.reach)
    nodes = site.nodes[: len(plan.devices)]
    cpus = calibration.cpu is not None
    call, signatures = group_ops(plan, runtime, nodes, cores=cpus, issued=issued)
    cores = find_core_work(plan, signatures, site, runtime, calibration, disturbance, working_set)
    uses = find_uses(signatures, site, runtime, resources, cores)
    rows = number_lanes(signatures, site, runtime, cores, uses.sends, numbers)
    overhead = _overhead(signatures, plan.devices, runtime, calibration, disturbance)
    if processor := calibration.cpu:
        # Calls take turns at all cores; the rest of a call's work is one core's.
        turns = cores.in_turn / processor.cores
        overhead[cores.calls] = turns
        uses.latency[cores.calls] += cores.in_turn - turns
        uses.holds[cores.calls] = False
    if issued:
        seconds, holds = issue_seconds(signatures, site.nodes, calibration, disturbance, uses.holds)
        overhead, uses = overhead + seconds, uses._replace(holds=holds)
    calls = Calls(
        overhead=overhead,
        work=np.zeros_like(uses.latency),
        latency=uses.latency,
        holds=uses.holds,
        cap=np.full_like(uses.latency, np.inf),
        paced=np.zeros_like(uses.holds),
        lane_start=rows.start,
        early=rows.early,
        lanes=rows.lane,
        use_start=uses.start,
        uses=uses.resource,
        weight=uses.weight,
    )
    stream = _ordered_streams(plan, runtime, site)
    dependencies = find_successors(plan, stream)
    amount = _amount(plan, call, np.diff(uses.start) > 0)
    lowered = Lowered(call, calls, amount, *dependencies, tuple(numbers), stream)
    return Unpriced(lowered, signatures, uses.sends), cores


def _amount(plan: Plan, call: AnyInts, moves: Bools) -> Floats:
    """The bytes that each op moves; 0 if its call uses no resource."""
    amount = np.empty(len(plan))
    for some in blocks(len(plan)):
        np.multiply(plan.sizes(some), moves[call[some]], out=amount[some])
    return amount


def _ordered_streams(plan: Plan, runtime: Runtime, site: Site) -> AnyInts:
    """The streams that order ops. Steps of kernels wait for their connections only."""
    if not runtime.kernels:
        return plan.ordered_streams
    steps = steps_of_kernels(plan, site.nodes[: len(plan.devices)])
    return np.where(steps, NO_STREAM, plan.ordered_streams)


def _overhead(
    signatures: Signatures,
    devices: Sequence[str],
    runtime: Runtime,
    calibration: Calibration,
    disturbance: Disturbance,
) -> Floats:
    """Seconds of dispatch by call. NCCL's steps have none: they run inside one kernel."""
    cost = np.array([calibration.dispatch.get(kind.name.lower(), 0.0) for kind in Kind])[
        signatures.kind
    ]
    # Only CPU devices pay for reading and keeping variables (see `resources`).
    cost[
        (signatures.executor != Executor.TF) | np.isin(signatures.kind, (Kind.INPUT, Kind.OUTPUT))
    ] = 0.0
    if disturbance.slow:
        cost *= np.array([disturbance.slow.get(name, 1.0) for name in devices])[signatures.source]
    return cost if runtime.dispatch else np.zeros_like(cost)
