"""From a plan on a topology, under a runtime and a calibration, to the arrays that the kernel runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from simreduce.engine.calibration import Calibration
from simreduce.engine.runtime import Call, Runtime, no_lanes
from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import IN_PLACE, NO_STREAM, Column
from simreduce.plan.ragged import invert, narrow, ranges, starts
from simreduce.topology import Link, Routes, Topology

Ids = npt.NDArray[np.integer]
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
class Lowered:
    """One plan, ready to run. Rows are flat: row i of `uses` is `uses[use_start[i]:use_start[i + 1]]`.

    An op waits for its operands, its controls and the op before it on its stream, each counted once. Ids are 32 bits
    wide where they fit. A column that is one number repeated takes no room (`numpy.broadcast_to`): read it, or copy it.
    """

    overhead: Floats
    latency: Floats
    holds: npt.NDArray[np.bool_]
    amount: Floats
    cap: Floats
    waits: Ids  # how many ops each one waits for
    successor_start: Ids
    successors: Ids  # ascending in every row
    lane_start: Ids
    lanes: Ids
    lane_names: tuple[str, ...]
    use_start: Ids
    uses: Ids
    weight: Floats

    @property
    def predecessor_start(self) -> Ids:
        """Where the rows of what ops wait for would begin."""
        return starts(self.waits)


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
    n = len(plan)
    copies, local = np.flatnonzero(plan.kind == Kind.COPY), _local(plan, topology, runtime, resources)
    way_start, links, holding = _ways(plan, copies, topology, runtime)
    hops = np.diff(way_start)
    delay, holds = np.zeros(n), np.ones(n, dtype=np.bool_)
    delay[copies] = _sums(hops, np.array(resources.latency)[links])
    holds[copies] = holding

    count = np.zeros(n, dtype=np.int64)
    count[copies], count[local.ops] = hops, 1
    use_start, uses, weight = narrow(starts(count)), links, _all(len(links), 1.0)
    if len(local.ops):
        touched = use_start[local.ops]  # where the rows of local ops lie: one memory each
        on_links = np.ones(len(links) + len(touched), dtype=np.bool_)
        on_links[touched] = False
        uses, weight = np.empty(len(on_links), dtype=np.int32), np.ones(len(on_links))
        uses[on_links], uses[touched], weight[touched] = links, local.memory, local.weight
    amount = plan.nbytes.astype(np.float64)
    amount[count == 0] = 0.0
    lane_start, lane_ids = _lanes(plan, topology, runtime, lanes)
    waits, successor_start, successors = _successors(plan)
    return Lowered(
        overhead=_overhead(plan, runtime, calibration),
        latency=delay,
        holds=holds,
        amount=amount,
        cap=_all(n, np.inf),
        waits=waits,
        successor_start=successor_start,
        successors=successors,
        lane_start=lane_start,
        lanes=lane_ids,
        lane_names=tuple(lanes),
        use_start=use_start,
        uses=uses,
        weight=weight,
    )


def check_routes(plan: Plan, topology: Topology) -> None:
    """TopologyError if a transfer of the plan has no way through the topology."""
    copies = np.flatnonzero(plan.kind == Kind.COPY)
    place = _places(plan, topology)
    topology.router.routes(place[_source(plan, copies)], place[plan.device[copies]])


def _all(count: int, value: float) -> Floats:
    """One number `count` times, in no room."""
    return np.broadcast_to(np.float64(value), (count,))


def _places(plan: Plan, topology: Topology) -> Ints:
    """Of every device of the plan, the place of its node in the topology."""
    return np.array([topology.router.index[name] for name in plan.devices], dtype=np.int64)


def _source(plan: Plan, ops: Ints) -> Column:
    """The devices of the first operands of `ops`, all of which have some."""
    return plan.device[plan.operands[plan.operand_start[ops]]]


def _in_place(plan: Plan) -> npt.NDArray[np.bool_]:
    """The joins that cost nothing."""
    return (plan.kind == Kind.CONCAT) & (plan.arg == IN_PLACE)


def _overhead(plan: Plan, runtime: Runtime, calibration: Calibration) -> Floats:
    """The dispatch cost of every op that is dispatched: NCCL's steps run inside one kernel."""
    if not (runtime.dispatch and calibration.dispatch):
        return _all(len(plan), 0.0)
    cost = np.array([calibration.dispatch.get(kind.name.lower(), 0.0) for kind in Kind])[plan.kind]
    cost[(plan.executor != Executor.TF) | _in_place(plan)] = 0.0
    return cost


class _Local(NamedTuple):
    """Ops that move bytes through their device's memory: which, through which, and how many times their size."""

    ops: Ints
    memory: Ints
    weight: Floats


