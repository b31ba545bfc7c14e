"""What `simreduce report` computes: documents, and what stands beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from simreduce.calibrate import load_calibration
from simreduce.cli.progress import Progress, until_stopped
from simreduce.cli.replicas import repeat_replicas
from simreduce.engine import Calibration
from simreduce.errors import InputError
from simreduce.export.targets import Exported, hand_over
from simreduce.pages import Beside, answer_row, timeline_of_events
from simreduce.pages.notebook import machine_named
from simreduce.report.bench import bench_document
from simreduce.report.explain import explanation_document
from simreduce.report.looks import path_words, replicas_look_document, step_look_document
from simreduce.report.ranking import preview_lines, ranking_document
from simreduce.report.replicas import replicas_document
from simreduce.report.steps import step_document
from simreduce.scenario import Replicas, Scenario
from simreduce.setup import Setup
from simreduce.strategy import Strategy, parse_strategy
from simreduce.textfiles import exists
from simreduce.topology import Topology
from simreduce.trace import step_trace_events, trace_events
from simreduce.trace.replicas import replicas_trace_events
from simreduce.training.sharded import DDP
from simreduce.training.stragglers import sample
from simreduce.tune.asked import ask, choice_of
from simreduce.tune.bench import BenchRow, bench
from simreduce.tune.rank import Row, plain_specs, rank
from simreduce.tune.steps import rank_steps
from simreduce.tune.whatif import savings
from simreduce.tune.whatif_replicas import run_loads, update_effects, worker_time
from simreduce.tune.whatif_steps import look_at_step

Document = Mapping[str, Any]

_SIZES = tuple(1 << power for power in range(16, 30, 2))
"""Bytes of the tensors of the curves: 64 KiB to 256 MiB."""
_CURVES = 4
_TRIED = 40
"""Strategies that a system without a setting for the best may be told instead."""


def report_run(
    question: Scenario, beside: Beside, workers: int | None
) -> tuple[Document, Beside, bool]:
    """The ranking of a scenario, what stands beside it, and whether nothing is missing."""
    known: list[Row] = []
    with Progress("simulated {} of {} strategies", lambda: preview_lines(known)) as progress:
        ranking = rank(question, workers or os.cpu_count() or 1, progress, seen=known.append)
    document = ranking_document(ranking)
    if ranking.untried:
        return document, replace(beside, missing=_STOPPED), False
    row = answer_row(document)
    best = next((c for c in ranking.candidates if row and c.strategy.text == row["strategy"]), None)
    if best is None:
        return document, beside, True
    proven = [c.strategy for c in ranking.candidates if not c.wrong][:_TRIED]
    exports = hand_over(choice_of(ask(question, best.strategy), None), proven)
    beside = replace(beside, exports=exports)
    try:
        beside, complete = _look_closer(question, best.strategy, beside)
        sizes, all_sizes = _over_sizes(question.setup, plain_specs(ranking, best, _CURVES))
    except KeyboardInterrupt:
        return document, replace(beside, missing=_STOPPED), False
    return document, replace(beside, sizes=sizes), complete and all_sizes


def report_step(
    question: Scenario, beside: Beside, workers: int | None
) -> tuple[Document, Beside, bool]:
    """The training steps of a scenario, what stands beside them, and whether nothing is missing."""
    with Progress("simulated {} of {} steps") as progress:
        ranking = rank_steps(question, workers or os.cpu_count() or 1, progress)
    best = ranking.recommended
    names = [gradient.name for gradient in question.workload.gradients]
    document = step_document(ranking)
    events = list(step_trace_events(best.step, names))
    timeline = timeline_of_events(events)
    beside = replace(beside, timeline=timeline, exports=_step_exports(question, best.step.method))
    if ranking.untried:
        return document, replace(beside, missing=_STOPPED), False
    try:
        with Progress("simulated {} of {} changes of the step") as progress:
            look = look_at_step(question, best, progress)
    except KeyboardInterrupt:
        return document, replace(beside, missing=_STOPPED), False
    timeline = timeline_of_events(events, chain=path_words(look.path))
    found = step_look_document(look, best.step.method, names)
    return document, replace(beside, timeline=timeline, look=found), progress.complete


def _step_exports(question: Scenario, name: str) -> tuple[Exported, ...]:
    """What other systems can be told of a step's method and strategy; nothing of modes."""
    if question.step is None or question.step.mode:
        return ()
    method, _, text = name.rpartition(", ")
    asked = ask(question, parse_strategy(text))
    return hand_over(choice_of(asked, question.step, method or DDP))


