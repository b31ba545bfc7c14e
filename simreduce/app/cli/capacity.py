"""`simreduce capacity FILE`: the cheapest configuration that meets a target; `simreduce prices`.

`prices [NAME]` shows what a price list says, with where and when each price was found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import click

from simreduce.app.cli.group import command, completes
from simreduce.app.cli.options import workers_option
from simreduce.app.cli.reply import (
    Progress,
    Reply,
    picture_options,
    report_options,
    say,
)
from simreduce.computing.workers import pass_on
from simreduce.files.formats import Faults
from simreduce.files.formats.documents import Document
from simreduce.report.capacity import (
    CAPACITY,
    CAPACITY_JOBS,
    LISTS,
    PRICES,
    lists_text,
    options_plot,
    prices_text,
)
from simreduce.report.capacity_page import capacity_text, copies_text
from simreduce.study.capacity.answer import RankedOptions, answer, answer_copies, plan_of
from simreduce.study.capacity.capacity_question import load_question
from simreduce.study.capacity.price_list import join, load_prices, shipped
from simreduce.study.sweep import running

R = TypeVar("R", bound=RankedOptions[Any])


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
    multiple=True,
    metavar="NAME|FILE",
    help="Take this price list instead of the file's; simreduce prices lists those that are"
    " shipped. Repeatable: of a price that two have, the first counts.",
)
@click.option(
    "--sensitivity/--no-sensitivity",
    default=True,
    help="Also say at which prices, rates and errors the choice changes; default: do.",
)
@workers_option
@picture_options("Also draw cost against time, or prices of copies of jobs")
@report_options
def capacity(
    faults: Faults,
    file: str,
    db: str | None,
    prices: tuple[str, ...],
    sensitivity: bool,
    workers: int,
) -> Reply:
    """Choose the cheapest of the machines, networks and methods in FILE that meets its target, and
    say what binds it, the frontier of cost against time, and at which value of each assumption the
    choice changes. Exits with status 1 if none meets the target.

    With `jobs` in FILE, a file of several jobs, say how many copies of these each of the machines
    holds, none slower than promised, and choose the cheapest.

    With --db, a command that is stopped goes on where it was, and other prices need no simulation.
    On Ctrl-C or SIGTERM, prints what is known and exits with status 130.
    """
    question = faults.require(faults.attempt("", load_question, file, prices))
    with (
        Progress("simulated {} of {} configurations") as progress,
        running(db, workers, progress.watch, say) as runner,
    ):
        if runner.store:  # so that `simreduce table` shows what was asked
            runner.store.begin(question.name, {"question": question.name}, plan_of(question))
        if question.target.slowdown is None:
            steps = answer(question, runner.rows, sensitivity=sensitivity)
            reply = _reply(steps, capacity_text, CAPACITY)
        else:
            copies = answer_copies(question, runner.rows)
            reply = _reply(copies, copies_text, CAPACITY_JOBS)
    return replace(reply, complete=not runner.stopped)


def _reply(found: R, text: Callable[[R], str], document: Document) -> Reply:
    pass_on(found.waiting and not found.offers)
    return Reply(
        partial(text, found),
        partial(document.write, found),
        picture=lambda: options_plot(document.write(found)),
        failed=not found.chosen,
    )


@command(
    examples="""
    simreduce prices
    simreduce prices aws-on-demand
    simreduce prices servers-2026 h100-cluster-2024
    """
)
@click.argument("name", nargs=-1, shell_complete=completes(shipped))
@report_options
def prices(faults: Faults, name: tuple[str, ...]) -> Reply:
    """Print the price list NAME, a shipped one or a file, with the source and the date of every
    price. Several are printed as one, as a capacity file joins them. Without NAME, list those that
    are shipped.
    """
    found = [faults.attempt("", load_prices, each) for each in name or shipped()]
    lists = [each for each in found if each is not None]
    if not name:
        named = [*zip(shipped(), lists, strict=True)]
        return Reply(partial(lists_text, named), partial(LISTS.write, named))
    whole = faults.require(faults.attempt("", join, lists) if len(lists) == len(found) else None)
    return Reply(partial(prices_text, whole), partial(PRICES.write, whole))
