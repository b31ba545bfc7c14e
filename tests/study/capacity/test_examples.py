"""The worked examples of the documents: their output and their pictures are real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "tutorials" / "price-capacity.md"
BLOCKS = re.findall(
    r"```text\n\$ (simreduce capacity ([^\n]*))\n(.*?)```", PAGE.read_text(), re.DOTALL
)
UPDATE = "SIMREDUCE_UPDATE_GOLDENS"


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "arguments", "shown"), BLOCKS)
def test_worked_examples_show_real_output(command, arguments, shown):
    """`SIMREDUCE_UPDATE_GOLDENS=1` rewrites what the page shows, and draws its pictures."""
    update = bool(os.environ.get(UPDATE))
    words = arguments.split() if update else arguments.partition(" --svg")[0].split()
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", "capacity", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = done.stdout
    if update:
        text = PAGE.read_text("utf-8")
        PAGE.write_text(text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{found}```"))

    assert shown == found


def test_the_page_has_its_examples():
    """Two of them are slow; the third is a console block."""
    assert 2 == len(BLOCKS)
