"""`simreduce run`, `tune` and `step SCENARIO`, `jobs FILE`, `replay TRACE...`; the order of nodes.

`run` and `tune` take `--measure K` for real devices; the code that runs these loads when it is
needed. `topo place SCENARIO --nodes FILE` and `tune --placement` order nodes.

`step` is a training step, or the updates of synchronous replicas; `jobs` several jobs and other
traffic on one machine; `replay` a recorded run on another machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

import click

from simreduce.app.cli import command, scenario_argument, strategies
from simreduce.app.cli.export import draw_orders, folder_option, hand_over
from simreduce.app.cli.reply import (
    PICTURES,
    Progress,
    Reply,
    output_option,
    output_path,
    picture_options,
    report_options,
    show_until_stopped,
    wants_json,
)
from simreduce.app.cli.setups import (
    Given,
    algo_option,
    all_option,
    budget_options,
    calibration_option,
    details_option,
    give_measured,
    gpus_options,
    job_options,
    measure_options,
    nccl_option,
    nodes_option,
    read_budget,
    read_disturbance,
    read_measurement,
    read_meshes,
    read_scenario,
    read_setup,
    reading,
    refuse,
    setup_options,
    slow_option,
    strategy_texts,
    workers_option,
)
from simreduce.app.cli.terminal import BEST
from simreduce.computing.workers import time_is_up, until_stopped, within
from simreduce.engine import CALM
from simreduce.errors import InputError, quote
from simreduce.export import export
from simreduce.export.frameworks import LAUNCHERS, MESH_PROGRAMS, TUNED, USUAL, find_framework
from simreduce.export.frameworks.megatron import MEGATRON
from simreduce.files import read_text, write_folder
from simreduce.files.formats.syntax import Faults
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.report.jobs import (
    BESIDE,
    PLACEMENT,
    REPLAY,
    Replayed,
    jobs_text,
    placement_text,
    replay_text,
)
from simreduce.report.ranking import (
    RUN,
    TUNE,
    preview_lines,
    ranking_table,
    sensitivity_plot,
    tuned_text,
)
from simreduce.report.replicas import REPLICAS, Updates, replicas_text
from simreduce.report.step_page import step_text
from simreduce.report.steps import TUNED_MESHES, step_document
from simreduce.report.trace import (
    executed_threads,
    ranking_threads,
    replicas_threads,
    thread_events,
    trace_text,
)
from simreduce.study.job_files import build_jobs, build_mix
from simreduce.study.ranking import Question, choice_of
from simreduce.study.scenario import (
    CALL_COST,
    NO_STEP,
    NO_TIMES,
    Meshes,
    Replicas,
    StepScenario,
    with_step,
)
from simreduce.study.scenario_files import (
    asks_for_meshes,
    load_replicas,
    read_scenario_file,
    tables_of,
)
from simreduce.study.tune.jobs import answer_jobs, fit_jobs
from simreduce.study.tune.meshes import (
    Ranking,
    files_of_mesh,
    rank_meshes,
    rank_question,
    why_no_files,
)
from simreduce.study.tune.placement import Placed, on_nodes, place as place_ranks
from simreduce.study.tune.rank import StrategyRanking, rank
from simreduce.study.tune.search.search import files_of, ranking_of, why_nothing
from simreduce.study.tune.search.targets import OBJECTIVES, STEP
from simreduce.study.tune.search.tune import read_objective, tune as find_best
from simreduce.topology import natural
from simreduce.topology.importers.hosts import read_hosts
from simreduce.topology.switch_groups import read_names, with_hosts
from simreduce.training.executions import message_types, write as write_chakra
from simreduce.training.executions.reading import is_record, read_executions, read_groups
from simreduce.training.recorded import replay_execution
from simreduce.training.stragglers import BackupChoice, Repetitions, compare_backups, repeat, sample


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
    with (
        within(seconds),
        Progress("simulated {} of {} strategies", preview_lines, quick=True) as progress,
    ):
        ranking = rank(question, workers, progress.watch, simulate_all=simulate_all)
    reply = Reply(
        lambda: ranking_table(ranking, None if simulate_all else BEST, details=details),
        partial(RUN.write, ranking),
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
    topology.conf, topology.yaml or `scontrol show topology`, or JSON of `aws ec2
    describe-instance-topology` or of `gcloud compute instances list`; its content says which.
    SCENARIO says what the network carries: hosts that share switches in FILE take nodes that do so
    in the scenario's topology.
    """
    asked = read_placed_hosts(faults, scenario, given, file, hosts, free)
    return tune_placement(faults, asked, workers, target, out, budget, quick=quick)


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
        unused = ("fp16", "objective", "measure", *PICTURES)
        refuse(faults, unused, "says nothing about the order of nodes")
        asked = read_question_of_order(faults, scenario, given)
        return tune_placement(faults, asked, workers, target, out, budget, quick=quick)
    if asks_for_meshes(scenario):
        about_step = objective in (None, STEP)
        faults.check(about_step, "--objective", "a scenario with step.mesh is about a step")
        seconds = read_budget(faults, budget, quick=quick)
        unused = (*PICTURES, "fp16", "worth", "measure")
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
    with (
        within(seconds),
        Progress("simulated or excluded {} of {} settings", quick=True) as progress,
    ):
        found = find_best(question, name, what, half=fp16, workers=workers, progress=progress)
    files = files_of(found)
    as_it_is = out is None and found.advised == found.default
    reply = Reply(
        lambda: tuned_text(found, why_nothing(found)),
        lambda: TUNE.write(found) | {"files": dict(files)},
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
        lambda: step_text(found, BEST, details=False, closer="simreduce step --details"),
        lambda: TUNED_MESHES.write(found) | {"files": dict(files)},
        paste=hand_over(out, files) if files else "",
        complete=not found.interrupted,
    )


