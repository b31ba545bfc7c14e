"""The same algorithm over a range of sizes, one tensor each, as nccl-tests does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simreduce import dtypes
from simreduce.engine import Calibration, Runtime, simulate
from simreduce.errors import InputError
from simreduce.layouts import Layout
from simreduce.plan import verify, wrong_elements
from simreduce.strategy import Strategy, compile_plan
from simreduce.topology import Topology
from simreduce.workload import MOST_BYTES, Gradient, Workload

MOST_SIZES = 10_000
"""Rows of the longest table."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One size of one algorithm; seconds and bytes. `redop` is `sum` or `avg`."""

    algorithm: str
    count: int
    dtype: int
    redop: str
    seconds: float
    floor_seconds: float
    transfers: int
    wrong: int
    link: str
    link_share: float

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's tensor."""
        return self.count * dtypes.SIZES[self.dtype]


def sizes(minimum: int, maximum: int, step: int, factor: float) -> list[int]:
    """nccl-tests' sizes in bytes: times `factor` if it is above 1, else plus `step`."""
    problems = []
    if minimum < 1 or maximum < minimum:
        problems.append(f"the sizes go from -b {minimum} to -e {maximum}: needs 1 <= minbytes <= maxbytes")
    if maximum > MOST_BYTES:
        problems.append(f"-e {maximum}: more than 1 PiB")
    if factor and not 1 <= factor < math.inf:
        problems.append(f"-f {factor}: the factor must be above 1 (or give -i, a step)")
    elif factor <= 1 and step < 1:
        problems.append(f"-i {step}: the step must be at least 1 byte (or give -f, a factor above 1)")
    if problems:
        raise InputError(problems)
    found = [minimum]
    while (
        following := max(int(found[-1] * factor), found[-1] + 1) if factor > 1 else found[-1] + step
    ) <= maximum:
        if len(found) == MOST_SIZES:
            raise InputError(f"more than {MOST_SIZES} sizes; raise the step (-i) or the factor (-f)")
        found.append(following)
    return found


def tensor(nbytes: int, dtype: int) -> Workload:
    """One tensor of at most `nbytes`."""
    count = nbytes // dtypes.SIZES[dtype]
    return Workload(f"{count} elements", (Gradient("tensor", count, dtype),))


def bench(
    topology: Topology,
    layout: Layout,
    strategies: Sequence[Strategy],
    nbytes: Sequence[int],
    dtype: int,
    runtime: Runtime,
    calibration: Calibration,
    *,
    faithful: bool = False,
) -> Iterator[BenchRow]:
    """Rows size by size, in the order of `strategies` within a size. Sizes are rounded down to whole elements."""
    for size in nbytes:
        workload = tensor(size, dtype)
        count = workload.elements
        for strategy in strategies:
            plan = compile_plan(strategy, workload, layout, faithful=faithful)
            result = simulate(plan, topology, runtime, calibration)
            yield BenchRow(
                algorithm=strategy.text,
                count=count,
                dtype=dtype,
                redop="avg" if strategy.mean else "sum",
                seconds=result.seconds,
                floor_seconds=result.floors.seconds,
                transfers=result.transfers,
                wrong=wrong_elements(verify(plan)),
                link=result.bottleneck,
                link_share=result.links[0].share if result.links else 0.0,
            )
