"""What a terminal shows: tables that fit, the best rows, colour only where it is wanted."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st

from simreduce.cli import terminal
from simreduce.tables import FITTED, Column, Table, columns

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

SCENARIO = 'topology = "full:4"\nworkload = "bytes:64K"\nstrategies = ["all"]\n'


def _on_terminal(width: int, *arguments: str, **environment: str) -> tuple[str, str]:
    """stdout and stderr of a command whose both streams are a terminal of this width."""
    streams = []
    for _ in range(2):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        streams.append((ours, theirs))
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "simreduce", *arguments],
        stdout=streams[0][1],
        stderr=streams[1][1],
        env={**env, "TERM": "xterm", **environment},
    )
    for _, theirs in streams:
        os.close(theirs)
    with ThreadPoolExecutor(2) as readers:  # both at once: what is not read stops the writer
        shown, said = readers.map(_read, [ours for ours, _ in streams])
    process.wait(timeout=60)
    return shown, said


def _read(stream: int) -> str:
    found = io.BytesIO()
    try:
        while part := os.read(stream, 1 << 16):
            found.write(part)
    except OSError:  # how Linux says that the other end is closed
        pass
    return found.getvalue().decode().replace("\r\n", "\n")


@pytest.fixture
def scenario(tmp_path):
    """A scenario with more strategies than a terminal shows."""
    file = tmp_path / "few.toml"
    file.write_text(SCENARIO, "utf-8")
    return str(file)


def test_a_ranking_shows_its_best_rows_within_the_width_of_the_terminal(scenario):
    """Fifteen of them, and how to see all; columns that have no room are named."""
    shown, _ = _on_terminal(72, "run", scenario, NO_COLOR="1")
    table = shown.split("#\n")[1].split("Recommended:")[0].strip("\n").split("\n")

    assert max(map(len, table)) <= 72
    assert [str(i) for i in range(1, 16)] == re.findall(
        r"^ ?(\d+)  ", "\n".join(table), re.MULTILINE
    )
    assert re.search(r"\(without chosen by, .*: --wide\)", shown)
    assert re.search(r"\.\.\. and \d+ others \(--all shows them, and so does a pipe\)", shown)


def test_wide_and_all_show_everything(scenario):
    """As a pipe gets it, but for colour."""
    shown, _ = _on_terminal(72, "run", scenario, "--wide", "--all", NO_COLOR="1")
    piped = subprocess.run(
        [sys.executable, "-m", "simreduce", "run", scenario, "--all"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    assert piped == shown


def test_colour_is_for_terminals_whose_users_want_it(scenario):
    """NO_COLOR takes colour away and nothing else."""
    options = ("run", scenario, "--algo", "ring,direct")
    coloured, _ = _on_terminal(100, *options)
    plain, _ = _on_terminal(100, *options, NO_COLOR="1")

    assert ESCAPE.search(coloured)
    without = [ESCAPE.sub("", line).rstrip() for line in coloured.split("\n")]
    assert without == plain.split("\n")


def test_faults_are_red_on_a_terminal_only():
    """The name in front of a fault."""
    _, said = _on_terminal(100, "run", "no such file")

    assert said.startswith("\x1b[31msimreduce:\x1b[0m ")
    assert 1 == len(ESCAPE.sub("", said).strip().split("\nsimreduce:"))


WORDS = st.text("abc+=,", max_size=40)
NUMBERS = st.integers(0, 10**6).map(str)


@given(st.lists(st.tuples(NUMBERS, WORDS, NUMBERS, WORDS), max_size=6), st.integers(40, 120))
def test_fitted_tables_lose_no_character(rows, width):
    """Whatever the cells, lines are as narrow as the page, and wrapped words are all there."""
    heads = columns("#|name|time|why", units="||(ms)|", left="name|why", spare="why")
    table = Table(heads, tuple(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("NO_COLOR", "1")
        lines = terminal._fitted(table, 2)

    assert max(map(len, lines)) < width
    for _, name, time, _ in rows:
        assert not set(name + time) - set("".join(lines))
    kept = sorted(c for row in rows for cell in row[:3] for c in cell if c in "abc0123456789")
    without = "(without why" in lines[-1]
    body = "".join(lines[2 : len(lines) - without])
    assert len(kept) <= sum(c in "abc0123456789" for c in body)


def test_a_table_of_figures_that_cannot_fit_is_not_cut(monkeypatch):
    """It is as wide as in a pipe."""
    monkeypatch.setenv("COLUMNS", "40")
    table = Table(columns("|".join(f"c{i}" for i in range(20))), (("12345",) * 20,))

    assert table.lines() == terminal._fitted(table, 0)


def test_a_pipe_gets_tables_as_wide_as_they_are():
    """Nothing is fitted unless a terminal asked for it."""
    wide = Table((Column("name", left=True),), (("x" * 500,),))

    assert FITTED.get() is None
    assert ["name", "x" * 500] == wide.lines()
