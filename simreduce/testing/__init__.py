"""What our own tests use, for the tests of plugins: small machines, and the check of an algorithm.

`simreduce.testing.strategies` has hypothesis strategies for random machines and plans. It needs
hypothesis: `pip install "simreduce[testing]"`. The oracle in our own tests is not here: it checks
the engine, which an algorithm cannot break.

The check of an algorithm by proofs and bounds, and machines small enough to work out by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from simreduce.engine import IDEAL, TENSORFLOW
from simreduce.engine.runtime import LINK_KINDS, NVLS, PROTOCOLS, NcclConstants
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.plan import Contract, Plan, PlanBuilder
from simreduce.study.tune.prove import COUNTS, ProofCase
from simreduce.study.tune.sizes import tensor
from simreduce.topology import Cable, Node, NodeKind, Topology, build

RATE = 100.0
"""Bytes/s of a cable unless stated."""

ELEMENTS = 100
"""Of float32: 400 bytes, 4 seconds at RATE."""

NO_CONTRACT = replace(Contract.all_reduce([], []), collective="none")
"""The contract of a plan that is only there to be timed."""


def cable(
    a: str,
    b: str,
    bandwidth: float = RATE,
    latency: float = 0.0,
    *,
    holds: bool = True,
    link_class: str = "wire",
) -> Cable:
    """Joins two nodes, `bandwidth` bytes/s each way; `holds` says whether latency holds lanes."""
    return Cable(a, b, link_class, 1, bandwidth, bandwidth, latency, holds)


def node(name: str, memory: float = inf, machine: str = "0") -> Node:
    """A node whose name begins with its kind; `memory` is in bytes/s."""
    kind: NodeKind = (
        "gpu" if name.startswith("gpu") else "cpu" if name.startswith("cpu") else "switch"
    )
    return Node(name, kind, memory_bandwidth=memory, machine=machine)


def machine(*parts: Node | Cable) -> Topology:
    """Of cables, and of the nodes at their ends; a node that is given replaces the one that is
    implied.
    """
    cables = [part for part in parts if isinstance(part, Cable)]
    names = dict.fromkeys(name for each in cables for name in (each.source, each.target))
    nodes = {name: node(name) for name in names} | {n.name: n for n in parts if isinstance(n, Node)}
    return build("small", "", "a test", nodes.values(), cables)


def pair(bandwidth: float = RATE, latency: float = 0.0, *, holds: bool = True) -> Topology:
    """Two GPUs on one cable."""
    return machine(cable("gpu0", "gpu1", bandwidth, latency, holds=holds))


def plan_of(topology: Topology, write: Callable[[PlanBuilder], object]) -> Plan:
    """The plan that `write` builds on the GPUs and hosts of `topology`, in this order. It promises
    nothing.
    """
    b = PlanBuilder((*topology.devices, *topology.hosts))
    write(b)
    return b.finish(NO_CONTRACT)


def copy_plan(topology: Topology, *hops: tuple[int, int], elements: int = ELEMENTS) -> Plan:
    """Per (source, target), one copy of a gradient of its own: ops 0 and 1, 2 and 3, ..."""

    def write(b: PlanBuilder) -> None:
        for i, (source, target) in enumerate(hops):
            b.copy(b.input(source, i * elements, (i + 1) * elements), target)

    return plan_of(topology, write)


FREE_NCCL = NcclConstants(
    launch=0.0,
    launch_channel=0.0,
    message=0.0,
    start=dict.fromkeys((*PROTOCOLS, NVLS), 0.0),
    latency={(link, p): 0.0 for link in LINK_KINDS for p in PROTOCOLS},
    efficiency={(link, p): 1.0 for link in LINK_KINDS for p in PROTOCOLS},
    channel_rate=dict.fromkeys((*PROTOCOLS, NVLS), inf),
)
"""NCCL costs nothing besides the wires."""


RANKS = (1, 2, 3, 4, 5, 8)


def check_algorithm(
    strategy: str,
    ranks: Sequence[int] = RANKS,
    tasks: Sequence[int] = (1, 2),
    counts: Sequence[int] = COUNTS,
    collective: str = "all_reduce",
) -> int:
    """Prove the plans of a strategy, and simulate some of them; the number of plans.

    Plans are for gradients of `counts` elements on machines with so many ranks in so many tasks.
    AssertionError tells the first plan that is wrong, that takes less time than its floor, or that
    takes another time when simulated again. What the strategy refuses is left out, but not all.
    """
    plans, why = 0, "nothing to check: no number of ranks is a multiple of one of tasks"
    for n in ranks:
        for m in (each for each in tasks if n % each == 0):
            proof = ProofCase(strategy, n, m, collective).prove(counts)
            where = f"{strategy} on {n} ranks in {m} tasks"
            if proof.problems:
                raise AssertionError(f"{where}: {proof.problems[0]}")
            plans += proof.plans
            if proof.refused:
                why = f"every machine was refused: {proof.refused[0]}"
        _check_times(strategy, n, collective)
    if not plans:
        raise AssertionError(f"{strategy}: {why}")
    return plans


def _check_times(strategy: str, ranks: int, collective: str) -> None:
    for runtime in (IDEAL, TENSORFLOW):
        setup = Setup(f"switch:{ranks}", runtime)
        try:
            plan = setup.compile(strategy, tensor(1 << 16, 0, ranks), collective)
        except StrategyError:
            continue
        where = f"{strategy} on {ranks} ranks ({runtime.name})"
        result, again = setup.simulate(plan), setup.simulate(plan)
        if result.seconds < result.floors.seconds:
            raise AssertionError(f"{where}: {result.seconds} s, below {result.floors.seconds} s")
        if result.to_json() != again.to_json():
            raise AssertionError(f"{where}: two simulations differ")
