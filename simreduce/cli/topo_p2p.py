"""`simreduce topo p2p`."""

from __future__ import annotations

import click

from simreduce.calibrate import load_calibration
from simreduce.cli.options import as_json, calibration_option, echo_json
from simreduce.cli.progress import Progress
from simreduce.report.p2p import p2p_document, p2p_table
from simreduce.topology import load_topology
from simreduce.tune.p2p import peer_to_peer


@click.command()
@click.argument("topology")
@calibration_option("nominal")
@as_json
def p2p(topology: str, calibration: str, as_json: bool) -> None:
    """The matrices of p2pBandwidthLatencyTest, predicted for a machine."""
    machine, constants = load_topology(topology), load_calibration(calibration)
    with Progress("predicting the copies"):
        predicted = peer_to_peer(machine, constants)
    if as_json:
        echo_json(p2p_document(machine, predicted, constants.name))
        return
    click.echo(
        f"# {machine.name}: {machine.title} ({machine.digest}), calibration {constants.name}\n"
    )
    click.echo(p2p_table(predicted))
