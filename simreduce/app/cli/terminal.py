"""Reports as they are printed: lines that fit the width, and colour where it is wanted.

Reports are the same wherever they go. A terminal's width, or that of the variable COLUMNS, wraps
them; without a width, as in a pipe, lines are as long as they are. Colour is for terminals alone.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

import click

from simreduce.errors import escape
from simreduce.files import STDOUT
from simreduce.files.tables import PAGE, Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

BEST = 15
"""Rows of a ranking, unless all are asked for."""
SCREEN = 40
"""Rows of a table that is no ranking."""

_LEAST, _MOST = 12, 24
"""Characters that a column of words keeps when it is wrapped, and those that it keeps at most so
that no word is broken."""
_MARK = 2
"""Characters of a column of marks, which alone do not say what a row is about."""
_HANG = 24
"""Columns of a line in which a gap may stand below which the rest of the line is wrapped."""
_PIECES = re.compile(r"\s+|[^\s+,;/]*[+,;/]+|[^\s+,;/]+")
"""Where a cell may be broken: at blanks, and behind the signs that join parts of a strategy."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; a closed one is None."""
    return stream is not None and stream.isatty()


def in_colour(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal whose user has nothing against colour (no-color.org)."""
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(stream) and not unwanted


def show(text: str, *paths: str | None, paste: str = "") -> None:
    """Print a report, wrapped where there is a width, and in colour on a terminal. On stderr if a
    file of `paths` takes stdout. Lines of `paste` below it are not wrapped.
    """
    page = PAGE.get()
    if page and STDOUT not in paths:
        text = "\n".join(line for each in text.split("\n") for line in _fit(each, page.width))
    text, paste = escape(text), escape(paste)
    if in_colour(sys.stdout) and STDOUT not in paths:
        heads = page.heads if isinstance(page, Terminal) else ()
        text = "\n".join(_paint(line, line in heads) for line in text.split("\n"))
    click.echo(f"{text}\n{paste}", nl=False, err=STDOUT in paths)


def _paint(line: str, head: bool) -> str:
    """The head of a report dim, that of a table bold, and its recommendation green."""
    if line.startswith("#"):
        return click.style(line, dim=True)
    best = line.startswith(("Recommended:", "Best for "))
    return click.style(line, bold=True, fg="green" if best else None) if best or head else line


def _fit(line: str, width: int) -> list[str]:
    """Lines of at most `width` characters. A line with a longer word stays as it is: the terminal
    breaks it, and it can be copied.
    """
    lead, hang = _indents(line, width)
    longest = max(map(len, line.split()), default=0)
    if len(line) <= width or longest > width - len(hang):
        return [line]
    return textwrap.wrap(
        line[len(lead) :], width, initial_indent=lead, subsequent_indent=hang,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _indents(line: str, width: int) -> tuple[str, str]:
    """The indents of a line and of its next ones, when it is wrapped: below the first gap between
    its columns, if it has some.
    """
    lead = line[: len(line) - len(line.lstrip("# "))]
    gap = re.search(r"(?<=\S) {2,}(?=\S)", line[: min(_HANG, width * 2 // 3)])
    column = gap.end() if gap and gap.start() > len(lead) else len(lead) + 2
    if lead.startswith("#") and len(lead) > 2:  # goes on with the fact above
        column = len(lead)
    return lead, lead[:1].strip().ljust(column)


_LONGEST, _TAIL, _MOST_FAULTS = 2000, 400, 40
"""Characters of a fault that are printed, those of them at its end, and faults of a command."""


def legible(text: str) -> str:
    """A message as it may be printed: escaped, and cut with a count of what is left out."""
    more = len(text) - _LONGEST
    if more <= 0:
        return escape(text)
    start, end = text[: _LONGEST - _TAIL], text[-_TAIL:]
    return f"{escape(start)}... ({more:,} more characters) ...{escape(end)}"


def complain_of_all(faults: Sequence[str]) -> None:
    """Print the first faults on stderr, and how many more there are."""
    for fault in faults[:_MOST_FAULTS]:
        complain(fault)
    if len(faults) > _MOST_FAULTS:
        complain(f"and {len(faults) - _MOST_FAULTS:,} more faults")


def complain(fault: str) -> None:
    """Print a fault on stderr."""
    name = click.style("simreduce:", fg="red") if in_colour(sys.stderr) else "simreduce:"
    click.echo(f"{name} {legible(fault)}", err=True)


@contextmanager
def fitted() -> Iterator[None]:
    """Lay reports out for the width of COLUMNS, or that of a terminal on stdout."""
    wished = re.fullmatch("0*[1-9][0-9]{0,5}", os.environ.get("COLUMNS", ""), re.ASCII)
    page = Terminal(shutil.get_terminal_size().columns - 1)
    before = PAGE.set(page if wished or is_terminal(sys.stdout) else None)
    try:
        yield
    finally:
        PAGE.reset(before)


def _without_limit(_: click.Context, __: click.Parameter, wide: bool) -> None:
    if wide:
        PAGE.set(None)


wide_option = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=_without_limit,
    help="Print whole lines with all columns, however narrow the terminal is.",
)


@dataclass(frozen=True)
class Terminal:
    """A page as wide as a terminal, less the last column, where some break lines too early."""

    width: int
    heads: set[str] = field(default_factory=set)
    """Lines of headings so far."""

    def lay_out(self, table: Table, *, indent: int, gap: int, mark: str) -> list[list[str]]:
        """Lines of headings and of rows in turn.

        A table that is too wide does without the columns that it may spare, and names them. Then
        columns of words are wrapped. What is too wide even so is divided into tables of some
        columns each, with the first column in each.
        """
        room = self.width - indent
        parts = table.unlimited(indent=indent, gap=gap, mark=mark)
        if max((len(line) for part in parts for line in part), default=0) > self.width:
            kept, left_out = _kept(table, room, gap)
            blocks = [_draw(each, room, gap) for each in _blocks(kept, room, gap)]
            margin = " " * indent
            parts = []
            for head, rows in blocks:
                between = [mark] if parts else []
                parts.append(
                    [*between, *(f"{mark}{(margin + line)[len(mark) :]}" for line in head)]
                )
                parts.append([margin + line for line in rows])
            if left_out:
                note = f"{margin}{mark}{' ' * bool(mark)}(without {', '.join(left_out)}: --wide)"
                hang = f"{margin}{mark}{' ' * bool(mark)} "
                parts[-1] += textwrap.wrap(note, self.width, subsequent_indent=hang)
        self.heads.update(line for head in parts[::2] for line in head if line)
        return parts


def _kept(table: Table, room: int, gap: int) -> tuple[Table, list[str]]:
    """The table without as many spare columns as it takes to fit, and their names."""
    left_out: list[str] = []
    while _least_width(table, gap) > room and any(column.spare for column in table.columns):
        parts = _parts(table)
        spared = max(parts, key=lambda part: table.columns[part[0]].spare)
        left_out.append(table.columns[spared[0]].name.strip())
        table = table.only([i for part in parts if part is not spared for i in part])
    return table, left_out


def _blocks(table: Table, room: int, gap: int) -> list[Table]:
    """The table, or as few tables as it takes to fit, each with what its rows begin with."""
    parts = _parts(table)
    marks = not table.columns[0].name and _least(table, 0) <= _MARK
    key = [i for part in parts[: 1 + marks] for i in part]
    blocks = [[*key]]
    for part in parts[1 + marks :]:
        if blocks[-1] != key and _least_width(table.only([*blocks[-1], *part]), gap) > room:
            blocks.append([*key])
        blocks[-1] += part
    return [*map(table.only, blocks)]


def _parts(table: Table) -> list[list[int]]:
    """Columns that stay together: those without a name belong to the one before."""
    parts: list[list[int]] = []
    for i, column in enumerate(table.columns):
        if parts and not column.name:
            parts[-1].append(i)
        else:
            parts.append([i])
    return parts


def _least_width(table: Table, gap: int) -> int:
    count = len(table.columns)
    return sum(_least(table, i) for i in range(count)) + gap * (count - 1)


def _least(table: Table, i: int) -> int:
    """Characters that a column needs: figures and headings never wrap, words do at their pieces."""
    column = table.columns[i]
    cells = [row[i] for row in table.rows]
    longest = max(map(len, cells), default=0)
    if column.left and longest > _LEAST:
        pieces = max(len(piece) for cell in cells for piece in _PIECES.findall(cell))
        longest = min(longest, max(_LEAST, min(pieces, _MOST)))
    return max(len(column.name), len(column.unit), longest)


def _draw(table: Table, room: int, gap: int) -> tuple[list[str], list[str]]:
    """The lines of a table whose words are wrapped: headings, rows."""
    from rich.console import Console  # noqa: PLC0415 - takes time that only narrow terminals pay
    from rich.table import Table as Drawing  # noqa: PLC0415

    drawing = Drawing(box=None, padding=(0, gap, 0, 0), pad_edge=False, show_header=False)
    for i, column in enumerate(table.columns):
        drawing.add_column(
            justify="left" if column.left else "right",
            no_wrap=not column.left,
            min_width=_least(table, i),
        )
    for row in (*table.head, *table.rows):
        drawing.add_row(*map(_Words, row))
    console = Console(width=room, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(drawing)
    lines = [line.rstrip() for line in capture.get().rstrip("\n").split("\n")]
    heads = len(table.head)
    return lines[:heads], lines[heads:]


@dataclass(frozen=True)
class _Words:
    """A cell that breaks where strategies and sentences may be broken, as rich draws it."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement  # noqa: PLC0415 - as above

        return Measurement(min(len(self.text), _LEAST), len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text  # noqa: PLC0415 - as above

        lines = _Pieces(options.max_width).wrap(self.text)
        yield Text("\n".join(lines), justify=options.justify, no_wrap=True, end="")


class _Pieces(textwrap.TextWrapper):
    """Breaks at the ends of pieces, and a piece that is too long anywhere."""

    def __init__(self, width: int) -> None:
        super().__init__(width, break_on_hyphens=False)

    def _split(self, text: str) -> list[str]:
        return _PIECES.findall(text)
