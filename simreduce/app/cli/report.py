"""`simreduce report SCENARIO|RESULT`, one HTML file to hand on, and `simreduce schema`.

`simreduce serve` shows a local page to play with.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import version
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any

import click

from simreduce.app.cli import command
from simreduce.app.cli.reply import (
    STOPPED,
    Progress,
    holding_interrupts,
    output_option,
    output_path,
    say,
    write_output,
)
from simreduce.app.cli.run import read_replicas, repeat_replicas, show_ranking
from simreduce.app.cli.setups import (
    Given,
    algo_option,
    budget_options,
    is_typed,
    job_options,
    long_option,
    read_budget,
    read_meshes,
    read_scenario,
    refuse,
    setup_options,
    strategy_texts,
    workers_option,
)
from simreduce.app.cli.terminal import show
from simreduce.app.look import (
    answer_of,
    bench_sizes,
    exports_of,
    look_closer,
    step_exports,
)
from simreduce.computing.workers import pass_on, time_is_up, time_left, until_stopped, within
from simreduce.engine import Calibration
from simreduce.engine.calibrate import load_calibration
from simreduce.errors import InputError, quote
from simreduce.files import MOST_BYTES, STDOUT, exists, read_text, reason
from simreduce.files.formats.syntax import Faults
from simreduce.report.blocks import Attachments, Written, timeline_of_threads
from simreduce.report.jobs import BESIDE
from simreduce.report.pages import check_pages, machine_named, make_page, page_html, read_document
from simreduce.report.ranking import RUN, preview_lines
from simreduce.report.replicas import REPLICAS, Updates
from simreduce.report.steps import (
    path_words,
    replicas_look_document,
    step_document,
    step_look_document,
)
from simreduce.report.sweeps import count_states, sweep_document
from simreduce.report.trace import ranking_threads, replicas_threads
from simreduce.study.job_files import load_jobs
from simreduce.study.scenario import Meshes, Replicas, Scenario, with_step
from simreduce.study.scenario_files import (
    asks_for_meshes,
    is_scenario,
    read_scenario_file,
    tables_of,
)
from simreduce.study.sweep import objective
from simreduce.study.sweep.store import Store, is_database
from simreduce.study.tune.jobs import answer_jobs
from simreduce.study.tune.meshes import rank_question
from simreduce.study.tune.rank import rank
from simreduce.study.tune.whatif_steps import look_at_step, run_loads, update_effects, worker_time
from simreduce.topology import Topology
from simreduce.training.stragglers import sample

_DEFAULT = "report.html"
_FEW, _BUDGET, _LARGE_BUDGET = 64, 20.0, 40.0
"""Seconds of work by default for a few GPUs and for more, the same work on every machine: on two
idle cores a report then takes about 20 s and 60 s at most, with the time to start and to write the
page.
"""
_CHOOSING = 0.75
"""The part of a budget in which to choose what to run."""
_CURVES = 4
_TRIED = 40
"""Strategies that are tried for a system that has no setting for the best."""
_ALWAYS = ("sources", "output")
_PROGRAMS = ("numpy", "scipy", "numba", "simpy", "networkx")


@command(examples="simreduce report dgx1v-resnet50 -o report.html")
@click.argument("sources", nargs=-1, required=True, metavar="SCENARIO|RESULT...")
@output_option(
    "-o", "--output", default=_DEFAULT, about=f"Write this file; -: stdout; default {_DEFAULT}."
)
@algo_option("Rank these instead of the scenario's.")
@job_options
@setup_options("the scenario's", "the scenario's")
@budget_options("counts work instead, and gives the same page on every machine")
@workers_option
def report(
    faults: Faults,
    sources: tuple[str, ...],
    algo: tuple[str, ...],
    budget: str | None,
    quick: bool,
    workers: int,
    **given: Any,
) -> int:
    """Write a report as one HTML file that opens without a network: what to run, how much faster
    than today, how sure, what limits it, what would help.

    For a SCENARIO (a file, a shipped name, or a recorded job) it computes all of that, as far as
    --budget allows: first what to run, then what limits it and what would help. The page says what
    was left out to save time. Of a file with [[job]] tables it simulates the jobs. A RESULT is what
    --json printed: run, step, jobs, bench, explain, tune, validate, capacity or sweep; or the
    database of a sweep. Nothing is computed again. Further RESULTs on the same machine add to the
    first: explain the load of each link, bench the curves.

    Example: simreduce report dgx1v-resnet50

    On Ctrl-C or SIGTERM, writes what there is and exits with status 130.
    """
    output = output_path("output") or _DEFAULT
    seconds = read_budget(faults, budget, quick=quick, default=nan)
    faults.attempt("", check_pages)
    results = [text for text in sources if _is_result(text)]
    if results and len(results) < len(sources):
        faults.add("", f"{' '.join(sources)}: give one scenario, or results alone")
    if results:
        page, complete = _from_results(faults, sources), True
    else:
        faults.check(len(sources) == 1, "", f"{' '.join(sources)}: give one scenario at a time")
        page, complete = _from_scenario(faults, sources[0], algo, workers, seconds, given)
    write_output(output, [page])
    if output != STDOUT:
        show(f"{output}: open it in a browser")
    return 0 if complete else STOPPED


def _is_result(text: str) -> bool:
    """Whether a source is a document of --json, not a scenario."""
    if text == STDOUT or text.endswith(".toml"):
        return text == STDOUT
    return (text.endswith((".json", ".jsonl")) or exists(text)) and not is_scenario(text)


def _of_scenarios() -> list[str]:
    """The parameters that only scenarios have a use for."""
    return [name for name in click.get_current_context().params if name not in _ALWAYS]


def _from_results(faults: Faults, sources: tuple[str, ...]) -> str:
    refuse(faults, _of_scenarios(), "a result is not computed again; leave it out")
    documents = [faults.attempt("", _read, text) for text in sources]
    faults.raise_any()
    first, *others = [document for document in documents if document is not None]
    for text, other in zip(sources[1:], others, strict=True):
        for key in ("topology", "topology_digest"):
            if other.get(key) and first.get(key) and other[key] != first[key]:
                faults.add(
                    text, f"its {key} is {quote(str(other[key]))}, not {quote(str(first[key]))}"
                )
    extra = {document.get("command"): document for document in others}
    for unused in extra.keys() - {"explain", "bench"}:
        faults.add("", f"a result of {unused} adds nothing to another; give it first")
    faults.raise_any()
    machine, calibration = document_machine(first)
    missing = "The result has no simulated changes; add that of simreduce explain --json."
    beside = Attachments(
        machine=machine, calibration=calibration, explanation=extra.get("explain"),
        sizes=extra.get("bench"), commands=((_ABOUT, (_typed("report"),)),), missing=missing,
    )  # fmt: skip
    return page_html(make_page(first, beside, sources[0]))


def _read(text: str) -> Mapping[str, Any]:
    if is_database(text):
        with Store(text) as store:
            sweep, rows = store.sweep(), store.table()
            states = count_states(rows)
            return sweep_document(sweep, text, states, rows, complete="waiting" not in states)
    content = _read_stdin() if text == STDOUT else read_text(Path(text), InputError)
    return read_document(content, text)


def _read_stdin() -> str:
    try:
        content = sys.stdin.read(MOST_BYTES + 1) if sys.stdin else ""
    except UnicodeDecodeError:
        raise InputError(f"{STDOUT}: stdin is not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"{STDOUT}: stdin {reason(error)}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{STDOUT}: stdin has more than {MOST_BYTES >> 20} MiB, or no end")
    return content


def _from_scenario(
    faults: Faults,
    text: str,
    algo: tuple[str, ...],
    workers: int,
    seconds: float,
    given: Given,
) -> tuple[str, bool]:
    """The page of a scenario, and whether nothing is missing but for what a budget left out: of so
    many seconds, nan for the default, which counts work.
    """
    keys = tables_of(text)
    if "job" in keys:
        return _from_jobs(faults, text)
    name = "step" if {"step", "replicas"} & set(keys) else "run"
    question: Any  # what its stages take
    stages: Callable[[Any, Attachments, int], Iterator[Stage]]
    if asks_for_meshes(text):
        question, stages = read_meshes(faults, text, given, ["algo"]), report_step
    elif "replicas" in keys:
        question, stages = read_replicas(faults, text, given), report_replicas
    else:
        question = faults.require(read_scenario(faults, text, given, strategy_texts(faults, algo)))
        stages = report_step if name == "step" else report_run
    setup, (path, _) = question.setup, read_scenario_file(text)
    shared = Attachments(
        machine=setup.topology if setup else None,
        calibration=setup.calibration if setup else None,
        files={path.name: read_text(path, InputError)} if path.suffix == ".toml" else {},
        versions={"Python": platform.python_version(), **{p: version(p) for p in _PROGRAMS}},
    )
    if by_default := isnan(seconds):
        seconds = _BUDGET if setup is None or len(setup.layout) <= _FEW else _LARGE_BUDGET
    with within(seconds, of_work=by_default):
        document, beside, complete = until_stopped(stages(question, shared, workers))[-1]
        if not complete and time_is_up():
            complete = True
            beside = replace(beside, missing=_HURRIED)
            document = {**document, "hurried": document.get("complete") is False}
    parts = _parts(name, beside, backups="replicas" in keys)
    beside = replace(beside, commands=((_ABOUT, (_typed("report"),)), (_PARTS[name], parts)))
    return page_html(make_page(document, beside, text)), complete


def _from_jobs(faults: Faults, text: str) -> tuple[str, bool]:
    """The page of jobs beside each other."""
    refuse(faults, _of_scenarios(), "is not for jobs; leave it out")
    question = faults.require(faults.attempt("", load_jobs, text))
    with Progress("simulated {} of {} repetitions") as progress:
        found = answer_jobs(question, progress)
    setup, path = question.setup, Path(text)
    beside = Attachments(
        machine=setup.topology, calibration=setup.calibration,
        files={path.name: read_text(path, InputError)},
        commands=((_ABOUT, (_typed("report"),)), ("Its table", (_typed("jobs"),))),
    )  # fmt: skip
    return page_html(make_page(BESIDE.write(found), beside, text)), found.complete


_ABOUT = "This report"
_PARTS = {
    "run": "Its parts: the ranking, what limits it, the timeline for Perfetto",
    "step": "Its parts: the step, with its timeline for Perfetto",
}


_BUDGETED = ("output", "workers", "budget", "quick")
_NOT_REPEATED = {"report": _BUDGETED[:2]}
"""Parameters of this command that do not belong to a command, by its name, or to others."""


def _parts(first: str, beside: Attachments, *, backups: bool) -> tuple[str, ...]:
    """Commands whose documents the report is made of."""
    found = beside.explanation
    if first == "step":
        return (f"{_typed(first)}{' --backups' * backups} --trace step.json",)
    if found is None:
        return (_typed(first),)
    algo = shlex.join(["--algo", found["strategy"]])
    more = (f"{_typed(name, without='algo')} {algo}" for name in ("explain", "trace"))
    return (_typed(first), *more)


def _typed(name: str, without: str = "") -> str:
    """The command `name` with what was typed, but for files to write, processes and `without`."""
    context = click.get_current_context()
    words = ["simreduce", name]
    for param in context.command.params:
        key = param.name or ""
        if not is_typed(key) or key in (*_NOT_REPEATED.get(name, _BUDGETED), without):
            continue
        value = context.params[key]
        if isinstance(param, click.Argument):
            words += map(str, value)
        elif getattr(param, "is_flag", False):
            words.append(param.opts[0])
        else:
            for each in value if isinstance(value, tuple) else (value,):
                words += [long_option(param), str(each)]
    return shlex.join(words)


Stage = tuple[Written, Attachments, bool]
"""The document of a report, its attachments so far, and whether nothing is missing."""


def _choosing() -> AbstractContextManager[None]:
    """What to run is chosen in a part of the time, and looked at closely in the rest."""
    return within(_CHOOSING * time_left())


def report_run(question: Scenario, beside: Attachments, workers: int) -> Iterator[Stage]:
    """The ranking of a scenario, then with a closer look, then with curves."""
    with _choosing(), Progress("simulated {} of {} strategies", preview_lines) as progress:
        ranking = rank(question, workers, progress.watch)
    document = RUN.write(ranking)
    yield document, replace(beside, missing=_STOPPED), False
    if ranking.interrupted:
        return
    best = answer_of(ranking, document)
    if best is None:
        yield document, beside, True
        return
    beside = replace(beside, exports=exports_of(ranking, best, _TRIED))
    yield document, replace(beside, missing=_STOPPED), False
    beside, complete = look_closer(question, best.strategy, beside, Progress)
    yield document, replace(beside, missing=_STOPPED), False
    sizes, all_sizes = bench_sizes(ranking, best, _CURVES, Progress)
    yield document, replace(beside, sizes=sizes), complete and all_sizes


def report_step(scenario: Scenario | Meshes, beside: Attachments, workers: int) -> Iterator[Stage]:
    """The training steps of a scenario, then with a closer look at the best."""
    question = scenario if isinstance(scenario, Meshes) else with_step(scenario)
    with _choosing(), show_ranking(question) as progress:
        ranking = rank_question(question, workers, progress.watch)
    with holding_interrupts() as held:
        document = step_document(ranking)
    yield document, replace(beside, missing=_STOPPED), False
    pass_on(held)
    threads = [*ranking_threads(ranking)]
    timeline, exports = timeline_of_threads(threads), step_exports(ranking)
    beside = replace(beside, timeline=timeline, exports=exports)
    yield document, replace(beside, missing=_STOPPED), False
    if ranking.interrupted:
        return
    with Progress("simulated {} of {} changes of the step") as progress:
        look = look_at_step(ranking, progress.watch)
    timeline = timeline_of_threads(threads, chain=path_words(look.path))
    found = step_look_document(look, ranking)
    yield document, replace(beside, timeline=timeline, look=found), progress.complete


def report_replicas(question: Replicas, beside: Attachments, workers: int) -> Iterator[Stage]:
    """The updates of a scenario's replicas, then with a closer look."""
    q = question.question
    spread, choices, complete = repeat_replicas(question, workers, try_backups=True)
    document = REPLICAS.write(Updates(q, spread, choices, question, complete))
    run = sample(q.job, q.updates, q.skip)
    if run is not None:
        threads = replicas_threads(run, q.job.names)
        beside = replace(beside, timeline=timeline_of_threads(threads))
    yield document, replace(beside, missing=_STOPPED), False
    if not complete:
        return
    seconds = spread.step(q.skip).mean
    if run is None or not isfinite(seconds):
        why = "One update has too many gradients to show." if run is None else "Training stops."
        yield document, replace(beside, missing=why), True
        return
    with Progress("simulated {} of {} changes") as progress:
        effects = update_effects(q, spread, workers, progress.watch)
    spent, links = worker_time(run, q.skip), run_loads(q.job, run)
    look = replicas_look_document(seconds, spent, links, effects)
    yield document, replace(beside, look=look), progress.complete


