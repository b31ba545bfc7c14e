"""Reading a plan as a tracer would: transfers and sums, with the inputs they are made of."""

from __future__ import annotations

from collections import Counter

from simreduce.plan import ZEROS, Kind, Plan
from simreduce.planners.layouts import layout
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload


def plan_for(strategy: str, topology: str, *elements: int) -> Plan:
    """The plan for gradients of the given sizes (float32)."""
    gradients = tuple(Gradient(f"g{i}", n) for i, n in enumerate(elements))
    return compile_plan(strategy, Workload("test", gradients), layout(load_topology(topology)))


def transfers(plan: Plan) -> Counter[tuple[str, str, int]]:
    """How often each (source, destination, elements) moves."""
    return Counter(plan.copies())


def formulas(plan: Plan) -> dict[int, str]:
    """For every op, what it holds: x0 is rank 0's input, (x0+x1) a sum in the order of its
    operands.
    """
    texts: dict[int, str] = {}
    for op in range(len(plan)):
        read = [texts[v] for v in plan.operands_of(op)]
        kind = Kind(int(plan.kind[op]))
        if kind == Kind.INPUT:
            texts[op] = "0" if plan.arg[op] == ZEROS else f"x{plan.arg[op]}"
        elif kind == Kind.ADD:
            texts[op] = "(" + "+".join(read) + ")"
        elif kind == Kind.CONCAT:
            texts[op] = read[0] if set(read) <= {read[0], "0"} else "|".join(read)
        else:
            texts[op] = read[0]
    return texts


def adds(plan: Plan) -> Counter[tuple[str, int, int]]:
    """How often each (device, operands, elements) is summed."""
    ids = [op for op in range(len(plan)) if plan.kind[op] == Kind.ADD]
    return Counter(
        (plan.devices[plan.device[op]], len(plan.operands_of(op)), int(plan.hi[op] - plan.lo[op]))
        for op in ids
    )
