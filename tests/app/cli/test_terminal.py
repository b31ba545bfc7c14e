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
from contextvars import copy_context

import pytest
from hypothesis import assume, given, settings, strategies as st

from simreduce.app.cli import cli, terminal
from simreduce.files.tables import PAGE, Column, Table, columns
from tests.app.cli.command import process
from tests.thorough import examples

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

SCENARIO = 'topology = "full:3"\nworkload = "bytes:64K"\nstrategies = ["all"]\n'


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


@pytest.mark.slow
def test_a_ranking_shows_its_best_rows_within_the_width_of_the_terminal(scenario):
    """Fifteen of them, and how to see all; columns that have no room are named."""
    shown, _ = _on_terminal(72, "run", scenario, NO_COLOR="1")
    table = shown.split("#\n")[1].strip("\n").split("\n")

    assert max(map(len, table)) <= 72
    assert [str(i) for i in range(1, 16)] == re.findall(
        r"^ ?(\d+)  ", "\n".join(table), re.MULTILINE
    )
    assert re.search(r"\(without chosen by, .*: --wide\)", shown)
    assert re.search(r"\.\.\. and \d+ others \(--all shows them\)", shown)


@pytest.mark.slow
def test_wide_and_all_show_everything(scenario):
    """Whole lines, as a pipe has them."""
    shown, _ = _on_terminal(72, "run", scenario, "--wide", "--all", NO_COLOR="1")

    assert _piped("run", scenario, "--all") == shown
    assert "(--all shows them)" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 130])
def test_a_pipe_gets_what_a_terminal_gets(scenario, width):
    """The same rows, and with COLUMNS the same lines; without, no line is wrapped or lacks part."""
    shown, _ = _on_terminal(width, "run", scenario, NO_COLOR="1")
    whole, _ = _on_terminal(999, "run", scenario, NO_COLOR="1")

    assert _piped("run", scenario, COLUMNS=str(width)) == shown
    assert _piped("run", scenario) == whole
    for wrong in ("", "0", "-3", "wide", "9" * 30):
        assert _piped("run", scenario, COLUMNS=wrong) == whole


def _piped(*arguments: str, **environment: str) -> str:
    """What a command prints into a pipe."""
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [sys.executable, "-m", "simreduce", *arguments],
        capture_output=True, text=True, check=True, env={**env, **environment},
    ).stdout  # fmt: skip


def test_colour_is_for_terminals_whose_users_want_it(scenario):
    """NO_COLOR takes colour away and nothing else."""
    options = ("run", scenario, "--algo", "ring,direct")
    coloured, _ = _on_terminal(100, *options)
    plain, _ = _on_terminal(100, *options, NO_COLOR="1")

    assert ESCAPE.search(coloured)
    without = [ESCAPE.sub("", line).rstrip() for line in coloured.split("\n")]
    assert without == plain.split("\n")


def test_names_of_files_send_a_terminal_no_codes(tmp_path):
    """Neither what clears it nor what turns the direction of text, in reports and in faults."""
    path = tmp_path / "a\x1b[2Jb\u202e.toml"
    path.write_text('extends = "dgx1v"\n')
    fine, _ = _on_terminal(100, "topo", "check", str(path))
    _, missing = _on_terminal(100, "topo", "check", f"{path}x")
    piped = process("topo", "check", str(path)).out

    for shown in (fine, missing, piped):
        assert "a\\x1b[2Jb\\u202e.toml" in shown
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown
    assert "no fault" in fine


def test_cells_have_no_character_that_nobody_sees():
    """None ends a line, moves the cursor or turns the direction of text."""
    table = Table(
        columns("a\u2066|b", left="a"), (("x\ny\t\x9b\u202e", "1"), ("caf\xe9\xa0z", "2"))
    )
    table_lines = table.lines()

    assert r"x\ny\t\x9b\u202e" in table_lines[1]
    assert "caf\xe9\xa0z" in table_lines[2]
    assert 3 == len(table_lines)
    assert table_lines[1].index("1") == table_lines[2].index("2")
    assert r"a\u2066" in table_lines[0]
    assert r"x\ny" in table.html(["\x1b"])
    assert "\x1b" not in table.html(["\x1b"])


def test_titles_cannot_colour_what_follows_them(tmp_path):
    """Only what simreduce itself paints has codes: each line ends in plain text."""
    path = tmp_path / "\x1b[1mbold.toml"
    path.write_text('extends = "dgx1v"\n')
    shown, _ = _on_terminal(200, "topo", "p2p", str(path))

    assert r"\x1b[1mbold" in shown
    assert "\x1b[1mbold" not in shown


def test_faults_are_red_on_a_terminal_only():
    """The name in front of a fault."""
    _, said = _on_terminal(100, "run", "no such file")

    assert said.startswith("\x1b[31msimreduce:\x1b[0m ")
    assert 1 == len(ESCAPE.sub("", said).strip().split("\nsimreduce:"))


