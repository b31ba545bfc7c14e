"""What a shell completes: commands, and names of what is shipped. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import resources
from typing import Literal

import click
from click.shell_completion import CompletionItem

from simreduce.shipped import data_dir

_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin so."""
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _names_or_files(*kinds: Literal["topologies", "scenarios"]) -> _Complete:
    """Completes shipped names, and files where none begins so."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [file.stem for kind in kinds for file in data_dir(kind).glob("*.toml")]
        return items(names, incomplete) or [CompletionItem(incomplete, type="file")]

    return complete


def calibrations(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shipped calibrations, and files where none begins so."""
    files = resources.files("simreduce").joinpath("calibrations").iterdir()
    names = [file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")]
    found = items(["nominal", *names], incomplete)
    return found or [CompletionItem(incomplete, type="file")]


scenario_argument = click.argument("scenario", shell_complete=_names_or_files("scenarios"))
topology_argument = click.argument("topology", shell_complete=_names_or_files("topologies"))
question_argument = click.argument(
    "question",
    metavar="SCENARIO|TOPOLOGY",
    shell_complete=_names_or_files("scenarios", "topologies"),
)
