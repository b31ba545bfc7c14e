"""`simreduce run SCENARIO`."""

from __future__ import annotations

import os

import click

from simreduce.cli.options import (
    as_json,
    calibration_option,
    disturbance_options,
    echo_json,
    faithful_option,
    gather,
    gpu_indices_option,
    progress,
    read_disturbance,
    read_gpu_indices,
    runtime_option,
)
from simreduce.errors import InputError
from simreduce.report import ranking_document, ranking_table
from simreduce.scenario import load_scenario
from simreduce.tune import rank


@click.command()
@click.argument("scenario")
@runtime_option(None)
@calibration_option(None)
@gpu_indices_option
@faithful_option
@disturbance_options
@click.option("--workers", type=click.IntRange(1), default=None, help="Processes; default: one per core.")
@as_json
def run(
    scenario: str,
    runtime: str | None,
    calibration: str | None,
    gpu_indices: str | None,
    faithful: bool | None,
    jitter: float,
    seed: int,
    slow: tuple[str, ...],
    fault: tuple[str, ...],
    workers: int | None,
    as_json: bool,
) -> int:
    """Rank every strategy of SCENARIO (a file, or a shipped name) and recommend one."""
    problems: list[str] = []
    order = gather(problems, read_gpu_indices, gpu_indices)
    question = gather(
        problems, load_scenario, scenario, runtime=runtime, calibration=calibration, gpu_indices=order, faithful=faithful
    )  # fmt: skip
    machine = question.topology if question else None
    disturbance = gather(problems, read_disturbance, jitter, seed, slow, fault, machine)
    if problems or question is None or disturbance is None:
        raise InputError(problems)
    ranking = rank(question, workers or os.cpu_count() or 1, progress("strategies"), disturbance)
    if as_json:
        echo_json(ranking_document(ranking))
    else:
        click.echo(ranking_table(ranking))
    return int(any(c.wrong for c in ranking.candidates))
