"""Collectives of MPI beside an incast, measured and predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from statistics import mean

import numpy as np
import simpy

from simreduce import units
from simreduce.engine import IDEAL, NOMINAL, Fabric
from simreduce.engine.background import Stream, TrafficFlows
from simreduce.files.formats import Faults
from simreduce.files.published import ALL_TO_ALL, INCAST_BYTES, CongestedCall
from simreduce.plan import Contract, Kind, Plan, PlanBuilder
from simreduce.study.accuracy.points import Point, PointGroup, group_predicted
from simreduce.topology import Topology, load_topology


@dataclass(frozen=True, slots=True)
class System:
    """A system's network and its MPI.

    `span` is over how many places its nodes are dealt evenly; 0: they are neighbours. A message
    takes `latency` seconds, a copy at `copies` bytes/s up to `eager` bytes, and above that
    `rendezvous` seconds before its bytes move; of several at once each waits `gap` seconds for the
    one before. A host sends at `rate` bytes/s, to many at `rate_to_many`.
    """

    network: str
    span: int = 0
    latency: float = 1.4e-6
    copies: float = 2.6e9
    eager: int = 16 << 10
    rendezvous: float = 7e-6
    gap: float = 0.25e-6
    rate: float = 24.4e9
    rate_to_many: float = 24.4e9

    def before(self, nbytes: int) -> float:
        """Seconds before the bytes of a message move."""
        return self.latency + nbytes / self.copies if nbytes <= self.eager else self.rendezvous


SYSTEMS: Mapping[str, System] = {
    # Nodes were dealt over some 680 of 3,456 (the runs' logs), which are four groups.
    "leonardo": System(
        "dragonfly_plus:720,p=10,leaves=18,spines=18,equal_cost=first,congestion=tree,congested=0.75",
        span=680,
        rendezvous=8.5e-6,
    ),
    # Neighbours, 64 of them x[348-411] (the runs' logs). How many share a leaf, and how thin its
    # up-links are, is not public: times of 64 nodes are the first that show a second one, alone.
    "cresco8": System(
        "fat_tree:760,radix=38,oversubscription=2,equal_cost=first,congestion=tree,congested=0.75",
        rendezvous=6e-6,
    ),
    "lumi": System(
        "dragonfly:1024,p=16,a=32,h=16,equal_cost=split,congestion=isolated",
        span=1000,
        latency=2.8e-6,
        copies=6e9,
        rendezvous=8.2e-6,
        gap=0.8e-6,
        rate=22.7e9,
        rate_to_many=10e9,
    ),
}
"""What is known of systems. Constants of MPI, and the part of the time that trees stand, are read
off the shipped times; networks are from De Sensi et al. 2024, arXiv 2408.14090.
"""


LEAST = 64 << 10
"""Bytes from which slowdowns are judged."""
_SMALLEST = 32 << 10
"""Bytes from which calls are predicted: smaller messages hardly load a link."""
_DEALS = 4
_DEALT_BY = 13
"""As the nodes of a run are seldom known, a slowdown is the mean of those on so many dealings."""


@dataclass(frozen=True, slots=True)
class CongestionPoint(Point[CongestedCall]):
    """How many times as long a call takes beside the incast, and the seconds predicted alone."""

    alone: float


def group_congestion(points: Iterable[CongestionPoint]) -> dict[str, PointGroup[CongestionPoint]]:
    """The calls of each system from `LEAST` bytes on, in order."""
    return group_predicted((p for p in points if p.of.nbytes >= LEAST), lambda p: p.of.system)


def congestible(
    calls: Sequence[CongestedCall], systems: Mapping[str, System]
) -> tuple[list[CongestedCall], dict[str, int]]:
    """The calls that can be predicted, and how many there are of each system that is not known.

    InputError if a network has too few nodes for its calls, or none is left.
    """
    large = [call for call in calls if call.nbytes >= _SMALLEST]
    strange = Counter(call.system for call in large if call.system not in systems)
    known = [call for call in large if call.system in systems]
    faults = Faults()
    for name in dict.fromkeys(call.system for call in known):
        most = max(call.nodes for call in known if call.system == name)
        there = len(load_topology(systems[name].network).devices)
        faults.check(most <= there, name, f"{systems[name].network} has fewer than {most} nodes")
    faults.check(known or strange, "", f"no call of {units.format_size(_SMALLEST)} or more")
    faults.check(
        known or not strange,
        "",
        f"systems known are {', '.join(systems)}, not {', '.join(map(repr, strange))};"
        " --machine SYSTEM=TOPOLOGY says the network of another",
    )
    return faults.require(known), dict(strange)


def predict_congestion(
    calls: Sequence[CongestedCall], systems: Mapping[str, System] = SYSTEMS
) -> Iterator[CongestionPoint]:
    """Every call, of systems that are known."""
    for call in calls:
        system = systems[call.system]
        machine = _network(
            system.network, system.rate_to_many if call.collective == ALL_TO_ALL else system.rate
        )
        took = []
        for deal in range(_DEALS):
            nodes = _nodes(machine, system, call.nodes, deal)
            ranks = [nodes[i * call.nodes // call.ranks] for i in range(call.ranks)]
            others = [node for node in nodes if node not in ranks]
            took.append([_run(machine, system, call, ranks, some) for some in ([], others)])
        slowdown = mean(beside / alone for alone, beside in took)
        yield CongestionPoint(call, call.slowdown, slowdown, mean(alone for alone, _ in took))


@lru_cache(maxsize=16)
def _network(text: str, rate: float) -> Topology:
    """A network whose cables have no latency and carry so many bytes/s; it keeps its routes."""
    return load_topology(text, {"latency": "0", "bandwidth": f"{rate / 1e9:g} GB/s"})


def _nodes(machine: Topology, system: System, count: int, deal: int) -> list[str]:
    """Nodes of a run: dealt over the span, or neighbours from somewhere on."""
    if not system.span:
        first = min(deal * _DEALT_BY, len(machine.devices) - count)
        return list(machine.devices[first : first + count])
    places = np.random.default_rng(deal).choice(
        min(max(system.span, count), len(machine.devices)), count, replace=False
    )
    return [machine.devices[i] for i in sorted(places.tolist())]


def _run(
    machine: Topology, system: System, call: CongestedCall, ranks: Sequence[str],
    others: Sequence[str],
) -> float:  # fmt: skip
    """Seconds of the collective while all `others` send to the first of them."""
    env = simpy.Environment()
    fabric = Fabric(env, machine, NOMINAL, IDEAL)
    run = _all_to_all if call.collective == ALL_TO_ALL else _ring
    over = env.process(run(fabric, system, ranks, call.nbytes))
    if len(others) > 1:
        pairs = tuple((other, others[0]) for other in others[1:])
        Stream("incast", pairs, INCAST_BYTES).send_on(TrafficFlows(fabric), over)
    env.run(until=over)
    return float(env.now)


def _all_to_all(
    fabric: Fabric, system: System, ranks: Sequence[str], nbytes: int
) -> Generator[simpy.Event, None, None]:
    """All messages at once, each posted after the one before."""
    yield fabric.env.timeout(system.before(nbytes) + system.gap * (len(ranks) - 1))
    b = PlanBuilder(tuple(ranks))
    for source, target in permutations(range(len(ranks)), 2):
        b.copy(b.input(source, 0, 1), target)
    yield _submit(fabric, b.finish(Contract.of("all_to_all", [])), nbytes)


def _ring(
    fabric: Fabric, system: System, ranks: Sequence[str], nbytes: int
) -> Generator[simpy.Event, None, None]:
    """What has come goes on when it is there and what was sent before is gone."""
    n, each = len(ranks), max(nbytes // len(ranks), 1)
    b = PlanBuilder(tuple(ranks))
    here = [b.input(i, 0, 1) for i in range(n)]
    sent: list[list[int]] = [[]] * n
    for _ in range(n - 1):
        here = [b.copy(here[i - 1], i, after=sent[i - 1]) for i in range(n)]
        sent = [[here[(i + 1) % n].op] for i in range(n)]
    yield _submit(fabric, b.finish(Contract.of("all_gather", [])), each, system.before(each))


def _submit(fabric: Fabric, plan: Plan, nbytes: int, latency: float = 0.0) -> simpy.Event:
    """Copies of so many bytes, after so many seconds each."""
    lowered, copies = fabric.lower(plan), plan.kind == Kind.COPY
    waits = np.zeros(len(lowered.calls.cap))
    waits[lowered.call[copies]] = latency
    calls = replace(lowered.calls, latency=lowered.calls.latency + waits)
    return fabric.submit(
        plan, lowered=replace(lowered, calls=calls, amount=np.where(copies, float(nbytes), 0.0))
    )
