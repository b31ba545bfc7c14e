"""What `simreduce report` computes: documents, and what stands beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simreduce.calibrate import load_calibration
from simreduce.cli.progress import Progress, until_stopped
from simreduce.engine import Calibration
from simreduce.errors import InputError
from simreduce.pages import Beside, timeline_of_events
from simreduce.pages.notebook import machine_named
from simreduce.report.bench import bench_document
from simreduce.report.explain import explanation_document
from simreduce.report.ranking import preview_lines, ranking_document
from simreduce.report.steps import step_document
from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.strategy import Strategy, parse_strategy
from simreduce.textfiles import exists
from simreduce.topology import Topology
from simreduce.trace import step_trace_events, trace_events
from simreduce.training.sharded import DDP
from simreduce.tune.asked import ask
from simreduce.tune.bench import BenchRow, bench
from simreduce.tune.rank import Candidate, Ranking, Row, rank
from simreduce.tune.steps import rank_steps
from simreduce.tune.whatif import network_changes, savings

Document = Mapping[str, Any]

_SIZES = tuple(1 << power for power in range(16, 30, 2))
"""Bytes of the tensors of the curves: 64 KiB to 256 MiB."""
_CURVES = 4


def report_run(
    question: Scenario, beside: Beside, workers: int | None
) -> tuple[Document, Beside, bool]:
    """The ranking of a scenario, what stands beside it, and whether nothing is missing."""
    known: list[Row] = []
    with Progress("simulated {} of {} strategies", lambda: preview_lines(known)) as progress:
        ranking = rank(question, workers or os.cpu_count() or 1, progress, seen=known.append)
    document = ranking_document(ranking)
    if ranking.untried:
        missing = "Stopped before this was computed."
        return document, replace(beside, missing=missing), False
    best = ranking.recommended
    if best is None:
        return document, beside, True
    try:
        beside, complete = _look_closer(question, best.strategy, beside, timeline=True)
        sizes, all_sizes = _over_sizes(question.setup, _curves(ranking, best))
    except KeyboardInterrupt:
        return document, replace(beside, missing="Stopped before this was computed."), False
    return document, replace(beside, sizes=sizes), complete and all_sizes


def report_step(
    question: Scenario, beside: Beside, workers: int | None
) -> tuple[Document, Beside, bool]:
    """The training steps of a scenario, what stands beside them, and whether nothing is missing."""
    with Progress("simulated {} of {} steps") as progress:
        ranking = rank_steps(question, workers or os.cpu_count() or 1, progress)
    step = ranking.recommended.step
    names = [gradient.name for gradient in question.workload.gradients]
    timeline = timeline_of_events(step_trace_events(step, names))
    document = step_document(ranking)
    beside = replace(beside, timeline=timeline)
    if ranking.untried:
        missing = "Stopped before this was computed."
        return document, replace(beside, missing=missing), False
    method, _, text = step.method.rpartition(", ")
    try:
        beside = replace(beside, networks=_networks(question, method, text))
        if question.step is None or question.step.mode or method not in ("", DDP):
            missing = "Shown for all-reduces by themselves only."
            return document, replace(beside, missing=missing), True
        beside, complete = _look_closer(question, parse_strategy(text), beside, timeline=False)
    except KeyboardInterrupt:
        return document, replace(beside, missing="Stopped before this was computed."), False
    return document, beside, complete


def _networks(question: Scenario, method: str, text: str) -> dict[str, float] | None:
    """The microseconds of the step by this method and strategy with one more lane on every link of
    each class that joins machines; None if only a part of the machine is used.
    """
    if question.setup.part is not None or question.step is None:
        return None
    one = question
    if not question.step.mode:
        step = replace(question.step, methods=(method,) if method else question.step.methods)
        one = replace(question, strategies=(parse_strategy(text),), step=step)
    found = {}
    with Progress("simulating the step with more lanes"):
        for change in network_changes(question.setup.topology):
            changed = rank_steps(replace(one, setup=change.apply(one.setup)))
            found[change.resource] = changed.recommended.step.seconds * 1e6
    return found


def _look_closer(
    question: Scenario, strategy: Strategy, beside: Beside, *, timeline: bool
) -> tuple[Beside, bool]:
    """With the load of each link, the critical path and what would help; with a timeline."""
    try:
        with Progress("simulating the plan"):
            case = ask(question, strategy).compile()
            recording = case.setup.record(case.plan)
    except InputError as error:  # too large to hold, or nothing can be recorded of it
        return replace(beside, missing=f"Not simulated in detail: {error.problems[0]}"), True
    with Progress("simulated {} of {} changes") as progress:
        found = savings(recording, case.setup, progress)
    beside = replace(beside, explanation=explanation_document(recording, found, case.about))
    if timeline:
        with Progress("drawing the timeline"):
            events = trace_events(recording, case.setup.topology)
            drawn = timeline_of_events(events, recording.result.path.op.tolist())
        beside = replace(beside, timeline=drawn)
    return beside, progress.complete


def _curves(ranking: Ranking, best: Candidate) -> list[Strategy]:
    """The algorithms to show over sizes: the fastest of different kinds, without their packing."""
    proven = [best, *(c for c in ranking.candidates if not c.wrong)]
    specs = dict.fromkeys(c.strategy.spec for c in proven if ":" not in c.strategy.spec)
    return [parse_strategy(spec) for spec in list(specs)[:_CURVES]]


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


def document_machine(document: Document) -> tuple[Topology | None, Calibration | None]:
    """The machine and the calibration of a document, if simreduce has them under these names and
    the machine is the same. No file of a user is read.
    """
    name, digest = document.get("topology"), document.get("topology_digest")
    machine = machine_named(name, digest) if isinstance(name, str) else None
    name = document.get("calibration")
    if not isinstance(name, str) or exists(name):
        return machine, None
    try:
        return machine, load_calibration(name)
    except InputError:
        return machine, None
