"""`simreduce tune SCENARIO`: the best setting for what a target can be told."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click

from simreduce.cli.completion import scenario_argument
from simreduce.cli.devices import DEVICES
from simreduce.cli.export import check_folder, write_folder
from simreduce.cli.group import command
from simreduce.cli.measuring import measure_options, read_devices
from simreduce.cli.options import (
    calibration_option,
    echo_json,
    gpus_options,
    report_options,
    workers_option,
)
from simreduce.cli.pictures import check_pictures, picture_options, write_plot
from simreduce.cli.progress import Progress
from simreduce.cli.setups import nccl_option, read_scenario, slow_option
from simreduce.cli.terminal import show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.report.tuned import files_text, sensitivity_plot, tuned_text
from simreduce.report.tuned_document import tuned_document
from simreduce.tune.search.hand_over import files_of, ranking_of, why_nothing
from simreduce.tune.search.spaces import OBJECTIVES, STEP, TARGETS, check_target
from simreduce.tune.search.tune import read_objective, tune as find_best

_DEFAULT = "pytorch"


@command(examples="simreduce tune dgx1v-resnet50 --target pytorch")
@scenario_argument
@click.option(
    "--target",
    default=_DEFAULT,
    metavar="NAME",
    help=f"Try what this can be told: {', '.join(TARGETS)}; default {_DEFAULT}.",
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
@gpus_options
@calibration_option(None, "the scenario's")
@nccl_option("this whatever is found, such as version=2.18")
@slow_option
@click.option(
    "--out", default=None, metavar="DIR", help="Write what to paste to this folder; default: print."
)
@workers_option
@measure_options
@picture_options("Also draw the time over the size of buckets", ("plot", "plot"))
@report_options
def tune(
    scenario: str,
    target: str,
    objective: str | None,
    fp16: bool,
    out: str | None,
    measure: int | None,
    iters: int | None,
    workers: int | None,
    svg: str | None,
    png: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Find the best setting of SCENARIO (a file, or a shipped name) for what a target can be told:
    packing, algorithms, protocols and channels by size. Says how much it is worth, how sure that
    is, and how near the bound.

    On Ctrl-C or SIGTERM, prints the best so far and exits with status 130.
    """
    faults = Faults()
    faults.attempt("", check_pictures, svg, png, as_json=as_json, plot=True)
    faults.attempt("", check_target, target)
    if out is not None:
        faults.attempt("--out", check_folder, out)
    calm: dict[str, Any] = {"jitter": None, "seed": None, "fault": ()}
    own: dict[str, Any] = {"runtime": None, "gpu_indices": None, "faithful": None}
    chosen = {name: given.pop(name) for name in DEVICES}
    question = read_scenario(faults, scenario, **own, **calm, **given)
    real, devices = read_devices(faults, question, measure, {**given, **chosen})
    if question is not None:
        shortened = faults.attempt("--objective", read_objective, question, objective or "")
        if measure is not None and shortened == STEP:
            faults.add("--measure", "devices time an all-reduce; give --objective time")
    if faults.problems or question is None:
        raise InputError(faults.problems)
    with Progress("simulated or excluded {} of {} settings") as progress:
        found = find_best(
            question,
            target,
            objective or "",
            half=fp16,
            workers=workers or os.cpu_count() or 1,
            progress=progress,
        )
    files = files_of(found)
    places = [] if out is None else write_folder(out, files)
    document = tuned_document(found, files) if as_json else {}
    if not as_json:
        shown = tuned_text(found, why_nothing(found))
        paste = files_text(files) if out is None else "".join(f"{place}\n" for place in places)
        show(shown, svg, png, paste=paste)
    faulty = False
    # What was found is shown even if measuring fails.
    try:
        if real is not None and not found.stopped:
            can_run = partial(real.can_run, devices=devices, workloads=[question.workload])
            ranking = ranking_of(found, measure or 1, can_run)
            measured = real.remeasure(ranking, measure, devices, iters)
            faulty = any(row.faults for row in measured.rows)
            document["measured"] = real.document(measured)["measured"]
            if not as_json:
                show(real.table(measured), svg, png)
    finally:
        if as_json:
            echo_json(document)
    if (svg or png) and found.curve:
        write_plot(sensitivity_plot(found), svg, png)
    return 130 if found.stopped else int(faulty)
