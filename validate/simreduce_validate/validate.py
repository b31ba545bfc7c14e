"""`simreduce validate`: plans on real devices, timed beside what is predicted for them.

    simreduce validate switch:4 --algo ring,direct -b 1K -e 1M -f 8 --backend inproc --calibration mine

Every size of every candidate is checked before its time is shown: all results on all devices, and
that the transfers and sums that were executed are those of the plan. Exit status 1 if any of it is
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import simreduce as sr
from simreduce import dtypes, units
from simreduce.algorithms import ALGORITHMS
from simreduce.calibrate import load_calibration
from simreduce.cli.devices import device_options, typed
from simreduce.cli.options import (
    as_json,
    calibration_option,
    echo_beside,
    echo_json,
    gather,
    gather_of,
    gpus_options,
)
from simreduce.cli.pictures import check_pictures, picture_options, write_pictures
from simreduce.cli.progress import interruptible
from simreduce.cli.sizes import read_sizes, sizes_options
from simreduce.cli.strategies import algo_option, read_strategies
from simreduce.engine import NOMINAL, Calibration
from simreduce.errors import InputError
from simreduce.outputs import check_place
from simreduce.pictures import Measured, validation_picture
from simreduce.scenario import Scenario, load_scenario
from simreduce.strategy import Strategy
from simreduce.tune.bench import tensor
from simreduce.tune.candidates import candidates
from simreduce_validate.accuracy import assess
from simreduce_validate.campaign import RUNTIME, Campaign, Case, Stopped, Timing
from simreduce_validate.devices import Devices, can_run, read_devices
from simreduce_validate.measuring import already_there
from simreduce_validate.measuring.provenance import processors
from simreduce_validate.running import BUILTINS, ROUTES
from simreduce_validate.running.builtin import COLLECTIVE, check_builtin
from simreduce_validate.tables import accuracy_lines, document, samples_line, table, transfer_lines
from simreduce_validate.transfers import Transfer, transfers

_OF_THE_SCENARIO = {
    "--algo": "algo",
    "-b": "minbytes",
    "-e": "maxbytes",
    "-i": "stepbytes",
    "-f": "stepfactor",
    "-d": "datatype",
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
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
    help="Of a scenario: measure the best so many by prediction; default 10.",
)
@algo_option("Strategies to measure, all: every algorithm; default ring")
@click.option(
    "--builtin", multiple=True, metavar="NAME", help=f"TensorFlow's own: {', '.join(BUILTINS)}."
)
@sizes_options("1M")
@gpus_options
@click.option(
    "-d", "--datatype", "--dtype", default="float", help="float, half, double, bfloat16, int32, ..."
)
@click.option(
    "-n", "--iters", type=click.IntRange(1), default=20, help="Samples of each; default 20."
)
@click.option(
    "-w",
    "--warmup_iters",
    "--warmup-iters",
    type=click.IntRange(0),
    default=2,
    help="Steps before; default 2.",
)
@click.option(
    "--chained",
    type=click.IntRange(1),
    default=None,
    help="All-reduces in a row in one step; default 1.",
)
@device_options
@click.option(
    "--transfers",
    "traced",
    is_flag=True,
    help="Also every transfer of one step, measured and predicted.",
)
@click.option(
    "--out",
    default=None,
    metavar="FILE",
    help="Keep predictions, then every sample, in a new file.",
)
@picture_options("Measured against predicted")
@calibration_option(None)
@as_json
def validate(
    topology: str | None, scenario: str | None, top: int, algo: tuple[str, ...], builtin: tuple[str, ...], minbytes: str, maxbytes: str | None,
    stepbytes: str, stepfactor: float, ngpus: int | None, gpus: str | None, datatype: str, iters: int, warmup_iters: int,
    chained: int | None, traced: bool, out: str | None, svg: str | None, png: str | None, calibration: str | None, as_json: bool,
    **devices: Any,
) -> int:  # fmt: skip
    """Time all-reduces on real devices beside what is predicted, as if they were TOPOLOGY (a name,
    a file, e.g. switch:4; auto: this machine's GPUs). What is stopped (Ctrl-C, SIGTERM) tells of
    the sizes that are complete, with status 130.
    """
    problems: list[str] = []
    asked: Scenario | None = (
        gather(problems, load_scenario, scenario) if scenario is not None else None
    )
    if topology is None and scenario is None:
        problems.append(
            "TOPOLOGY is missing: a name, a file or e.g. switch:4; or give a --scenario"
        )
    if scenario is not None:
        problems += [
            f"{option}: the --scenario says what is reduced and how"
            for option, name in _OF_THE_SCENARIO.items()
            if typed(name)
        ]
    if asked and asked.setup.runtime.name != RUNTIME:
        problems.append(
            f"--scenario {scenario}: runtime {asked.setup.runtime.name!r}, and devices are TensorFlow's"
        )
    times = chained or (asked.repeat if asked else 1)
    for option, useless in (
        ("--builtin", builtin and times > 1),
        ("--transfers", traced and times > 1),
    ):
        if useless:
            problems.append(f"{option}: not with several all-reduces in one step (--chained)")
    if traced and devices["route"] != ROUTES[0]:
        problems.append(
            f"--transfers: --route {devices['route']} keeps no timeline; {ROUTES[0]} does"
        )
    where = asked if topology is None else topology
    stage = gather(problems, read_devices, where, ngpus, gpus, **devices)
    dtype = gather_of("--datatype", problems, dtypes.code, datatype)
    swept = gather(problems, read_sizes, minbytes, maxbytes, stepbytes, stepfactor)
    named = gather(
        problems, read_strategies, algo or (() if builtin else ("ring",)), list(ALGORITHMS)
    )
    constants: Calibration | None = asked.setup.calibration if asked else NOMINAL
    if calibration is not None:
        constants = gather_of("--calibration", problems, load_calibration, calibration)
    builtins = [
        name
        for text in builtin
        for name in text.split(",")
        if gather(problems, check_builtin, name)
    ]
    if dtype is not None and swept and swept[0] < dtypes.SIZES[dtype]:
        problems.append(f"-b {minbytes}: less than one element of {dtypes.NAMES[dtype]}")
    if out is not None and Path(out).exists():
        problems.append(already_there(out))
    if out is not None:
        gather(problems, check_place, out)
    gather(problems, check_pictures, svg, png, as_json=as_json)
    if problems or not (stage and swept and named is not None and constants) or dtype is None:
        raise InputError(problems)
    campaign = Campaign(stage, constants, iters, warmup_iters, times, traced)
    if asked:
        workloads = [asked.workload]
        strategies = _best(campaign, asked, top)
    else:
        workloads = [tensor(nbytes, dtype) for nbytes in swept]
        strategies = [s for s, wanted in named if wanted or can_run(s, stage, workloads)]
    if not strategies and not builtins:
        raise InputError("none of the strategies can run on these devices")
    groups = [
        campaign.with_controls(campaign.cases(workload, strategies, builtins, twice=True))
        for workload in workloads
    ]
    rows, provenance, stopped = _measured(campaign, groups, None if out is None else Path(out))
    accuracy = assess(rows, COLLECTIVE)
    details = [_transfers(campaign, row) for row in rows]
    if as_json:
        echo_json(
            {**document(campaign, rows, accuracy, details, provenance), "complete": not stopped}
        )
    else:
        about = [
            f"simreduce {sr.__version__}: {_title(stage, constants.name)}",
            *_about(campaign, provenance, rows),
        ]
        echo_beside(table(rows, stage.layout.n, about, accuracy_lines(accuracy)), svg, png)
        for row, found in zip(rows, details, strict=True):
            for line in transfer_lines(row, found):
                echo_beside(line, svg, png)
    marks = _marks(rows)
    if marks and (svg is not None or png is not None):
        drawing = validation_picture(marks, _title(stage, constants.name), accuracy_lines(accuracy))
        write_pictures(drawing, svg, png)
    if stopped:
        all_of_them = sum(case.control is None for group in groups for case in group)
        measured = sum(row.case.control is None for row in rows)
        kept = f"; every sample is in {out}" if out else ""
        click.echo(
            f"simreduce: stopped after {measured} of {units.counted(all_of_them, 'candidate')}, of whole sizes{kept}",
            err=True,
        )
        return 130
    return int(any(row.faults for row in rows))


def _measured(
    campaign: Campaign, groups: Sequence[Sequence[Case]], out: Path | None
) -> tuple[Sequence[Timing], Mapping[str, Any], bool]:
    """All rows, what they ran on, and whether somebody stopped it: then those of whole groups, if
    there is one.
    """
    try:
        with interruptible():
            return *campaign.measure(groups, out), False
    except Stopped as early:
        if not early.rows:
            raise
        return early.rows, early.provenance, True


def _best(campaign: Campaign, scenario: Scenario, top: int) -> list[Strategy]:
    """The strategies of a scenario that are predicted to be fastest on these devices (see
    `Campaign.fastest`).
    """
    layout, workload = campaign.devices.layout, scenario.workload
    all_of_them = scenario.strategies or candidates(layout)
    known = [s for s in all_of_them if can_run(s, campaign.devices, [workload])]
    return [known[i] for i in campaign.fastest(campaign.cases(workload, known))[:top]]


def _transfers(campaign: Campaign, row: Timing) -> list[Transfer]:
    machine, calibration = campaign.devices.stage.machine, campaign.calibration
    found = transfers(row.case.plan, machine, calibration, row.events) if row.events else []
    return [each._replace(predicted=math.nan) for each in found] if campaign.blind else found


def _title(devices: Devices, calibration: str) -> str:
    backend = devices.stage.backend
    return f"all-reduce on {units.counted(devices.layout.n, 'device')} of {backend}, route {devices.route}, calibration {calibration}"


def _about(campaign: Campaign, provenance: Mapping[str, Any], rows: Sequence[Timing]) -> list[str]:
    devices = campaign.devices
    settings, hardware = provenance["settings"], provenance["hardware"]
    links = f", {settings['links']}" if settings.get("links") else ""
    return [
        f"topology {devices.topology.name} ({devices.topology.digest}), simulated as {devices.stage.machine.name}, runtime tensorflow",
        f"{processors(hardware)}, TensorFlow {provenance['versions']['tensorflow']}{links}",
        samples_line([row for row in rows if row.case.control is None], campaign.chained),
        *_warnings(campaign),
    ]


def _warnings(campaign: Campaign) -> list[str]:
    """What makes predictions worthless."""
    if campaign.devices.stage.on_cpus and campaign.calibration.cpu is None:
        what = "nothing is predicted" if campaign.blind else "predictions are of no CPU at all"
        return [
            f"these are CPU devices, and the calibration knows none: {what}; see simreduce calibrate"
        ]
    return []


def _marks(rows: Sequence[Timing]) -> list[Measured]:
    return [
        Measured(
            r.case.algorithm, r.case.nbytes, r.measured.median, r.interval.low, r.interval.high,
            r.predicted if math.isfinite(r.predicted) else None,
        )
        for r in rows
        if r.case.repeats is None and r.case.control is None and not r.faults
    ]  # fmt: skip
