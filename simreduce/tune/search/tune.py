"""`tune`: the search that a target calls for, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from simreduce.engine import NCCL
from simreduce.errors import InputError
from simreduce.scenario import Scenario
from simreduce.tune.search.by_nccl import EFFORT, NcclSearch, Point
from simreduce.tune.search.setting import Setting, evaluate
from simreduce.tune.search.spaces import OBJECTIVES, STEP, nccl_space
from simreduce.tune.search.tuned import Place, Tuned, merge, sureness_of
from simreduce.tune.steps import NO_STEP
from simreduce.workers import in_processes
from simreduce.workload import Workload

Progress = Callable[[int, int], None]

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
    scenario = scenario.but(runtime=NCCL)
    space = nccl_space(target, scenario, objective, half=half)
    first = Setting(f"nccl{space.default.text}")
    search = NcclSearch(scenario, objective, space.packings, space.cycles, effort=effort)
    outcome, stopped = search.outcome, False
    default = evaluate(scenario, objective, first)
    outcome.seconds[Point(space.default, told=False)] = default.seconds
    search.settings[Point(space.default, told=False)] = first
    try:
        search.run(workers, progress)
    except KeyboardInterrupt:
        stopped = True
    rows = merge({search.settings[point]: time for point, time in outcome.seconds.items()})
    best = min(rows, key=lambda row: (row.seconds, row.setting.simplicity))
    calls = [size.nbytes for size in space.default.calls]
    found = Tuned(
        scenario=scenario,
        target=target,
        objective=objective,
        rows=rows,
        default=next(row for row in rows if row.setting == first),
        points=search.points,
        calls=search.calls.counted,
        bound=min(outcome.bound, best.seconds),
        floor=max(_floor(scenario, half=half), search.clock.compute) + search.clock.update,
        base=search.clock.compute + search.clock.update,
        sureness=sureness_of(scenario, calls),
        stopped=stopped,
    )
    return found if stopped else replace(found, curve=_curve(search, found, workers))


def read_objective(scenario: Scenario, objective: str) -> str:
    """The objective; of "", the step if there is one. InputError if there is none to optimise."""
    if objective not in ("", *OBJECTIVES):
        raise InputError(f"objective: must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    if objective == STEP and scenario.step is None:
        raise InputError(f"{scenario.name}: {NO_STEP}")
    return objective or (STEP if scenario.step else OBJECTIVES[0])


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
    """Times of other sizes of buckets, all else as in the best setting."""
    own = next(p for p, s in search.settings.items() if s == found.best.setting)
    words = own.packing.text.partition(",")[2]
    alike = sorted(
        (
            packing
            for packing in search.packings
            if packing.knob and packing.text.partition(",")[2] == words
        ),
        key=lambda packing: packing.knob,
    )
    if own.packing not in alike:
        return ()
    at = alike.index(own.packing)
    some = alike[max(at - _CURVE // 2, 0) : at + _CURVE // 2 + 1]
    known = {row.setting: row.seconds for row in found.rows}
    settings = [replace(found.best.setting, strategy=f"nccl{packing.text}") for packing in some]
    unknown = [setting for setting in settings if setting not in known]
    work = partial(evaluate, search.scenario, search.objective)
    times = zip(unknown, in_processes(work, unknown, workers), strict=True)
    known |= {setting: tried.seconds for setting, tried in times}
    return tuple(
        Place(packing.knob, known[setting]) for packing, setting in zip(some, settings, strict=True)
    )
