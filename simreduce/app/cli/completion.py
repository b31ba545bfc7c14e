"""Shell completion of commands and of shipped names. Loads nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Literal

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    add_completion_class,
    split_arg_string,
)

from simreduce.files.shipped import data_dir

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
    files = resources.files("simreduce").joinpath("files", "calibrations").iterdir()
    names = [file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")]
    found = items(["nominal", *names], incomplete)
    return found or [CompletionItem(incomplete, type="file")]


def strategies(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Algorithms of all-reduce, behind those that stand before the last comma."""
    from simreduce.planners.algorithms import ALGORITHMS  # noqa: PLC0415 - takes time

    before, comma, last = incomplete.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{name}")
        for name in ("all", *ALGORITHMS)
        if name.startswith(last)
    ]


class Bash(BashComplete):
    """As click has it, for words with : and = too, where bash begins a new word."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' completion type
    local response=$(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete $1)
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == dir ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == file ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("$value")
        fi
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one that it is in."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() or not words else (words[:-1], words[-1])

    def format_completion(self, item: CompletionItem) -> str:
        """The type and the text that bash puts in place of its last word."""
        _, incomplete = self.get_completion_args()
        breaks = [
            incomplete.rfind(sign) for sign in os.environ.get("COMP_BREAKS", "") if sign in ":="
        ]
        cut = max(breaks, default=-1) + 1
        kept = item.value[cut:] if item.value.startswith(incomplete[:cut]) else item.value
        return f"{item.type},{kept}"


class Fish(FishComplete):
    """As click has it, for values and help with commas too."""

    source_template = FishComplete.source_template.replace("string split", "string split --max 1")


add_completion_class(Bash)
add_completion_class(Fish)

scenario_argument = click.argument("scenario", shell_complete=_names_or_files("scenarios"))
topology_argument = click.argument("topology", shell_complete=_names_or_files("topologies"))
question_argument = click.argument(
    "question",
    metavar="SCENARIO|TOPOLOGY",
    shell_complete=_names_or_files("scenarios", "topologies"),
)
