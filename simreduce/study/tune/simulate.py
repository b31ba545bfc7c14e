"""Lower bounds of strategies, and simulations that end once a strategy cannot win."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

from simreduce.engine import AtLeast, Summary
from simreduce.errors import NotFoldable
from simreduce.plan import Plan, repeat
from simreduce.planners.strategy import Strategy
from simreduce.study.outcome import Postponed
from simreduce.study.question import Question
from simreduce.study.study import Limit
from simreduce.study.tune.chunks import LARGEST, with_best_chunk
from simreduce.study.tune.plan_cache import PlanCache
from simreduce.topology import Topology
from simreduce.workload import Workload

LONG = 1 << 17
"""A plan of more transfers takes long: it is simulated only as far as it may win."""

_SEARCHES = 128
"""Plans of one tensor that a search for a chunk size is worth."""

_QUICK = 1 << 16
"""Plans with fewer transfers between all pairs of ranks, for each tensor, never take long."""

_HUGE = 1 << 22
"""Plans with more of them may take long to make."""


class PredictedPlan(NamedTuple):
    """A strategy with its chunk size, its plan and its prediction.

    The plan is of one collective, and the prediction of `times` of them in a row.
    """

    strategy: Strategy
    plan: Plan
    result: Summary


HUGE = Postponed(1 << 62)
"""The answer for plans that take long to make."""


def lower_bound(question: Question) -> AtLeast:
    """A lower bound in seconds: the highest floor of a strategy's plan, which is not simulated.

    Without a chunk size, it holds for chunks of every size.

    The prediction is never below it. Raises as `Setup.compile` does.
    """
    return question.setup.find_floor(question.compile(), in_chunks=_is_searched(question.strategy))


def simulate_up_to(
    question: Question, limit: float, cache: PlanCache | None = None
) -> PredictedPlan | AtLeast:
    """The prediction if one collective takes at most `limit` seconds; else what it takes at least.

    Pipelined strategies without a chunk size get the best one for an undisturbed run, and none is
    looked for if no chunks would be fast enough. Within the limit, all is the same as without one.
    """
    cache, setup, times = cache or PlanCache(), question.setup, question.times
    if limit < inf and _is_searched(question.strategy) and isinstance(setup.machine, Topology):
        floor = lower_bound(question)
        if floor.seconds > limit:
            return floor
    question = _with_chunks(question, cache)
    plan = cache.compile(question)
    if limit == inf:
        return PredictedPlan(question.strategy, plan, cache.summarise(setup, plan, times))
    whole = repeat(plan, times) if times > 1 else plan
    result = setup.summarise_within(whole, limit * times)
    if isinstance(result, AtLeast):
        return AtLeast(result.seconds / times, result.reason)
    return PredictedPlan(question.strategy, plan, result)


def simulate_within(
    question: Question, limit: Limit, cache: PlanCache | None = None
) -> PredictedPlan | AtLeast | Postponed:
    """As `simulate_up_to`; without a limit, what takes long is postponed."""
    cache, setup, strategy = cache or PlanCache(), question.setup, question.strategy
    if limit is not None or not isinstance(setup.machine, Topology):
        return simulate_up_to(question, inf if limit is None else limit, cache)
    pairs = setup.layout.n**2 * _tensors(strategy, question.workload)
    if pairs >= _HUGE and setup.many_ops(strategy, question.workload):
        return HUGE
    one = len(question.workload.gradients) == 1
    if one and pairs >= _QUICK and _is_searched(strategy):
        transfers = cache.compile(question).transfers * _SEARCHES
        if transfers > LONG:
            return Postponed(transfers)
    question = _with_chunks(question, cache)
    plan = cache.compile(question)
    if plan.transfers > LONG:
        return Postponed(plan.transfers)
    return PredictedPlan(question.strategy, plan, cache.summarise(setup, plan, question.times))


def _with_chunks(question: Question, cache: PlanCache) -> Question:
    """With the best chunk size, if one is looked for.

    NotFoldable where it must be looked for on all of the machines.
    """
    if not _is_searched(question.strategy):
        return question
    if not isinstance(question.setup.machine, Topology):
        if cache.compile(question).transfers > LARGEST:
            return question  # as the search on all machines does
        raise NotFoldable(
            f"{question.strategy.text}: the size of its chunks is looked for on all machines; "
            "+chunk= sets one"
        )
    asked = question.strategy, question.workload, question.setup
    return replace(question, strategy=with_best_chunk(*asked, root=question.root, cache=cache))


def _tensors(strategy: Strategy, workload: Workload) -> int:
    """How many tensors are reduced, about."""
    if strategy.packing == "none":
        return len(workload.gradients)
    return int(getattr(strategy.packer, "packs", 1))


def _is_searched(strategy: Strategy) -> bool:
    """Whether a chunk size is looked for."""
    return strategy.pipelined and not strategy.chunk
