"""`simreduce capacity FILE`: the cheapest configuration that meets a target."""

from __future__ import annotations

import os

import click

from simreduce.capacity.answer import answer, plan_of
from simreduce.capacity.evaluating import evaluating
from simreduce.capacity.prices import shipped
from simreduce.capacity.question import load_question
from simreduce.cli.group import command
from simreduce.cli.options import echo_json, report_options, workers_option
from simreduce.cli.pictures import check_pictures, picture_options, write_plot
from simreduce.cli.progress import Progress, say
from simreduce.cli.terminal import show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.report.capacity import capacity_plot, capacity_text
from simreduce.report.capacity_document import capacity_document


@command(
    examples=r"""
    printf 'workload = "resnet50"\nprices = "aws-capacity-blocks"\n' > plan.toml
    printf '[target]\nsamples = 115e6\ntime = "1 d"\n' >> plan.toml
    printf '[[options]]\nmachine = "p4d"\nnodes = [1, 2]\nstrategy = "nccl"\n' >> plan.toml
    printf 'step.batch = 256\nstep.rate = "60 TFLOP/s"\n' >> plan.toml
    simreduce capacity plan.toml
    """
)
@click.argument("file")
@click.option(
    "--db",
    default=None,
    metavar="FILE",
    help="Keep what is simulated in this database of sweeps, and take what it has.",
)
@click.option(
    "--prices",
    default=None,
    metavar="NAME|FILE",
    help=f"Take this price list instead of the file's; shipped: {', '.join(shipped())}.",
)
@click.option(
    "--sensitivity/--no-sensitivity",
    default=True,
    help="Also say at which prices, rates and errors the choice changes; default: do.",
)
@workers_option
@picture_options("Also draw cost against time", ("plot", "plot"))
@report_options
def capacity(
    file: str,
    db: str | None,
    prices: str | None,
    sensitivity: bool,
    workers: int | None,
    svg: str | None,
    png: str | None,
    as_json: bool,
) -> int:
    """Choose the cheapest of the machines, networks and methods in FILE that meets its target, and
    say what binds it, the frontier of cost against time, and at which value of each assumption the
    choice changes. Exits with status 1 if none meets the target.

    With --db, a command that is stopped goes on where it was, and other prices need no simulation.
    On Ctrl-C or SIGTERM, prints what is known and exits with status 130.
    """
    faults = Faults()
    faults.attempt("", check_pictures, svg, png, as_json=as_json, plot=True)
    question = faults.attempt("", load_question, file, prices)
    if faults.problems or question is None:
        raise InputError(faults.problems)
    processes = workers or os.cpu_count() or 1
    with (
        Progress("simulated {} of {} configurations") as progress,
        evaluating(db, processes, progress, say) as evaluate,
    ):
        evaluate.begin(question.name, plan_of(question))
        found = answer(question, evaluate, sensitivity=sensitivity)
    if evaluate.stopped and not found.offers:
        raise KeyboardInterrupt
    if as_json:
        echo_json(capacity_document(found))
    else:
        show(capacity_text(found), svg, png)
    if svg or png:
        write_plot(capacity_plot(found), svg, png)
    if evaluate.stopped:
        return 130
    return 0 if found.chosen else 1
