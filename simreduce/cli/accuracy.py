"""`simreduce accuracy`: published timings beside predictions."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from simreduce.accuracy import accuracy_document, accuracy_lines, draw_points, predict
from simreduce.accuracy.leave_out import leave_machines_out, left_out_document, left_out_lines
from simreduce.accuracy.predict import copies_of
from simreduce.accuracy.three_sizes import (
    calibrate_on_three,
    three_sizes_document,
    three_sizes_lines,
)
from simreduce.calibrate import load_calibration
from simreduce.cli.group import LazyGroup, command
from simreduce.cli.options import calibration_option, echo_json, report_options, workers_option
from simreduce.cli.pictures import check_pictures, picture_options, write_plot
from simreduce.cli.progress import Progress, until_stopped
from simreduce.cli.terminal import show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.published import PublishedTable, published_tables

_CHAPTERS = {
    "nccl": ("simreduce.cli.accuracy:nccl", "Collectives of NCCL; what stands without a chapter."),
    "step": ("simreduce_validate.step_of_five:step", "Five all-reduces of ResNet-50, TensorFlow."),
    "throughput": ("simreduce_validate.throughput:throughput", "Training on a DGX-1, TensorFlow."),
    "sharded": ("simreduce.cli.accuracy_sharded:sharded", "Training by FSDP, PyTorch."),
    "p2p": ("simreduce_validate.p2p:p2p", "Copies between GPUs."),
}
T = TypeVar("T")
PARTS = ("held", "fit", "all")


@click.group(cls=LazyGroup, table=_CHAPTERS, default="nccl")
def accuracy() -> None:
    """Compare predictions with published timings, without devices.

    Each chapter has its own options: simreduce accuracy nccl --help.
    """


@command(examples="simreduce accuracy nccl --only bessemer")
@click.option(
    "--tables",
    type=click.Choice(PARTS),
    default="held",
    help="Compare tables that no constant was fitted to (held), the others (fit) or all; default"
    " held.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="TEXT",
    help="Compare tables with TEXT in their name, topology or collective only. Repeatable.",
)
@click.option(
    "--most-machines",
    type=click.IntRange(1),
    default=64,
    help="Leave tables of more machines out, whose plans take minutes; default 64.",
)
@click.option(
    "--leave-one-out",
    is_flag=True,
    help="Print the errors on each machine by constants that were fitted without it; takes long.",
)
@click.option(
    "--three-sizes",
    is_flag=True,
    help="Print the errors on each table with constants fitted to three of its sizes; takes"
    " minutes.",
)
@calibration_option(None, "that of each machine's generation")
@workers_option
@picture_options("Predicted beside measured busbw over size", ("plot", "plot"))
@report_options
def nccl(
    tables: str,
    only: tuple[str, ...],
    most_machines: int,
    leave_one_out: bool,
    three_sizes: bool,
    calibration: str | None,
    workers: int | None,
    svg: str | None,
    png: str | None,
    as_json: bool,
) -> int:
    """Compare predicted times of NCCL's collectives with published ones.

    On Ctrl-C or SIGTERM, prints the tables so far and exits with status 130.
    """
    faults = Faults()
    faults.attempt("", check_pictures, svg, png, as_json=as_json, plot=True)
    constants = None if calibration is None else faults.attempt("", load_calibration, calibration)
    chosen = _chosen(tables, only, most_machines)
    if not chosen:
        faults.add("", f"--only {' '.join(only)}: no published table ({tables}) has this")
    faults.raise_any(InputError)
    if leave_one_out:
        with Progress("fitting without each machine"):
            left_out = list(leave_machines_out())
        _echo(left_out, left_out_lines, left_out_document, as_json=as_json)
        return 0
    workers = workers or os.cpu_count() or 1
    if three_sizes:
        calibrated = calibrate_on_three(chosen, workers)
        fitted, complete = until_stopped(calibrated, len(chosen), "calibrated on {} of {} tables")
        sizes = [each for one in fitted for each in one]
        told = partial(three_sizes_document, complete=complete)
        _echo(sizes, three_sizes_lines, told, as_json=as_json)
        return 0 if complete else 130
    coming = predict(chosen, constants, workers)
    found, complete = until_stopped(coming, len(chosen), "predicted {} of {} tables")
    points = [point for of_one in found for point in of_one]
    name = "by generation" if constants is None else constants.name
    if as_json:
        echo_json(accuracy_document(points, name, tables, complete=complete))
    else:
        lines = accuracy_lines(points, name, tables)
        if not complete:
            lines.append(f"# stopped after {len(found)} of {len(chosen)} tables")
        show("\n".join(lines), svg, png)
    if svg is not None or png is not None:
        write_plot(draw_points(points, name), svg, png)
    return 0 if complete else 130


def _echo(
    found: list[T],
    lines: Callable[[list[T]], list[str]],
    document: Callable[[list[T]], dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    if as_json:
        echo_json(document(found))
    else:
        show("\n".join(lines(found)))


def _chosen(tables: str, only: tuple[str, ...], most_machines: int) -> list[PublishedTable]:
    return [
        table
        for table in published_tables()
        if tables in ("all", "held" if table.held else "fit")
        and copies_of(table.topology) <= most_machines
        and (
            not only
            or any(text in (table.name + table.topology + table.collective) for text in only)
        )
    ]
