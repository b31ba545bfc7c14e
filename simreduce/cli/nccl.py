"""`simreduce nccl`."""

from __future__ import annotations

import click

from simreduce.cli.options import as_json, echo_json
from simreduce.cli.sizes import read_sizes, sizes_options
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.nccl import Settings, facts, load_conf, plan, read_settings
from simreduce.nccl.choice import SENDS
from simreduce.nccl.settings import read_assignments
from simreduce.nccl.tables import COLLECTIVES
from simreduce.report.nccl import nccl_document, nccl_text
from simreduce.topology import load_topology


@click.command()
@click.argument("topology")
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
@as_json
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
    as_json: bool,
) -> None:
    """Show what NCCL itself chooses on a machine: channels, graphs, tuning table, and the algorithm
    and protocol of each size, in the words of NCCL's log.

    Variables are NCCL's own, such as NCCL_ALGO=Ring or NCCL_P2P_DISABLE=1.
    """
    faults = Faults()
    machine = faults.attempt("", load_topology, topology)
    settings = _settings(faults, variables, version, conf, tuner)
    if maxbytes is None and stepfactor is None:
        maxbytes, stepfactor = "1G", 4.0
    sizes = faults.attempt("", read_sizes, minbytes, maxbytes, stepbytes, stepfactor)
    if faults.problems or machine is None or sizes is None:
        raise InputError(faults.problems)
    at = plan(facts(machine, settings=settings), settings)
    if as_json:
        echo_json(nccl_document(machine, at, collective, sizes))
        return
    given = " ".join(variables)
    click.echo(nccl_text(machine, at, collective, sizes, f"variables {given}" if given else ""))


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
