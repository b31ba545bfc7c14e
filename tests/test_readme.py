"""Every command in README.md prints what the README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
SHOWN = re.findall(r"```console\n\$ ([^\n]*)\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
UPDATE = "SIMREDUCE_UPDATE_GOLDENS"


@cache
def _printed(command: str) -> str:
    """What a command of ours prints; several pipes may show parts of it."""
    real = command.replace("simreduce ", f"{sys.executable} -m simreduce ", 1)
    real = real.replace(
        "python -m simreduce_validate", f"{sys.executable} -m simreduce_validate", 1
    )
    return _shell(real)


def _shell(command: str, given: str = "") -> str:
    done = subprocess.run(  # noqa: S602 - the README's own commands
        command,
        shell=True,
        cwd=README.parent,
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.xdist_group("readme")
@pytest.mark.parametrize(("command", "expected"), SHOWN, ids=[c for c, _ in SHOWN])
def test_the_readme_shows_real_output(command, expected):
    """`SIMREDUCE_UPDATE_GOLDENS=1 pytest tests/test_readme.py` rewrites what is shown."""
    ours, pipe, rest = command.partition(" | ")
    shown = _printed(ours)
    if pipe:
        shown = _shell(rest, shown)
    if os.environ.get(UPDATE):
        text = README.read_text("utf-8")
        README.write_text(
            text.replace(f"$ {command}\n{expected}", f"$ {command}\n{shown}"), "utf-8"
        )

    assert expected == shown


@pytest.mark.parametrize(
    "picture", re.findall(r"\]\((docs/[^)]*\.svg)\)", README.read_text("utf-8"))
)
def test_the_pictures_are_drawn_by_the_commands_beside_them(picture, tmp_path):
    """`SIMREDUCE_UPDATE_GOLDENS=1` draws them anew."""
    (command,) = re.findall(
        rf"`simreduce (topo [^`]*) --svg {re.escape(picture)}`", README.read_text("utf-8")
    )
    place = README.parent / picture
    file = place if os.environ.get(UPDATE) else tmp_path / "picture.svg"
    subprocess.run(
        [sys.executable, "-m", "simreduce", *command.split(), "--svg", file],
        cwd=README.parent,
        check=True,
    )

    assert file.read_text("utf-8") == place.read_text("utf-8")


@pytest.mark.parametrize(
    "code", re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
)
def test_the_python_examples_run(code):
    """The Python blocks of the README run as they stand and their assertions hold."""
    subprocess.run([sys.executable, "-c", code], cwd=README.parent, check=True)
