"""Options, reading and printing that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, TypeVar

import click

from simreduce.cli.completion import calibrations
from simreduce.cli.terminal import wide_option
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.layouts import Layout
from simreduce.outputs import STDOUT, check_place, write_file

F = TypeVar("F", bound=Callable[..., Any])


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator for several options, in the order of `--help`."""

    def added(command: F) -> F:
        return reduce(lambda f, option: option(f), reversed(decorators), command)

    return added


report_options = options(
    wide_option,
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document instead of the table."
    ),
)
"""For every command that prints a report."""
all_option = click.option(
    "--all",
    "simulate_all",
    is_flag=True,
    help="Simulate all strategies to the end, also those that cannot win.",
)
workers_option = click.option(
    "--workers",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Use N processes; default: one per core.",
)
gpus_options = options(
    click.option("-g", "--ngpus", type=int, default=None, help="Use the first GPUs only."),
    click.option("--gpus", default=None, metavar="I,J,...", help="Use these GPUs only."),
)


def calibration_option(default: str | None, words: str = "") -> Callable[[F], F]:
    """`--calibration`; `words` say what its absence means."""
    said = words or default
    return click.option(
        "--calibration",
        default=default,
        shell_complete=calibrations,
        metavar="NAME|FILE",
        help=f"Use these constants, or none (nominal){f'; default {said}' if said else ''}.",
    )


def read_gpu_indices(text: str | None) -> list[int] | None:
    """`0,1,2,3` as a list; None stays None."""
    if text is None:
        return None
    try:
        return _numbers(text)
    except ValueError as error:
        raise InputError(f"--gpu-indices {text}: {error}") from None


def shape_of(
    shape: Layout, ngpus: int | None, gpus: str | None, order: list[int] | None = None
) -> Layout:
    """The first `ngpus` GPUs, or those named in `gpus`, with rings in `order`."""
    if ngpus is not None and gpus is not None:
        raise InputError(f"-g {ngpus} and --gpus {gpus}: give one of the two")
    try:
        if ngpus is not None:
            shape = shape.subset(ngpus)
        if gpus is not None:
            shape = shape.only(_numbers(gpus))
    except ValueError as error:
        option = f"-g {ngpus}" if gpus is None else f"--gpus {gpus}"
        raise InputError(f"{option}: {error}") from None
    if order is None:
        return shape
    try:
        return shape.with_order(order)
    except InputError as error:
        raise InputError(f"--gpu-indices {str(error).removeprefix('gpu_indices ')}") from None


def _numbers(text: str) -> list[int]:
    """`0,1,2,3` as a list; raises ValueError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise ValueError("whole numbers with commas between, such as 0,1,2,3")
    return [int(part) for part in parts]


def echo_json(document: Mapping[str, Any]) -> None:
    """Print the one document that `--json` promises."""
    click.echo(json_text(document), nl=False)


def json_text(document: Mapping[str, Any]) -> str:
    """A document as files and stdout have it."""
    return json.dumps(document, indent=2) + "\n"


def check_outputs(paths: Mapping[str, str | None], *, as_json: bool) -> None:
    """Raises InputError if a file, by the option that names it, cannot be written, or if stdout
    would get two documents.
    """
    faults = Faults()
    for path in paths.values():
        if path is not None:
            faults.attempt("", check_place, path)
    printed = ["--json"] * as_json + [f"{option} -" for option in paths if paths[option] == STDOUT]
    if len(printed) > 1:
        faults.add("", f"{' and '.join(printed)}: stdout takes one of them")
    faults.raise_any()


def write_output(path: str, pieces: Iterable[str | bytes]) -> None:
    """Write a file of the user's, or stdout for `-`."""
    if path != STDOUT:
        write_file(path, pieces)
        return
    for piece in pieces:
        click.echo(piece, nl=False)
