"""Synchronous replicas: what an update takes, and how many backups are best, for people and for
programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import isfinite
from typing import Any

from simreduce import tables, units
from simreduce.engine import NOMINAL, TENSORFLOW
from simreduce.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    INTEGER,
    MICROSECONDS,
    PER_SECOND,
    RATIO,
    TEXT,
    Document,
    Key,
    Kind,
    Record,
    list_of,
    or_null,
)
from simreduce.report.heads import CALIBRATION_KEY, DISTURBANCE_KEY
from simreduce.report.replicas_timeline import replicas_timeline
from simreduce.scenario import Replicas
from simreduce.tables import Table
from simreduce.training.distributions import Constant, Distribution, Empirical
from simreduce.training.replicas import Delays, ReplicasJob, ReplicasQuestion, Run
from simreduce.training.stragglers import CONFIDENCE, BackupChoice, Interval, Repetitions

_MOST = 8
"""Workers unlike the others that the head names, at most."""

_COLUMNS = tables.columns(
    "backups|in an update|update||ideal|gradients||dropped|blocked",
    units="|(gradients)|(ms)|(+-)|(ms)|(1/s)|(+-)|(share)|(runs)",
    spare="ideal|blocked|in an update",
)


def replicas_text(
    question: ReplicasQuestion,
    spread: Repetitions,
    choices: Sequence[BackupChoice] = (),
    scenario: Replicas | None = None,
    run: Run | None = None,
    *,
    complete: bool = True,
) -> str:
    """The job, what its updates take, and a row for every number of backups that was tried; first,
    whose question it is. With a `run`, a timeline of it. What is not `complete` was stopped.
    """
    job, settings = question.job, question.job.settings
    step = spread.step(question.skip)
    links = (
        "no two workers share a link"
        if isinstance(job.network, Delays)
        else job.network.setup.topology.name
    )
    variables = units.plural(job.variables, "variable")
    gradients = units.plural(settings.replicas_to_aggregate, "gradient")
    tokens = units.plural(settings.tokens_per_step, "token")
    repetitions = units.plural(len(spread.updates), "repetition")
    updates = units.plural(question.updates, "update")
    about = [
        f"{units.plural(job.workers, 'worker')}, {variables}, {links}",
        f"{gradients} in an update, {tokens} after it, {settings.initial_tokens} at first",
        (
            f"{repetitions} of {updates}, of which the first {question.skip} do not count, "
            f"seed {job.seed}"
        ),
        *_computing(job),
    ]
    lines = [
        *(_header(scenario) if scenario else []),
        *tables.comments(about),
        "",
        f"one update     {_time(step)}{_of_those(spread)}",
        f"dropped        {spread.wasted:.2%} of the gradients",
    ]
    if spread.blocked:
        lines.append(f"blocked        {spread.blocked} of {repetitions} did not make all updates")
    if choices:
        lines += ["", *_table(choices, job.workers)]
    if run and run.updates:
        lines += ["", *replicas_timeline(run, job.names)]
    if not complete:
        made, wanted = len(spread.updates), question.repetitions
        before = (
            f"after {made} of {units.plural(wanted, 'repetition')}"
            if made < wanted
            else "before all backups were tried"
        )
        lines += ["", f"stopped {before}"]
    return "\n".join(lines)


def _computing(job: ReplicasJob) -> list[str]:
    """How long workers compute, and which of them are not as the others."""
    each = "by worker" if isinstance(job.compute, tuple) else _distribution(job.compute)
    odd = [
        f"worker {w} takes {factor:.4g} times as long"
        for w, factor in job.slow.items()
        if factor != 1.0
    ]
    for worker, seconds in job.dies.items():
        back = (
            f", back at {units.format_duration(job.returns[worker])}"
            if worker in job.returns
            else ""
        )
        odd.append(f"worker {worker} stops at {units.format_duration(seconds)}{back}")
    more = [f"and {len(odd) - _MOST} more"] if len(odd) > _MOST else []
    return [f"computing: {each}", *(["; ".join([*odd[:_MOST], *more])] if odd else [])]


def _distribution(times: Distribution) -> str:
    """As the table of a scenario has it."""
    if isinstance(times, Constant):
        return units.format_duration(times.seconds)
    if isinstance(times, Empirical):
        mean = units.format_duration(times.expected)
        return f"one of {units.plural(len(times.seconds), 'measured time')}, {mean} on average"
    figures = {each.name: getattr(times, each.name) for each in fields(times)}  # type: ignore[arg-type]
    words = [
        f"{name} {value:g}" if name == "shape" else f"{name} {units.format_duration(value)}"
        for name, value in figures.items()
        if value or name != "least"
    ]
    return f"{type(times).__name__.lower()}, {', '.join(words)}"


def _header(scenario: Replicas) -> list[str]:
    facts: list[tuple[str, str]] = []
    at = scenario.setup
    if at:
        machine, calibration = at.topology, at.calibration
        facts += [
            ("topology", f"{machine.name}: {machine.title}, {machine.digest}"),
            ("runtime", at.runtime.name),
            ("calibration", tables.label(calibration.name, calibration.title)),
        ]
    if scenario.workload:
        w = scenario.workload
        gradients = units.plural(len(w.gradients), "gradient")
        facts.append(("workload", f"{w.name}: {gradients}, {units.format_size(w.nbytes)}"))
    facts.append(("disturbed", at.disturbance.text if at else ""))
    head = tables.header(scenario.title, facts)
    return [*head[:-1], *(["# faithful to upstream"] if scenario.faithful else []), head[-1]]


def _of_those(spread: Repetitions) -> str:
    """Whose times these are, where training stopped in some repetitions."""
    made = len(spread.updates) - spread.blocked
    return (
        f", of the {units.plural(made, 'repetition')} that made all updates"
        if spread.blocked and made
        else ""
    )


def _time(step: Interval) -> str:
    if not isfinite(step.mean):
        return "never made"
    if not isfinite(step.high):
        return units.format_duration(step.mean)
    return (
        f"{units.format_duration(step.mean)}, between {units.format_duration(step.low)} and "
        f"{units.format_duration(step.high)} with {CONFIDENCE:.0%} confidence"
    )


def _table(choices: Sequence[BackupChoice], workers: int) -> list[str]:
    lines = Table(_COLUMNS, tuple(_row(each, workers) for each in choices)).lines()
    best = best_choice(choices)
    if best is None:
        return [*lines, "", "No choice makes all its updates."]
    lines += ["", f"Most gradients in a second with {units.plural(best.backups, 'backup')}"]
    if any(each.blocked != best.blocked for each in choices):
        lines.append("  of the choices with which training stops least often")
    if best.blocked:
        lines.append("  in the repetitions in which it stops with none of them")
    others = [str(each.backups) for each in choices if each.as_good and each is not best]
    if others:
        lines.append(f"  these repetitions do not tell it from {', '.join(others)}")
    return lines


def best_choice(choices: Sequence[BackupChoice]) -> BackupChoice | None:
    """The one with the most gradients in a second; None if nothing is ever trained."""
    return next((each for each in choices if each.best), None)


def _row(choice: BackupChoice, workers: int) -> tuple[str, ...]:
    def figure(value: float, digits: int) -> str:
        return f"{value:.{digits}f}" if isfinite(value) else "-"

    step, rate = choice.step, choice.rate
    return (
        str(choice.backups),
        str(workers - choice.backups),
        figure(step.mean * 1e3, 3),
        figure((step.high - step.mean) * 1e3, 3),
        "-" if choice.ideal is None else figure(choice.ideal * 1e3, 3),
        figure(rate.mean, 1),
        figure(rate.high - rate.mean, 1),
        f"{choice.wasted:.2%}",
        str(choice.blocked) if choice.blocked else "-",
    )


def _spread(name: str, unit: Kind) -> Record:
    return Record(
        name,
        "A mean with its 95 % interval; null without a whole repetition, or with too few.",
        Key("mean", or_null(unit), "The mean of the repetitions."),
        Key("low", or_null(unit), "The lower end."),
        Key("high", or_null(unit), "The upper end."),
    )


_TIME, _RATE = _spread("interval", MICROSECONDS), _spread("rate", PER_SECOND)
REPLICAS = Document(
    "step-replicas",
    "`simreduce step --json` of a scenario with `[replicas]`: an update of synchronous replicas, "
    "and the best number of backups.",
    Key("scenario", TEXT, "The scenario's name or file."),
    Key("topology", or_null(TEXT), "The name of the machine; null without one."),
    Key("topology_digest", or_null(TEXT), "Names the machine's content; null without one."),
    Key("workload", or_null(TEXT), "The name of what is reduced; null without one."),
    Key("size_bytes", or_null(BYTES), "All gradients; null without a workload."),
    Key("runtime", TEXT, "The system that runs it."),
    CALIBRATION_KEY,
    DISTURBANCE_KEY,
    Key("faithful", FLAG, "Whether it does what upstream does, quirks included."),
    Key("workers", COUNT, "Workers."),
    Key("variables", COUNT, "Variables."),
    Key("replicas_to_aggregate", COUNT, "Gradients in an update."),
    Key("total_num_replicas", COUNT, "As SyncReplicasOptimizer has it."),
    Key("num_tokens", INTEGER, "Tokens in the queue at first, as SyncReplicasOptimizer has it."),
    Key("contention", FLAG, "Whether workers share links."),
    Key("updates", COUNT, "Updates of a repetition."),
    Key("skipped", COUNT, "Of these, the first ones that do not count."),
    Key("repetitions", COUNT, "Repetitions that were simulated."),
    Key("seed", INTEGER, "The seed of random times."),
    Key("confidence", RATIO, "That of all intervals."),
    Key("step_time_us", _TIME, "An update."),
    Key("dropped_share", or_null(RATIO), "Stale gradients as a part of all."),
    Key("blocked", COUNT, "Repetitions that did not make all their updates."),
    Key(
        "backups",
        list_of(
            Record(
                "backups",
                "The outcome of a number of backup workers.",
                Key("backups", COUNT, "That number."),
                Key("step_time_us", _TIME, "An update."),
                Key(
                    "ideal_step_time_us",
                    or_null(MICROSECONDS),
                    "A step that all workers begin together with free communication; null if "
                    "workers differ.",
                ),
                Key("gradients_per_second", _RATE, "Gradients that enter updates."),
                Key("dropped_share", or_null(RATIO), "Stale gradients as a part of all."),
                Key("blocked", COUNT, "Repetitions that did not make all their updates."),
                Key("as_good_as_the_best", FLAG, "Whether it is not told apart from the best."),
            )
        ),
        "Numbers of backups that `--backups` tried; empty without it.",
    ),
    Key("best_backups", or_null(COUNT), "The best number; null if none was tried."),
    Key("complete", FLAG, "False if the command was stopped."),
    command="step",
)


def replicas_document(
    question: ReplicasQuestion,
    spread: Repetitions,
    choices: Sequence[BackupChoice] = (),
    scenario: Replicas | None = None,
    *,
    complete: bool = True,
) -> dict[str, Any]:
    """The document of `--json`: `REPLICAS`; without a `scenario`, its keys from `workers` on."""
    job, settings = question.job, question.job.settings
    best = best_choice(choices)
    return {
        **(_about(scenario) if scenario else {}),
        "workers": job.workers,
        "variables": job.variables,
        "replicas_to_aggregate": settings.replicas_to_aggregate,
        "total_num_replicas": settings.total,
        "num_tokens": settings.initial_tokens,
        "contention": not isinstance(job.network, Delays),
        "updates": question.updates,
        "skipped": question.skip,
        "repetitions": len(spread.updates),
        "seed": job.seed,
        "confidence": CONFIDENCE,
        "step_time_us": _interval(spread.step(question.skip), 1e6),
        "dropped_share": spread.wasted,
        "blocked": spread.blocked,
        "backups": [
            {
                "backups": each.backups,
                "step_time_us": _interval(each.step, 1e6),
                "ideal_step_time_us": _number(each.ideal, 1e6),
                "gradients_per_second": _interval(each.rate, 1.0),
                "dropped_share": each.wasted,
                "blocked": each.blocked,
                "as_good_as_the_best": each.as_good,
            }
            for each in choices
        ],
        "best_backups": best.backups if best else None,
        "complete": complete,
    }


def _about(scenario: Replicas) -> dict[str, Any]:
    """The first keys of the document; null for what the scenario does not have."""
    at, workload = scenario.setup, scenario.workload
    return {
        **REPLICAS.head(),
        "scenario": scenario.name,
        "topology": at.topology.name if at else None,
        "topology_digest": at.topology.digest if at else None,
        "workload": workload.name if workload else None,
        "size_bytes": workload.nbytes if workload else None,
        "runtime": (at.runtime if at else TENSORFLOW).name,
        "calibration": (at.calibration if at else NOMINAL).name,
        "disturbance": at.disturbance.text if at else "",
        "faithful": scenario.faithful,
    }


def _interval(found: Interval, factor: float) -> dict[str, float | None]:
    return {
        "mean": _number(found.mean, factor),
        "low": _number(found.low, factor),
        "high": _number(found.high, factor),
    }


def _number(value: float | None, factor: float) -> float | None:
    return value * factor if value is not None and isfinite(value) else None
