"""Whatever is typed, and whatever files and databases hold: an answer, or a fault in a few words.

No traceback, no wait without end, no code for the terminal, no flood. A few hundred cases here;
the thorough test and `make fuzz` draw 3,000.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from simreduce.app.cli import cli, main
from tests.app.cli.hostile import BASES, Base, cases, put_files, refused

SECONDS = 30
"""No command may take longer; the cases are small."""
MOST = 100_000
"""Characters of faults at most."""
SEED = os.environ.get("SIMREDUCE_HOSTILE_SEED", "1")


class Hang(BaseException):
    """A command that does not end."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise `Hang` in what takes too long."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(words: tuple[str, ...], folder: Path, monkeypatch) -> tuple[int, str, list[str]]:
    """Status and stderr of a command in that folder, and what is wrong with them."""
    monkeypatch.chdir(folder)
    # As Python has them where UTF-8 is spoken.
    streams = [
        io.TextIOWrapper(io.BytesIO(), "utf-8", errors=errors, write_through=True)
        for errors in ("strict", "backslashreplace")
    ]
    monkeypatch.setattr(sys, "argv", ["simreduce", *words])
    monkeypatch.setattr(sys, "stdin", io.StringIO("no document"))
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    status, wrong = -1, []
    try:
        with limited():
            main()
    except SystemExit as end:
        status = end.code
    except Hang:
        wrong.append(f"took more than {SECONDS} s")
    except BaseException:  # noqa: BLE001 - whatever a user would see as a traceback
        wrong.append(traceback.format_exc()[-3000:])
    monkeypatch.undo()
    err = streams[1].buffer.getvalue().decode("utf-8", "replace")
    if status not in (0, 1, 2):
        wrong.append(f"ended with {status}")
    if status == 2 and not err.strip():
        wrong.append("says nothing")
    if any(not (c.isprintable() or c in "\n\t\r") for c in err):
        wrong.append("has codes for a terminal among its faults")
    if len(err) > MOST:
        wrong.append(f"says {len(err)} characters")
    return status, err, wrong


def try_all(count: int, tmp_path: Path, monkeypatch, first: int = 0) -> list[str]:
    """What is wrong with so many cases."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    found = []
    for case in cases(SEED, count, tmp_path, first):
        *_, wrong = run(case.words, case.folder, pytest.MonkeyPatch())
        shown = " ".join(word if len(word) < 200 else f"{word[:20]}..." for word in case.words)
        found += [f"{case.folder.name}: simreduce {shown!r}: {each}" for each in wrong]
    return found


def test_no_hostile_input_gives_a_traceback_a_hang_or_a_flood(tmp_path, monkeypatch):
    assert try_all(60, tmp_path, monkeypatch) == []


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(60, 3000, 588))
def test_thousands_of_hostile_inputs_give_no_traceback_hang_or_flood(tmp_path, monkeypatch, first):
    assert try_all(588, tmp_path, monkeypatch, first) == []


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES, ids=lambda base: " ".join(base.words)[:60])
def test_what_the_cases_are_made_of_works(tmp_path, base: Base):
    put_files(base, tmp_path)
    status, err, wrong = run(base.words, tmp_path, pytest.MonkeyPatch())

    assert (status, wrong) == (0, []), err


@pytest.mark.parametrize("base", refused(), ids=lambda base: " ".join(base.words)[:60])
def test_what_only_looks_right_is_refused(tmp_path, base: Base):
    """In one line or a few, with status 2; a sweep whose cells are all refused says why in them."""
    put_files(base, tmp_path)
    status, err, wrong = run(base.words, tmp_path, pytest.MonkeyPatch())

    assert (status, wrong) == (1 if base.words[0] == "sweep" else 2, []), err
    assert len(err) < 3000


WRONG = ("nan", "inf", "-1", "1e309", "x\u202ey")


def commands() -> dict[str, tuple[Base, list[click.Option]]]:
    """Every command that a base has, with that base, and the options that take a value."""
    found: dict[str, tuple[Base, list[click.Option]]] = {}
    for base in BASES:
        command, words = cli, list(base.words)
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        options = [each for each in command.params if isinstance(each, click.Option)]
        taken = [each for each in options if not each.is_flag and not each.is_eager]
        # A file may have any name, and any number is a condition.
        taken = [each for each in taken if not {*each.opts} & {*FILES, "--where"}]
        found.setdefault(base.words[: len(base.words) - len(words)], (base, taken))
    return {" ".join(name): each for name, each in found.items()}


FILES = (
    "-o", "--output", "--output_file", "--out", "--trace", "--chakra", "--db", "--svg", "--png",
    "--csv", "--parquet", "--html", "--input",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", commands())
def test_no_option_takes_what_is_surely_wrong(tmp_path, name):
    """Each is refused with status 2, by the option's name or by what was given."""
    base, options = commands()[name]
    found = []
    for i, (option, word) in enumerate((each, word) for each in options for word in WRONG):
        place = tmp_path / str(i)
        place.mkdir()
        put_files(base, place)
        words = (*base.words, max(option.opts, key=len), word)
        status, err, wrong = run(words, place, pytest.MonkeyPatch())
        shown = word.encode("ascii", "backslashreplace").decode().lstrip("-")
        if status != 2 or wrong or not any(text in err for text in (*option.opts, shown)):
            found.append((words, status, wrong, err[:300]))
    assert found == []


NUMBERS = re.compile(r"^(\w+) = (\[?)([-\d.e]+|\"[\d.]+ ?[a-zA-Z/%]+\")", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "name", "key", "begin", "end"),
    [
        pytest.param(base, name, found[1], *found.span(3), id=f"{base.words[0]}-{name}-{found[1]}")
        for base in BASES
        for name, text in base.files.items()
        for found in NUMBERS.finditer(text)
        if name.endswith(".toml")
    ],
)
def test_no_key_takes_what_is_surely_wrong(tmp_path, base, name, key, begin, end):
    """Each is refused with its name; a sweep whose cells are all refused ends with 1."""
    found = []
    for i, word in enumerate(("nan", "inf", "-inf", "-1", '"nan"', '"-1 s"', "[[]]", "{}")):
        place = tmp_path / str(i)
        place.mkdir()
        text = base.files[name]
        files = {**base.files, name: text[:begin] + word + text[end:]}
        put_files(base._replace(files=files), place)
        status, err, wrong = run(base.words, place, pytest.MonkeyPatch())
        if status not in (1, 2) or wrong or key not in err:
            found.append((word, status, wrong, err[:300]))
    assert found == []