_STOPPED = "Stopped before this was computed."
_HURRIED = "Left out to save time; a longer --budget has it."


_MACHINE = ("topology", "topology_digest")


def document_machine(document: Written) -> tuple[Topology | None, Calibration | None]:
    """The machine and the calibration of a document, if simreduce has them under these names and
    the machine is the same; of a sweep over machines, that of its best cell. No file of a user
    is read.
    """
    rows = document.get("rows") if document.get("command") == "sweep" else None
    figure = objective(document.get("kind", ""))
    done = [row for row in rows or () if row.get(figure) is not None]
    if document.get("topology") is None and done:
        best = min(done, key=lambda row: row[figure])
        document = {**document, **{key: best.get(key) for key in _MACHINE}}
    name, digest = document.get("topology"), document.get("topology_digest")
    machine = machine_named(name, digest) if isinstance(name, str) else None
    name = document.get("calibration")
    if not isinstance(name, str) or exists(name):
        return machine, None
    try:
        return machine, load_calibration(name)
    except InputError:
        return machine, None


_LARGEST = 65_535


@command(
    examples="""
    simreduce serve dgx-h100x8,fabric=rail_optimised
    simreduce serve 'machine=dgx-a100x4&size=16MiB' --no-open
    """
)
@click.argument("sources", nargs=-1, metavar="[VIEW|MACHINE|FILE.toml]...")
@click.option(
    "--port",
    type=click.IntRange(0, _LARGEST),
    default=0,
    help="Listen on this port; 0: a free one.",
)
@click.option(
    "--open/--no-open", "opened", default=True, help="Open the page in a browser, or not."
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=2, metavar="N",
    help="Answer N questions at once, each in a process of its own; default 2.",
)  # fmt: skip
@click.option(
    "--megabytes", type=click.IntRange(64), default=4096, metavar="MB",
    help="Let each process use so much memory; default 4096.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=300.0, metavar="S",
    help="End an answer that takes longer; default 300.",
)  # fmt: skip
@click.option(
    "--idle", type=click.FloatRange(0.01), default=60.0, metavar="MINUTES",
    help="Stop when nobody has asked for so long; default 60.",
)  # fmt: skip
def serve(
    faults: Faults,
    sources: tuple[str, ...], port: int, opened: bool, workers: int, megabytes: int,
    seconds: float, idle: float,
) -> None:  # fmt: skip
    """Open a page of this machine alone: choose a machine, click a link to slow or cut it, move the
    size, change algorithm, packing and NCCL's choices, and see what that does.

    A VIEW is what the page has behind ? in its address; it can be sent on. A MACHINE is the name of
    one, or one written inline, that the page opens with. A FILE.toml is a machine of yours, or jobs
    as simreduce jobs takes them, which the page then has under its name.

    Ctrl-C stops it.
    """
    from simreduce.app.serve import ServerLimits, check_serve, serve as run  # noqa: PLC0415
    from simreduce.app.serve.view import View, of_jobs, read_view  # noqa: PLC0415

    faults.attempt("", check_serve)
    named = [text for text in sources if _is_file(text)]
    files = {Path(text).stem: str(Path(text).absolute()) for text in named}
    views = [text for text in sources if text not in named]
    for text in named:
        faults.attempt("", _check_file, text)
    faults.check(len(views) < 2, "", f"{' '.join(map(quote, views))}: one view at a time")
    jobs = of_jobs(files)
    machine = next((name for name in files if name not in jobs), "" if jobs else "dgx1v")
    first = View(machine, next(iter(jobs), ""))
    view = faults.attempt("", read_view, views[0], files) if views else first
    if view is not None and views and not faults.problems:
        faults.attempt("", view.ask, files)
    view = faults.require(view)

    def ready(address: str) -> None:
        click.echo(f"{address}\nServing on this machine alone; Ctrl-C stops it.")
        if opened and _has_screen():
            webbrowser.open(address)

    limits = ServerLimits(workers, megabytes, seconds, idle * 60.0)
    try:
        run(files, view, ready, port, limits)
    except KeyboardInterrupt:
        say("stopped")


def _has_screen() -> bool:
    """Whether a browser would have a window: one for terminals would take over this one."""
    screens = "DISPLAY", "WAYLAND_DISPLAY"
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, screens))


def _is_file(text: str) -> bool:
    return text.endswith(".toml") or ("=" not in text and "://" not in text and exists(text))


def _check_file(text: str) -> None:
    """InputError unless the file is a machine or jobs that can be loaded."""
    from simreduce.study.job_files import load_jobs  # noqa: PLC0415 - all of simreduce
    from simreduce.topology import load_topology  # noqa: PLC0415 - likewise

    if "job" in tables_of(text):
        load_jobs(text)
    elif "options" in tables_of(text):
        words = "is a question of capacity; serve takes machines and jobs"
        raise InputError(f"{text}: {words}, and simreduce capacity this")
    elif is_scenario(text):
        words = "is a scenario; serve takes machines and jobs, and simreduce report this"
        raise InputError(f"{text}: {words}")
    else:
        load_topology(text)
