"""`tune`: the search that a target calls for, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

from simreduce.engine import NCCL
from simreduce.errors import InputError, StrategyError
from simreduce.scenario import Scenario
from simreduce.strategy.automatic import select_cross_device_ops
from simreduce.training.reductions import FIXED
from simreduce.training.sharded import DDP
from simreduce.training.ticks import can_tick
from simreduce.tune.search.best_first import SAME, Tried
from simreduce.tune.search.by_horovod import HorovodSearch
from simreduce.tune.search.by_methods import least_fit
from simreduce.tune.search.by_nccl import EFFORT, NcclSearch, Point
from simreduce.tune.search.by_plans import PlanSearch, can_be_told, is_right, settings_of
from simreduce.tune.search.methods import methods_of
from simreduce.tune.search.setting import Setting, evaluate
from simreduce.tune.search.spaces import BY_NCCL, BY_PLANS, OBJECTIVES, STEP, nccl_space
from simreduce.tune.search.steps import (
    WITH_MODES,
    add_methods,
    add_modes,
    reducing_scenario,
    with_fits,
)
from simreduce.tune.search.timeline import read_clock
from simreduce.tune.search.tuned import Place, Tuned, merge, sureness_of
from simreduce.tune.steps import NO_STEP
from simreduce.workers import in_processes
from simreduce.workload import Workload

Progress = Callable[[int, int], None]

HOROVOD, JAX = "horovod", "jax"

_CURVE = 13
"""Sizes of buckets around the best that are simulated to show how flat the best is."""


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
    """The best setting of `scenario` for what `target` can be told.

    `objective` is `time` of one all-reduce or `step`; by default the step, if the scenario has one.
    With `half`, half precision on the wire is tried too. Ctrl-C ends the search with what there is.
    Raises InputError where the question makes no sense.
    """
    objective = read_objective(scenario, objective)
    methods = methods_of(target, scenario) if objective == STEP else (DDP,)
    reducing, misfit = reducing_scenario(scenario, objective), False
    if objective == STEP:
        misfit = least_fit(scenario, Setting("nccl")).fits is False and len(methods) > 1
    if target == JAX and reducing.step is not None:
        reducing = replace(reducing, step=replace(reducing.step, cycle=FIXED))
    found = None
    if target == HOROVOD and objective == STEP and not misfit and _in_cycles(reducing):
        found = _by_horovod(reducing, half, workers, effort, progress)
    elif target in BY_NCCL and DDP in methods:
        found = _by_nccl(
            reducing, target, objective, half, workers, effort, progress, only_default=misfit
        )
    if target in BY_PLANS and DDP in methods and not misfit and not (found and found.stopped):
        found = _by_plans(reducing, target, objective, half, workers, progress, found)
    if objective == STEP:
        found = found and with_fits(found, scenario)
        if set(methods) != {DDP} and not (found and found.stopped):
            found = add_methods(found, scenario, target, methods, half, workers, progress)
        if target in WITH_MODES and DDP in methods and not (found and found.stopped):
            assert found is not None  # noqa: S101 - such targets reduce too
            found = add_modes(found, scenario, workers)
    assert found is not None  # noqa: S101 - a target reduces, or shards
    asked = replace(found.scenario, step=scenario.step, workload=scenario.workload)
    return replace(found, scenario=asked)


def read_objective(scenario: Scenario, objective: str) -> str:
    """The objective; of "", the step if there is one. InputError if there is none to optimise."""
    if objective not in ("", *OBJECTIVES):
        raise InputError(f"must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    if objective == STEP and scenario.step is None:
        raise InputError(f"{scenario.name}: {NO_STEP}")
    if scenario.step is not None and scenario.step.mode and objective != OBJECTIVES[0]:
        raise InputError(f"{scenario.name}: step.variable_update says how to reduce; leave it out")
    return objective or (STEP if scenario.step else OBJECTIVES[0])


def _by_nccl(
    scenario: Scenario,
    target: str,
    objective: str,
    half: bool,
    workers: int,
    effort: int,
    progress: Progress,
    *,
    only_default: bool = False,
) -> Tuned:
    """The best of packings and choices of NCCL, on NCCL's own runtime; with `only_default`, the
    default alone, as none fits the memory of a GPU.
    """
    scenario = scenario.but(runtime=NCCL)
    space = nccl_space(target, scenario, half=half)
    first, told = Setting(f"nccl{space.default.text}"), Point(space.default, told=False)
    search = NcclSearch(scenario, objective, space.packings, effort=effort)
    search.first(workers, told)
    if search.outcome.best == inf:
        raise StrategyError(f"{first.strategy}: the default has no plan on this machine")
    stopped = False
    try:
        if not only_default:
            search.run(workers, progress)
    except KeyboardInterrupt:
        stopped = True
    outcome = search.outcome
    rows = merge({search.settings[point]: time for point, time in outcome.seconds.items()})
    floor = max(_floor(scenario, half=half), search.clock.compute) + search.clock.update
    found = Tuned(
        composed=search.pieced > 0,
        scenario=scenario,
        target=target,
        objective=objective,
        rows=rows,
        default=next(row for row in rows if row.setting == first),
        points=search.points,
        calls=search.calls.counted,
        bound=outcome.bound_or(floor, stopped=stopped),
        floor=floor,
        base=search.clock.compute + search.clock.update,
        sureness=sureness_of(scenario, [size.nbytes for size in space.default.calls]),
        stopped=stopped,
        spent=not stopped and outcome.bound < outcome.best * (1.0 - max(search.gap, SAME)),
    )
    if only_default:
        return replace(found, unfit=search.points)
    return found if stopped else replace(found, curve=_curve(search, found, workers))


def _in_cycles(scenario: Scenario) -> bool:
    """Whether a step is one that is followed cycle by cycle."""
    step = scenario.step
    return step is not None and step.streams in (None, 1) and can_tick(step.job)


def _by_horovod(
    scenario: Scenario, half: bool, workers: int, effort: int, progress: Progress
) -> Tuned:
    """The best threshold and cycle, with what NCCL is told."""
    scenario = scenario.but(runtime=NCCL)
    space = nccl_space(HOROVOD, scenario, half=half)
    search = HorovodSearch(scenario, space.packings, effort)
    search.first(workers)
    if search.seconds[search.default] == inf:
        raise StrategyError(f"{search.default.strategy}: the default has no plan on this machine")
    stopped = False
    try:
        search.run(workers, progress)
    except KeyboardInterrupt:
        stopped = True
    rows, clock = merge(search.seconds), search.inner.clock
    least = [search.bound, *(row.seconds for row in rows[:1])]
    return Tuned(
        scenario=scenario,
        target=HOROVOD,
        objective=STEP,
        rows=rows,
        default=next(row for row in rows if row.setting == search.default),
        points=search.points,
        calls=search.inner.calls.counted,
        bound=min(least),
        floor=max(_floor(scenario, half=half), clock.compute) + clock.update,
        base=clock.compute + clock.update,
        sureness=sureness_of(scenario, [size.nbytes for size in space.default.calls]),
        stopped=stopped,
        estimated=True,
    )


def _by_plans(
    scenario: Scenario,
    target: str,
    objective: str,
    half: bool,
    workers: int,
    progress: Progress,
    before: Tuned | None,
) -> Tuned:
    """The best of all algorithms that the target knows, after what NCCL's search has found."""
    settings = settings_of(scenario, target, half=half)
    if not settings and before is None:
        raise InputError(
            f"{target} has no setting for any strategy on {scenario.setup.machine.name}"
        )
    limit = before.best.seconds if before else inf
    search = PlanSearch(scenario, objective, target, settings, limit)
    outcome, stopped = search.outcome, False
    first = None if before else _first(scenario, target, settings)
    if first is not None:
        outcome.seconds[first] = _default(scenario, objective, first).seconds
    try:
        search.run(workers, progress)
    except KeyboardInterrupt:
        stopped = True
    right = {s: t for s, t in outcome.seconds.items() if t < inf}
    while right and not is_right(scenario, best := min(right, key=right.__getitem__)):
        del right[best]
    own = merge(right)
    clock = read_clock(scenario.but(runtime=NCCL), objective)
    floor = max(_floor(scenario, half=half), clock.compute) + clock.update
    bound = outcome.bound_or(floor, stopped=stopped)
    bound = min([bound, *(row.seconds for row in own[:1])])
    if before is not None:
        rows = tuple(sorted((*before.rows, *own), key=lambda row: row.seconds))
        return replace(
            before,
            scenario=scenario,
            rows=rows,
            points=before.points + len(search.settings),
            bound=min(before.bound, max(bound, 0.0)),
            curve=before.curve if rows[0] in before.rows else (),
            stopped=stopped,
        )
    return Tuned(
        scenario=scenario,
        target=target,
        objective=objective,
        rows=own,
        default=next((row for row in own if row.setting == first), own[-1]),
        points=len(search.settings),
        calls=0,
        bound=bound,
        floor=floor,
        base=clock.compute + clock.update,
        stopped=stopped,
    )


