"""Proves a strategy on few of many equal machines, where its plan is folded."""

from __future__ import annotations

from dataclasses import replace

from simreduce.errors import StrategyError
from simreduce.plan import verify, wrong_elements
from simreduce.planners.layouts import Decide, Decision, Layout
from simreduce.planners.strategy.collectives import compile_collective
from simreduce.planners.strategy.text import Strategy
from simreduce.workload import Workload

PROVED_ON = (4, 3, 2)
"""Numbers of machines to prove a folded plan's strategy on; the first that it accepts counts."""


def proved_on_few(strategy: Strategy, workload: Workload, shape: Layout) -> tuple[int, int]:
    """The number of unfolded machines that `strategy` was proved on, and the wrong elements there.

    Every rank has as large a part of the workload there as on the folded machines of `shape`.
    """
    refused: StrategyError | None = None
    for machines in PROVED_ON:
        if machines > shape.machines:
            continue
        parts = [
            replace(g, elements=g.elements // shape.machines * machines) for g in workload.gradients
        ]
        few = replace(workload, gradients=tuple(parts))
        small = replace(shape.few(machines), decide=_of_all(shape, machines))
        try:
            plan = compile_collective(strategy.collective, strategy, few, small)
        except StrategyError as error:
            refused = error
            continue
        return machines, wrong_elements(verify(plan))
    assert refused is not None  # noqa: S101 - two machines at least are folded
    raise refused


def _of_all(shape: Layout, few: int) -> Decide | None:
    """Return a choice for `few` machines that repeats NCCL's choice on all machines of `shape`."""
    decide = shape.decide
    if decide is None:
        return None

    def of_all(_: tuple[str, ...], collective: str, nbytes: int, wanted: Decision) -> Decision:
        return decide(shape.ranks, collective, nbytes // few * shape.machines, wanted)

    return of_all