_ONLY_STEP = (
    "topology", "workload", "algo", "batch", "ngpus", "gpus", "gpu_indices", "nccl", "tolerance",
)  # fmt: skip


@command(examples="simreduce step step-dgx1p-resnet50")
@scenario_argument
@algo_option("Rank these instead of the scenario's.")
@click.option(
    "--batch",
    type=int,
    default=None,
    help="Take so many samples per GPU; default: the scenario's. A recorded job had so many; "
    "default 1.",
)
@gpus_options
@job_options
@setup_options("the scenario's", "the scenario's")
@budget_options()
@workers_option
@output_option(
    "--trace",
    about="Also write the timeline of the step, or of the first updates of [replicas]; "
    ".gz: compressed; -: stdout.",
)
@folder_option(
    "--chakra",
    "Also write the best step to this folder as Chakra execution traces, one for each rank, with "
    "all it computes and moves (needs simreduce[chakra]).",
)
@click.option(
    "--backups",
    "try_backups",
    is_flag=True,
    help="Try how many workers of [replicas] should be backups.",
)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Simulate all strategies, also those that cannot win; show all.",
)
@details_option(
    "Also print the critical path, what would help, the timeline, its buckets, and other names of "
    "methods."
)
@report_options
def step(
    faults: Faults,
    scenario: str,
    algo: tuple[str, ...],
    batch: int | None,
    budget: str | None,
    quick: bool,
    workers: int,
    chakra: str | None,
    try_backups: bool,
    show_all: bool,
    details: bool,
    **given: Any,
) -> Reply:
    """Predict the training step of SCENARIO (a file with a [step], a shipped name, DeepSpeed's
    configuration as JSON with --workload and --topology, or a job that was recorded as for
    `simreduce replay`): how much of the reductions the backward pass hides, and which strategy
    gives the fastest step. With [replicas] instead of [step]: the time of an update
    of synchronous replicas whose workers do not compute equally long.

    Strategies that SCENARIO does not name are simulated only as far as they may be among the
    first ten, or recommended; the others are counted, with what they take at least.

    On Ctrl-C or SIGTERM, prints the results so far and exits with status 130.
    """
    keys = tables_of(scenario)
    seconds = read_budget(faults, budget, quick=quick)
    if chakra is not None:
        faults.attempt("--chakra", message_types)
    if "replicas" in keys:
        refuse(faults, ["chakra"], "updates of [replicas] are no step of every rank")
        replicas = read_replicas(faults, scenario, given)
        with within(seconds):
            return _replicas(replicas, workers, try_backups=try_backups)
    question: StepScenario | Meshes
    if asks_for_meshes(scenario):
        question = read_meshes(faults, scenario, given, ("algo", "batch", "try_backups"))
    else:
        if keys:
            refuse(faults, ["try_backups"], "only a scenario with [replicas] has backup workers")
            faults.check("step" in keys, scenario, NO_TIMES if is_record(scenario) else NO_STEP)
        read = read_scenario(faults, scenario, given, strategy_texts(faults, algo), batch)
        question = with_step(faults.require(read))
    with within(seconds), show_ranking(question) as progress:
        ranking = rank_question(question, workers, progress.watch, simulate_all=show_all)
    document = cache(partial(step_document, ranking))
    lines, unwritten = _traces_of_step(chakra, ranking)
    return Reply(
        lambda: step_text(ranking, None if show_all else BEST, details=details),
        document,
        files={
            "trace": lambda: trace_text(_about(document()), thread_events(ranking_threads(ranking)))
        },
        paste="".join(f"{line}\n" for line in lines),
        failed=unwritten or any(row.wrong for row in ranking.candidates),
        complete=not ranking.interrupted,
    )


