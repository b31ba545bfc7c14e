"""`simreduce step SCENARIO`: a training step."""

from __future__ import annotations

import os
from typing import Any

import click

from simreduce.cli.options import (
    as_json,
    calibration_option,
    check_place,
    disturbance_options,
    echo_json,
    faithful_option,
    gather,
    gpu_indices_option,
    gpus_options,
    progress,
    read_disturbance,
    read_gpu_indices,
    runtime_option,
    shape_of,
    write_pieces,
)
from simreduce.errors import InputError
from simreduce.report import step_document, step_table
from simreduce.scenario import load_scenario
from simreduce.trace import step_trace_text
from simreduce.tune.steps import rank_steps


@click.command()
@click.argument("scenario")
@click.option(
    "--algo", "algos", multiple=True, metavar="STRATEGY", help="Instead of the scenario's; may be repeated."
)
@click.option("--batch", type=int, default=None, help="Samples per GPU, instead of the scenario's.")
@gpus_options
@runtime_option(None)
@calibration_option(None)
@gpu_indices_option
@faithful_option
@disturbance_options
@click.option("--workers", type=click.IntRange(1), default=None, help="Processes; default: one per core.")
@click.option(
    "--trace",
    default=None,
    metavar="FILE",
    help="Write the step's timeline for trace viewers; .gz: compressed.",
)
@as_json  # fmt: skip
def step(
    scenario: str,
    algos: tuple[str, ...],
    batch: int | None,
    ngpus: int | None,
    gpus: str | None,
    runtime: str | None,
    calibration: str | None,
    gpu_indices: str | None,
    faithful: bool | None,
    workers: int | None,
    trace: str | None,
    as_json: bool,
    **disturb: Any,
) -> int:
    """Predict the training step of SCENARIO (a file with a [step], or a shipped name): what the backward pass hides of
    the reductions, and which strategy gives the fastest step.
    """
    problems: list[str] = []
    order = gather(problems, read_gpu_indices, gpu_indices)
    if trace is not None:
        gather(problems, check_place, trace)
    question = gather(
        problems, load_scenario, scenario, runtime=runtime, calibration=calibration, gpu_indices=order,
        faithful=faithful, strategies=list(algos) or None, batch=batch,
    )  # fmt: skip
    shape = gather(problems, shape_of, question.layout(), ngpus, gpus) if question else None
    disturbance = gather(
        problems, read_disturbance, **disturb, topology=question.topology if question else None
    )
    if problems or question is None or shape is None or disturbance is None:
        raise InputError(problems)
    ranking = rank_steps(question, shape, workers or os.cpu_count() or 1, progress("steps"), disturbance)
    document = step_document(ranking) if as_json or trace else {}
    if trace:
        names = [g.name for g in question.workload.gradients]
        about = {key: value for key, value in document.items() if not isinstance(value, list)}
        write_pieces(trace, step_trace_text(ranking.best.step, names, about))
    if as_json:
        echo_json(document)
    else:
        click.echo(step_table(ranking))
    return int(any(c.wrong for c in ranking.candidates))
