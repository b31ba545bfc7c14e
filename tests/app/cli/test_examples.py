"""Examples in the help of commands, and completion in shells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from simreduce.app.cli import cli

DEVICES = ("calibrate", "validate", "model")
"""Commands that need TensorFlow; validate/tests has their examples."""
SERVERS = ("serve",)
"""Commands that do not end by themselves; tests/app/serve has their examples."""


def _commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from _commands(found, f"{path}{name} ")
        else:
            yield f"{path}{name}", found


COMMANDS = dict(_commands(cli))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_of_itself(name):
    """The last line of its examples calls it, and --help shows them as they are."""
    command = COMMANDS[name]
    text = command.get_help(click.Context(command, info_name=name))

    assert command.examples[-1].startswith(f"simreduce {name}")
    assert all(line in text for line in command.examples)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in (*DEVICES, *SERVERS)])
def test_the_examples_work_when_they_are_pasted(name, tmp_path):
    """In an empty folder, in the order in which they stand."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "simreduce"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m simreduce "$@"\n', "utf-8")
    script.chmod(0o755)
    lines = "\n".join(COMMANDS[name].examples)
    place = tmp_path / "here"
    place.mkdir()
    done = subprocess.run(
        ["bash", "-euc", lines],
        cwd=place,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    assert done.stdout or any(place.iterdir())


def _asked(*words: str) -> dict[str, str]:
    """The variables with which bash asks for the last word."""
    return {
        "_SIMREDUCE_COMPLETE": "bash_complete",
        "COMP_LINE": " ".join(("simreduce", *words)),
        "COMP_BREAKS": " =:",
    }


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ru"], ["plain,run"]),
        (["topo", "tr"], ["plain,trees"]),
        (["run", "dgx1v-r"], ["plain,dgx1v-resnet50"]),
        (["bench", "dgx1v"], ["plain,dgx1v", "plain,dgx1v-2nic"]),
        (["bench", "./ma"], ["file,./ma"]),
        (["bench", "dgx1v", "--calibration", "dgx1p"], ["plain,dgx1p-tf2018"]),
        (["bench", "dgx1v", "--faith"], ["plain,--faithful"]),
        (["bench", "dgx1v", "--algo", "hierarchical_copy_"], ["plain,hierarchical_copy_gcp_v100"]),
        (["bench", "dgx1v", "--algo", "ring,xr"], ["plain,ring,xring"]),
        (["bench", "dgx1v", "--algo", "ring,nccl:r"], ["plain,ring"]),
        (["bench", "dgx1v", "--algo=xr"], ["plain,xring"]),
    ],
    ids=" ".join,
)
def test_shells_are_told_commands_options_and_shipped_names(simreduce, monkeypatch, words, offered):
    """As bash asks; files where nothing that is shipped begins so."""
    # Else click takes how pytest was started for the name of the command.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", "")
    for name, value in _asked(*words).items():
        monkeypatch.setenv(name, value)
    status, out, err = simreduce()

    assert (0, offered, "") == (status, out.splitlines(), err)


def test_completing_loads_nothing_heavy():
    """A key press must not take a second."""
    code = (
        "import sys; sys.argv = ['simreduce']\nfrom simreduce.app.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **_asked("ru")},
        capture_output=True,
        text=True,
        check=True,
    )
    offered, loaded = done.stdout.splitlines()[0], done.stdout.splitlines()[-1].split()

    assert "plain,run" == offered
    assert "simreduce.app.cli" in loaded
    assert not {"numpy", "networkx", "scipy", "rich"} & set(loaded)