def show_ranking(question: StepScenario | Meshes) -> Progress:
    """Shows how many steps of a question are simulated."""
    if isinstance(question, Meshes):
        return Progress("simulated or excluded {} of {} meshes", spares=True, quick=True)
    return Progress("simulated {} of {} steps", quick=True)


def _about(document: Mapping[str, Any]) -> dict[str, Any]:
    """The head of a timeline: a document without its schema."""
    return {key: value for key, value in document.items() if key != "schema"}


def _traces_of_step(folder: str | None, ranking: Ranking) -> tuple[tuple[str, ...], bool]:
    """Write the recommended step as Chakra traces; lines on where they are, or why they cannot be,
    and whether that is so.
    """
    if folder is None:
        return (), False
    try:
        execution = ranking.case.write()
        write_folder(folder, write_chakra(execution, "step"))
    except InputError as error:
        return tuple(f"--chakra: {each}" for each in error.problems), True
    ranks = [*execution.nodes]
    written = f"{folder}: step.{ranks[0]}.et to step.{ranks[-1]}.et, and groups.json"
    return (written, *execution.notes), False


def _replicas(replicas: Replicas, workers: int, *, try_backups: bool) -> Reply:
    """Answer `[replicas]`. It fails if no repetition makes all its updates."""
    q, trace = replicas.question, output_path("trace")
    run = None if wants_json() and not trace else sample(q.job, q.updates, q.skip)
    if trace and run is None:
        raise InputError("--trace: one update has too many gradients to show")
    spread, choices, complete = repeat_replicas(replicas, workers, try_backups=try_backups)
    found = Updates(q, spread, choices, replicas, complete)
    document = partial(REPLICAS.write, found)
    return Reply(
        partial(replicas_text, found, run),
        document,
        files={
            "trace": lambda: trace_text(
                _about(document()), thread_events(replicas_threads(run, q.job.names))
            )
        }
        if run
        else {},
        failed=spread.blocked == len(spread.updates),
        complete=complete or time_is_up(),
    )


def read_replicas(
    faults: Faults,
    scenario: str,
    given: Given,
) -> Replicas:
    """The question of a scenario with `[replicas]`. InputError with every fault, among them options
    for which it has no use.
    """
    refuse(faults, _ONLY_STEP, "a scenario with [replicas] does not use it")
    disturbance = Faults().attempt("", read_disturbance, given, None, exactly=True)
    replicas = faults.attempt(
        "", load_replicas, scenario, disturbance or CALM, runtime=given["runtime"],
        calibration=given["calibration"], faithful=given["faithful"],
    )  # fmt: skip
    if disturbance is None:  # its faults, with what the machine lacks
        machine = replicas.setup.topology if replicas and replicas.setup else None
        faults.attempt("", read_disturbance, given, machine, exactly=True)
    return faults.require(replicas)


def repeat_replicas(
    replicas: Replicas, processes: int, *, try_backups: bool
) -> tuple[Repetitions, tuple[BackupChoice, ...], bool]:
    """All repetitions, the choices of backups if they are tried, and whether nothing is missing."""
    q = replicas.question
    asked = q.job, q.updates, q.repetitions
    with Progress("simulated {} of {} repetitions") as progress:

        def stages() -> Iterator[tuple[Repetitions, tuple[BackupChoice, ...], bool]]:
            spread = repeat(*asked, processes, progress.watch_until_stopped)
            whole = progress.complete
            yield spread, (), whole and not try_backups
            if whole and try_backups:
                yield spread, compare_backups(*asked, None, q.skip, processes, progress.watch), True

        return until_stopped(stages())[-1]