def _local(plan: Plan, topology: Topology, runtime: Runtime, resources: Resources) -> _Local:
    """An n-ary add reads n values and writes one, a join reads and writes every byte once."""
    if not (runtime.local and resources.memory):
        return _Local(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
    memory = np.array([resources.memory.get(topology.nodes[d].name, -1) for d in plan.devices])[plan.device]
    moves = ~np.isin(plan.kind, (Kind.INPUT, Kind.OUTPUT, Kind.COPY)) & ~_in_place(plan) & (memory >= 0)
    ops = np.flatnonzero(moves)
    weight = np.where(plan.kind[ops] == Kind.CONCAT, 2.0, plan.operand_count[ops] + 1.0)
    return _Local(ops, memory[ops], weight)


def _ways(plan: Plan, copies: Ints, topology: Topology, runtime: Runtime) -> Routes:
    """The links of every copy, and whether it holds its lanes on the way: through the hosts of both machines if it is
    staged, as the route leads if not.
    """
    place = _places(plan, topology)
    source, target = place[_source(plan, copies)], place[plan.device[copies]]
    router = topology.router
    machines, host = _hosts(topology)
    crosses = (machines[source] != machines[target]) & (plan.executor[copies] == Executor.TF)
    if not (runtime.staged and crosses.any()):
        return router.routes(source, target)
    # Where there is no host to stop at, or the copy begins or ends there, a leg is empty.
    out = np.where(crosses & (host[source] >= 0), host[source], source)
    into = np.where(crosses & (host[target] >= 0), host[target], out)
    legs = [router.routes(a, b) for a, b in ((source, out), (out, into), (into, target))]
    counts = [np.diff(leg.start) for leg in legs]
    start = starts(counts[0] + counts[1] + counts[2])
    links = np.empty(start[-1], dtype=np.int32)
    at = start[:-1]
    for leg, count in zip(legs, counts, strict=True):
        links[ranges(at, count)] = leg.links
        at = at + count
    through = [count > 0 for count in counts]
    whole = legs[0].holds_lane & legs[1].holds_lane & legs[2].holds_lane
    return Routes(start, links, (sum(each.astype(int) for each in through) > 1) | whole)


def _hosts(topology: Topology) -> tuple[Ints, Ints]:
    """Of every node: the number of its machine, and the place of that machine's first host, -1 if it has none."""
    first = {topology.nodes[name].machine: topology.router.index[name] for name in reversed(topology.hosts)}
    number: dict[str, int] = {}
    machines = [number.setdefault(node.machine, len(number)) for node in topology.nodes.values()]
    hosts = [first.get(node.machine, -1) for node in topology.nodes.values()]
    return np.array(machines, dtype=np.int64), np.array(hosts, dtype=np.int64)


def _sums(count: Ints, values: Floats) -> Floats:
    """The sum of every row, from left to right, so that the bits do not depend on how long rows are."""
    rows = np.repeat(np.arange(len(count), dtype=np.int32), count)
    return np.bincount(rows, weights=values, minlength=len(count))


def _lanes(plan: Plan, topology: Topology, runtime: Runtime, numbers: dict[str, int]) -> tuple[Ids, Ids]:
    """Rows of lanes; the runtime is asked once for each call, and names are numbered as they come."""
    n, devices = len(plan), len(plan.devices)
    if runtime.lanes is no_lanes or n == 0:
        return np.broadcast_to(np.int32(0), (n + 1,)), np.zeros(0, dtype=np.int32)
    channel = np.where(plan.stream == NO_STREAM, -1, plan.stream // devices).astype(np.int64)
    key = plan.executor.astype(np.int64)
    sizes = (len(Kind), devices, devices, int(channel.max()) + 2)
    for column, size in zip((plan.kind, plan.source, plan.device, channel + 1), sizes, strict=True):
        key = key * size + column
    key[_in_place(plan)] = -1
    calls, which = np.unique(key, return_inverse=True)
    nodes = [topology.nodes[d] for d in plan.devices]
    rows: list[list[int]] = []
    for call in calls.tolist():
        rest, fields = call, []
        for size in reversed(sizes):
            rest, field = divmod(rest, size)
            fields.append(field)
        port, target, source, kind = fields
        names = (
            ()
            if call < 0
            else runtime.lanes(Call(Executor(rest), Kind(kind), nodes[source], nodes[target], port - 1))
        )
        rows.append([numbers.setdefault(name, len(numbers)) for name in names])
    count = np.array([len(row) for row in rows], dtype=np.int64)
    flat = np.array([lane for row in rows for lane in row], dtype=np.int32)
    each = count[which]
    return narrow(starts(each)), flat[ranges(starts(count)[which], each)]


def _successors(plan: Plan) -> tuple[Ids, Ids, Ids]:
    """How many ops each one waits for; and, as rows, who waits for it."""
    n = len(plan)
    before = _before_on_stream(plan)
    streamed = before >= 0
    start, used = plan.operand_start, plan.operands
    if streamed.any() or len(plan.controls):
        operands, controls = plan.operand_count, np.diff(plan.control_start)
        start = starts(operands + controls + streamed)
        used = np.empty(start[-1], dtype=np.int32)
        is_operand = np.ones(len(used), dtype=np.bool_)
        last = start[1:][streamed] - 1
        used[last], is_operand[last] = before[streamed], False
        if len(plan.controls):
            places = ranges(start[:-1] + operands, controls)
            used[places], is_operand[places] = plan.controls, False
        used[is_operand] = plan.operands
    successor_start, successors = invert(start, used, n)
    waits = np.diff(start).astype(np.int32)
    again = (
        successors[1:] == successors[:-1]
    )  # in one row, as rows ascend: an op that waits twice for the same
    again[
        successor_start[1:-1][(successor_start[1:-1] > 0) & (successor_start[1:-1] < len(successors))] - 1
    ] = False
    if again.any():
        twice = np.flatnonzero(again) + 1
        np.subtract.at(waits, successors[twice], 1)
        successor_start = successor_start - np.searchsorted(twice, successor_start)
        successors = np.delete(successors, twice)
    return waits, narrow(successor_start), narrow(successors)


def _before_on_stream(plan: Plan) -> Ids:
    """The op before each one on its stream, -1 for none."""
    before = np.full(len(plan), -1, dtype=np.int32)
    on = np.flatnonzero(plan.stream != NO_STREAM)
    stream = plan.stream[on]
    if len(on) and stream.max() < 1 << 16:
        stream = stream.astype(np.uint16)  # sorted in linear time
    order = on[np.argsort(stream, kind="stable")]
    same = plan.stream[order[1:]] == plan.stream[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before
