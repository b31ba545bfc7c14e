"""`simreduce jobs FILE`: several jobs and other traffic on one machine."""

from __future__ import annotations

from functools import partial
from math import inf

import click

from simreduce.app.cli.group import command
from simreduce.app.cli.reply import (
    Progress,
    Reply,
    report_options,
    show_until_stopped,
)
from simreduce.files.formats import Faults
from simreduce.report.jobs import BESIDE, Beside, jobs_text
from simreduce.study.job_files import build_jobs, build_mix, fit_jobs
from simreduce.study.scenario import read_scenario_file
from simreduce.training.shared_fabric import simulate_jobs


@command(
    examples="""
    printf '%s\\n' 'topology = "dgx1vx4,fabric=switch"' > jobs.toml
    printf '[[job]]\\nname = "%s"\\nnodes = 2\\nworkload = "bytes:64M"\\n' a b >> jobs.toml
    simreduce jobs jobs.toml
    """
)
@click.argument("file", metavar="FILE")
@click.option(
    "--fit",
    type=float,
    default=None,
    metavar="SLOWDOWN",
    help="Say how many copies of the jobs fit if none may take more than so many times as long as"
    " alone, such as 1.1.",
)
@report_options
def jobs(faults: Faults, file: str, fit: float | None) -> Reply:
    """Simulate several jobs on one machine, and traffic that is no job's: how much longer each
    takes than alone, and who takes whose link.

    FILE has a [[job]] for each, with its nodes and what it repeats, a reduction or a training step,
    and a [[traffic]] for what else moves: an incast, a permutation, reads of storage, checkpoints.

    On Ctrl-C or SIGTERM, prints the repetitions so far, once every job has one, with --fit the
    copies so far, and exits with status 130.
    """
    faults.check(fit is None or 1.0 <= fit < inf, "--fit", f"must be 1 or more, got {fit}")
    build = build_jobs if fit is None else build_mix
    read = faults.attempt("", read_scenario_file, file)
    question = faults.require(faults.attempt("", build, *read) if read else None)
    if fit is None:
        with Progress("simulated {} of {} repetitions") as progress:
            outcomes = simulate_jobs(question.jobs, question.streams, progress=progress)
        found = Beside(question, outcomes)
    else:
        most = len(question.setup.layout.tasks) // max(sum(map(len, question.nodes)), 1)
        coming = fit_jobs(*faults.require(read), fit, mix=question)
        answers, _ = show_until_stopped(coming, most, "simulated {} of {} copies")
        found = Beside(answers[-1].question, answers[-1].outcomes, answers[-1])
    return Reply(partial(jobs_text, found), partial(BESIDE.write, found), complete=found.complete)
