"""The order of nodes: `simreduce topo place SCENARIO --nodes FILE` and `tune --placement`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from simreduce.app.cli.export import check_folder, draw_orders, folder_option, hand_over
from simreduce.app.cli.group import command, scenario_argument
from simreduce.app.cli.options import (
    budget_options,
    calibration_option,
    read_budget,
    workers_option,
)
from simreduce.app.cli.reply import Progress, Reply, report_options
from simreduce.app.cli.setups import (
    Given,
    job_options,
    nccl_option,
    read_meshes,
    read_scenario,
)
from simreduce.computing.watching import within
from simreduce.errors import InputError
from simreduce.export import export
from simreduce.export.frameworks import LAUNCHERS, find_framework
from simreduce.files.formats import Faults
from simreduce.files.textfiles import read_text
from simreduce.planners.layouts import layout
from simreduce.report.placement import PLACEMENT, placement_text
from simreduce.study.question import Question, choice_of
from simreduce.study.scenario import Meshes, asks_for_meshes, tables_of
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.placement.search import Placed, on_nodes, place as place_ranks
from simreduce.topology.importers.hosts import read_hosts
from simreduce.topology.switch_groups import read_names, with_hosts


def asks_for_placement(text: str) -> bool:
    """Whether a scenario has `[tune] placement`, sensible or not."""
    table = tables_of(text).get("tune")
    return isinstance(table, dict) and table.get("placement", False) is not False


def read_question_of_order(faults: Faults, text: str, given: Given) -> Placed | None:
    """The scenario whose nodes are ordered; None if there is a fault."""
    if not asks_for_meshes(text):
        return read_scenario(faults, text, given)
    with suppress(InputError):  # which are among the faults
        return read_meshes(faults, text, given)
    return None


def read_placed_hosts(
    faults: Faults, text: str, given: Given, file: str, job: str | None, free: str | None
) -> Placed | None:
    """The scenario on the hosts of a file, all or those of the `job`, in their order."""
    scenario = read_question_of_order(faults, text, given)
    hosts = faults.attempt("", lambda: read_hosts(read_text(Path(file), InputError), file))
    if hosts is None:
        return None
    known, lacks = dict[str, str](zip(hosts, hosts, strict=True)), f"{file} names no host"
    names = tuple(known) if job is None else read_names(faults, "--hosts", job, known, lacks)
    spare = () if free is None else read_names(faults, "--free", free, known, lacks)
    if scenario is None:
        return None
    machine = faults.attempt("", with_hosts, scenario.setup.topology, hosts, file)
    if faults.problems or machine is None:
        return None
    asked, order = len(scenario.setup.layout), scenario.setup.layout.order
    scenario = scenario.but(machine=machine)
    if order:
        scenario = scenario.but(part=layout(machine).with_order(order))
    scenario = on_nodes(scenario, names)
    ranks = len(scenario.setup.layout)
    if isinstance(scenario, Meshes) and ranks != asked:
        words = f"{ranks} GPUs, and meshes of the scenario are on {asked}"
        faults.add("--hosts", f"{words}; its key nodes says on which nodes")
    return replace(scenario, free=spare)


def tune_placement(
    faults: Faults, scenario: Placed | None, workers: int, target: str | None, out: str | None,
    budget: str | None, *, quick: bool,
) -> int:  # fmt: skip
    """Give the best order of nodes, and its files for what starts ranks: of the `target`, or of all
    in the folder `out`. InputError with all `faults`.
    """
    if target is not None:
        faults.attempt("", find_framework, target, LAUNCHERS, f"--target {target}: starts no ranks")
    faults.attempt("--out", check_folder, out)
    seconds = read_budget(faults, budget, quick=quick)
    faults.raise_any()
    assert scenario is not None  # noqa: S101 - else there is a fault
    with within(seconds):
        return _order(scenario, workers, target, out).give()


def _order(asked: Placed, workers: int, target: str | None, out: str | None) -> Reply:
    """The best order; of a scenario with a mesh, for the best mesh on the nodes in their order."""
    scenario = asked
    if isinstance(scenario, Meshes):
        with Progress("simulated or excluded {} of {} meshes", spares=True) as progress:
            best = rank_meshes(scenario, 1, progress.watch).best.job
        scenario = replace(scenario, question=replace(scenario.question, jobs=(best,)))
    with Progress("simulated or excluded {} of {} orders") as progress:
        found = place_ranks(scenario, scenario.free, workers=workers, progress=progress)
    names = [target] if target else list(LAUNCHERS) if out else []
    setup = on_nodes(scenario, found.advised).setup
    workload = scenario.model.model.workload if isinstance(scenario, Meshes) else scenario.workload
    choice = choice_of(Question(found.setting.reduction, workload, setup), None)
    files = {key: text for name in names for key, text in export(name, choice).items()}
    document, written = PLACEMENT.write(found), dict(files)
    if out is not None:
        drawn = {"given": document["orders"][-1]["nodes"], "advised": document["advised"]}
        written |= draw_orders(scenario.title, document["switches"], drawn)
    return Reply(
        lambda: placement_text(found),
        lambda: document | {"files": files},
        paste=hand_over(out, written),
        complete=not found.interrupted,
    )


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
@folder_option("--out", "Write the files of all of these to this folder.")
@job_options
@calibration_option(None, "the scenario's")
@nccl_option("this")
@budget_options()
@workers_option
@report_options
def place(
    faults: Faults,
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
    asked = read_placed_hosts(faults, scenario, given, file, hosts, free)
    return tune_placement(faults, asked, workers, target, out, budget, quick=quick)