@command(
    examples="""
    printf '%s\\n' 'topology = "dgx1vx4,fabric=switch"' > jobs.toml
    printf '[[job]]\\nname = "%s"\\nnodes = 2\\nworkload = "bytes:64M"\\n' a b >> jobs.toml
    simreduce jobs jobs.toml
    """
)
@click.argument("file", metavar="FILE")
@click.option(
    "--fit",
    type=float,
    default=None,
    metavar="SLOWDOWN",
    help="Say how many copies of the jobs fit if none may take more than so many times as long as"
    " alone, such as 1.1.",
)
@report_options
def jobs(faults: Faults, file: str, fit: float | None) -> Reply:
    """Simulate several jobs on one machine, and traffic that is no job's: how much longer each
    takes than alone, and who takes whose link.

    FILE has a [[job]] for each, with its nodes and what it repeats, a reduction or a training step,
    and a [[traffic]] for what else moves: an incast, a permutation, reads of storage, checkpoints.

    On Ctrl-C or SIGTERM, prints the repetitions so far, once every job has one, with --fit the
    copies so far, and exits with status 130.
    """
    faults.check(fit is None or 1.0 <= fit < inf, "--fit", f"must be 1 or more, got {fit}")
    build = build_jobs if fit is None else build_mix
    read = faults.attempt("", read_scenario_file, file)
    question = faults.require(faults.attempt("", build, *read) if read else None)
    if fit is None:
        limit = "at most " if question.place else ""
        with Progress(f"simulated {{}} of {limit}{{}} repetitions") as progress:
            found = answer_jobs(question, progress)
    else:
        most = len(question.setup.layout.tasks) // sum(map(len, question.nodes))
        coming = fit_jobs(*faults.require(read), fit, mix=question)
        answers, _ = show_until_stopped(coming, most, "simulated {} of {} copies")
        found = answers[-1]
    return Reply(partial(jobs_text, found), partial(BESIDE.write, found), complete=found.complete)


def _in_folder(folder: Path) -> Sequence[str]:
    """The traces of a folder, or the folder itself if it has none."""
    traces = (*folder.glob("*.et"), *folder.glob("*.et.gz"))
    return sorted(map(str, traces), key=natural) or [str(folder)]


@command(
    examples="""
    echo '{"world_size": 8, "bucket_sizes": "4194304, 25165824"}' > ddp.json
    simreduce replay ddp.json --topology dgx1v
    """
)
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option("--topology", required=True, metavar="MACHINE", help="Run it on this machine.")
@click.option(
    "--algo",
    default="nccl",
    shell_complete=strategies,
    metavar="STRATEGY",
    help="Reduce by this strategy; default nccl.",
)
@click.option(
    "--groups",
    default=None,
    callback=reading(read_groups),
    metavar="FILE",
    help='Read the ranks of process groups from this JSON: {"0": [0, 1], "1": [2, 3]}; default '
    "groups.json beside the trace.",
)
@gpus_options
@calibration_option(None, "nominal")
@nccl_option()
@slow_option
@output_option(
    "--trace", about="Also write the timeline of the replay; .gz: compressed; -: stdout."
)
@report_options
def replay(
    faults: Faults,
    traces: Sequence[str],
    topology: str,
    algo: str,
    groups: dict[str, tuple[int, ...]] | None,
    **given: Any,
) -> Reply:
    """Run again what was recorded elsewhere: its compute as long as it took, its collectives as
    MACHINE would do them.

    TRACE is a Chakra execution trace of each rank (job.0.et job.1.et ...) or a folder of these, as
    `simreduce step --chakra` writes it with its groups.json; a timeline of the PyTorch profiler,
    over NCCL or gloo; Horovod's timeline; NCCL's log (NCCL_DEBUG=INFO
    NCCL_DEBUG_SUBSYS=INIT,COLL); or DDP's logging data as JSON. A rank that was not recorded keeps
    nobody waiting.
    """
    if len(traces) == 1 and os.path.isdir(traces[0]):  # noqa: PTH112 - Path raises for odd names
        traces = _in_folder(Path(traces[0]))
    faults.attempt("--algo", parse_strategy, algo)
    setup = read_setup(faults, topology, given)
    execution = faults.require(faults.attempt("", read_executions, traces, groups or {}))
    setup = faults.require(setup).but(call_cost=CALL_COST)
    with Progress("replayed {} of {} nodes") as progress:
        found = replay_execution(execution, setup, algo, progress.watch)
    replayed = Replayed(found, setup, algo)
    document = partial(REPLAY.write, replayed)
    return Reply(
        partial(replay_text, replayed),
        document,
        files={"trace": lambda: trace_text(document(), thread_events(executed_threads(found.ran)))},
    )
