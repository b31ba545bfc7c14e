"""Gradient lists and what packers make of them."""

from __future__ import annotations

from simreduce import dtypes
from simreduce.planners.packing.arrangement import Arrangement
from simreduce.workload import Gradient


def gradients(*elements: int, dtype: str = "float32") -> list[Gradient]:
    """Gradients of these sizes."""
    return [Gradient(f"g{i}", n, dtypes.code(dtype)) for i, n in enumerate(elements)]


def of_dtypes(*pairs: tuple[int, str]) -> list[Gradient]:
    """Gradients of these (elements, dtype)."""
    return [Gradient(f"g{i}", n, dtypes.code(dtype)) for i, (n, dtype) in enumerate(pairs)]


def sizes(arrangement: Arrangement, listed) -> list[int]:
    """Elements of every group."""
    return [sum(listed[i].elements for i in group) for group in arrangement.groups]


def packs(arrangement: Arrangement) -> list[list[int]]:
    """The groups of several."""
    return [list(group) for group in arrangement.groups if len(group) > 1]
