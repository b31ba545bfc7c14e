"""`tune`: the searches that a target calls for, and their answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from simreduce.errors import InputError, StrategyError
from simreduce.study.scenario import Scenario
from simreduce.study.tune.search.by_horovod import HorovodSearch
from simreduce.study.tune.search.by_methods import ShardedSearch
from simreduce.study.tune.search.by_nccl import NcclSearch
from simreduce.study.tune.search.by_plans import ModeSearch, PlanSearch
from simreduce.study.tune.search.search import EFFORT, Aim, Progress, Search
from simreduce.study.tune.search.setting import simulating
from simreduce.study.tune.search.targets import OBJECTIVES, STEP, TARGETS, TIME
from simreduce.study.tune.search.tuned import Tuned, join
from simreduce.training.sharded import DDP
from simreduce.training.ticks import can_tick

Make = Callable[[Aim, Tuned | None], Search]
"""Makes a search, with the answer of the searches before it."""


def tune(
    scenario: Scenario,
    target: str = "pytorch",
    objective: str = "",
    *,
    half: bool = False,
    workers: int = 1,
    effort: int = EFFORT,
    progress: Progress = lambda _done, _all: None,
) -> Tuned:
    """The best setting of `scenario` for a target, by one search or several.

    `objective` is `time` of one all-reduce or `step`; by default the step, if the scenario has one.
    With `half`, half precision on the wire is tried too. Ctrl-C ends the search with what there is.
    Raises InputError where the question makes no sense.
    """
    own = scenario
    if read_objective(scenario, objective) == TIME:
        own = replace(scenario, step=None)
    aim, found = Aim(own, target, half, workers, effort, progress), None
    for make in _searches(aim):
        found = _extend(found, make(aim, found), workers)
        if found.stopped:
            break
    assert found is not None  # noqa: S101 - a target reduces, or shards
    asked = replace(found.scenario, step=scenario.step, workload=scenario.workload)
    return replace(found, scenario=asked)


def read_objective(scenario: Scenario, objective: str) -> str:
    """The objective; for "", the step if there is one. InputError if there is none to optimise."""
    if objective not in ("", *OBJECTIVES):
        raise InputError(f"must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    if objective == STEP:
        scenario.require_step()
    if scenario.step is not None and scenario.step.mode and objective != TIME:
        raise InputError(f"{scenario.name}: step.variable_update says how to reduce; leave it out")
    return objective or (STEP if scenario.step else TIME)


def _searches(aim: Aim) -> list[Make]:
    """The searches that the target and the methods call for, in order."""
    target, methods = TARGETS[aim.target], aim.methods
    step = aim.reducing.step
    found: list[Make] = []
    if DDP in methods and target.packers:
        in_cycles = step is not None and step.streams in (None, 1) and can_tick(step.job)
        by_cycle = aim.target == "horovod" and in_cycles and not aim.misfit
        found.append(HorovodSearch if by_cycle else NcclSearch)
    if DDP in methods and target.by_plans and not aim.misfit:
        found.append(PlanSearch)
    if set(methods) != {DDP}:
        found.append(ShardedSearch)
    if DDP in methods and target.modes and step is not None:
        found.append(ModeSearch)
    return found


def _extend(before: Tuned | None, search: Search, workers: int) -> Tuned:
    """The answer with that of another search, which Ctrl-C ends with what there is."""
    try:
        with simulating(search.scenario, workers) as do:
            search.first(do)
            if search.default and search.outcome.best == inf:
                name = search.default.strategy
                raise StrategyError(f"{name}: the default has no plan on this machine")
            search.run(do)
            found = _join(before, search)
            return replace(found, curve=search.curve(found.best.setting, do) or found.curve)
    except KeyboardInterrupt:
        if before is None and search.outcome.best == inf:
            raise
        return _join(before, search, stopped=True)


def _join(before: Tuned | None, search: Search, *, stopped: bool = False) -> Tuned:
    found = search.answer(stopped=stopped)
    return join(before, found) if before else found
