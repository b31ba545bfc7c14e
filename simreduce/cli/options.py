"""Options and outputs that several commands share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from simreduce import units
from simreduce.algorithms import NAMES
from simreduce.errors import InputError, did_you_mean, shown
from simreduce.layouts import Layout

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")

as_json = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout instead of the table."
)


def runtime_option(default: str | None) -> Callable[[F], F]:
    """`--runtime`."""
    return click.option("--runtime", default=default, metavar="NAME", help="tensorflow or ideal.")


def calibration_option(default: str | None) -> Callable[[F], F]:
    """`--calibration`."""
    return click.option(
        "--calibration", default=default, metavar="NAME|FILE", help="Constants to use; nominal: none."
    )


faithful_option = click.option(
    "--faithful", is_flag=True, default=None, help="Upstream's quirks instead of what a user intends."
)
gpu_indices_option = click.option(
    "--gpu-indices",
    "--gpu_indices",
    default=None,
    metavar="I,J,...",
    help="Order of GPUs in the rings of xring, ring and collective, per machine.",
)


def read_gpu_indices(text: str | None) -> list[int] | None:
    """`0,1,2,3` as a list; None stays None."""
    if text is None:
        return None
    try:
        return _numbers(text)
    except ValueError as error:
        raise InputError(f"--gpu-indices {text}: {error}") from None


def read_size(option: str, text: str) -> int:
    """Bytes in nccl-tests' spelling; InputError names the option."""
    try:
        return units.cli_size(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def gpus_options(command: F) -> F:
    """`-g` and `--gpus`."""
    command = click.option("--gpus", default=None, metavar="I,J,...", help="Use these GPUs only.")(command)
    return click.option("-g", "--ngpus", type=int, default=None, help="Use the first GPUs only.")(command)


def shape_of(shape: Layout, ngpus: int | None, gpus: str | None, order: list[int] | None = None) -> Layout:
    """The first `ngpus` GPUs, or those named in `gpus`, with rings in `order`."""
    if ngpus is not None and gpus is not None:
        raise InputError(f"-g {ngpus} and --gpus {gpus}: give one of the two")
    try:
        if ngpus is not None:
            shape = shape.subset(ngpus)
        if gpus is not None:
            shape = shape.only(_numbers(gpus))
    except ValueError as error:
        raise InputError(f"-g {ngpus}: {error}" if gpus is None else f"--gpus {gpus}: {error}") from None
    return shape if order is None else shape.ordered(order)


def _numbers(text: str) -> list[int]:
    """`0,1,2,3` as a list; ValueError if it is none."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise ValueError("whole numbers with commas between, such as 0,1,2,3")
    return [int(part) for part in parts]


def gather(problems: list[str], load: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What `load` gives, or None and its faults in `problems`: so that one run tells the faults of all options."""
    try:
        return load(*args, **kwargs)
    except InputError as error:
        problems += error.problems
        return None


def echo_json(document: dict[str, Any]) -> None:
    """The one document that `--json` promises."""
    click.echo(json.dumps(document, indent=2))


def check_collective(name: str) -> str:
    """The name of a collective; InputError names the nearest."""
    if name not in NAMES:
        raise InputError(
            f"--collective: unknown {name!r}{did_you_mean(name, NAMES)}; one of {', '.join(NAMES)}"
        )
    return name


def check_place(path: str) -> None:
    """InputError if there is no place for a file at `path`: told before the work, not after."""
    # os.path, as Path raises for names that no file can have
    if os.path.isdir(path or "."):  # noqa: PTH112
        raise InputError(f"{path or shown(path)}: cannot be written: it is a folder")
    if not os.path.isdir(os.path.dirname(path) or "."):  # noqa: PTH112, PTH120
        raise InputError(f"{path}: cannot be written: there is no such folder")


def write_json(path: str, document: dict[str, Any]) -> None:
    """A document in a file of the user's; InputError if it cannot be written."""
    write_text(path, json.dumps(document, indent=2) + "\n")


def write_text(path: str, text: str) -> None:
    """Text in a file of the user's; InputError if it cannot be written."""
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def progress(what: str) -> Callable[[int, int], None]:
    """What tells how many of `what` are simulated: on a terminal's stderr, else nowhere."""

    def told(done: int, total: int) -> None:
        end = "\r\033[K" if done == total else ""
        click.echo(f"\rsimulated {done} of {total} {what}{end}", nl=False, err=True)

    return told if sys.stderr.isatty() else lambda _done, _total: None
