"""`simreduce serve`: a local page to play with."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click

from simreduce.app.cli.group import command
from simreduce.errors import InputError, quote
from simreduce.files.formats import Faults
from simreduce.files.textfiles import exists
from simreduce.study.scenario import is_scenario, tables_of

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
    from simreduce.app.serve import (  # noqa: PLC0415 - uvicorn and all of simreduce
        ServerLimits,
        View,
        check_serve,
        of_jobs,
        read_view,
        serve as run,
    )

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
    faults.raise_any()
    assert view is not None  # noqa: S101 - else there is a fault

    def ready(address: str) -> None:
        click.echo(f"{address}\nServing on this machine alone; Ctrl-C stops it.")
        if opened and _has_screen():
            webbrowser.open(address)

    limits = ServerLimits(workers, megabytes, seconds, idle * 60.0)
    try:
        run(files, view, ready, port, limits)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


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
