"""`simreduce topo p2p`."""

from __future__ import annotations

from simreduce.calibrate import load_calibration
from simreduce.cli.completion import topology_argument
from simreduce.cli.group import command
from simreduce.cli.options import calibration_option, echo_json, report_options
from simreduce.cli.progress import Progress
from simreduce.cli.terminal import show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.report.p2p import p2p_document, p2p_table
from simreduce.topology import load_topology
from simreduce.tune.p2p import peer_to_peer


@command(examples="simreduce topo p2p dgx1v")
@topology_argument
@calibration_option("nominal")
@report_options
def p2p(topology: str, calibration: str, as_json: bool) -> None:
    """Predict the matrices of p2pBandwidthLatencyTest for a machine."""
    faults = Faults()
    machine = faults.attempt("", load_topology, topology)
    constants = faults.attempt("--calibration", load_calibration, calibration)
    if faults.problems or not (machine and constants):
        raise InputError(faults.problems)
    with Progress("predicting the copies"):
        predicted = peer_to_peer(machine, constants)
    if as_json:
        echo_json(p2p_document(machine, predicted, constants.name))
        return
    about = f"# {machine.name}: {machine.title} ({machine.digest}), calibration {constants.name}"
    show(f"{about}\n\n{p2p_table(predicted)}")
