"""`simreduce step SCENARIO`: a training step, or the updates of synchronous replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import click

from simreduce.app.cli.export import check_folder, folder_option, write_folder
from simreduce.app.cli.group import command, scenario_argument
from simreduce.app.cli.options import (
    algo_option,
    budget_options,
    details_option,
    gpus_options,
    read_budget,
    refuse,
    strategy_texts,
    workers_option,
)
from simreduce.app.cli.reply import (
    Progress,
    Reply,
    output_option,
    output_path,
    report_options,
    wants_json,
)
from simreduce.app.cli.setups import (
    Given,
    job_options,
    read_disturbance,
    read_meshes,
    read_scenario,
    setup_options,
)
from simreduce.app.cli.terminal import rows_shown
from simreduce.computing.watching import time_is_up, until_stopped, within
from simreduce.engine import CALM
from simreduce.errors import InputError
from simreduce.files.formats import Faults
from simreduce.report.meshes import MESHES, meshes_text
from simreduce.report.replicas import REPLICAS, Updates, replicas_text
from simreduce.report.steps import step_document, step_table
from simreduce.report.trace import executed_events, replicas_events, step_events, trace_text
from simreduce.study.scenario import (
    NO_STEP,
    NO_TIMES,
    Replicas,
    asks_for_meshes,
    load_replicas,
    tables_of,
    with_step,
)
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.steps import rank_steps
from simreduce.study.tune.whatif_steps import Ranking, execution_of_step
from simreduce.training.executions import is_record, write_chakra
from simreduce.training.executions.chakra import message_types
from simreduce.training.stragglers import BackupChoice, Repetitions, compare_backups, repeat, sample

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
    "--all", "show_all", is_flag=True, help="Show all strategies, however many, on a terminal too."
)
@details_option("Also print the timeline, its buckets, and other names of methods.")
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
    """Predict the training step of SCENARIO (a file with a [step], a shipped name, or a job that
    was recorded as for `simreduce replay`): how much of the reductions the backward pass hides, and
    which strategy gives the fastest step. With [replicas] instead of [step]: the time of an update
    of synchronous replicas whose workers do not compute equally long.

    On Ctrl-C or SIGTERM, prints the results so far and exits with status 130.
    """
    keys = tables_of(scenario)
    seconds = read_budget(faults, budget, quick=quick)
    if chakra is not None:
        faults.attempt("--chakra", check_folder, chakra)
        faults.attempt("--chakra", message_types)
    if "replicas" in keys:
        refuse(faults, ["chakra"], "updates of [replicas] are no step of every rank")
        replicas = read_replicas(faults, scenario, given)
        with within(seconds):
            return _replicas(replicas, workers, try_backups=try_backups)
    if asks_for_meshes(scenario):
        meshes = read_meshes(faults, scenario, given, ("algo", "batch", "try_backups"))
        words = "simulated or excluded {} of {} meshes"
        with within(seconds), Progress(words, spares=True) as progress:
            found = rank_meshes(meshes, workers, progress.watch)
        document = cache(partial(MESHES.write, found))
        return _reply(
            found, chakra, document,
            lambda: meshes_text(found, rows_shown(everything=show_all), details=details),
            lambda: trace_text(_about(document()), executed_events(found.closely.ran)),
        )  # fmt: skip
    if keys:
        refuse(faults, ["try_backups"], "only a scenario with [replicas] has backup workers")
        faults.check("step" in keys, scenario, NO_TIMES if is_record(scenario) else NO_STEP)
    texts = strategy_texts(faults, algo)
    question = with_step(faults.require(read_scenario(faults, scenario, given, texts, batch)))
    with within(seconds), Progress("simulated {} of {} steps") as progress:
        ranking = rank_steps(question, workers, progress.watch)
    document = cache(partial(step_document, ranking))
    names = [gradient.name for gradient in question.workload.gradients]
    return _reply(
        ranking, chakra, document,
        lambda: step_table(ranking, rows_shown(everything=show_all), details=details),
        lambda: trace_text(_about(document()), step_events(ranking.recommended.step, names)),
        failed=any(c.wrong for c in ranking.candidates),
    )  # fmt: skip


def _reply(
    ranking: Ranking, chakra: str | None, document: Callable[[], Mapping[str, Any]],
    text: Callable[[], str], trace: Callable[[], Iterable[str]], *, failed: bool = False,
) -> Reply:  # fmt: skip
    """The answer to a ranking, with the traces of its best step, if they are to be written."""
    lines, unwritten = _traces_of_step(chakra, ranking)
    return Reply(
        text,
        document,
        files={"trace": trace},
        paste="".join(f"{line}\n" for line in lines),
        failed=unwritten or failed,
        complete=not ranking.interrupted,
    )


def _about(document: Mapping[str, Any]) -> dict[str, Any]:
    """The head of a timeline: the figures of a document without its lists."""
    return {
        key: value
        for key, value in document.items()
        if key != "schema" and not isinstance(value, list)
    }


def _traces_of_step(folder: str | None, ranking: Ranking) -> tuple[tuple[str, ...], bool]:
    """Write the recommended step as Chakra traces; lines on where they are, or why they cannot be,
    and whether that is so.
    """
    if folder is None:
        return (), False
    try:
        execution = execution_of_step(ranking)
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
        files={"trace": lambda: trace_text(_about(document()), replicas_events(run, q.job.names))}
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
