"""Lower bounds of times: of a plan with all that its runtime costs, of a collective on a machine.

A plan's are its critical path, and its load on every resource and lane. Those of a collective hold
whatever algorithm and runtime do it. They are made of links alone: of bytes/s over cuts and out of
ports, and of latencies. What a runtime adds is in none of them: launches, steps of a protocol, what
it loses of a link's rate.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from simreduce.computing.arrays import Floats, blocks, ranges
from simreduce.computing.loops import sweep, worth_compiling
from simreduce.dtypes import SIZES
from simreduce.engine.kernel.tables import Array
from simreduce.engine.lowering import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.plan import Contract, Kind, Plan
from simreduce.topology import Folded, Topology

K = TypeVar("K", bound=Hashable)


def max_flow(capacity: Mapping[K, Mapping[K, int]], source: K, target: K) -> int:
    """Dinitz: paths of fewest hops, all of one length before longer ones.

    Capacities are whole numbers, so the flow is exact.

    Not networkx: importing it costs 0.13 s of CPU, where `simreduce bench switch:8 --algo ring`
    takes 0.75 s, and its fastest algorithm takes twice as long (0.25 s, not 0.13 s, for torus:8x8).
    """
    left: dict[K, dict[K, int]] = {a: dict(row) for a, row in capacity.items()}
    for a, row in capacity.items():
        for b in row:
            left.setdefault(b, {}).setdefault(a, 0)
    total = 0
    while target in (level := _levels(left, source, target)):
        ways = {a: iter(left.get(a, ())) for a in level}
        path = [source]
        while path:
            a = path[-1]
            if a == target:
                hops = list(pairwise(path))
                amount = min(left[x][y] for x, y in hops)
                for x, y in hops:
                    left[x][y] -= amount
                    left[y][x] += amount
                total += amount
                full = next(i for i, (x, y) in enumerate(hops) if not left[x][y])
                for dropped in path[full + 1 :]:  # what they lead to may have room yet
                    ways[dropped] = iter(left[dropped])
                del path[full + 1 :]
                continue
            step = next(
                (b for b in ways[a] if left[a][b] and level.get(b, 0) == level[a] + 1), None
            )
            if step is None:
                path.pop()
            else:
                path.append(step)
    return total


def _levels(left: Mapping[K, Mapping[K, int]], source: K, target: K) -> dict[K, int]:
    """Hops from the source over what is left, up to the target."""
    level, edge = {source: 0}, [source]
    while edge and target not in level:
        found = dict.fromkeys(b for a in edge for b, room in left.get(a, {}).items() if room)
        near = [b for b in found if b not in level]
        level |= dict.fromkeys(near, level[edge[0]] + 1)
        edge = near
    return level


_WHOLE = 1 << 64
"""Times this, bandwidths are whole numbers: so that flows are exact."""

_CUT_RANKS = 64
"""With more ranks, only the cuts around ranks and machines are taken: still a bound, and quick."""

_EITHER = ("broadcast", "reduce")
"""Collectives whose bytes cross a cut one way: which way depends on the root."""

_BOUNDED = (*_EITHER, "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_receive")


class Bounds(NamedTuple):
    """Seconds that no algorithm beats: by bytes over cuts, and by everything of the hardware."""

    cut: float
    hardware: float


class End(NamedTuple):
    """A rank or a machine: how many ranks it has, and bytes/s of the links out of and into it."""

    ranks: int
    out: float
    into: float


def find_bounds(
    topology: Topology | Folded, resources: Resources, plan: Plan, *, kernels: bool = False
) -> Bounds:
    """The bounds of a plan's collective, on the devices that the plan uses.

    - Cuts: the bytes that must leave or enter one rank, one machine or, for an all-reduce, either
      side of the narrowest cut between ranks, in the narrowest dtype that the plan sends.
    - Ports of an all-reduce, where no switch sums: n - 1 sums take as many sends of the tensor, and
      handing the total on as many more. All have to leave the devices of the plan. The same holds
      for machines where no switch between them sums.
    - Latency, where each rank needs something of others: of the links from one rank to the one
      farthest from it, and to the nearest where each sends to one other. A link's latency is that
      of a copy: `kernels` that read and write each other's memory may take less inside a machine.

    Zeros for a single rank, for several collectives side by side, and for what is no collective of
    ours.
    """
    contract, graph = plan.contract, topology
    ranks, n = _ranks_of(contract), len(_ranks_of(contract)) * plan.machines
    sent = np.bincount(plan.dtype[plan.kind == Kind.COPY])
    if n < 2 or not len(sent) or len(contract.homes) > 1 or contract.collective not in _BOUNDED:
        return Bounds(0.0, 0.0)
    names = tuple(plan.devices[rank] for rank in ranks)
    used = tuple(plan.devices[device] for device in np.unique(plan.device).tolist())
    times = 1.0
    if isinstance(graph, Folded):
        # No cut that separates two machines is narrower where there are more of them.
        names += tuple(graph.twin[name] for name in names)
        used += tuple(graph.twin[name] for name in used)
        graph, times = graph.pair, plan.machines / 2
    width = min(SIZES[dtype] for dtype in np.flatnonzero(sent))
    held = np.bincount(contract.device, contract.hi - contract.lo)[np.unique(contract.device)]
    total, capacity = float(held.min()) * width, resources.capacity
    if contract.collective == "reduce_scatter":  # a folded contract is that of one machine alone
        total = total // width // plan.machines * width
    # Parts of a tensor differ by an element.
    part = max(0.0, held.min() - len(contract) / len(held)) // n * width
    ends = [end for end in _ends(graph, capacity, names) if end.ranks < n]
    cut = max(_crossing(contract.collective, total, part, n, end) for end in ends)
    if contract.collective == "all_reduce" and len(names) <= _CUT_RANKS:
        # Sorted: the cut is searched once for all orders of the same ranks.
        cut = max(cut, _seconds(total, narrowest_cut(graph, capacity, tuple(sorted(names)))))
    away = _latency(graph, resources.latency, names, contract.collective, kernels=kernels)
    hardware = max(cut, away)
    if contract.collective == "all_reduce":
        machines = len({graph.nodes[name].machine for name in names})
        for whole, count in ((False, n), (True, machines * times)):
            port = _ports(graph, capacity, used, whole=whole) * times
            if count > 1:
                hardware = max(hardware, _seconds(2 * (count - 1) * total, port))
    return Bounds(cut, hardware)


def _ranks_of(contract: Contract) -> list[int]:
    """The devices that have a result or a contribution."""
    homes = {device for home in contract.homes for device in home.device.values()}
    return sorted({*contract.device.tolist(), *homes})


def _crossing(collective: str, total: float, part: float, n: int, end: End) -> float:
    """Seconds of the bytes that must leave an end, or enter it.

    The rank with the fewest bytes of results has `total`, and an n-th of that is `part`.
    """
    inside, outside = end.ranks, n - end.ranks
    if collective in _EITHER:
        return _seconds(total, max(end.out, end.into))
    out, into = {
        "all_gather": (part * inside, part * outside),
        "reduce_scatter": (total * outside, total * inside),
        "all_to_all": (part * inside * outside, part * inside * outside),
    }.get(collective, (total, total))
    return max(_seconds(out, end.out), _seconds(into, end.into))


def _seconds(nbytes: float, rate: float) -> float:
    return nbytes / rate if rate > 0 else math.inf


@lru_cache(maxsize=64)  # every candidate of a ranking asks the same
def _ends(
    topology: Topology, capacity: tuple[float, ...], ranks: tuple[str, ...]
) -> tuple[End, ...]:
    """Every rank, and every machine."""
    out: defaultdict[tuple[str, str], float] = defaultdict(float)
    into: defaultdict[tuple[str, str], float] = defaultdict(float)
    for link in topology.wires:
        ends = [topology.nodes[name] for name in (link.source, link.target)]
        source, target = (node.machine for node in ends)
        inside = source == target
        for name in ("node", "machine")[: 1 if inside else 2]:
            a, b = (link.source, link.target) if name == "node" else (source, target)
            out[name, a] += capacity[link.id]
            into[name, b] += capacity[link.id]
    machines = Counter(topology.nodes[rank].machine for rank in ranks)
    named = [("node", rank, 1) for rank in ranks]
    named += [("machine", machine, count) for machine, count in machines.items()]
    return tuple(End(count, out[kind, name], into[kind, name]) for kind, name, count in named)


@lru_cache(maxsize=64)
def _ports(
    topology: Topology, capacity: tuple[float, ...], devices: tuple[str, ...], *, whole: bool
) -> float:
    """Bytes/s of all links that leave these devices, or their machines as a whole.

    Infinite where a switch outside of them sums.
    """
    of = {topology.nodes[device].machine for device in devices} if whole else set(devices)
    place = {n.name: n.machine if whole else n.name for n in topology.nodes.values()}
    summing = {place[node.name] for node in topology.nodes.values() if node.reduces}
    if summing - (of if whole else set()):
        return math.inf
    ends = ((place[k.source], place[k.target], k.id) for k in topology.wires)
    return sum(capacity[i] for source, target, i in ends if source in of and source != target)


def _latency(
    topology: Topology, latency: tuple[float, ...], ranks: Sequence[str], collective: str, *,
    kernels: bool,
) -> float:  # fmt: skip
    """Seconds from the first rank to the farthest of those that need what it has.

    None with a root: of calls that follow each other, the next begins before the one before has
    arrived everywhere, and a time per call may be less.
    """
    if collective in _EITHER:
        return 0.0
    distance = _distances(topology, latency, ranks[0], kernels=kernels)
    others = [distance.get(rank, math.inf) for rank in ranks[1:]]
    return min(others) if collective == "send_receive" else max(others)


@lru_cache(maxsize=64)
def _distances(
    topology: Topology, latency: tuple[float, ...], root: str, *, kernels: bool
) -> dict[str, float]:
    """Seconds of the links from a node to each that it reaches; those of the network alone for
    `kernels`.
    """
    found: dict[str, float] = {}
    heap = [(0.0, root)]
    while heap:
        far, name = heapq.heappop(heap)
        if name not in found:
            found[name] = far
            for link in topology.wires_from[name]:
                if link.target not in found:
                    delay = 0.0 if kernels and link.holds_lane else latency[link.id]
                    heapq.heappush(heap, (far + delay, link.target))
    return found


@lru_cache(maxsize=64)
def narrowest_cut(topology: Topology, capacity: tuple[float, ...], ranks: tuple[str, ...]) -> float:
    """Bytes/s of the narrowest directed cut that has ranks on both sides (max-flow = min-cut)."""
    width: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for link in topology.wires:
        width[link.source][link.target] += int(capacity[link.id] * _WHOLE)
    first, *others = ranks
    ways = [pair for other in others for pair in ((first, other), (other, first))]
    return min(max_flow(width, a, b) for a, b in ways) / _WHOLE


def alone(lowered: Lowered, resources: Resources) -> tuple[Floats, Floats]:
    """Seconds each op takes when nothing competes with it, and how many of them its bytes take."""
    rate = _rate_alone(lowered, resources)[lowered.call]
    transfer = np.divide(lowered.amount, rate, out=np.zeros(len(rate)), where=lowered.amount > 0)
    cost = lowered.calls.overhead + lowered.calls.latency
    return transfer + cost[lowered.call], transfer


def _rate_alone(lowered: Lowered, resources: Resources) -> Floats:
    """Bytes/s of each call when nothing competes with it."""
    calls = lowered.calls
    rate = calls.cap.copy()
    using = np.flatnonzero(np.diff(calls.use_start))
    if len(using):
        share = resources.rates[calls.uses] / calls.weight
        rate[using] = np.minimum(rate[using], np.minimum.reduceat(share, calls.use_start[using]))
    return rate


def critical_path(lowered: Lowered, resources: Resources) -> float:
    """Seconds of the longest chain of ops that wait for each other, when nothing competes with
    them.
    """
    calls, finish = lowered.calls, np.zeros(len(lowered.call))
    rate, cost = _rate_alone(lowered, resources), calls.overhead + calls.latency
    reads = lowered.call, lowered.amount, rate, cost, lowered.successor_start, lowered.successors
    sweep(longest, reads, [finish], compiled=worth_compiling(longest, len(finish)))
    return float(finish.max(initial=0.0))


def longest_chain(lowered: Lowered) -> int:
    """The number of flows in the longest chain of ops that wait for each other."""
    finish, moves = np.zeros(len(lowered.call)), np.diff(lowered.calls.use_start) > 0
    nothing, rate = np.zeros_like(finish), np.ones(len(moves))
    reads = (
        lowered.call, nothing, rate, moves.astype(np.float64), lowered.successor_start,
        lowered.successors,
    )  # fmt: skip
    sweep(longest, reads, [finish], compiled=worth_compiling(longest, len(finish)))
    return int(finish.max(initial=0.0))


def longest(
    call: Array,
    amount: Array,
    rate: Array,
    cost: Array,
    start: Array,
    successors: Array,
    finish: Array,
) -> None:
    """Fill `finish`, zero at first, with when each op is done if none but its predecessors delay
    it. Program order has them first.
    """
    for op in range(len(finish)):
        mine = call[op]
        transfer = amount[op] / rate[mine] if amount[op] > 0.0 else 0.0
        end = finish[op] + (transfer + cost[mine])
        finish[op] = end
        for at in range(start[op], start[op + 1]):
            finish[successors[at]] = max(finish[successors[at]], end)


def resource_seconds(lowered: Lowered, resources: Resources) -> Floats:
    """Seconds each resource needs for its bytes at full rate."""
    calls = lowered.calls
    moved = np.zeros(len(calls.cap))
    for some in blocks(len(lowered.call)):
        # Sums of whole numbers, or of equal ones: the same in any order.
        moved += np.bincount(lowered.call[some], lowered.amount[some], minlength=len(moved))
    load = np.bincount(
        calls.uses,
        np.repeat(moved, np.diff(calls.use_start)) * calls.weight,
        minlength=len(resources.capacity),
    )
    if resources.home is not None:
        load[: len(resources.home)] = load[np.array(resources.home)]
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = load / resources.rates
    return np.where(load > 0, seconds, 0.0)


def lane_seconds(lowered: Lowered, duration: Floats, transfer: Floats) -> Floats:
    """Seconds each lane is held when its ops, while they hold it, take `duration` after they got
    it, and pipes when bytes take `transfer`.
    """
    calls, number = lowered.calls, len(lowered.lane_names)
    if not len(calls.lanes):
        return np.zeros(number)
    counts, is_pipe = np.diff(calls.lane_start), calls.is_pipe
    every, total = np.arange(number), np.zeros(number, dtype=np.float64)
    for some in blocks(len(lowered.call)):
        call = lowered.call[some]
        held = np.where(calls.holds[call], duration[some], calls.overhead[call])
        count = counts[call]
        rows = ranges(calls.lane_start[call], count)
        busy = np.where(is_pipe[rows], np.repeat(transfer[some], count), np.repeat(held, count))
        # After the total so far, so that seconds are added in the order of the ops.
        lanes = np.concatenate([every, calls.lanes[rows]])
        total = np.bincount(lanes, np.concatenate([total, busy]), minlength=number).astype(float)
    return total
