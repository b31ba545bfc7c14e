"""Exact evaluation of a plan: every op on lists of Fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from simreduce.plan import ZEROS, Kind, Plan
from simreduce.planners.layouts import layout
from simreduce.topology import load_topology

Given = Callable[[int, int], int]
"""What contributor k holds at an address."""


def machine(text="full:4"):
    """The layout of a topology; the devices after the ranks are hosts."""
    return layout(load_topology(text))


def evaluate(plan: Plan, given: Given) -> dict[str, list[list[Fraction]]]:
    """By device, the elements of its results (OUTPUTs), in program order."""
    held: list[list[Fraction]] = []
    results: dict[str, list[list[Fraction]]] = {}
    for op in range(len(plan)):
        lo, hi, arg = int(plan.lo[op]), int(plan.hi[op]), int(plan.arg[op])
        read = plan.operands_of(op)
        parts = [_part(held[v], int(plan.lo[v]), int(plan.hi[v]), lo, hi) for v in read]
        match Kind(int(plan.kind[op])):
            case Kind.INPUT:
                value = [Fraction(0 if arg == ZEROS else given(arg, a)) for a in range(lo, hi)]
            case Kind.CONCAT:
                value = [x for part in parts for x in part]
            case Kind.ADD:
                value = [sum(terms, Fraction(0)) for terms in zip(*parts, strict=True)]
            case Kind.SCALE:
                value = [x / arg for x in parts[0]]
            case _:
                value = parts[0]
        held.append(value)
        if plan.kind[op] == Kind.OUTPUT:
            results.setdefault(plan.devices[plan.device[op]], []).append(value)
    return results


def _part(value, lo, hi, wanted_lo, wanted_hi):
    first = max(lo, wanted_lo)
    return value[first - lo : max(first, min(hi, wanted_hi)) - lo]
