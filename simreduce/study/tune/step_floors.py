"""Lower bounds of steps by strategies, and which bounds are too high to be of interest.

Gradients of the first layer are ready when the backward pass ends. Tensors with any of them move
after it, and the update comes last, so no step takes less than its passes, the floor of the plan of
these tensors, and its update. Interference, queues and all other tensors only add to that.
`tests/study/tune/test_step_floors.py` compares floors with simulated steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from math import inf

from simreduce.computing.workers import as_piece
from simreduce.engine import AtLeast
from simreduce.engine.setup import Setup
from simreduce.errors import NotFoldable
from simreduce.export import settings
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.planners.packing import Fusion
from simreduce.planners.packing.arrangement import NoPacking
from simreduce.planners.strategy import Strategy
from simreduce.study import frameworks
from simreduce.study.ranking import TIED
from simreduce.study.scenario import StepScenario
from simreduce.study.tune.rank import FIRST
from simreduce.study.tune.search.packings import folded_of
from simreduce.study.tune.simulate import is_searched
from simreduce.training.passes import slowest
from simreduce.training.sharded import DDP
from simreduce.workload import Gradient, Workload

NO_FLOOR = AtLeast(0.0, "")

_MOST = 2_000_000
"""Upper limit of ops in a plan that is made for its floor alone."""


def floor_of_step(
    scenario: StepScenario, method: str, strategy: Strategy, limit: float = inf
) -> AtLeast:
    """Seconds that a step takes at least; 0 where reductions do not wait for a backward pass that
    is always as long, and for Horovod's cycles, which decide what travels together.

    A floor above the `limit` is that of one tensor, if that is enough. StrategyError if the machine
    refuses the strategy.
    """
    step, setup = scenario.step.replicated, scenario.setup.running(strategy)
    job, packer = step.job, strategy.packer
    plain = method == DDP and job.reduces_once and not (scenario.faithful or strategy.mean)
    if not (plain and setup.disturbance.calm) or isinstance(packer, Fusion):
        return NO_FLOOR
    factor = slowest(job, setup)
    ready, end = job.ready(factor)
    others = end + job.update * factor
    gradients, how = job.model.workload.gradients, packer.arrange(job.model.workload.gradients)
    late = list[tuple[int, int]]()
    for group in how.groups:
        if max(ready[i] for i in group) >= end:
            whole, dtype = sum(gradients[i].elements for i in group), gradients[group[0]].dtype
            parts = [whole // how.pieces] * (how.pieces - 1)
            own = dtype if how.wire is None else how.wire
            late += [(elements, own) for elements in (*parts, whole - sum(parts))]
    bare = replace(strategy, text=strategy.spec, packing="none", packer=NoPacking())
    floor = NO_FLOOR
    for tensors in (max(late),), tuple(late):
        found = _floor(setup, bare, tensors)
        if others + found.seconds > floor.seconds:
            floor = AtLeast(others + found.seconds, found.reason)
        if floor.seconds > limit:
            break
    return floor


@as_piece
@lru_cache(maxsize=1 << 12)
def _floor(setup: Setup, strategy: Strategy, tensors: tuple[tuple[int, int], ...]) -> AtLeast:
    """The floor of a plan of these elements and dtypes, of one of equal machines if that does."""
    workload = Workload("late", tuple(Gradient(f"g{i}", *each) for i, each in enumerate(tensors)))
    searched = is_searched(strategy)
    if one := folded_of(setup):
        with suppress(NotFoldable):
            return one.find_floor(one.compile(strategy, workload), in_chunks=searched)
    if setup.many_ops(strategy, workload) > _MOST:
        return NO_FLOOR
    return setup.find_floor(setup.compile(strategy, workload), in_chunks=searched)


Taken = tuple[float, str, Strategy]
"""Seconds of a step that fits a GPU, by a method and a strategy."""


def step_limits(
    scenario: StepScenario, rows: Sequence[float], options: Iterable[Taken]
) -> Callable[[str, Strategy], float]:
    """Seconds beyond which a step is neither among the first rows nor recommended, by the fitting
    rows and right options that are known, fastest first.

    Infinite for what a framework runs unless it is told, and while there are too few rows.
    """
    names, known = frameworks.names_for(scenario), [*options]
    today = {*(frameworks.default_text(name, scenario) for name in names), "nccl"}

    @cache
    def can_run(name: str, method: str, strategy: Strategy) -> bool:
        if FRAMEWORKS[name].has_typed:
            return bool(getattr(settings(strategy, scenario.setup.layout), name))
        return frameworks.files_of(name, scenario, strategy, method) is not None

    def fastest(name: str) -> float:
        full = ((s, *how) for s, *how in known if frameworks.in_full(how[1]))
        return next((s for s, *how in full if can_run(name, *how)), inf)

    last = rows[FIRST - 1] if len(rows) >= FIRST else inf
    limits = {name: fastest(name) * (1 + scenario.worth) for name in names}
    higher = {name: limit for name, limit in limits.items() if limit > last}

    def limit_of(method: str, strategy: Strategy) -> float:
        if strategy.text in today:
            return inf
        own = (limit for name, limit in higher.items() if can_run(name, method, strategy))
        return max([last, *own]) * TIED

    return limit_of
