"""The help that is kept as data is what the commands say."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

import simreduce.app.cli
from simreduce.app.cli import cli
from tests.test_startup import HEAVY, _command, _modules_after

KEPT = Path(simreduce.app.cli.__file__).with_name("described.json")
TOP = click.Context(cli, info_name="simreduce", help_option_names=["-h", "--help"])


def _describe(command: click.Command, context: click.Context) -> dict[str, Any]:
    """What a command says of itself; its subcommands too."""
    command._help_option = None  # click keeps the one of whoever asked first
    options = [
        each.get_help_record(context)
        for each in command.get_params(context)
        if isinstance(each, click.Option)
    ]
    found: dict[str, Any] = {
        "usage": command.collect_usage_pieces(context),
        "help": inspect.cleandoc(command.help),
        "options": [[*each] for each in options if each],
        "epilog": command.epilog,
    }
    if isinstance(command, click.Group):
        found["commands"] = {
            name: _describe(each, click.Context(each, context, name))
            for name in command.list_commands(context)
            if (each := command.get_command(context, name))
        }
        if table := getattr(command, "table", None):
            found["lazy"] = [[name, text] for name, (_, text) in table.items()]
    return found


def test_the_kept_help_is_that_of_the_commands():
    """SIMREDUCE_UPDATE_GOLDENS=1 writes it."""
    found = json.dumps(_describe(cli, TOP), indent=1) + "\n"
    if os.environ.get("SIMREDUCE_UPDATE_GOLDENS"):
        KEPT.write_text(found, "utf-8")

    assert found == KEPT.read_text("utf-8"), "SIMREDUCE_UPDATE_GOLDENS=1 writes it"


@pytest.mark.parametrize("width", ["60", "80"])
@pytest.mark.parametrize("path", ["run", "bench", "topo", "topo show", "accuracy", "accuracy nccl"])
def test_help_from_data_reads_as_the_command_would_print_it(path, width, monkeypatch, capsys):
    """At any width of the terminal."""
    monkeypatch.setenv("COLUMNS", width)
    context, command = TOP, cli
    for word in path.split():
        assert isinstance(command, click.Group)
        command = command.get_command(context, word) or command
        context = click.Context(command, context, word)
    command._help_option = None
    cli.main([*path.split(), "--help"], "simreduce", standalone_mode=False,
             help_option_names=["-h", "--help"])  # fmt: skip

    assert f"{command.get_help(context)}\n" == capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [("run", "-h"), ("topo", "show", "x", "--help"), ("accuracy", "-h")]
)
def test_help_of_a_command_loads_nothing_heavy(words):
    """Not even the command."""
    loaded = _modules_after(_command(*words))

    assert set() == loaded & set(HEAVY)
    assert "simreduce.app.cli.run" not in loaded


def test_a_word_behind_two_dashes_asks_for_no_help():
    """As click has it: it is an argument."""
    with pytest.raises(Exception, match="--help"):
        cli.main(["topo", "check", "--", "--help"], standalone_mode=False)
