"""From a plan on a topology, under a runtime and a calibration, to the arrays that the kernel runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simreduce.engine.calibration import Calibration
from simreduce.engine.runtime import Call, Runtime
from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import IN_PLACE, NO_STREAM
from simreduce.plan.ragged import invert, ranges
from simreduce.topology import Link, Topology, route

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Resources:
    """What flows compete for: every directed link (same index as in the topology), then every device's memory."""

    names: tuple[str, ...]
    capacity: tuple[float, ...]  # bytes/s
    latency: tuple[float, ...]  # s, of links
    memory: dict[str, int]  # node name -> index

    @staticmethod
    def of(topology: Topology, calibration: Calibration) -> Resources:
        """The topology's achievable figures, with the calibration's in their place where it has them."""
        names, capacity, latency = [], [], []
        for link in topology.links:
            bandwidth, delay = _figures(link, calibration)
            names.append(f"{link.name} {link.link_class}")
            capacity.append(bandwidth)
            latency.append(delay)
        memory = {}
        for node in topology.nodes.values():
            if np.isfinite(node.memory_bandwidth):
                memory[node.name] = len(names)
                names.append(f"{node.name} memory")
                capacity.append(node.memory_bandwidth)
        return Resources(tuple(names), tuple(capacity), tuple(latency), memory)


def _figures(link: Link, calibration: Calibration) -> tuple[float, float]:
    constants = calibration.links.get(link.link_class)
    if constants is None:
        return link.bandwidth, link.latency
    bandwidth = link.bandwidth if constants.bandwidth is None else constants.bandwidth * link.lanes
    return bandwidth, link.latency if constants.latency is None else constants.latency


@dataclass(frozen=True, slots=True)
class Calls:
    """What ops that are called alike have in common: (executor, kind, source, target, channel, operands)."""

    overhead: Floats
    latency: Floats
    holds: npt.NDArray[np.bool_]
    cap: Floats
    lane_start: Ints
    lanes: Ints
    use_start: Ints
    uses: Ints
    weight: Floats


@dataclass(frozen=True, slots=True)
class Lowered:
    """One plan, ready to run. Predecessors are operands, controls and the op before on the stream."""

    call: Ints  # index into `calls`, which holds what ops have in common; the columns below hold it by op
    calls: Calls
    overhead: Floats
    latency: Floats
    holds: npt.NDArray[np.bool_]
    amount: Floats
    cap: Floats
    predecessor_start: Ints
    predecessors: Ints
    successor_start: Ints
    successors: Ints
    lane_start: Ints
    lanes: Ints
    lane_names: tuple[str, ...]
    use_start: Ints
    uses: Ints
    weight: Floats


@dataclass(frozen=True, slots=True)
class _Cost:
    """What all ops of one (executor, kind, source, target, channel) have in common."""

    overhead: float
    latency: float
    holds: bool
    lanes: tuple[int, ...]
    uses: tuple[int, ...]


_FREE = _Cost(0.0, 0.0, holds=True, lanes=(), uses=())


def lower(
    plan: Plan, topology: Topology, runtime: Runtime, calibration: Calibration, resources: Resources,
    lanes: dict[str, int] | None = None,
) -> Lowered:  # fmt: skip
    """Costs, lanes and resources of every op. InputError if the plan names devices that the topology lacks.

    `lanes` numbers the lanes by name; give the same dict again to number those of several plans alike.
    """
    lanes = {} if lanes is None else lanes
    missing = [d for d in plan.devices if d not in topology.nodes]
    if missing:
        raise InputError(
            [
                f"{topology.name}: the plan needs a device {d!r}{did_you_mean(d, topology.nodes)}"
                for d in missing
            ]
        )
    in_place = (plan.kind == Kind.CONCAT) & (plan.arg == IN_PLACE)
    # An n-ary sum reads n values and writes one; a join reads every byte once, whatever it joins.
    moves = np.where(plan.kind == Kind.COPY, 1, np.where(plan.kind == Kind.CONCAT, 2, plan.operand_count + 1))
    columns = np.stack([plan.executor, plan.kind, plan.source, plan.device, _channel(plan), in_place, moves])
    calls, which = np.unique(columns, axis=1, return_inverse=True)
    which = which.reshape(-1)
    nodes = [topology.nodes[d] for d in plan.devices]
    costs = []
    for executor, kind, source, target, channel, free, _ in calls.T.tolist():
        if free:
            costs.append(_FREE)
            continue
        call = Call(Executor(executor), Kind(kind), nodes[source], nodes[target], channel)
        costs.append(_cost(call, topology, runtime, calibration, resources, lanes))

    by_call = np.arange(len(costs))
    table = Calls(
        np.array([c.overhead for c in costs], dtype=np.float64),
        np.array([c.latency for c in costs], dtype=np.float64),
        np.array([c.holds for c in costs], dtype=np.bool_),
        np.full(len(costs), np.inf),
        *_rows([c.lanes for c in costs], by_call),
        *_rows([c.uses for c in costs], by_call),
        np.repeat(calls[-1].astype(np.float64), [len(c.uses) for c in costs]),
    )
    lane_start, lane_ids = _rows([c.lanes for c in costs], which)
    use_start, uses = _rows([c.uses for c in costs], which)
    moved = plan.nbytes.astype(np.float64)
    amount = np.where(np.diff(use_start) > 0, moved, 0.0)
    predecessor_start, predecessors = _predecessors(plan)
    successor_start, successors = invert(predecessor_start, predecessors, len(plan))
    return Lowered(
        call=which,
        calls=table,
        overhead=table.overhead[which],
        latency=table.latency[which],
        holds=table.holds[which],
        amount=amount,
        cap=table.cap[which],
        predecessor_start=predecessor_start,
        predecessors=predecessors,
        successor_start=successor_start,
        successors=successors,
        lane_start=lane_start,
        lanes=lane_ids,
        lane_names=tuple(lanes),
        use_start=use_start,
        uses=uses,
        weight=np.repeat(moves.astype(np.float64), np.diff(use_start)),
    )