def _default(scenario: Scenario, objective: str, setting: Setting) -> Tried:
    """What the default takes; StrategyError if the machine refuses it."""
    found = evaluate(scenario, objective, setting)
    if found.seconds == inf:
        raise StrategyError(f"{setting.strategy}: the default has no plan on this machine")
    return found


def _first(scenario: Scenario, target: str, settings: list[Setting]) -> Setting | None:
    """What TensorFlow does unless told: its own choice, or the copies of tf_cnn_benchmarks."""
    own = (
        "copy_to_gpus" if target != "tensorflow" else select_cross_device_ops(scenario.setup.layout)
    )
    found = Setting(own)
    return found if can_be_told(target, scenario, found) else next(iter(settings), None)


def _floor(scenario: Scenario, *, half: bool) -> float:
    """Seconds that no all-reduce of the workload takes less than on this machine, whatever the
    algorithm: for its bytes, or half as many, to cross the narrowest cut.
    """
    workload, setup = scenario.workload, scenario.setup
    one = replace(workload.gradients[0], elements=setup.layout.n)
    small = Workload("one", (one,))
    result = setup.simulate(setup.compile("nccl", small))
    return result.floors.cut * workload.nbytes / small.nbytes / (2 if half else 1)


def _curve(search: NcclSearch, found: Tuned, workers: int) -> tuple[Place, ...]:
    """Times of other sizes of buckets, all else as in the best setting: simulated, or composed of
    calls where plans are huge. Those that the effort does not reach are bounds.
    """
    own = next(p for p, s in search.settings.items() if s == found.best.setting)
    words = own.packing.text.partition(",")[2]
    alike = sorted(
        (p for p in search.packings if p.knob and p.text.partition(",")[2] == words),
        key=lambda packing: packing.knob,
    )
    if own.packing not in alike:
        return ()
    at = alike.index(own.packing)
    first = max(min(at - _CURVE // 2, len(alike) - _CURVE), 0)
    some = alike[first : first + _CURVE]
    exact = {row.setting: row.seconds for row in found.rows}
    settings = [replace(found.best.setting, strategy=f"nccl{p.text}") for p in some]
    unknown = {s: p for s, p in zip(settings, some, strict=True) if s not in exact}
    tried: list[Tried] = []
    if search.pieced:
        tried = search.times([*unknown.values()], found.best.setting.rules, workers)
    elif search.spent <= search.effort / 2:
        work = partial(evaluate, search.scenario, search.objective)
        tried = list(in_processes(work, [*unknown], workers))
    known = dict(zip(unknown, tried, strict=False)) | {s: Tried(t) for s, t in exact.items()}
    return tuple(
        Place(p.knob, took.seconds, took.exact, estimated=not took.exact)
        if (took := known.get(setting, Tried(inf))).seconds < inf
        else Place(p.knob, search.clock.bound(p, search.calls.least), exact=False)
        for p, setting in zip(some, settings, strict=True)
    )
