"""A cell's outcome: the one function that workers run, wherever they are.

What is built of a machine (routes, layouts, folded machines) is kept for the cells that follow.
Cells that share a machine should come together.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from simreduce.computing.workers import pass_on
from simreduce.dtypes import SIZES
from simreduce.engine import CALM, Disturbance
from simreduce.engine.disturbance import parse_disturbance
from simreduce.engine.setup import Setup
from simreduce.errors import Deadlock, InputError, PlanTooLarge, first_words
from simreduce.files import flatten
from simreduce.files.formats import PLACES, FieldValues
from simreduce.files.formats.syntax import Faults
from simreduce.planners.layouts import Layout, layout
from simreduce.planners.nccl import DEFAULTS
from simreduce.planners.nccl.environment import settings_of
from simreduce.planners.nccl.nics import with_nics
from simreduce.planners.strategy import parse_strategy
from simreduce.study.job_files import build_jobs
from simreduce.study.ranking import Refused, Stuck, outcome_of
from simreduce.study.scenario import Scenario, with_step
from simreduce.study.scenario_files import (
    beside,
    build_meshes,
    build_replicas,
    build_scenario,
    has_mesh,
)
from simreduce.study.sweep import (
    BENCH,
    COLUMNS,
    DONE,
    FAILED,
    JOBS,
    MESH,
    REFUSED,
    REPLICAS,
    RUN,
    STEP,
    STUCK,
    TOO_LARGE,
    Cell,
    Figures,
    code,
)
from simreduce.study.sweep.question import BENCH_DOCUMENT, DISTURB
from simreduce.study.tune.jobs import answer_jobs, finite, fit_jobs
from simreduce.study.tune.meshes import bubble, first_mesh, rank_meshes
from simreduce.study.tune.rank import Candidate, largest_gradient, rank
from simreduce.study.tune.sizes import (
    BenchCalls,
    BenchRow,
    Machines,
    algbw,
    busbw,
    parts_of,
    simulate_row,
)
from simreduce.study.tune.steps import rank_steps
from simreduce.study.tune.whatif import library_warning
from simreduce.topology import Folded, Topology, load_machine, load_topology
from simreduce.topology.loader import NONE, fail
from simreduce.training.shared_fabric import fairness
from simreduce.training.step import ESTIMATED
from simreduce.training.step_errors import EXACT
from simreduce.training.stragglers import repeat

_KEPT = 2
"""Machines that a worker keeps: one of 16,384 GPUs takes 1 GB."""


def evaluate(cell: Cell) -> Figures:
    """The row of a cell."""
    if cell.code and cell.code != code():
        return Figures(state=FAILED, reason=f"this worker has simreduce {code()}, not {cell.code}")
    by_kind = {BENCH: _bench, RUN: _run, STEP: _step, REPLICAS: _replicas, JOBS: _jobs}
    outcome = outcome_of(by_kind[cell.kind], cell)
    if isinstance(outcome, Refused):
        return Figures(
            state=TOO_LARGE if isinstance(outcome.error, PlanTooLarge) else REFUSED,
            reason="; ".join(
                problem.removeprefix(f"{_path(cell)}: ") for problem in outcome.error.problems
            ),
        )
    if isinstance(outcome, Stuck):
        return Figures(state=STUCK, reason=first_words(outcome.error))
    return outcome


def _done(setup: Setup | None, best: Any = None, **own: Any) -> Figures:
    """The figures of the `best` answer on these machines, with the kind's `own`."""
    found = {"state": DONE, "reason": "", "setup": setup, "best": best, **own}
    if setup:
        found["warning"] = library_warning(setup, [own.get("runtime") or ""]) or None
    if setup and "nominal" not in own:
        found["nominal"] = setup.nominal([own.get("chosen", "")], own.pop("calls", ())) or None
    return Figures(**COLUMNS.write(SimpleNamespace(**found)))


def _reduction(
    setup: Setup,
    row: BenchRow | Candidate,
    nbytes: int,
    interval: tuple[float, float] | None,
    busiest: tuple[float, str],
    collective: str = "all_reduce",
    **own: Any,
) -> Figures:
    """Return the figures of a reduction by itself; `busiest` is a link or lane, after its share."""
    ranks = setup.layout.n
    low, high = interval or (None, None)
    return _done(
        setup, row, seconds=row.seconds, low=low, high=high, runtime=row.runtime, ranks=ranks,
        nbytes=nbytes, algbw=algbw(nbytes, row.seconds),
        busbw=busbw(nbytes, row.seconds, ranks, collective),
        bound=busiest[1] or None, bound_share=busiest[0], **own,
    )  # fmt: skip


def _read_bench(document: object) -> FieldValues:
    faults = Faults()
    return faults.require(BENCH_DOCUMENT.read(document, faults))


