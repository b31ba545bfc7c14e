"""`simreduce step SCENARIO`: a training step, or the updates of synchronous replicas."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from simreduce.cli.completion import scenario_argument
from simreduce.cli.group import command
from simreduce.cli.options import (
    check_outputs,
    echo_json,
    gpus_options,
    report_options,
    workers_option,
    write_output,
)
from simreduce.cli.progress import Progress
from simreduce.cli.replicas import read_replicas, repeat_replicas
from simreduce.cli.setups import read_scenario, setup_options
from simreduce.cli.strategies import algo_option, strategy_texts
from simreduce.cli.terminal import rows_shown, show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.report.replicas import replicas_document, replicas_text
from simreduce.report.steps import step_document, step_table
from simreduce.scenario import keys_of
from simreduce.trace import replicas_trace_text, step_trace_text
from simreduce.training.stragglers import sample
from simreduce.tune.steps import NO_STEP, rank_steps


@command(examples="simreduce step step-dgx1p-resnet50")
@scenario_argument
@algo_option("Rank these instead of the scenario's.")
@click.option(
    "--batch",
    type=int,
    default=None,
    help="Take so many samples per GPU; default: the scenario's.",
)
@gpus_options
@setup_options("the scenario's", "the scenario's")
@workers_option
@click.option(
    "--trace",
    default=None,
    metavar="FILE",
    help="Also write the timeline of the step, or of the first updates of [replicas]; "
    ".gz: compressed; -: stdout.",
)
@click.option(
    "--backups",
    "try_backups",
    is_flag=True,
    help="Try how many workers of [replicas] should be backups.",
)
@click.option(
    "--all", "show_all", is_flag=True, help="Show all strategies, however many, on a terminal too."
)
@report_options
def step(
    scenario: str,
    workers: int | None,
    trace: str | None,
    try_backups: bool,
    show_all: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Predict the training step of SCENARIO (a file with a [step], or a shipped name): how much of
    the reductions the backward pass hides, and which strategy gives the fastest step. With
    [replicas] instead of [step]: the time of an update of synchronous replicas whose workers do
    not compute equally long.

    On Ctrl-C or SIGTERM, prints the results so far and exits with status 130.
    """
    faults = Faults()
    faults.attempt("", check_outputs, {"--trace": trace}, as_json=as_json)
    keys, processes = keys_of(scenario), workers or os.cpu_count() or 1
    if "replicas" in keys:
        return _replicas(
            faults, scenario, processes, trace, try_backups=try_backups, as_json=as_json, **given
        )
    if keys and try_backups:
        faults.add("--backups", "only a scenario with [replicas] has backup workers")
    if keys and "step" not in keys:
        faults.add(scenario, NO_STEP)
    texts = strategy_texts(faults, given.pop("algo"))
    question = read_scenario(faults, scenario, strategies=texts, **given)
    if faults.problems or question is None:
        raise InputError(faults.problems)
    with Progress("simulated {} of {} steps") as progress:
        ranking = rank_steps(question, processes, progress)
    document = step_document(ranking) if as_json or trace else {}
    if as_json:
        echo_json(document)
    else:
        table = step_table(ranking, rows_shown(everything=show_all))
        show(table, trace)
    if trace:
        names = [g.name for g in question.workload.gradients]
        write_output(trace, step_trace_text(ranking.recommended.step, names, _about(document)))
    return 130 if ranking.untried else int(any(c.wrong for c in ranking.candidates))


def _about(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a timeline says of itself."""
    return {
        key: value
        for key, value in document.items()
        if key != "schema" and not isinstance(value, list)
    }


def _replicas(
    faults: Faults,
    scenario: str,
    processes: int,
    trace: str | None,
    *,
    try_backups: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Answer `[replicas]`. Exit status 1 if no repetition makes all its updates."""
    replicas = read_replicas(faults, scenario, **given)
    q = replicas.question
    run = None if as_json and not trace else sample(q.job, q.updates, q.skip)
    if trace and run is None:
        raise InputError("--trace: one update has too many gradients to show")
    spread, choices, complete = repeat_replicas(replicas, processes, try_backups=try_backups)
    document = replicas_document(q, spread, choices, replicas, complete=complete)
    if as_json:
        echo_json(document)
    else:
        show(replicas_text(q, spread, choices, replicas, run, complete=complete), trace)
    if trace and run:
        write_output(trace, replicas_trace_text(run, q.job.names, _about(document)))
    return int(spread.blocked == len(spread.updates)) if complete else 130