WORDS = st.text("abc+=, ", max_size=40).map(str.strip)
NUMBERS = st.integers(0, 10**6).map(str)


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No colour, whatever runs the tests."""
    monkeypatch.setenv("NO_COLOR", "1")


def _lines(table: Table, width: int, **layout: int | bool) -> list[str]:
    """The lines of a table on a page of this width."""
    context = copy_context()
    context.run(PAGE.set, terminal.Terminal(width))
    return context.run(lambda: table.lines(**layout))


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(NUMBERS, WORDS, NUMBERS, WORDS, WORDS), max_size=6),
    st.integers(40, 120),
    st.booleans(),
)
def test_fitted_tables_lose_no_character(rows, width, comment):
    """Whatever the cells, lines are as narrow as the page, and wrapped words are all there.

    A table that is divided says its first column twice: that is another test's.
    """
    heads = columns("#|name|time|place|why", units="||(ms)||", left="name|place|why", spare="why")
    lines = _lines(Table(heads, tuple(rows)), width, indent=2, comment=comment)
    assume(sum("name" in line for line in lines) == 1)

    assert max(map(len, lines)) <= width
    without = "(without why" in lines[-1]
    kept = sorted(c for row in rows for cell in row[: 5 - without] for c in cell if not c.isspace())
    body = lines[2 : len(lines) - without]
    assert kept == sorted(c for line in body for c in line if not c.isspace())
    assert all(line.startswith("#") == comment for line in lines[:2])


@settings(max_examples=examples(40))
@given(st.integers(2, 30), st.integers(20, 100))
def test_a_table_of_figures_that_cannot_fit_is_divided(count, width):
    """Each part has some columns behind the first one; together they have all, in order."""
    names = [f"c{i}" for i in range(count)]
    lines = _lines(Table(columns("|".join(names)), (("12345",) * count,)), width)
    heads = [line.split() for line in lines if "c" in line]

    assert max(map(len, lines)) <= width
    assert all(head[0] == "c0" for head in heads)
    assert names == [*heads[0], *(name for head in heads[1:] for name in head[1:])]


def test_strategies_break_where_their_parts_join():
    """No part is broken that has room."""
    table = Table(columns("strategy", left="strategy"), (("hierarchical_copy+packs=8+fp16",),))

    assert ["strategy", "hierarchical_copy+", "packs=8+fp16"] == _lines(table, 20)


def test_a_matrix_is_divided(simreduce, monkeypatch):
    """That of `topo show`, whose columns a narrow terminal would wrap."""
    whole = simreduce("topo", "show", "dgx-h100").out.partition("Legend")[0]
    monkeypatch.setenv("COLUMNS", "60")
    shown = simreduce("topo", "show", "dgx-h100").out.partition("Legend")[0]

    assert max(map(len, shown.split("\n"))) <= 59 < max(map(len, whole.split("\n")))
    assert 8 * 7 == shown.count("NV18") == whole.count("NV18")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("# machine    a longer name", ["# machine    a longer", "#            name"]),
        ("  default    nccl, twice as fast", ["  default    nccl, twice", "             as fast"]),
        ("one sentence of several words", ["one sentence of several", "  words"]),
        ("  --a_word_longer_than_all to copy", ["  --a_word_longer_than_all to copy"]),
    ],
)  # fmt: skip
def test_lines_wrap_below_their_text(line, shown, capsys):
    """Facts below facts; a word that has no room stays whole."""
    context = copy_context()
    context.run(PAGE.set, terminal.Terminal(24))
    context.run(terminal.show, line)

    assert shown == capsys.readouterr().out.rstrip("\n").split("\n")


def test_a_pipe_gets_tables_as_wide_as_they_are():
    """Nothing is fitted unless a terminal asked for it."""
    wide = Table((Column("name", left=True),), (("x" * 500,),))

    assert PAGE.get() is None
    assert ["name", "x" * 500] == wide.lines()


REPORTS = {
    "bench": "bench full:4 --algo ring,nccl+packs=2 -b 1M",
    "explain": "explain full:4 --algo ring -b 1M",
    "nccl": "nccl dgx-h100 --simulate -b 1M",
    "topo show": "topo show dgx1v",
    "topo p2p": "topo p2p dgx1v",
    "topo list": "topo list",
    "step": "step step-dgx1p-resnet50 --algo nccl,hierarchical_copy+packs=8",
    "sweep": "sweep full:4 --over strategy=ring,nccl --db :memory: --workers 1",
    "accuracy": "accuracy nccl --only bessemer",
    "verify": "verify --algo ring,nccl:tree -g 4",
}


@pytest.mark.parametrize("name", REPORTS)
def test_reports_fit_a_narrow_terminal(name, capsys):
    """59 characters: no line is wider, and nothing else is lost than columns that are named."""
    context = copy_context()
    context.run(PAGE.set, terminal.Terminal(59))
    context.run(cli.main, REPORTS[name].split(), standalone_mode=False)
    shown = capsys.readouterr().out

    assert max(map(len, shown.split("\n"))) <= 59


def test_a_long_table_of_a_sweep_ends_with_how_to_see_all(simreduce, monkeypatch, tmp_path):
    """Without --limit."""
    db = str(tmp_path / "a.db")
    simreduce("sweep", "full:2", "--over", "size=1K..4K*2", "--db", db, "--workers", "1")
    monkeypatch.setattr("simreduce.app.cli.sweep.SCREEN", 2)
    shown = simreduce("table", db).out
    limited = simreduce("table", db, "--limit", "3").out

    assert "# ... and 1 other (--limit 3 shows them)" in shown
    assert limited.splitlines()[:-1] == shown.splitlines()[:-1]
