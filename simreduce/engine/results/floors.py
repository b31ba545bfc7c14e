"""Lower bounds of predictions.

They are the plan's critical path, its load on every resource and lane, and the cut of the machine
that the collective has to cross.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from simreduce.computing.arrays import Floats, blocks, ranges
from simreduce.computing.compiling.loops import sweep, worth_compiling
from simreduce.dtypes import SIZES
from simreduce.engine.kernel.tables import Array
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.results.cut import max_flow
from simreduce.plan import Contract, Kind, Plan
from simreduce.topology import Folded, Topology

_WHOLE = 1 << 64
"""Times this, bandwidths are whole numbers: so that flows are exact."""

_CUT_RANKS = 64
"""With more ranks, only the cuts around single ranks are taken: still a bound, and quick."""


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


def all_reduce_cut(topology: Topology | Folded, resources: Resources, plan: Plan) -> float:
    """Seconds for S bytes to cross the narrowest cut between ranks, which every all-reduce must (S
    in the narrowest dtype that the plan sends). 0 for other collectives and for a single rank.
    """
    ranks = sorted({int(d) for d in plan.contract.device})
    names = [plan.devices[r] for r in ranks]
    if isinstance(topology, Folded):
        # No cut that separates two machines is narrower where there are more of them.
        names += [topology.twin[name] for name in names]
        topology = topology.pair
    sent = np.bincount(plan.dtype[plan.kind == Kind.COPY])
    if plan.contract.collective != "all_reduce" or len(names) < 2 or not len(sent):
        return 0.0
    width = min(SIZES[dtype] for dtype in np.flatnonzero(sent))
    elements = _elements(plan.contract, ranks[0])
    narrowest = narrowest_cut(topology, resources.capacity, tuple(names))
    return elements * width / narrowest if narrowest > 0 else float("inf")


@lru_cache(maxsize=64)  # every candidate of a ranking asks the same
def narrowest_cut(topology: Topology, capacity: tuple[float, ...], ranks: tuple[str, ...]) -> float:
    """Bytes/s of the narrowest directed cut that has ranks on both sides (max-flow = min-cut)."""
    if len(ranks) > _CUT_RANKS:
        return _narrowest_port(topology, capacity, ranks)
    width: dict[str, dict[str, int]] = {}
    for link in topology.links:
        if not link.is_toll:
            row = width.setdefault(link.source, {})
            row[link.target] = row.get(link.target, 0) + int(capacity[link.id] * _WHOLE)
    first, *others = ranks
    ways = [pair for other in others for pair in ((first, other), (other, first))]
    return min(max_flow(width, a, b) for a, b in ways) / _WHOLE


def _narrowest_port(
    topology: Topology, capacity: tuple[float, ...], ranks: tuple[str, ...]
) -> float:
    out, into = dict.fromkeys(topology.nodes, 0.0), dict.fromkeys(topology.nodes, 0.0)
    for link in topology.links:
        if link.is_toll:
            continue
        out[link.source] += capacity[link.id]
        into[link.target] += capacity[link.id]
    return min(min(out[rank], into[rank]) for rank in ranks)


def _elements(contract: Contract, device: int) -> int:
    mine = contract.device == device
    return int((contract.hi[mine] - contract.lo[mine]).sum())
