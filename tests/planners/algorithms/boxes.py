"""Machines of several tasks, and what a plan has every rank send and add."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import numpy as np

from simreduce.plan import Contract, Kind, Plan, PlanBuilder
from simreduce.planners.algorithms.planner import Collective, Knobs
from simreduce.planners.layouts import Layout, layout
from simreduce.planners.strategy.compiler import compile_collective
from simreduce.topology import Cable, Node, Topology, build, load_topology
from simreduce.workload import Gradient, Workload
from tests.simulating import simulate

RANKS = (*range(1, 18), 24, 32, 64)


def tasks_of(*sizes: int) -> Layout:
    """Tasks of these sizes, without links."""
    ends = list(accumulate(sizes))
    n = ends[-1]
    return Layout(
        ranks=tuple(f"n{t}.gpu{g}" for t, size in enumerate(sizes) for g in range(size)),
        tasks=tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)),
        hosts=("",) * len(sizes),
        links=((0,) * n,) * n,
    )


def two_rates(
    tasks: int,
    each: int,
    inside: tuple[float, float],
    across: tuple[float, float],
    *,
    nics: bool = True,
) -> Topology:
    """Boxes of `each` GPUs: a switch in every box and one between the boxes, to which every GPU has
    a cable of its own (`nics`) or every box has one. `inside` and `across` are the latency from GPU
    to GPU and the bandwidth of a cable.
    """

    def cable(a: str, b: str, latency: float, bandwidth: float) -> Cable:
        return Cable(a, b, "cable", 1, bandwidth, bandwidth, latency / 2, holds_lane=False)

    nodes, cables = [Node("core", "switch", machine="")], []
    for t in range(tasks):
        box = f"n{t}.switch"
        gpus = [f"n{t}.gpu{g}" for g in range(each)]
        nodes += [
            Node(box, "nvswitch", machine=str(t)),
            *(Node(g, "gpu", machine=str(t)) for g in gpus),
        ]
        cables += [cable(gpu, box, *inside) for gpu in gpus]
        cables += [cable(gpu, "core", *across) for gpu in (gpus if nics else [box])]
    return build("boxes", "boxes on a switch", "test", nodes, cables)


def compiled(collective: str, strategy: str, shape: Layout, *elements: int, root: int = 0) -> Plan:
    """The plan for gradients of these sizes (float32)."""
    gradients = tuple(Gradient(f"g{i}", n) for i, n in enumerate(elements))
    return compile_collective(collective, strategy, Workload("test", gradients), shape, root=root)


def seconds(collective: str, strategy: str, machine: Topology | str, elements: int) -> float:
    """The time of one tensor of float32 in pure alpha-beta."""
    topology = load_topology(machine) if isinstance(machine, str) else machine
    return simulate(
        compiled(collective, strategy, layout(topology), elements), topology, "ideal"
    ).seconds


def switch(n: int, latency_ns: int, megabytes: int, kind: str = "switch") -> str:
    """An inline topology."""
    return f"{kind}:{n},bandwidth={megabytes}MB/s,latency={latency_ns}ns"


def sent(plan: Plan) -> dict[str, tuple[int, int]]:
    """By sender, how many messages and elements it sends."""
    messages: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for source, _, count in plan.copies():
        messages[source] += 1
        elements[source] += count
    return {source: (messages[source], elements[source]) for source in messages}


def added(plan: Plan) -> dict[str, int]:
    """By device, the elements it adds: k-1 of them for each of a sum of k."""
    ops = np.flatnonzero(plan.kind == Kind.ADD)
    counts: Counter[str] = Counter()
    for op in ops:
        more = len(plan.operands_of(int(op))) - 1
        counts[plan.devices[plan.device[op]]] += more * int(plan.hi[op] - plan.lo[op])
    return dict(counts)


def in_groups(
    function: Collective, groups: int, n: int, elements: int, *, parts: bool
) -> list[list[tuple]]:
    """The ops of every group when `groups` of them are planned at once, numbered as if it were
    alone; `parts`: every position gives its part of the tensor, else the whole.
    """
    b = PlanBuilder([f"gpu{i}" for i in range(groups * n)])
    position = np.arange(groups * n)
    edges = elements * np.arange(n + 1) // n if parts else np.array([0, elements])
    at = position % n if parts else 0 * position
    b.outputs(function(b, b.inputs(position, edges[at], edges[at + 1]).reshape(groups, n), Knobs()))
    plan = b.finish(Contract.of("nothing", []))
    found = []
    for group in range(groups):
        ops = np.flatnonzero(plan.device // n == group)
        number = {int(op): i for i, op in enumerate(ops)}
        found.append([
            (
                int(plan.kind[op]), int(plan.device[op]) % n, int(plan.lo[op]), int(plan.hi[op]),
                -1 if plan.stream[op] < 0 else divmod(int(plan.stream[op]), groups * n)[0],
                [number[int(v)] for v in plan.operands_of(int(op))],
            )
            for op in ops
        ])  # fmt: skip
    return found
