"""`simreduce tune SCENARIO`: the best setting for what a target can be told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import click

from simreduce.app.cli.export import check_folder, folder_option, hand_over
from simreduce.app.cli.group import command, scenario_argument
from simreduce.app.cli.measuring import give_measured, measure_options, read_measurement
from simreduce.app.cli.node_order import asks_for_placement, read_question_of_order, tune_placement
from simreduce.app.cli.options import (
    budget_options,
    calibration_option,
    gpus_options,
    read_budget,
    refuse,
    workers_option,
)
from simreduce.app.cli.reply import Progress, Reply, picture_options, report_options
from simreduce.app.cli.setups import (
    job_options,
    nccl_option,
    nodes_option,
    read_meshes,
    read_scenario,
    slow_option,
)
from simreduce.app.cli.terminal import rows_shown
from simreduce.computing.watching import within
from simreduce.errors import quote
from simreduce.export.frameworks import LAUNCHERS, MESH_PROGRAMS, TUNED, USUAL, find_framework
from simreduce.export.frameworks.megatron import MEGATRON
from simreduce.files.formats import Faults
from simreduce.report.meshes import TUNED_MESHES, meshes_text
from simreduce.report.tuned import sensitivity_plot, tuned_document, tuned_text
from simreduce.study.scenario import Meshes, asks_for_meshes, read_worth
from simreduce.study.tune.meshes import files_of_mesh, rank_meshes, why_no_files
from simreduce.study.tune.rank import StrategyRanking
from simreduce.study.tune.search.export_choice import files_of, ranking_of, why_nothing
from simreduce.study.tune.search.targets import OBJECTIVES, STEP
from simreduce.study.tune.search.tune import read_objective, tune as find_best

_DRAWN = ("svg", "png")


@command(
    examples="""
    simreduce tune dgx1v-resnet50 --target pytorch
    echo '{"world_size": 8, "bucket_sizes": "4194304, 25165824"}' > ddp.json
    simreduce tune ddp.json --topology dgx1v
    """
)
@scenario_argument
@click.option(
    "--target",
    default=None,
    metavar="NAME",
    help=f"Try what this can be told: {', '.join(TUNED)}; default: the scenario's framework, or "
    f"{USUAL}. Of a scenario with a mesh: {', '.join(MESH_PROGRAMS)}; or {MEGATRON.name}. With "
    f"--placement, print the files for {', '.join(LAUNCHERS)}.",
)
@click.option(
    "--objective",
    default=None,
    metavar="WHAT",
    help=f"Shorten this: {' or '.join(OBJECTIVES)}; default: the step, if SCENARIO has one.",
)
@click.option(
    "--fp16", is_flag=True, help="Also try half precision on the wire, which changes numerics."
)
@click.option(
    "--worth",
    default=None,
    metavar="PART",
    help="Keep the default unless a change saves this part of the time; 0%: any gain counts that "
    "is not in doubt; default: the scenario's, or 1%.",
)
@job_options
@nodes_option
@click.option(
    "--placement",
    is_flag=True,
    default=None,
    help="Find the order of nodes that takes the least time instead of settings; default: the "
    "scenario's tune.placement.",
)
@click.option(
    "--free",
    default=None,
    metavar="HOSTS",
    help="With --placement: nodes that may be used instead of the job's; default: the scenario's "
    "tune.free.",
)
@gpus_options
@calibration_option(None, "the scenario's")
@nccl_option("this whatever is found, such as version=2.18")
@slow_option
@folder_option("--out", "Write what to paste to this folder; default: print.")
@budget_options()
@workers_option
@measure_options
@picture_options("Also draw the time over the size of buckets")
@report_options
def tune(
    faults: Faults,
    scenario: str,
    target: str | None,
    objective: str | None,
    fp16: bool,
    worth: str | None,
    out: str | None,
    placement: bool | None,
    free: str | None,
    budget: str | None,
    quick: bool,
    workers: int,
    **given: Any,
) -> int:
    """Find the best setting of SCENARIO (a file, a shipped name, or a job that was recorded as for
    `simreduce replay`) for what a target can be told: packing, algorithms, protocols and channels
    by size. Keeps the default unless a change is worth it; says how much it is worth, how sure that
    is, and how near the bound. Of a scenario with a mesh, ranks what the target can run as
    `simreduce step` does. The answer is the same on every machine, unless --budget or --quick ends
    the search.

    On Ctrl-C or SIGTERM, prints the best so far and exits with status 130.
    """
    if placement or asks_for_placement(scenario):
        least = None if worth is None else faults.attempt("--worth", read_worth, worth)
        unused = ("fp16", "objective", "measure", *_DRAWN)
        refuse(faults, unused, "says nothing about the order of nodes")
        given |= {"placement": placement, "free": free}
        asked = read_question_of_order(faults, scenario, given)
        asked = replace(asked, worth=least) if asked and least is not None else asked
        return tune_placement(faults, asked, workers, target, out, budget, quick=quick)
    refuse(faults, ["free"], "needs --placement")
    if asks_for_meshes(scenario):
        about_step = objective in (None, STEP)
        faults.check(about_step, "--objective", "a scenario with step.mesh is about a step")
        faults.attempt("--out", check_folder, out)
        seconds = read_budget(faults, budget, quick=quick)
        unused = (*_DRAWN, "fp16", "worth", "measure")
        meshes = read_meshes(faults, scenario, given, unused, target)
        with within(seconds):
            return _tune_meshes(meshes, out, workers).give()
    if target is not None:
        faults.attempt("", find_framework, target, TUNED, f"--target: unknown {quote(target)}")
    least = None if worth is None else faults.attempt("--worth", read_worth, worth)
    faults.attempt("--out", check_folder, out)
    read = read_scenario(faults, scenario, given)
    measurement = read_measurement(faults, read, given)
    if faults.attempt("--objective", read_objective, read, objective or "") == STEP:
        refuse(faults, ["measure"], "devices time an all-reduce; give --objective time")
    seconds = read_budget(faults, budget, quick=quick)
    question = faults.require(read)
    question = question if least is None else replace(question, worth=least)
    name, what = target or question.framework or USUAL, objective or ""
    with within(seconds), Progress("simulated or excluded {} of {} settings") as progress:
        found = find_best(question, name, what, half=fp16, workers=workers, progress=progress)
    files = files_of(found)
    as_it_is = out is None and found.advised == found.default
    reply = Reply(
        lambda: tuned_text(found, why_nothing(found)),
        partial(tuned_document, found, files),
        picture=partial(sensitivity_plot, found) if found.curve else None,
        paste="" if as_it_is else hand_over(out, files),
        complete=not found.interrupted,
    )

    def ranking() -> StrategyRanking:
        """The settings to measure, which the devices can run."""
        assert measurement is not None  # noqa: S101 - else nothing is measured
        can_run = measurement.module.can_run
        known = {"devices": measurement.devices, "workloads": [question.workload]}
        return ranking_of(found, measurement.best, partial(can_run, **known))

    return give_measured(reply, measurement, ranking, "measured")


def _tune_meshes(meshes: Meshes, out: str | None, workers: int) -> Reply:
    """The fastest mesh that the target can run, with what to set."""
    meshes = replace(meshes, framework=meshes.framework or MEGATRON.name)
    with Progress("simulated or excluded {} of {} meshes", spares=True) as progress:
        found = rank_meshes(meshes, workers, progress.watch)
    files = {} if why_no_files(found) else files_of_mesh(found)
    return Reply(
        lambda: meshes_text(found, rows_shown(everything=False)),
        lambda: TUNED_MESHES.write(found) | {"files": dict(files)},
        paste=hand_over(out, files) if files else "",
        complete=not found.interrupted,
    )
