"""Options and outputs that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from simreduce.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])

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


def echo_json(document: dict[str, Any]) -> None:
    """The one document that `--json` promises."""
    click.echo(json.dumps(document, indent=2))


def write_json(path: str, document: dict[str, Any]) -> None:
    """A document in a file of the user's; InputError if it cannot be written."""
    try:
        Path(path).write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