def report_replicas(
    question: Replicas, beside: Beside, workers: int | None
) -> tuple[Document, Beside, bool]:
    """The updates of a scenario's replicas, what stands beside them, and whether nothing is
    missing.
    """
    q, processes = question.question, workers or os.cpu_count() or 1
    spread, choices, complete = repeat_replicas(question, processes, try_backups=True)
    document = replicas_document(q, spread, choices, question, complete=complete)
    run = sample(q.job, q.updates, q.skip)
    if run is not None:
        events = replicas_trace_events(run, q.job.names)
        beside = replace(beside, timeline=timeline_of_events(events))
    if not complete:
        return document, replace(beside, missing=_STOPPED), False
    seconds = spread.step(q.skip).mean
    if run is None or not isfinite(seconds):
        why = "One update has too many gradients to show." if run is None else "Training stops."
        return document, replace(beside, missing=why), True
    try:
        with Progress("simulated {} of {} changes") as progress:
            effects = update_effects(q, spread, processes, progress)
    except KeyboardInterrupt:
        return document, replace(beside, missing=_STOPPED), False
    spent, links = worker_time(run, q.skip), run_loads(q.job, run)
    look = replicas_look_document(seconds, spent, links, effects)
    return document, replace(beside, look=look), progress.complete


_STOPPED = "Stopped before this was computed."


def _look_closer(question: Scenario, strategy: Strategy, beside: Beside) -> tuple[Beside, bool]:
    """With the load of each link, the critical path, what would help, and the timeline."""
    try:
        with Progress("simulating the plan"):
            case = ask(question, strategy).compile()
            recording = case.setup.record(case.plan)
    except InputError as error:  # too large to hold, or nothing can be recorded of it
        return replace(beside, missing=f"Not simulated in detail: {error.problems[0]}"), True
    with Progress("simulated {} of {} changes") as progress:
        found = savings(recording, case.setup, progress)
    with Progress("drawing the timeline"):
        events = trace_events(recording, case.setup.topology)
        timeline = timeline_of_events(events, recording.result.path.op.tolist())
    explanation = explanation_document(recording, found, case.about, complete=progress.complete)
    beside = replace(beside, explanation=explanation, timeline=timeline)
    return beside, progress.complete


def _over_sizes(setup: Setup, strategies: list[Strategy]) -> tuple[Document | None, bool]:
    """The document of a bench of these strategies; None if the machine refuses one."""
    total = len(strategies) * len(_SIZES)
    try:
        rows, complete = until_stopped(
            bench(setup, strategies, _SIZES), total, "simulated {} of {} sizes"
        )
    except InputError:
        return None, True
    done = [row for row in rows if isinstance(row, BenchRow)]
    document = bench_document(
        done, setup.layout.n, setup.machine.name, setup.runtime.name, setup.calibration.name,
        disturbance=setup.disturbance.text, complete=complete,
    )  # fmt: skip
    return document, complete


_MACHINE = ("topology", "topology_digest")


def document_machine(document: Document) -> tuple[Topology | None, Calibration | None]:
    """The machine and the calibration of a document, if simreduce has them under these names and
    the machine is the same; of a sweep over machines, that of its fastest cell. No file of a user
    is read.
    """
    rows = document.get("rows") if document.get("command") == "sweep" else None
    done = [row for row in rows or () if row.get("seconds") is not None]
    if document.get("topology") is None and done:
        fastest = min(done, key=lambda row: row["seconds"])
        document = {**document, **{key: fastest.get(key) for key in _MACHINE}}
    name, digest = document.get("topology"), document.get("topology_digest")
    machine = machine_named(name, digest) if isinstance(name, str) else None
    name = document.get("calibration")
    if not isinstance(name, str) or exists(name):
        return machine, None
    try:
        return machine, load_calibration(name)
    except InputError:
        return machine, None
