"""What a step adds to a search: sharded methods, modes of tf_cnn_benchmarks, and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from simreduce.engine import NCCL
from simreduce.errors import InputError
from simreduce.scenario import Scenario
from simreduce.training.memory import Fit
from simreduce.tune.candidates import sharing_candidates
from simreduce.tune.search.by_methods import ShardedSearch, least_fit, points_of
from simreduce.tune.search.setting import Setting, evaluate
from simreduce.tune.search.spaces import STEP
from simreduce.tune.search.timeline import read_clock
from simreduce.tune.search.tuned import Row, Tuned, merge, sureness_of
from simreduce.workers import in_processes

WITH_MODES = ("tf_cnn_benchmarks", "any")
"""The targets that run tf_cnn_benchmarks' modes with variables on servers."""

MODES = tuple(
    Setting("", mode=mode, device=device)
    for mode in ("parameter_server", "distributed_replicated")
    for device in ("cpu", "gpu")
)


def reducing_scenario(scenario: Scenario, objective: str) -> Scenario:
    """The scenario as DDP has it: gradients of a step have the dtype in which it reduces."""
    if objective != STEP or scenario.step is None:
        return scenario
    step = scenario.step.replicated
    return replace(scenario, step=step, workload=step.job.model.workload)


def with_fits(found: Tuned, scenario: Scenario) -> Tuned:
    """The answer with what each row holds: rows that do not fit stand behind all others."""
    fits: dict[object, Fit | None] = {}

    def fit(row: Row) -> Row:
        if row.fit is not None or row.setting.mode:
            return row
        key = row.setting.method, row.setting.sharding
        if key not in fits:
            fits[key] = least_fit(scenario, row.setting)
        return replace(row, fit=fits[key])

    rows = sorted(map(fit, found.rows), key=lambda row: row.misfit)
    return replace(found, rows=tuple(rows), default=fit(found.default))


def add_methods(
    before: Tuned | None,
    scenario: Scenario,
    target: str,
    methods: Sequence[str],
    half: bool,
    workers: int,
    progress: Callable[[int, int], None],
) -> Tuned:
    """The best with the sharded ones of `methods` too. InputError if nothing fits."""
    texts = ["nccl"]
    if target == "any":
        texts += [s.text for s in sharing_candidates(scenario.setup.layout) if s.text != "nccl"]
    limit = inf if before is None or before.best.misfit else before.best.seconds
    points = points_of(target, methods, scenario, texts, half=half)
    search = ShardedSearch(scenario.but(runtime=NCCL), points, limit)
    if not search.settings and before is None:
        raise InputError(
            [
                f"{scenario.name}: {each.method} {least_fit(scenario, each).words}"
                for each in {s.method: s for s in reversed(search.unfit)}.values()
            ]
        )
    stopped = False
    try:
        search.run(workers, progress)
    except KeyboardInterrupt:
        stopped = True
    own = _rows(search, scenario)
    if before is None and not own:
        raise KeyboardInterrupt
    return _joined(before, own, search, scenario, target, stopped=stopped)


def _rows(search: ShardedSearch, scenario: Scenario) -> tuple[Row, ...]:
    """What was found, with what a simulated step holds. Of points of a method with the same time,
    the one with the least to say.
    """
    rows, seen = [], set[tuple[str, str, float]]()
    for row in merge(search.outcome.seconds):
        key = row.setting.method, row.setting.strategy, float(f"{row.seconds:.9g}")
        if key in seen:
            continue
        seen.add(key)
        fit, known = least_fit(scenario, row.setting), search.simulated.get(row.setting)
        rows.append(replace(row, fit=Fit(known.peak, fit.available) if known else fit))
    return tuple(rows)


def _joined(
    before: Tuned | None,
    own: tuple[Row, ...],
    search: ShardedSearch,
    scenario: Scenario,
    target: str,
    *,
    stopped: bool,
) -> Tuned:
    """One answer of two searches."""
    step, ranks = scenario.step, scenario.setup.layout.n
    assert step is not None  # noqa: S101 - the caller has looked
    clock = read_clock(scenario.but(runtime=NCCL), STEP)
    least = clock.compute + clock.update / ranks
    points = search.told + len(search.settings) + len(set(search.unfit) - set(search.settings))
    bound = search.outcome.bound_or(least, stopped=stopped)
    bound = min([bound, *(row.seconds for row in own[:1])])
    if before is None:
        units = [b.nbytes for b in scenario.workload.gradients]
        return Tuned(
            scenario=scenario,
            target=target,
            objective=STEP,
            rows=own,
            default=_default(own),
            points=points,
            calls=len(search.collectives) + search.told,
            bound=bound,
            floor=least,
            base=least,
            sureness=sureness_of(scenario, units),
            stopped=stopped,
            unfit=len(search.unfit),
            spent=search.spent,
        )
    rows = sorted((*before.rows, *own), key=lambda row: (row.misfit, row.seconds))
    before_bound = inf if before.best.misfit and own else before.bound
    return replace(
        before,
        rows=tuple(rows),
        points=before.points + points,
        calls=before.calls + len(search.collectives) + search.told,
        bound=min(before_bound, bound),
        floor=min(before.floor, least),
        base=min(before.base, least),
        curve=before.curve if rows[0] in before.rows else (),
        stopped=stopped,
        unfit=before.unfit + len(search.unfit),
        spent=before.spent or search.spent,
    )


def _default(rows: Sequence[Row]) -> Row:
    """The row with the fewest settings: of the method that the scenario names first."""
    return min(rows, key=lambda row: row.setting.simplicity)


def add_modes(before: Tuned, scenario: Scenario, workers: int) -> Tuned:
    """The best with the modes of tf_cnn_benchmarks whose variables are on servers, each of which is
    simulated.
    """
    try:
        tried = in_processes(partial(evaluate, scenario, STEP), MODES, workers)
        own = merge({s: each.seconds for s, each in zip(MODES, tried, strict=True)})
    except KeyboardInterrupt:
        return replace(before, stopped=True)
    rows = sorted((*before.rows, *own), key=lambda row: (row.misfit, row.seconds))
    return replace(
        before,
        rows=tuple(rows),
        points=before.points + len(MODES),
        bound=min([before.bound, *(row.seconds for row in own)]),
        curve=before.curve if rows[0] in before.rows else (),
    )
