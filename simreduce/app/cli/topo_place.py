"""`simreduce topo place SCENARIO --nodes FILE`: the best order of real hosts."""

from __future__ import annotations

from typing import Any

import click

from simreduce.app.cli.completion import scenario_argument
from simreduce.app.cli.group import command
from simreduce.app.cli.options import budget_options, calibration_option, workers_option
from simreduce.app.cli.placement import read_placed_hosts, tune_placement
from simreduce.app.cli.reply import option_faults, report_options
from simreduce.app.cli.setups import SetupOptions, job_options, nccl_option
from simreduce.export.frameworks import LAUNCHERS


@command(
    examples="""
    echo 'SwitchName=leaf1 Nodes=node[1-2]' > t.conf
    echo 'SwitchName=leaf2 Nodes=node[3-4]' >> t.conf
    simreduce topo place dgx1v-resnet50 --topology gh200x4,fabric=fat_tree,radix=2 --nodes t.conf
    """
)
@scenario_argument
@click.option(
    "--nodes",
    "file",
    required=True,
    metavar="FILE",
    help="Take the hosts and their switches from this file.",
)
@click.option(
    "--hosts",
    default=None,
    metavar="HOSTS",
    help="Order these hosts, such as node[01-16]; default: all of FILE.",
)
@click.option(
    "--free",
    default=None,
    metavar="HOSTS",
    help="Use these hosts instead where that is better; default: none.",
)
@click.option(
    "--target",
    default=None,
    metavar="NAME",
    help=f"Print the files of the order for {', '.join(LAUNCHERS)}.",
)
@click.option(
    "--out", default=None, metavar="DIR", help="Write the files of all of these to this folder."
)
@job_options
@calibration_option(None, "the scenario's")
@nccl_option("this")
@budget_options()
@workers_option
@report_options
def place(
    scenario: str,
    file: str,
    hosts: str | None,
    free: str | None,
    target: str | None,
    out: str | None,
    budget: str | None,
    quick: bool,
    workers: int,
    **given: Any,
) -> int:
    """Find the best order of the hosts of an allocation for SCENARIO, and what the given one costs.

    FILE has hosts and the switches above them: the output of `ibnetdiscover`, Slurm's
    topology.conf or `scontrol show topology`, or JSON of `aws ec2 describe-instance-topology` or of
    `gcloud compute instances list`; its content says which. SCENARIO says what the network carries:
    hosts that share switches in FILE take nodes that do so in the scenario's topology.
    """
    faults = option_faults()
    options = SetupOptions.take(given)
    asked = read_placed_hosts(faults, scenario, options, file, hosts, free)
    return tune_placement(faults, asked, workers, target, out, budget, quick=quick)
