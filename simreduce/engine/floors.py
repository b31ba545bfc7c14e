"""What no prediction may be below: the plan's critical path, its load on every resource and lane, and the cut of the
machine that the collective has to cross.
"""

from __future__ import annotations

import networkx as nx
import numpy as np

from simreduce.engine.lower import Floats, Lowered, Resources
from simreduce.plan import Contract, Kind, Plan
from simreduce.plan.ragged import levels, ranges
from simreduce.topology import Topology

_CUT_RANKS = 64
"""With more ranks, only the cuts around single ranks are taken: still a bound, and quick."""


def alone(lowered: Lowered, resources: Resources) -> Floats:
    """Seconds each op takes when nothing competes with it."""
    capacity = np.array(resources.capacity)
    rate = lowered.cap.copy()
    user = np.repeat(np.arange(len(rate)), np.diff(lowered.use_start))
    np.minimum.at(rate, user, capacity[lowered.uses] / lowered.weight)
    moving = np.divide(lowered.amount, rate, out=np.zeros_like(rate), where=lowered.amount > 0)
    return lowered.overhead + lowered.latency + moving


def critical_path(lowered: Lowered, duration: Floats) -> float:
    """Seconds of the longest chain of ops that wait for each other."""
    finish = np.zeros(len(duration))
    start = lowered.predecessor_start
    for level in levels(start, lowered.predecessors):
        finish[level] += duration[level]
        count = lowered.successor_start[level + 1] - lowered.successor_start[level]
        reached = lowered.successors[ranges(lowered.successor_start[level], count)]
        np.maximum.at(finish, reached, np.repeat(finish[level], count))
    return float(finish.max(initial=0.0))


def resource_seconds(lowered: Lowered, resources: Resources) -> Floats:
    """Seconds each resource needs for its bytes at full rate."""
    user = np.repeat(np.arange(len(lowered.amount)), np.diff(lowered.use_start))
    load = np.bincount(lowered.uses, lowered.amount[user] * lowered.weight, minlength=len(resources.capacity))
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = load / np.array(resources.capacity)
    return np.where(load > 0, seconds, 0.0)


def lane_seconds(lowered: Lowered, duration: Floats) -> Floats:
    """Seconds each lane is held at least."""
    held = np.where(lowered.holds, duration, lowered.overhead)
    user = np.repeat(np.arange(len(held)), np.diff(lowered.lane_start))
    return np.bincount(lowered.lanes, held[user], minlength=len(lowered.lane_names)).astype(np.float64)


def all_reduce_cut(topology: Topology, resources: Resources, plan: Plan) -> float:
    """Seconds for S bytes to cross the narrowest cut between ranks, which every all-reduce must (S in the narrowest
    dtype that the plan sends). 0 for other collectives and for a single rank.
    """
    ranks = sorted({int(d) for d in plan.contract.device})
    copies = plan.kind == Kind.COPY
    if plan.contract.collective != "all_reduce" or len(ranks) < 2 or not copies.any():
        return 0.0
    width = float(np.min(plan.nbytes[copies] / np.maximum((plan.hi - plan.lo)[copies], 1)))
    elements = _elements(plan.contract, ranks[0])
    narrowest = narrowest_cut(topology, resources, [plan.devices[r] for r in ranks])
    return elements * width / narrowest if narrowest > 0 else float("inf")


def narrowest_cut(topology: Topology, resources: Resources, ranks: list[str]) -> float:
    """Bytes/s of the narrowest directed cut that has ranks on both sides (max-flow = min-cut)."""
    if len(ranks) > _CUT_RANKS:
        return min(_port(topology, resources, r) for r in ranks)
    graph: nx.DiGraph[str] = nx.DiGraph()
    for link in topology.links:
        before = graph.get_edge_data(link.source, link.target, {"capacity": 0.0})["capacity"]
        graph.add_edge(link.source, link.target, capacity=before + resources.capacity[link.id])
    first, *others = ranks
    flow = nx.algorithms.flow.dinitz
    ways = [pair for other in others for pair in ((first, other), (other, first))]
    return min(float(nx.maximum_flow_value(graph, a, b, flow_func=flow)) for a, b in ways)


def _port(topology: Topology, resources: Resources, rank: str) -> float:
    out = sum(resources.capacity[link.id] for link in topology.links if link.source == rank)
    into = sum(resources.capacity[link.id] for link in topology.links if link.target == rank)
    return min(out, into)


def _elements(contract: Contract, device: int) -> int:
    mine = contract.device == device
    return int((contract.hi[mine] - contract.lo[mine]).sum())