def check_routes(plan: Plan, topology: Topology) -> None:
    """InputError if a transfer of the plan has no way through the topology."""
    copies = plan.kind == Kind.COPY
    pairs = np.unique(np.stack([plan.source[copies], plan.device[copies]]), axis=1)
    for source, target in pairs.T.tolist():
        route(topology, plan.devices[source], plan.devices[target])


def _cost(
    call: Call, topology: Topology, runtime: Runtime, calibration: Calibration, resources: Resources,
    lanes: dict[str, int],
) -> _Cost:  # fmt: skip
    dispatched = runtime.dispatch and call.executor == Executor.TF  # NCCL's steps run inside one kernel
    overhead = calibration.dispatch.get(call.kind.name.lower(), 0.0) if dispatched else 0.0
    mine = tuple(lanes.setdefault(name, len(lanes)) for name in runtime.lanes(call))
    if call.kind == Kind.COPY:
        links, holds = way(call, topology, staged=runtime.staged and call.executor == Executor.TF)
        delay = sum(resources.latency[link] for link in links)
        return _Cost(overhead, delay, holds, mine, links)
    local = runtime.local and call.kind not in (Kind.INPUT, Kind.OUTPUT)
    memory = resources.memory.get(call.target.name)
    return _Cost(overhead, 0.0, True, mine, (memory,) if local and memory is not None else ())


def way(call: Call, topology: Topology, *, staged: bool) -> tuple[tuple[int, ...], bool]:
    """The links of a transfer, and whether it holds its lanes on the way: through the hosts of both machines if it is
    `staged`, as the route leads if not.
    """
    stops = [call.source.name, call.target.name]
    if staged and call.source.machine != call.target.machine:
        hosts = {topology.nodes[name].machine: name for name in reversed(topology.hosts)}
        between = [hosts[node.machine] for node in (call.source, call.target) if node.machine in hosts]
        stops = list(dict.fromkeys([stops[0], *between, stops[1]]))
    legs = [route(topology, a, b) for a, b in pairwise(stops)]
    return tuple(link for leg in legs for link in leg.links), len(legs) > 1 or legs[0].holds_lane


def _channel(plan: Plan) -> Ints:
    return np.where(plan.stream == NO_STREAM, -1, plan.stream // len(plan.devices)).astype(np.int64)


def _rows(table: Sequence[tuple[int, ...]], which: Ints) -> tuple[Ints, Ints]:
    """CSR rows table[which[0]], table[which[1]], ..."""
    start = np.concatenate([[0], np.cumsum([len(row) for row in table])]).astype(np.int64)
    flat = np.array([v for row in table for v in row], dtype=np.int64)
    count = np.diff(start)[which]
    return np.concatenate([[0], np.cumsum(count)]), flat[ranges(start[which], count)]


def _predecessors(plan: Plan) -> tuple[Ints, Ints]:
    """CSR of what every op waits for, each once."""
    n = len(plan)
    ops = np.arange(n, dtype=np.int64)
    pairs = [
        np.stack([np.repeat(ops, plan.operand_count), plan.operands]),
        np.stack([np.repeat(ops, np.diff(plan.control_start)), plan.controls]),
        np.stack(list(_stream_order(plan))),
    ]
    key = np.unique(np.concatenate([p[0] * n + p[1] for p in pairs]))
    user, used = key // n, key % n
    return np.concatenate([[0], np.cumsum(np.bincount(user, minlength=n))]).astype(np.int64), used


def _stream_order(plan: Plan) -> Iterator[Ints]:
    """(op, the op before it on its stream) as two arrays."""
    on = np.flatnonzero(plan.stream != NO_STREAM)
    order = on[np.argsort(plan.stream[on], kind="stable")]
    same = plan.stream[order[1:]] == plan.stream[order[:-1]]
    yield order[1:][same].astype(np.int64)
    yield order[:-1][same].astype(np.int64)
