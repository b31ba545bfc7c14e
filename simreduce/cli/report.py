"""`simreduce report SCENARIO|RESULT`: one HTML file to hand on."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from simreduce.cli.group import command
from simreduce.cli.options import check_outputs, workers_option, write_output
from simreduce.cli.replicas import read_replicas
from simreduce.cli.reporting import document_machine, report_replicas, report_run, report_step
from simreduce.cli.setups import read_scenario, setup_options
from simreduce.cli.strategies import algo_option, strategy_texts
from simreduce.errors import InputError, quote
from simreduce.formats import Faults
from simreduce.outputs import STDOUT
from simreduce.pages import Beside, check_pages, make_page, page_html, read_document
from simreduce.report.sweeps import count_states, sweep_document
from simreduce.scenario import Replicas, Scenario, is_scenario, keys_of, read_scenario_file
from simreduce.sweep import Store
from simreduce.textfiles import exists, read_text

_DEFAULT = "report.html"
_SQLITE = b"SQLite format 3\0"
_PROGRAMS = ("numpy", "scipy", "numba", "simpy", "networkx")


@command(examples="simreduce report dgx1v-resnet50 -o report.html")
@click.argument("sources", nargs=-1, required=True, metavar="SCENARIO|RESULT...")
@click.option(
    "-o",
    "--output",
    default=_DEFAULT,
    metavar="FILE",
    help=f"Write this file; -: stdout; default {_DEFAULT}.",
)
@algo_option("Rank these instead of the scenario's.")
@setup_options("the scenario's", "the scenario's")
@workers_option
def report(
    sources: tuple[str, ...], output: str, algo: tuple[str, ...], workers: int | None, **given: Any
) -> int:
    """Write a report as one HTML file that opens without a network: what to run, how much faster
    than today, how sure, what limits it, what would help.

    For a SCENARIO (a file, or a shipped name) it computes all of that. A RESULT is what --json
    printed: run, step, bench, explain, tune, validate, capacity or sweep; or the database of a
    sweep. Nothing is computed again. Further RESULTs on the same machine add to the first: explain
    the load of each link, bench the curves.

    Example: simreduce report dgx1v-resnet50

    On Ctrl-C or SIGTERM, writes what there is and exits with status 130.
    """
    faults = Faults()
    faults.attempt("", check_outputs, {"-o": output}, as_json=False)
    faults.attempt("", check_pages)
    results = [text for text in sources if _is_result(text)]
    if results and len(results) < len(sources):
        faults.add("", f"{' '.join(sources)}: give one scenario, or results alone")
    elif not results and len(sources) > 1:
        faults.add("", f"{' '.join(sources)}: give one scenario at a time")
    if results:
        status = _from_results(faults, sources, output)
    else:
        status = _from_scenario(faults, sources[0], output, algo, workers, given)
    if output != STDOUT:
        click.echo(f"{output}: open it in a browser")
    return status


def _is_result(text: str) -> bool:
    """Whether a source is a document of --json, not a scenario."""
    return text == STDOUT or (
        text.endswith((".json", ".jsonl"))
        or (exists(text) and not is_scenario(text) and not text.endswith(".toml"))
    )


def _from_results(faults: Faults, sources: tuple[str, ...], output: str) -> int:
    context = click.get_current_context()
    for name in context.params:
        used = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if used and name not in ("sources", "output"):
            faults.add(
                f"--{name.replace('_', '-')}", "a result is not computed again; leave it out"
            )
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
    beside = Beside(
        machine=machine, calibration=calibration, explanation=extra.get("explain"),
        sizes=extra.get("bench"), commands=((_ABOUT, (_typed("report"),)),), missing=missing,
    )  # fmt: skip
    page = make_page(first, beside, sources[0])
    write_output(output, [page_html(page)])
    return 0


def _is_database(text: str) -> bool:
    """Whether a file begins as SQLite's do."""
    try:
        with Path(text).open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except (OSError, ValueError):
        return False


def _read(text: str) -> Mapping[str, Any]:
    if _is_database(text):
        with Store.open(text) as store:
            sweep, rows = store.sweep(), store.table()
            states = count_states(rows)
            return sweep_document(sweep, text, states, rows, complete="waiting" not in states)
    content = sys.stdin.read() if text == STDOUT else read_text(Path(text), InputError)
    return read_document(content, text)


def _from_scenario(
    faults: Faults,
    text: str,
    output: str,
    algo: tuple[str, ...],
    workers: int | None,
    given: dict[str, Any],
) -> int:
    keys = keys_of(text)
    name = "step" if {"step", "replicas"} & set(keys) else "run"
    question: Scenario | Replicas | None
    if "replicas" in keys:
        question = read_replicas(faults, text, algo=algo, **given)
    else:
        question = read_scenario(faults, text, strategies=strategy_texts(faults, algo), **given)
    if faults.problems or question is None:
        raise InputError(faults.problems)
    setup, (path, _) = question.setup, read_scenario_file(text)
    shared = Beside(
        machine=setup.topology if setup else None,
        calibration=setup.calibration if setup else None,
        files={path.name: read_text(path, InputError)},
        versions={"Python": platform.python_version(), **_versions()},
    )
    if isinstance(question, Replicas):
        document, beside, complete = report_replicas(question, shared, workers)
    else:
        make = report_step if name == "step" else report_run
        document, beside, complete = make(question, shared, workers)
    parts = _parts(name, beside, backups=isinstance(question, Replicas))
    beside = replace(beside, commands=((_ABOUT, (_typed("report"),)), (_PARTS[name], parts)))
    write_output(output, [page_html(make_page(document, beside, text))])
    return 0 if complete else 130


_ABOUT = "This report"
_PARTS = {
    "run": "Its parts: the ranking, what limits it, the timeline for Perfetto",
    "step": "Its parts: the step, with its timeline for Perfetto",
}


def _parts(first: str, beside: Beside, *, backups: bool) -> tuple[str, ...]:
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
        used = context.get_parameter_source(key) is ParameterSource.COMMANDLINE
        if not used or key in ("output", "workers", without):
            continue
        value = context.params[key]
        if isinstance(param, click.Argument):
            words += map(str, value)
        elif getattr(param, "is_flag", False):
            words.append(param.opts[0])
        else:
            option = next((each for each in param.opts if each.startswith("--")), param.opts[0])
            for each in value if isinstance(value, tuple) else (value,):
                words += [option, str(each)]
    return shlex.join(words)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PROGRAMS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