def _bench(cell: Cell) -> Figures:
    values = _read_bench(cell.document)
    collective, size = values["collective"], values["size"]
    strategy = parse_strategy(values["strategy"], collective)
    shared = {k: v for k, v in cell.document.items() if k not in ("strategy", "size")}
    at = _machines(json.dumps(shared, sort_keys=True), cell.folder)
    setup = at.setup
    least = SIZES[values["dtype"]] * parts_of(collective, setup.layout.n)
    if size < least:
        raise InputError(f"size: must be at least {least} bytes, one element of every part")
    row = at.do(simulate_row, strategy, size)
    return _reduction(
        setup, row, row.nbytes, row.interval, (row.link_share, row.link), collective,
        chosen=row.algorithm, machines=row.machines,
        calls=setup.calls_of(strategy, at.ask(strategy, size).workload),
    )  # fmt: skip


@lru_cache(_KEPT)
def _machines(document: str, folder: str) -> Machines:
    """The machines of all strategies and sizes of a bench document, given as JSON."""
    table = json.loads(document)
    values = _read_bench(table)
    near = partial(beside, Path(folder, "it"))
    machine = _machine(
        load_machine, near(values["topology"]), flatten(values["topology_overrides"] or {})
    )
    settings = settings_of(values["nccl"]) if values["nccl"] else DEFAULTS
    machine = with_nics(machine, settings)
    if values["fails"] != NONE and isinstance(machine, Folded):
        raise InputError("fails: one of equal machines stands for all (folded); ask for fewer")
    machine, gone = fail(machine, values["fails"])
    shape = _part(layout(machine).without(gone), values["gpus"])
    if shape and values["gpu_indices"]:
        shape = shape.with_order(values["gpu_indices"])
    setup = Setup(
        machine,
        values["runtime"],
        near(values["calibration"]),
        _disturbance(table.get("disturb"), machine),
        shape,
        settings,
    )
    return Machines(
        setup, values["dtype"], faithful=values["faithful"], root=values["root"], fold=None,
        eager=True, calls=BenchCalls.by_threads(
            values["nthreads"], setup.layout, values["iters"], setup.nccl.release
        ),
    )  # fmt: skip


def _machine(load: Callable[..., Any], text: str, overrides: Mapping[str, Any] | None) -> Any:
    """Return the machine that `load` makes, kept for the cells that follow."""
    return _kept(load, text, tuple(sorted((overrides or {}).items())))


_topology = partial(_machine, load_topology)


@lru_cache(_KEPT)
def _kept(load: Callable[..., Any], text: str, overrides: tuple[tuple[str, Any], ...]) -> Any:
    return load(text, dict(overrides))


def forget() -> None:
    """Drop what is kept of the cells before."""
    for kept in (_machines, _kept):
        kept.cache_clear()


def _part(shape: Layout, gpus: Any) -> Layout:
    if gpus is None:
        return shape
    try:
        places = PLACES.read(gpus)
        return shape.subset(places) if isinstance(places, int) else shape.only(places)
    except ValueError as error:
        raise InputError(f"gpus: {error}") from None


def _disturbance(table: Any, machine: Topology | Folded | None) -> Disturbance:
    faults = Faults()
    values = DISTURB.read(table or {}, faults, "disturb")
    jitter = values["jitter"]
    found = parse_disturbance(
        faults, "", jitter, values["seed"] if jitter else None, values["slow"] or (),
        values["fault"] or (), values["tolerance"],
    )  # fmt: skip
    if isinstance(machine, Topology):
        faults.attempt("", found.check, machine)
    return faults.require(found)


def _path(cell: Cell) -> Path:
    """A path in the folder of a cell, where there is no file: `evaluate` names faults without."""
    return Path(cell.folder, "cell.toml")


def _scenario(cell: Cell) -> Scenario:
    document = cell.document
    scenario = build_scenario(_path(cell), document["scenario"], document.get("batch"), _topology)
    setup = scenario.setup
    changes: dict[str, Any] = {"disturbance": _disturbance(document.get("disturb"), setup.machine)}
    if document.get("gpus") is not None:
        changes["part"] = _part(setup.layout, document["gpus"])
    return scenario.but(**changes) if changes != {"disturbance": CALM} else scenario


def _replicas(cell: Cell) -> Figures:
    calm = _disturbance(cell.document.get("disturb"), None)
    replicas = build_replicas(_path(cell), cell.document["scenario"], calm)
    question, setup, workload = replicas.question, replicas.setup, replicas.workload
    found = repeat(question.job, question.updates, question.repetitions)
    reason = f"{found.blocked} of {question.repetitions} repetitions did not make all updates"
    if found.blocked == question.repetitions:
        raise Deadlock(reason)
    return _done(
        setup,
        reason=reason if found.blocked else "",
        seconds=float(found.steps(question.skip).mean()),
        gradients_per_second=float(found.rates(question.skip).mean()),
        dropped=found.wasted,
        runtime=setup.runtime.name if setup else None,
        ranks=question.job.workers,
        nbytes=workload.nbytes if workload else None,
    )


