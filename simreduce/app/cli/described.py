"""The help of every command as data, so that --help imports no command.

tests/app/cli/test_described.py says when it is not what the commands say, and writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import click

_FILE = "described.json"

Record = Mapping[str, Any]
"""usage, help, options, epilog, and of a group its commands: those that are imported when they are
used (`lazy`) by their lines, others by their records.
"""


def find(words: Sequence[str], help_names: Sequence[str]) -> tuple[str, click.Command] | None:
    """The command that these words ask for help, with its name; None if they do not."""
    before = words[: words.index("--")] if "--" in words else words
    if not set(before) & set(help_names):
        return None
    found = json.loads(resources.files(__package__).joinpath(_FILE).read_text("utf-8"))
    path: list[str] = []
    for word in words:
        if word not in found.get("commands", {}):
            break
        found = found["commands"][word]
        path.append(word)
    return (" ".join(path), _Described(path[-1], found)) if path else None


class _Described(click.Command):
    """A command that can do nothing but print its help."""

    def __init__(self, name: str, record: Record) -> None:
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        super().__init__(
            name, help=record["help"], epilog=record["epilog"], context_settings=settings
        )
        self._record = record

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [*self._record["usage"]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Options"):
            formatter.write_dl([(left, right) for left, right in self._record["options"]])
        commands = self._record.get("commands", {})
        if not commands:
            return
        limit = formatter.width - 6 - max(map(len, commands))
        short = [
            (name, click.Command(name, help=each["help"]).get_short_help_str(limit))
            for name, each in commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, text in self._record.get("lazy", short)])
