"""What a strategy takes at least, and simulations that end once it cannot win."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

from simreduce.engine import AtLeast, Summary
from simreduce.plan import Plan, repeat
from simreduce.setup import Setup
from simreduce.strategy import Strategy
from simreduce.topology import Topology
from simreduce.tune.chunks import with_best_chunk
from simreduce.tune.known import Known
from simreduce.workload import Workload

LONG = 1 << 17
"""A plan of more transfers takes long: it is simulated only as far as it may win."""

_SEARCHES = 128
"""Plans of one tensor that a search for a chunk size is worth."""

_QUICK = 1 << 16
"""So few transfers between all pairs of ranks, for each tensor, never take long."""

_HUGE = 1 << 22
"""So many may take long to plan already."""

TIED = 1.001
"""What is within this factor of a limit is simulated: it may be as fast."""


class Run(NamedTuple):
    """A strategy with its chunk size, the plan of one collective, and the prediction of `times` of
    them in a row.
    """

    strategy: Strategy
    plan: Plan
    result: Summary


class Later(NamedTuple):
    """What takes long, with the transfers of its plan, or more."""

    transfers: int


HUGE = Later(1 << 62)
"""What takes long to plan already."""

BATCH = 12
"""What takes long is simulated so many at a time, those of few transfers first. Each time, the
limits are those of all before, and so do not depend on how many processes there are.
"""


def batches(left: Mapping[int, Later]) -> Iterator[list[int]]:
    """The places of what is left, in batches."""
    order = sorted(left, key=lambda place: (left[place].transfers, place))
    for first in range(0, len(order), BATCH):
        yield order[first : first + BATCH]


def lower_bound(
    setup: Setup,
    strategy: Strategy,
    workload: Workload,
    *,
    root: int = 0,
    faithful: bool = False,
) -> AtLeast:
    """What `strategy` takes at least, in seconds: the highest floor of its plan, which is made and
    not simulated. Without a chunk size, it holds for chunks of every size.

    The prediction of `setup` is never below it. Raises as `Setup.compile` does.
    """
    plan = setup.compile(strategy, workload, root=root, faithful=faithful)
    return setup.find_floor(plan, in_chunks=_is_searched(strategy))


def simulate_up_to(
    limit: float,
    setup: Setup,
    strategy: Strategy,
    workload: Workload,
    *,
    root: int = 0,
    faithful: bool = False,
    times: int = 1,
    known: Known | None = None,
) -> Run | AtLeast:
    """The prediction if one collective takes at most `limit` seconds; else what it takes at least.

    Pipelined strategies without a chunk size get the best one for an undisturbed run, and none is
    looked for if no chunks would be fast enough. Within the limit, all is the same as without one.
    """
    known = known or Known()
    if _is_searched(strategy) and isinstance(setup.machine, Topology):
        if limit < inf:
            floor = lower_bound(setup, strategy, workload, root=root, faithful=faithful)
            if floor.seconds > limit:
                return floor
        strategy = with_best_chunk(strategy, workload, setup, root=root, known=known)
    plan = known.compile(setup, strategy, workload, root=root, faithful=faithful)
    if limit == inf:
        return Run(strategy, plan, known.summarise(setup, plan, times))
    whole = repeat(plan, times) if times > 1 else plan
    result = setup.summarise_within(whole, limit * times)
    if isinstance(result, AtLeast):
        return AtLeast(result.seconds / times, result.reason)
    return Run(strategy, plan, result)


def simulate_quick(
    setup: Setup,
    strategy: Strategy,
    workload: Workload,
    *,
    root: int = 0,
    faithful: bool = False,
    times: int = 1,
    known: Known | None = None,
) -> Run | Later:
    """As `simulate_up_to` without a limit, but nothing that takes long."""
    known = known or Known()
    pairs = setup.layout.n**2 * _tensors(strategy, workload)
    if pairs >= _HUGE and setup.takes_long(strategy, workload):
        return HUGE
    searched = _is_searched(strategy) and isinstance(setup.machine, Topology)
    if searched and pairs >= _QUICK and len(workload.gradients) == 1:
        whole = known.compile(setup, strategy, workload, root=root, faithful=faithful)
        if whole.transfers * _SEARCHES > LONG:
            return Later(whole.transfers * _SEARCHES)
    if searched:
        strategy = with_best_chunk(strategy, workload, setup, root=root, known=known)
    plan = known.compile(setup, strategy, workload, root=root, faithful=faithful)
    if plan.transfers > LONG:
        return Later(plan.transfers)
    return Run(strategy, plan, known.summarise(setup, plan, times))


def _tensors(strategy: Strategy, workload: Workload) -> int:
    """How many tensors are reduced, about."""
    if strategy.packing == "none":
        return len(workload.gradients)
    return int(getattr(strategy.packer, "packs", 1))


def _is_searched(strategy: Strategy) -> bool:
    """Whether a chunk size is looked for."""
    return strategy.pipelined and not strategy.chunk
