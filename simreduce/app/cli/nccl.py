"""`simreduce nccl`, and `simreduce calibrate --from-nccl-tests LOG... --topology T`, which needs no
device and no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from simreduce import dtypes
from simreduce.app.cli.group import command
from simreduce.app.cli.options import (
    calibration_option,
    is_typed,
    machine_argument,
    read_sizes,
    sizes_options,
)
from simreduce.app.cli.reply import Progress, Reply, report_options
from simreduce.engine import Calibration
from simreduce.engine.calibrate import load_calibration, to_toml
from simreduce.engine.calibrate.fit import read_nccl_log
from simreduce.engine.setup import Setup
from simreduce.errors import CalibrationError, InputError, near_or_all
from simreduce.files.formats import Faults
from simreduce.files.published import COLLECTIVES as PUBLISHED
from simreduce.files.textfiles import read_text, write_file
from simreduce.planners.layouts import OPEN
from simreduce.planners.nccl import (
    DEFAULTS,
    Settings,
    facts,
    load_conf,
    plan,
    read_settings,
)
from simreduce.planners.nccl.choice import SENDS, Decide
from simreduce.planners.nccl.constants import COLLECTIVES
from simreduce.planners.nccl.environment import read_assignments
from simreduce.report.accuracy import FITTED, fitted_lines
from simreduce.report.topo import NCCL, ChosenCall, ChosenCalls, nccl_text
from simreduce.study.accuracy.fit import fit_logs
from simreduce.study.tune.sizes import tensor
from simreduce.topology import Topology, load_topology


@command(examples="simreduce nccl dgx-h100 NCCL_ALGO=Ring")
@machine_argument
@click.argument("variables", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--collective",
    type=click.Choice((*COLLECTIVES, *SENDS)),
    default="all_reduce",
    help="Show what runs for this collective; default all_reduce.",
)
@sizes_options("1K")
@click.option(
    "--version",
    default=None,
    metavar="2.N",
    help="Of this NCCL; default 2.30. Kernels of all versions count as equally fast.",
)
@click.option(
    "--conf", default=None, metavar="FILE", help="Read variables from an nccl.conf first."
)
@click.option(
    "--tuner", default=None, metavar="FILE", help="Apply the CSV of NCCL's example tuner plugin."
)
@click.option("--simulate", is_flag=True, help="Also simulate each choice.")
@calibration_option("nominal", read=load_calibration)
@report_options
def nccl(
    faults: Faults,
    machine: Topology,
    variables: tuple[str, ...],
    collective: str,
    minbytes: str,
    maxbytes: str | None,
    stepbytes: str,
    stepfactor: float | None,
    version: str | None,
    conf: str | None,
    tuner: str | None,
    simulate: bool,
    calibration: Calibration,
) -> Reply:
    """Show what NCCL itself chooses on a machine: channels, graphs, tuning table, and the algorithm
    and protocol of each size, in the words of NCCL's log.

    Variables are NCCL's own, such as NCCL_ALGO=Ring or NCCL_P2P_DISABLE=1. Without -b and -e the
    sizes go up to 1G by a factor of 4.
    """
    settings = _settings(faults, variables, version, conf, tuner)
    if maxbytes is None and not is_typed("minbytes"):
        maxbytes, stepfactor = "1G", stepfactor or 4.0
    sizes = faults.attempt("", read_sizes, minbytes, maxbytes, stepbytes, stepfactor)
    sizes = faults.require(sizes)
    at = plan(facts(machine, settings=settings), settings)
    setup, decide = (
        Setup(machine, calibration=faults.require(calibration), nccl=settings),
        Decide(machine, settings),
    )
    calls = []
    with Progress("simulated {} of {} sizes") as progress:
        for nbytes in progress.watch(sizes, len(sizes)):
            found = decide.choice(machine.devices, collective, nbytes, OPEN)
            seconds = _simulated(setup, found.text, collective, nbytes) if simulate else None
            calls.append(ChosenCall(nbytes, found, seconds))
    given = f"variables {' '.join(variables)}" if variables else ""
    asked = ChosenCalls(machine, at, collective, calls)
    return Reply(partial(nccl_text, asked, given), partial(NCCL.write, asked))


def _simulated(setup: Setup, strategy: str, collective: str, nbytes: int) -> float | None:
    """The seconds of a choice; None where it has no plan."""
    try:
        workload = tensor(nbytes, dtypes.code("float"), setup.layout.n)
        return setup.simulate(setup.compile(strategy, workload, collective)).seconds
    except InputError:
        return None


def _settings(
    faults: Faults,
    variables: tuple[str, ...],
    version: str | None,
    conf: str | None,
    tuner: str | None,
) -> Settings:
    """The settings of a file, overridden by the command line."""
    base = Settings()
    if conf is not None:
        table = faults.attempt("--conf", load_conf, conf)
        own = Faults(conf)
        base = read_settings(table or {}, own, "")
        faults.problems += own.problems
    given = dict(read_assignments([("", each) for each in variables], faults))
    options = {"version": version, "tuner": tuner}
    given |= {key: value for key, value in options.items() if value is not None}
    placed = Faults(options={key: f"--{key}" for key in options})
    settings = read_settings(given, placed, "", base)
    faults.problems += placed.problems
    return settings


def calibrate_from_logs(
    faults: Faults, logs: Sequence[str], machine: str | None, collective: str, path: Path
) -> Reply:
    """Fit NCCL's constants to logs, and keep them at `path`."""
    faults.check(logs, "--from-nccl-tests", "name one log or more")
    given = machine is not None
    faults.check(given, "--from-nccl-tests", "needs --topology, the machine of the logs")
    known = not collective or collective in PUBLISHED
    near = near_or_all(collective, PUBLISHED)
    faults.check(known, f"--collective {collective}", f"unknown{near}")
    topology = machine and faults.attempt("", load_topology, machine)
    read = [
        log
        for name in logs
        if (text := faults.attempt("", read_text, Path(name), CalibrationError)) is not None
        and (log := faults.attempt("", read_nccl_log, text, name)) is not None
    ]
    whole = faults.require(topology or None)
    with Progress("fitting"):
        found = fit_logs(read, whole, DEFAULTS, collective, path)
    write_file(str(path), [to_toml(found.calibration)])
    return Reply(partial(fitted_lines, found), partial(FITTED.write, found))
