"""Lowering: from a plan on a topology to the arrays that the kernel runs.

It depends on a runtime and a calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, blocks
from simreduce.engine.calibration import Calibration, NcclConstants
from simreduce.engine.disturbance import CALM, Disturbance
from simreduce.engine.lowering.calls import Calls, scatter_costs
from simreduce.engine.lowering.cores import (
    NO_WORK,
    CoreWork,
    add_core_flows,
    core_speed,
    find_core_work,
    measure_working_set,
)
from simreduce.engine.lowering.dependencies import find_successors
from simreduce.engine.lowering.kernels import add_kernel_costs
from simreduce.engine.lowering.lanes import number_lanes
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.lowering.nccl import Sends, add_costs, with_first_passes
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.lowering.signatures import Signatures, group_ops, steps_of_kernels
from simreduce.engine.lowering.sites import Site, find_site
from simreduce.engine.lowering.uses import find_uses
from simreduce.engine.runtime import IDEAL, Runtime
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import NO_STREAM
from simreduce.topology import Folded, Topology


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
    """The first part of `lower`, which no constant of NCCL matters to, and the work of cores."""
    site = find_site(plan, topology)
    nodes = site.nodes[: len(plan.devices)]
    call, signatures = group_ops(plan, runtime, nodes, cores=calibration.cpu is not None)
    cores = _core_work(plan, signatures, site, runtime, calibration, disturbance, working_set)
    uses = find_uses(signatures, site, runtime, resources, cores)
    rows = number_lanes(signatures, site, runtime, cores, uses.sends, numbers)
    overhead = _overhead(signatures, plan.devices, runtime, calibration, disturbance)
    if processor := calibration.cpu:
        overhead[cores.calls] = cores.turns(processor)
        uses.latency[cores.calls] += cores.rests(processor)
        uses.holds[cores.calls] = False
    calls = Calls(
        overhead=overhead,
        work=np.zeros_like(uses.latency),
        latency=uses.latency,
        holds=uses.holds,
        cap=np.full_like(uses.latency, np.inf),
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


def check_routes(plan: Plan, topology: Topology | Folded) -> None:
    """Raises TopologyError if a transfer of the plan has no route through the topology."""
    site = find_site(plan, topology)
    _, signatures = group_ops(plan, IDEAL, site.nodes[: len(plan.devices)])
    copies = signatures.kind == Kind.COPY
    site.topology.router.routes(
        site.place[signatures.source[copies]],
        site.place[signatures.target[copies]],
        bundled=True,
    )


def _core_work(
    plan: Plan,
    signatures: Signatures,
    site: Site,
    runtime: Runtime,
    calibration: Calibration,
    disturbance: Disturbance,
    working_set: Mapping[str, float] | None,
) -> CoreWork:
    """The work that calls give to the cores of CPU devices."""
    if calibration.cpu is None or not runtime.dispatch:
        return NO_WORK
    if working_set is None:
        working_set = measure_working_set(plan, site.nodes[: len(plan.devices)], calibration.cpu)
    source, target = (
        [site.nodes[i] for i in column.tolist()]
        for column in (signatures.source, signatures.target)
    )
    passes = signatures.passes if runtime.local else np.zeros(len(signatures.kind), dtype=np.int64)
    return find_core_work(
        signatures.kind,
        signatures.executor,
        passes,
        source,
        target,
        calibration.cpu,
        calibration.dispatch,
        disturbance.slow,
        working_set,
    )


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
    # Only CPU devices pay for reading and keeping variables (see `cores`).
    cost[
        (signatures.executor != Executor.TF) | np.isin(signatures.kind, (Kind.INPUT, Kind.OUTPUT))
    ] = 0.0
    if disturbance.slow:
        cost *= np.array([disturbance.slow.get(name, 1.0) for name in devices])[signatures.source]
    return cost if runtime.dispatch else np.zeros_like(cost)
