"""`simreduce run SCENARIO`."""

from __future__ import annotations

import os

import click

from simreduce.cli.options import (
    as_json,
    calibration_option,
    echo_json,
    faithful_option,
    gpu_indices_option,
    progress,
    read_gpu_indices,
    runtime_option,
)
from simreduce.report import ranking_document, ranking_table
from simreduce.scenario import load_scenario
from simreduce.tune import rank


@click.command()
@click.argument("scenario")
@runtime_option(None)
@calibration_option(None)
@gpu_indices_option
@faithful_option
@click.option("--workers", type=click.IntRange(1), default=None, help="Processes; default: one per core.")
@as_json
def run(
    scenario: str,
    runtime: str | None,
    calibration: str | None,
    gpu_indices: str | None,
    faithful: bool | None,
    workers: int | None,
    as_json: bool,
) -> int:
    """Rank every strategy of SCENARIO (a file, or a shipped name) and recommend one."""
    order = read_gpu_indices(gpu_indices)
    question = load_scenario(
        scenario, runtime=runtime, calibration=calibration, gpu_indices=order, faithful=faithful
    )
    ranking = rank(question, workers or os.cpu_count() or 1, progress("strategies"))
    if as_json:
        echo_json(ranking_document(ranking))
    else:
        click.echo(ranking_table(ranking))
    return int(any(c.wrong for c in ranking.candidates))
