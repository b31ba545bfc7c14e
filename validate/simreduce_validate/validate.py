"""`simreduce validate`: time plans on real devices beside what is predicted for them.

    simreduce validate switch:4 --algo ring,direct -b 1K -e 1M -f 8 --calibration mine

Before it shows a time, it checks every candidate: all results on all devices, and that the executed
transfers and sums are those of the plan. Exit status 1 if any is wrong.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import click

from simreduce import units
from simreduce.app.cli import command
from simreduce.app.cli.reply import Reply, picture_options, report_options
from simreduce.app.cli.setups import (
    algo_option,
    calibration_option,
    details_option,
    device_options,
    gpus_options,
    refuse,
    sizes_options,
    warmup_option,
)
from simreduce.files import check_place, exists
from simreduce.files.formats.syntax import Faults
from simreduce_validate.measuring import overwrite_fault
from simreduce_validate.nccl_library.command import BACKEND, reply
from simreduce_validate.nccl_library.tools import VERSIONS
from simreduce_validate.report.accuracy import accuracy_lines
from simreduce_validate.report.accuracy_plot import AccuracyPoint, accuracy_plot
from simreduce_validate.report.documents import document
from simreduce_validate.report.validation import calibration, title, validation_lines
from simreduce_validate.running import BUILTINS
from simreduce_validate.validation import Validation, measure, read_campaign


@command(examples="simreduce validate switch:2 --algo ring -b 1M -e 4M")
@click.argument("topology", required=False)
@click.option(
    "--scenario",
    default=None,
    metavar="NAME|FILE",
    help="Take machine, gradients and strategies from a scenario.",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=10,
    help="Measure this many of a scenario's strategies, the fastest by prediction; default 10.",
)
@algo_option("Strategies to measure, all: every algorithm; default ring")
@click.option(
    "--builtin",
    multiple=True,
    metavar="NAME",
    help=f"Measure TensorFlow's own too: {', '.join(BUILTINS)}.",
)
@sizes_options("1M")
@gpus_options
@click.option(
    "-d",
    "--datatype",
    "--dtype",
    default="float",
    help="Reduce this type: float, half, double, bfloat16, int32, ...; default float.",
)
@click.option(
    "-n",
    "--iters",
    type=click.IntRange(1),
    default=20,
    help="Take this many samples of each candidate; default 20.",
)
@warmup_option
@click.option(
    "--chained",
    type=click.IntRange(1),
    default=None,
    help="Reduce this many times in a row in one step; default 1.",
)
@device_options
@click.option(
    "--nccl",
    multiple=True,
    metavar="VERSION|NAME=VALUE",
    help="With --backend nccl: ask this version, such as 2.30.7, or set a variable. Repeatable; "
    f"default {VERSIONS[-1]}.",
)
@click.option(
    "--transfers",
    "traced",
    is_flag=True,
    help="Show every transfer of one step too, measured and predicted.",
)
@click.option(
    "--out",
    default=None,
    metavar="FILE",
    help="Keep predictions, then every sample, in a new file.",
)
@picture_options("Measured against predicted")
@calibration_option(None)
@details_option("Print all statistics after the five lines that sum them up.")
@report_options
def validate(
    faults: Faults, out: str | None, details: bool, nccl: tuple[str, ...], **options: Any
) -> Reply:
    """Time all-reduces on real devices beside what is predicted for them.

    The devices stand for TOPOLOGY: a name, a file, an inline machine such as switch:4, or auto for
    this machine's GPUs. On Ctrl-C or SIGTERM, prints the sizes that are complete and exits with
    status 130.

    --backend nccl needs no devices: it asks NCCL's own library what it would do on TOPOLOGY, and
    shows graphs, choices and costs beside those that `simreduce nccl` predicts.
    """
    if options["backend"] == BACKEND:
        return reply(faults, options.pop("topology"), nccl, details=details, **options)
    refuse(faults, ("nccl",), "only --backend nccl asks NCCL's library")
    if out is not None and exists(out):
        faults.add("", f"--out {overwrite_fault(out)}")
    if out is not None:
        faults.attempt("", check_place, out)
    campaign, groups = read_campaign(faults, **options)
    found = measure(campaign, groups, None if out is None else Path(out))
    marks, heads = _marks(found), (title(campaign), calibration(campaign))
    if not found.complete:
        count = f"{len(found.of_candidates)} of {units.plural(found.candidates, 'candidate')}"
        kept = f"; every sample is in {out}" if out else ""
        click.echo(f"simreduce: stopped after {count}, of complete sizes{kept}", err=True)
    return Reply(
        partial(validation_lines, found, out, details=details),
        partial(document, found),
        picture=partial(accuracy_plot, marks, *heads, accuracy_lines(found.accuracy))
        if marks
        else None,
        failed=any(timing.faults for timing in found.timings),
        complete=found.complete,
    )


def _marks(found: Validation) -> list[AccuracyPoint]:
    return [
        AccuracyPoint(
            timing.case.algorithm,
            timing.case.nbytes,
            timing.measured.median,
            timing.interval.low,
            timing.interval.high,
            timing.predicted if math.isfinite(timing.predicted) else None,
        )
        for timing in found.of_candidates
        if timing.case.repeats is None and not timing.faults
    ]