def _jobs(cell: Cell) -> Figures:
    """Jobs beside each other, or how many copies of them fit at a promised slowdown."""
    document = cell.document
    tables, promise = document["scenario"], document.get("slowdown")
    if promise is None:
        question = build_jobs(_path(cell), tables, _topology, document.get("copies", 1))
        found = answer_jobs(question)
    else:
        *_, found = fit_jobs(_path(cell), tables, promise, _topology)
        question = found.question
    slow, fit, outcomes = found.slowest, found.fit, found.outcomes
    if slow.slowdown == inf and not fit:
        raise InputError(found.loss)
    return _done(
        question.setup,
        seconds=slow.seconds if finite(slow.failed) is None else slow.failed,
        runtime=slow.job.setup.runtime.name,
        ranks=sum(len(job.setup.layout) for job in question.jobs),
        link=slow.shared[0].link if slow.shared else None,
        job=slow.job.name,
        slowdown=finite(slow.slowdown),
        by_failure=finite(slow.by_failure) if slow.after else None,
        worst=max((each.worst for each in outcomes if each.worst < inf), default=None),
        alone=slow.alone,
        fairness=fairness([each.by_neighbours for each in outcomes]),
        nominal=question.nominal or None,
        fit=fit and fit.copies,
        limit=fit and fit.limit,
    )


def _compares(scenario: Scenario) -> bool:
    """Whether a cell is about the best of several strategies, not about one."""
    return len(scenario.strategies or ()) != 1


def _run(cell: Cell) -> Figures:
    scenario = _scenario(cell)
    ranking = rank(scenario, with_today=_compares(scenario))
    pass_on(ranking.untried)
    if (best := ranking.recommended) is None:
        raise InputError([reason for _, reason in ranking.refused] or "no plan is proven right")
    setup = scenario.setup
    interval = (
        setup.running(best.strategy).interval(largest_gradient(scenario), best.seconds)
        if best.strategy.reduced_by_nccl and not best.strategy.is_nominal
        else None
    )
    busiest = max((best.link_share, best.link), (best.lane_share, best.lane))
    return _reduction(
        setup, best, scenario.workload.nbytes, interval, busiest,
        chosen=best.strategy.text, machines=1,
        calls=setup.calls_of(best.strategy, scenario.workload),
    )  # fmt: skip


def _meshes(cell: Cell) -> Figures:
    """The figures of the fastest mesh that fits, or of the fastest of all where none does. If the
    document has the key `first`, of the mesh that is found first.
    """
    meshes = build_meshes(_path(cell), cell.document["scenario"], load=_topology)
    meshes = first_mesh(meshes) if cell.document.get("first") else meshes
    ranking = rank_meshes(meshes)
    pass_on(ranking.untried)
    best, setup = ranking.recommended, meshes.setup
    step, job = best.step, ranking.job
    by = defaultdict(float, step.spent)
    waits = {
        "tensor": by["tp"],
        "context": by["cp"],
        "expert": by["ep"] + by["etp"],
        "pipeline": by["pipeline"],
        "data": by["data"],
        "interference": by["interference"],
    }
    exposed, (low, high) = sum(waits.values()), best.interval
    return Figures(
        **_done(
            setup,
            seconds=step.seconds,
            low=low,
            high=high,
            nominal=ranking.nominal or None,
            constants=job.gpu.nominal(job.bits) or None,
            machines=1,
        ).values
        | waits
        | {
            "compute": by["compute"],
            "update": by["update"],
            "launch": by["host"],
            "chosen": job.text,
            "method": MESH,
            "runtime": setup.running(parse_strategy("nccl")).runtime.name,
            "ranks": job.mesh.ranks,
            "bound": step.limit,
            "bound_share": by[step.limit] / step.seconds,
            "exposed": exposed,
            "efficiency": 1.0 - exposed / step.seconds,
            "bubble": bubble(job),
            "samples_per_second": job.global_batch / step.seconds,
            "tokens_per_second": step.tokens_per_second,
            "mfu": best.mfu,
            "memory": step.memory.needed if step.memory else None,
            "activations": step.memory.activations.nbytes if step.memory else None,
            "activations_source": ESTIMATED,
        }
    )


def _step(cell: Cell) -> Figures:
    if has_mesh(cell.document["scenario"]):
        return _meshes(cell)
    scenario = with_step(_scenario(cell))
    ranking = rank_steps(scenario, with_today=_compares(scenario))
    pass_on(ranking.untried)
    best = ranking.recommended
    step, setup = best.step, scenario.setup
    method, _, chosen = step.method.rpartition(", ")
    known = best.waits or best.sure != EXACT
    low, high = best.interval if known else (None, None)
    parts = {
        "compute": step.compute,
        "exposed communication": step.exposed,
        "interference": step.interference,
        "update": step.update,
        "launch": step.launch,
    }
    bound = max(parts, key=parts.__getitem__)
    return _done(
        setup,
        best,
        seconds=step.seconds,
        low=low,
        high=high,
        chosen=chosen,
        method=method or "ddp",
        runtime=best.runtime,
        ranks=step.devices,
        nbytes=scenario.workload.nbytes,
        bound=bound,
        bound_share=parts[bound] / step.seconds if step.seconds else 0.0,
        link=best.bottleneck or None,
        interference=step.interference,
        mfu=best.mfu,
        samples_per_second=step.samples_per_second if step.seconds else None,
        machines=1,
    )
