"""`simreduce nccl`."""

from __future__ import annotations

import click
from click.core import ParameterSource

from simreduce import dtypes
from simreduce.calibrate import load_calibration
from simreduce.cli.completion import topology_argument
from simreduce.cli.group import command
from simreduce.cli.options import calibration_option, echo_json, report_options
from simreduce.cli.progress import Progress
from simreduce.cli.sizes import read_sizes, sizes_options
from simreduce.cli.terminal import show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.nccl import Settings, choose, facts, load_conf, plan, read_settings
from simreduce.nccl.choice import SENDS
from simreduce.nccl.settings import read_assignments
from simreduce.nccl.tables import COLLECTIVES
from simreduce.report.nccl import Call, nccl_document, nccl_text
from simreduce.setup import Setup
from simreduce.topology import load_topology
from simreduce.tune.bench import tensor


@command(examples="simreduce nccl dgx-h100 NCCL_ALGO=Ring")
@topology_argument
@click.argument("variables", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--collective",
    type=click.Choice((*COLLECTIVES, *SENDS)),
    default="all_reduce",
    help="Show what runs for this collective; default all_reduce.",
)
@sizes_options("1K")
@click.option("--version", default=None, metavar="2.N", help="Of this NCCL; default 2.30.")
@click.option(
    "--conf", default=None, metavar="FILE", help="Read variables from an nccl.conf first."
)
@click.option(
    "--tuner", default=None, metavar="FILE", help="Apply the CSV of NCCL's example tuner plugin."
)
@click.option("--simulate", is_flag=True, help="Also simulate each choice.")
@calibration_option("nominal")
@report_options
def nccl(
    topology: str,
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
    calibration: str,
    as_json: bool,
) -> None:
    """Show what NCCL itself chooses on a machine: channels, graphs, tuning table, and the algorithm
    and protocol of each size, in the words of NCCL's log.

    Variables are NCCL's own, such as NCCL_ALGO=Ring or NCCL_P2P_DISABLE=1. Without -b and -e the
    sizes go up to 1G by a factor of 4.
    """
    faults = Faults()
    machine = faults.attempt("", load_topology, topology)
    settings = _settings(faults, variables, version, conf, tuner)
    default = click.get_current_context().get_parameter_source("minbytes")
    if maxbytes is None and default is ParameterSource.DEFAULT:
        maxbytes, stepfactor = "1G", stepfactor or 4.0
    sizes = faults.attempt("", read_sizes, minbytes, maxbytes, stepbytes, stepfactor)
    constants = faults.attempt("--calibration", load_calibration, calibration)
    if faults.problems or machine is None or sizes is None or constants is None:
        raise InputError(faults.problems)
    at = plan(facts(machine, settings=settings), settings)
    setup = Setup(machine, calibration=constants, nccl=settings)
    calls = []
    with Progress("simulated {} of {} sizes") as progress:
        for i, nbytes in enumerate(sizes):
            found = choose(at.facts, collective, nbytes, settings)
            seconds = _simulated(setup, found.text, collective, nbytes) if simulate else None
            calls.append(Call(nbytes, found, seconds))
            progress(i + 1, len(sizes))
    if as_json:
        echo_json(nccl_document(machine, at, collective, calls))
        return
    given = " ".join(variables)
    show(nccl_text(machine, at, collective, calls, f"variables {given}" if given else ""))


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
    """The settings of a file, then those of the command line."""
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
