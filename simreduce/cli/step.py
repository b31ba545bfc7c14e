"""`simreduce step SCENARIO`: a training step, or the updates of synchronous replicas."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from simreduce.cli.options import (
    as_json,
    calibration_option,
    check_outputs,
    disturbance_options,
    echo_beside,
    echo_json,
    faithful_option,
    gather,
    gpu_indices_option,
    gpus_options,
    read_disturbance,
    read_gpu_indices,
    runtime_option,
    shape_of,
    write_output,
)
from simreduce.cli.progress import Progress
from simreduce.cli.strategies import algo_option, strategy_texts
from simreduce.engine import CALM
from simreduce.errors import InputError
from simreduce.layouts import layout
from simreduce.report import replicas_document, replicas_text, step_document, step_table
from simreduce.scenario import keys_of, load_replicas, look_at_scenario
from simreduce.trace import replicas_trace_text, step_trace_text
from simreduce.training.stragglers import BackupChoice, compare_backups, repeat, sample
from simreduce.tune.steps import NO_STEP, rank_steps


@click.command()
@click.argument("scenario")
@algo_option("Strategies instead of the scenario's")
@click.option("--batch", type=int, default=None, help="Samples per GPU, instead of the scenario's.")
@gpus_options
@runtime_option(None)
@calibration_option(None)
@gpu_indices_option
@faithful_option
@disturbance_options
@click.option(
    "--workers", type=click.IntRange(1), default=None, help="Processes; default: one per core."
)
@click.option(
    "--trace",
    default=None,
    metavar="FILE",
    help="Write the step's timeline for trace viewers, or the first updates of [replicas]; .gz: compressed; -: stdout.",
)
@click.option(
    "--backups",
    "try_backups",
    is_flag=True,
    help="Of [replicas]: try how many workers should be backups.",
)
@as_json  # fmt: skip
def step(
    scenario: str,
    algo: tuple[str, ...],
    batch: int | None,
    ngpus: int | None,
    gpus: str | None,
    runtime: str | None,
    calibration: str | None,
    gpu_indices: str | None,
    faithful: bool | None,
    workers: int | None,
    trace: str | None,
    try_backups: bool,
    as_json: bool,
    **disturb: Any,
) -> int:
    """Predict the training step of SCENARIO (a file with a [step], or a shipped name): what the
    backward pass hides of the reductions, and which strategy gives the fastest step. What is
    stopped (Ctrl-C, SIGTERM) tells what it has until then, with status 130. With [replicas] instead
    of [step]: what an update of synchronous replicas takes, whose workers do not compute equally
    long.
    """
    problems: list[str] = []
    keys, processes = keys_of(scenario), workers or os.cpu_count() or 1
    if "replicas" in keys:
        ignored = {
            "--algo": bool(algo), "--batch": batch is not None, "--ngpus": ngpus is not None,
            "--gpus": gpus is not None, "--gpu-indices": gpu_indices is not None,
        }  # fmt: skip
        problems += [
            f"{name}: a scenario with [replicas] does not use it" for name, is_given in ignored.items() if is_given
        ]  # fmt: skip
        given = {"runtime": runtime, "calibration": calibration, "faithful": faithful}
        return _replicas(scenario, problems, given, disturb, processes, trace, try_backups=try_backups, as_json=as_json)  # fmt: skip
    if keys and try_backups:
        problems.append("--backups: only a scenario with [replicas] has backup workers")
    if keys and "step" not in keys:
        problems.append(f"{scenario}: {NO_STEP}")
    order = gather(problems, read_gpu_indices, gpu_indices)
    gather(problems, check_outputs, {"--trace": trace}, as_json=as_json)
    texts = strategy_texts(problems, algo)
    question, machine, faults = look_at_scenario(
        scenario, runtime=runtime, calibration=calibration, gpu_indices=order, faithful=faithful,
        strategies=texts or None, batch=batch,
    )  # fmt: skip
    problems += faults
    places = question.setup.layout if question else layout(machine) if machine else None
    shape = gather(problems, shape_of, places, ngpus, gpus) if places else None
    disturbance = gather(problems, read_disturbance, **disturb, topology=machine)
    if problems or question is None or shape is None or disturbance is None:
        raise InputError(problems)
    question = question.but(part=shape, disturbance=disturbance)
    with Progress("simulated {} of {} steps") as progress:
        ranking = rank_steps(question, processes, progress)
    document = step_document(ranking) if as_json or trace else {}
    if as_json:
        echo_json(document)
    else:
        echo_beside(step_table(ranking), trace)
    if trace:
        names = [g.name for g in question.workload.gradients]
        about = {key: value for key, value in document.items() if not isinstance(value, list)}
        write_output(trace, step_trace_text(ranking.best.step, names, about))
    return 130 if ranking.untried else int(any(c.wrong for c in ranking.candidates))


def _replicas(
    scenario: str, problems: list[str], given: Mapping[str, object], disturb: Mapping[str, Any], processes: int,
    trace: str | None, *, try_backups: bool, as_json: bool,
) -> int:  # fmt: skip
    """The answer to a `[replicas]`; as where a step never ends, exit status 1 if no repetition
    makes all its updates.
    """
    gather(problems, check_outputs, {"--trace": trace}, as_json=as_json)
    disturbance = gather([], read_disturbance, **disturb)
    asked = gather(problems, load_replicas, scenario, disturbance or CALM, **given)
    if disturbance is None:  # its faults, with what the machine lacks
        machine = asked.setup.topology if asked and asked.setup else None
        gather(problems, read_disturbance, **disturb, topology=machine)
    if problems or asked is None:
        raise InputError(problems)
    q = asked.question
    run = None if as_json and not trace else sample(q.job, q.updates, q.skip)
    if trace and run is None:
        raise InputError("--trace: one update has too many gradients to show")
    choices: tuple[BackupChoice, ...] = ()
    with Progress("simulated {} of {} repetitions") as progress:
        spread = repeat(q.job, q.updates, q.repetitions, processes, progress)
        complete = len(spread.updates) == q.repetitions
        if complete and try_backups:
            try:
                choices = compare_backups(
                    q.job, q.updates, q.repetitions, None, q.skip, processes, progress
                )
            except KeyboardInterrupt:
                complete = False
    document = replicas_document(q, spread, choices, asked, complete=complete)
    if as_json:
        echo_json(document)
    else:
        echo_beside(replicas_text(q, spread, choices, asked, run, complete=complete), trace)
    if trace and run:
        about = {key: value for key, value in document.items() if not isinstance(value, list)}
        write_output(trace, replicas_trace_text(run, q.job.names, about))
    return int(spread.blocked == len(spread.updates)) if complete else 130
