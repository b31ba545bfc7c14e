"""`simreduce run SCENARIO` and `tune SCENARIO`, and the order of nodes.

Both take `--measure K` for real devices; the code that runs these loads when it is needed.
`topo place SCENARIO --nodes FILE` and `tune --placement` order nodes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from simreduce.app.cli.export import draw_orders, folder_option, hand_over
from simreduce.app.cli.group import command, scenario_argument
from simreduce.app.cli.options import (
    algo_option,
    all_option,
    budget_options,
    calibration_option,
    details_option,
    gpus_options,
    read_budget,
    refuse,
    strategy_texts,
    workers_option,
)
from simreduce.app.cli.reply import Progress, Reply, picture_options, report_options
from simreduce.app.cli.setups import (
    Given,
    give_measured,
    job_options,
    measure_options,
    nccl_option,
    nodes_option,
    read_measurement,
    read_meshes,
    read_scenario,
    setup_options,
    slow_option,
)
from simreduce.app.cli.terminal import rows_shown
from simreduce.computing.workers import within
from simreduce.errors import InputError, quote
from simreduce.export import export
from simreduce.export.frameworks import LAUNCHERS, MESH_PROGRAMS, TUNED, USUAL, find_framework
from simreduce.export.frameworks.megatron import MEGATRON
from simreduce.files.formats import Faults
from simreduce.files.textfiles import read_text
from simreduce.planners.layouts import layout
from simreduce.report.jobs import PLACEMENT, placement_text
from simreduce.report.ranking import preview_lines, ranking_document, ranking_table
from simreduce.report.step_page import step_text
from simreduce.report.steps import TUNED_MESHES
from simreduce.report.tuned import sensitivity_plot, tuned_document, tuned_text
from simreduce.study.question import Question, choice_of
from simreduce.study.scenario import Meshes
from simreduce.study.scenario_files import asks_for_meshes, tables_of
from simreduce.study.tune.placement.search import Placed, on_nodes, place as place_ranks
from simreduce.study.tune.rank import StrategyRanking, rank
from simreduce.study.tune.search.export_choice import files_of, ranking_of, why_nothing
from simreduce.study.tune.search.targets import OBJECTIVES, STEP
from simreduce.study.tune.search.tune import read_objective, tune as find_best
from simreduce.study.tune.steps import files_of_mesh, rank_meshes, why_no_files
from simreduce.topology.importers.hosts import read_hosts
from simreduce.topology.switch_groups import read_names, with_hosts


@command(
    examples="""
    simreduce run dgx1v-resnet50
    simreduce run dgx1v-resnet50 --algo ring,nccl+packs=2 --json
    """
)
@scenario_argument
@algo_option("Rank these instead of the scenario's.")
@job_options
@setup_options("the scenario's", "the scenario's")
@budget_options()
@workers_option
@all_option
@details_option("Also print other names of plans, and why strategies are not possible.")
@measure_options
@report_options
def run(
    faults: Faults,
    scenario: str,
    algo: tuple[str, ...],
    budget: str | None,
    quick: bool,
    workers: int,
    simulate_all: bool,
    details: bool,
    **given: Any,
) -> int:
    """Rank every strategy of SCENARIO (a file, a shipped name, or a recorded job); recommend one.

    Strategies that take long to simulate are simulated only as far as they may be among the first
    ten, or recommended; their rows then say what they take at least.

    On Ctrl-C or SIGTERM, prints the strategies so far and exits with status 130.
    """
    found = read_scenario(faults, scenario, given, strategy_texts(faults, algo))
    measurement = read_measurement(faults, found, given)
    seconds = read_budget(faults, budget, quick=quick)
    question = faults.require(found)
    with within(seconds), Progress("simulated {} of {} strategies", preview_lines) as progress:
        ranking = rank(question, workers, progress.watch, simulate_all=simulate_all)
    reply = Reply(
        lambda: ranking_table(ranking, rows_shown(everything=simulate_all), details=details),
        partial(ranking_document, ranking),
        failed=any(c.wrong for c in ranking.candidates),
        complete=not ranking.interrupted,
    )
    return give_measured(reply, measurement, lambda: ranking)


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
            best = rank_meshes(scenario, 1, progress.watch).job
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
    out: str | None,
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
    if given["placement"] or asks_for_placement(scenario):
        unused = ("fp16", "objective", "measure", *_DRAWN)
        refuse(faults, unused, "says nothing about the order of nodes")
        asked = read_question_of_order(faults, scenario, given)
        return tune_placement(faults, asked, workers, target, out, budget, quick=quick)
    if asks_for_meshes(scenario):
        about_step = objective in (None, STEP)
        faults.check(about_step, "--objective", "a scenario with step.mesh is about a step")
        seconds = read_budget(faults, budget, quick=quick)
        unused = (*_DRAWN, "fp16", "worth", "measure")
        meshes = read_meshes(faults, scenario, given, unused, target)
        with within(seconds):
            return _tune_meshes(meshes, out, workers).give()
    if target is not None:
        faults.attempt("", find_framework, target, TUNED, f"--target: unknown {quote(target)}")
    read = read_scenario(faults, scenario, given)
    measurement = read_measurement(faults, read, given)
    if faults.attempt("--objective", read_objective, read, objective or "") == STEP:
        refuse(faults, ["measure"], "devices time an all-reduce; give --objective time")
    seconds = read_budget(faults, budget, quick=quick)
    question = faults.require(read)
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
        lambda: step_text(found, rows_shown(everything=False), details=False),
        lambda: TUNED_MESHES.write(found) | {"files": dict(files)},
        paste=hand_over(out, files) if files else "",
        complete=not found.interrupted,
    )
