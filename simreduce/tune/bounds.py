"""What a strategy takes at least, and simulations that end once it cannot win."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from simreduce.engine import AtLeast, Result
from simreduce.plan import Plan, repeat
from simreduce.setup import Setup
from simreduce.strategy import Strategy
from simreduce.tune.chunks import with_best_chunk
from simreduce.workload import Workload


class Run(NamedTuple):
    """A strategy with its chunk size, the plan of one collective, and the prediction of `times` of
    them in a row.
    """

    strategy: Strategy
    plan: Plan
    result: Result


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
    return setup.find_floor(plan, in_chunks=_searched(strategy))


def simulate_up_to(
    limit: float,
    setup: Setup,
    strategy: Strategy,
    workload: Workload,
    *,
    root: int = 0,
    faithful: bool = False,
    times: int = 1,
) -> Run | AtLeast:
    """The prediction if one collective takes at most `limit` seconds; else what it takes at least.

    Pipelined strategies without a chunk size get the best one for an undisturbed run, and none is
    looked for if no chunks would be fast enough. Within the limit, all is the same as without one.
    """
    searched = _searched(strategy)
    if searched and limit < inf:
        floor = lower_bound(setup, strategy, workload, root=root, faithful=faithful)
        if floor.seconds > limit:
            return floor
    if searched:
        strategy = with_best_chunk(strategy, workload, setup, root=root)
    plan = setup.compile(strategy, workload, root=root, faithful=faithful)
    result = setup.simulate_within(repeat(plan, times) if times > 1 else plan, limit * times)
    if isinstance(result, AtLeast):
        return AtLeast(result.seconds / times, result.reason)
    return Run(strategy, plan, result)


def _searched(strategy: Strategy) -> bool:
    """Whether a chunk size is looked for."""
    return strategy.pipelined and not strategy.chunk
