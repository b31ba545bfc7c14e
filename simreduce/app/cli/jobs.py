"""`simreduce jobs FILE`: several jobs and other traffic on one machine."""

from __future__ import annotations

from functools import partial

import click

from simreduce.app.cli.group import command
from simreduce.app.cli.progress import Progress
from simreduce.app.cli.reply import Reply, option_faults, report_options
from simreduce.report.jobs import BESIDE, Beside, jobs_text
from simreduce.study.jobs import load_jobs
from simreduce.training.jobs import simulate_jobs


@command(examples="simreduce jobs docs/examples/jobs/one-leaf.toml")
@click.argument("file", metavar="FILE")
@report_options
def jobs(file: str) -> Reply:
    """Simulate several jobs on one machine, and traffic that is no job's: how much longer each
    takes than alone, and who takes whose link.

    FILE has a [[job]] for each, with its nodes and what it repeats, a reduction or a training step,
    and a [[traffic]] for what else moves: an incast, a permutation, reads of storage, checkpoints.
    """
    faults = option_faults()
    question = faults.require(faults.attempt("", load_jobs, file))
    with Progress("simulating the jobs"):
        found = Beside(question, simulate_jobs(question.jobs, question.streams))
    return Reply(partial(jobs_text, found), partial(BESIDE.write, found))
