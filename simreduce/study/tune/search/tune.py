"""`tune`: the searches that a target calls for, and their answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from simreduce.computing.watching import Progress, time_left, within
from simreduce.errors import InputError, StrategyError, did_you_mean, quote
from simreduce.export.frameworks import FRAMEWORKS, USUAL
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario import Scenario, with_step
from simreduce.study.ties import Moved, find_moved, settle_ties
from simreduce.study.tune.rank import FIRST
from simreduce.study.tune.search.advised import with_advice
from simreduce.study.tune.search.by_horovod import HorovodSearch
from simreduce.study.tune.search.by_methods import ShardedSearch
from simreduce.study.tune.search.by_nccl import NcclSearch
from simreduce.study.tune.search.by_plans import ModeSearch, PlanSearch
from simreduce.study.tune.search.by_size import size_ranges
from simreduce.study.tune.search.search import EFFORT, Aim, Search
from simreduce.study.tune.search.setting import keeping
from simreduce.study.tune.search.targets import OBJECTIVES, STEP, TIME
from simreduce.study.tune.search.tuned import SettingRow, Tuned, join
from simreduce.training.sharded import DDP

Make = Callable[[Aim[Any], Tuned | None], Search[Any]]
"""Makes a search for an aim, with the answer of the searches before it."""


def tune(
    scenario: Scenario,
    target: str = USUAL,
    objective: str = "",
    *,
    half: bool = False,
    workers: int = 1,
    effort: int = EFFORT,
    progress: Progress = lambda _done, _all: None,
) -> Tuned:
    """The best setting of `scenario` for a target, by one search or several.

    `objective` is `time` of one all-reduce or `step`; by default the step, if the scenario has one.
    What does not train launches CUDA graphs, so that no call costs it anything.
    With `half`, half precision on the wire is tried too. Ctrl-C ends the search with what there is,
    and so does the end of a budget of time (`computing.watching.within`), which the searches share.
    Raises InputError where the question makes no sense.
    """
    if not FRAMEWORKS[target].trains:
        if objective == STEP:
            raise InputError(f"{target} trains nothing; give --objective {TIME}")
        objective, scenario = TIME, scenario.but(call_cost=0.0)
    is_step, found = read_objective(scenario, objective) == STEP, None
    asked = with_step(scenario) if is_step else scenario.without_step()
    aim: Aim[Any] = Aim(asked, target, half, workers, effort, progress)
    searches = _searches(aim)
    for done, search in enumerate(searches):
        found = _extend(found, search(aim, found), time_left() / (len(searches) - done))
        if found.interrupted:
            break
    assert found is not None  # noqa: S101 - a target reduces, or shards
    answer = replace(found, scenario=replace(scenario, setup=found.scenario.setup))
    if answer.objective == TIME and not answer.stopped:
        answer = settle_ties(
            answer,
            FIRST,
            deciding=lambda each: (each.default, each.best),
            plan=lambda row: row.setting,
            find=lambda row: find_moved(
                row.setting.scenario(answer.scenario), row.setting.parsed, row.seconds
            ),
            note=_with_moved,
        )
    if not answer.stopped:
        answer = replace(answer, sizes=size_ranges(target, scenario))
    return with_advice(answer, workers)


def _with_moved(found: Tuned, moved: Moved) -> Tuned:
    """The answer with `moved` of these settings."""

    def note(row: SettingRow) -> SettingRow:
        return replace(row, moved=moved.get(row.setting))

    return replace(found, rows=tuple(map(note, found.rows)), default=note(found.default))


def read_objective(scenario: Scenario | None, objective: str) -> str:
    """The objective; for "", the step if there is one. InputError if there is none to optimise, as
    far as that is known without a scenario.
    """
    if objective not in ("", *OBJECTIVES):
        near = did_you_mean(objective, OBJECTIVES)
        raise InputError(f"must be one of {', '.join(OBJECTIVES)}, got {quote(objective)}{near}")
    if scenario is None:
        return objective
    if objective == STEP:
        with_step(scenario)
    if scenario.step is not None and scenario.step.mode and objective != TIME:
        raise InputError(f"{scenario.name}: step.variable_update says how to reduce; leave it out")
    return objective or (STEP if scenario.step else TIME)


def _searches(aim: Aim[Any]) -> list[Make]:
    """The searches that a target and the methods of a step call for, in order."""
    target, step, reduces = FRAMEWORKS[aim.target], aim.scenario.step, DDP in aim.methods
    in_turns = step and step.streams in (None, 1) and step.job.reduces_once
    in_cycles = target.cycles and in_turns and not aim.misfit
    called: tuple[tuple[object, Make], ...] = (
        (reduces and target.packings, HorovodSearch if in_cycles else NcclSearch),
        (reduces and target.by_plans and not aim.misfit, PlanSearch),
        (set(aim.methods) != {DDP}, ShardedSearch),
        (reduces and target.modes and step, ModeSearch),
    )
    return [search for wanted, search in called if wanted]


def _check(scenario: Scenario, name: str) -> None:
    """StrategyError that says why the machine has no time of a strategy, if it is known."""
    strategy = parse_strategy(name)
    setup = scenario.setup.running(strategy)
    try:
        setup.summarise(setup.compile(strategy, scenario.workload))
    except InputError as error:
        raise StrategyError([f"{name}: {each}" for each in error.problems]) from None


def _extend(before: Tuned | None, search: Search[Any], seconds: float) -> Tuned:
    """The answer with that of another search, which Ctrl-C ends with what there is, and a budget of
    time after some `seconds`, once it has a default.
    """

    def has_answer() -> bool:
        return before is not None or search.outcome.best < inf

    with within(seconds), keeping(search.scenario, search.aim.workers, has_answer) as (do, ended):
        search.first(do)
        if search.default and search.outcome.best == inf:
            name = search.default.strategy
            _check(search.scenario, name)
            raise StrategyError(f"{name}: the default has no plan on this machine")
        search.run(do)
        found = _join(before, search, {})
        return replace(found, curve=search.curve(found.best.setting, do) or found.curve)
    return _join(before, search, ended)


def _join(before: Tuned | None, search: Search[Any], ended: Mapping[str, Any]) -> Tuned:
    """The answer before a search, if there is one, with its own, which `ended` so."""
    found = replace(search.answer(stopped=bool(ended)), **ended)
    return join(before, found) if before else found
