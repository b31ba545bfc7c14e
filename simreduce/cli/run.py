"""`simreduce run SCENARIO`, and with `--measure K` the best of it on real devices."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from simreduce.cli.devices import device_options, given
from simreduce.cli.options import (
    as_json,
    calibration_option,
    disturbance_options,
    echo_json,
    faithful_option,
    gather,
    gpu_indices_option,
    read_disturbance,
    read_gpu_indices,
    runtime_option,
)
from simreduce.cli.progress import Progress
from simreduce.cli.strategies import algo_option, strategy_texts
from simreduce.errors import InputError
from simreduce.report import ranking_document, ranking_table
from simreduce.scenario import look_at_scenario
from simreduce.tune import rank


@click.command()
@click.argument("scenario")
@algo_option("Strategies instead of the scenario's")
@runtime_option(None)
@calibration_option(None)
@gpu_indices_option
@faithful_option
@disturbance_options
@click.option(
    "--workers", type=click.IntRange(1), default=None, help="Processes; default: one per core."
)
@click.option(
    "--measure",
    type=click.IntRange(1),
    default=None,
    metavar="K",
    help="Then time the best K on real devices, which settles what is nearly equal.",
)
@click.option(
    "-n",
    "--iters",
    type=click.IntRange(1),
    default=None,
    help="Of --measure: timed steps of each; default: what some seconds have room for.",
)
@device_options
@as_json
def run(
    scenario: str,
    algo: tuple[str, ...],
    runtime: str | None,
    calibration: str | None,
    gpu_indices: str | None,
    faithful: bool | None,
    jitter: str,
    seed: int,
    slow: tuple[str, ...],
    fault: tuple[str, ...],
    workers: int | None,
    measure: int | None,
    iters: int | None,
    as_json: bool,
    **devices: Any,
) -> int:
    """Rank every strategy of SCENARIO (a file, or a shipped name) and recommend one."""
    problems: list[str] = []
    order = gather(problems, read_gpu_indices, gpu_indices)
    texts = strategy_texts(problems, algo)
    question, machine, faults = look_at_scenario(
        scenario, runtime=runtime, calibration=calibration, gpu_indices=order, faithful=faithful,
        strategies=texts or None,
    )  # fmt: skip
    problems += faults
    disturbance = gather(problems, read_disturbance, jitter, seed, slow, fault, machine)
    asked = None
    if measure is None:
        problems += [
            f"{option}: only --measure needs devices" for option in given([*devices, "iters"])
        ]
    else:
        # Only now, as it knows TensorFlow's side of everything, which ranking does not need.
        real = import_module("simreduce_validate.remeasure")
        asked = gather(problems, real.read, question, **devices)
        if disturbance and disturbance.text:
            problems.append(
                "--measure: devices are as they are; leave out --jitter, --slow and --fault"
            )
    if problems or question is None or disturbance is None:
        raise InputError(problems)
    question = question.but(disturbance=disturbance)
    with Progress("simulated {} of {} strategies") as progress:
        ranking = rank(question, workers or os.cpu_count() or 1, progress)
    wrong = any(c.wrong for c in ranking.candidates)
    document: dict[str, Any] = {}
    if as_json:
        document = {**ranking_document(ranking), "complete": not ranking.untried}
    if not as_json:
        click.echo(ranking_table(ranking))
    # What was simulated is shown even if measuring fails.
    try:
        if measure is not None and not ranking.untried:
            document["measured"] = None
            found = real.remeasure(ranking, measure, asked, iters)
            wrong |= any(row.faults for row in found.rows)
            document |= real.document(found)
            if not as_json:
                click.echo(real.table(found))
    finally:
        if as_json:
            echo_json(document)
    return 130 if ranking.untried else int(wrong)
