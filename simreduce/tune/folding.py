"""Plans that are too large to hold, made and proved by folding equal machines."""

from __future__ import annotations

from dataclasses import replace

from simreduce.errors import NotFoldable, PlanTooLarge, StrategyError, TopologyError
from simreduce.layouts import Layout, layout as layout_of
from simreduce.plan import verify, wrong_elements
from simreduce.strategy import Strategy, compile_plan
from simreduce.topology import Folded, Topology, fold
from simreduce.workload import Workload

PROVED_ON = (4, 3, 2)
"""Machines of the same kind that a folded plan's strategy is proved on: the first number that it
accepts.
"""


def folded(topology: Topology | Folded, layout: Layout, why: PlanTooLarge) -> tuple[Folded, Layout]:
    """The equal machines of a topology as one, for a plan that is too large to hold; `layout` is
    the whole topology's.

    Raises `why`, with what keeps the machines from being folded.
    """
    if isinstance(topology, Folded):
        raise why
    try:
        one = fold(topology)
    except TopologyError as error:
        raise PlanTooLarge([*why.problems, *error.problems]) from None
    if layout.n < len(topology.devices):
        raise PlanTooLarge(
            [*why.problems, "and with some of the GPUs only, the machines cannot be folded"]
        )
    return one, replace(layout_of(one), order=layout.order)


def unfolded(
    topology: Topology | Folded, layout: Layout, why: NotFoldable
) -> tuple[Topology, Layout]:
    """All the equal machines that one stands for, and their layout. Raises `why` if they cannot be
    held, or were to be folded.
    """
    if not isinstance(topology, Folded) or topology.whole is None:
        raise why
    whole = topology.whole()
    return whole, replace(layout_of(whole), order=layout.order)


def proved_on_few(strategy: Strategy, workload: Workload, layout: Layout) -> tuple[int, int]:
    """How many of the machines that `layout` has folded `strategy` was proved on, and the elements
    that were wrong there.

    Every rank has as large a part of the workload there as here.
    """
    refused: StrategyError | None = None
    for machines in PROVED_ON:
        if machines > layout.boxes:
            continue
        parts = [
            replace(g, elements=g.elements // layout.boxes * machines) for g in workload.gradients
        ]
        few = replace(workload, gradients=tuple(parts))
        try:
            plan = compile_plan(strategy, few, layout.few(machines))
        except StrategyError as error:
            refused = error
            continue
        return machines, wrong_elements(verify(plan))
    assert refused is not None  # noqa: S101 - two machines at least are folded
    raise refused
