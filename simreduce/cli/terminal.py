"""Reports on a terminal: tables that fit its width, and colour where it is wanted.

Where stdout is no terminal, nothing here changes a report.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from simreduce.cli.options import F
from simreduce.tables import FITTED, Column, Table, without

if TYPE_CHECKING:
    from rich.console import Console

BEST = 15
"""Rows of a ranking on a terminal, unless all are asked for."""

_LEAST = 16
"""Characters that a column of words keeps at least when it is wrapped."""
_GAP = 2
"""Blanks between columns."""


def rows_shown(*, everything: bool) -> int | None:
    """How many rows of a ranking to print; None: all of them, as on anything but a terminal."""
    return None if everything or not sys.stdout.isatty() else BEST


def in_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has nothing against colour (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str) -> str:
    """A report with its head dim and its recommendation bold, on a terminal with colour."""
    if not in_colour(sys.stdout):
        return text
    return "\n".join(_painted(line) for line in text.split("\n"))


def _painted(line: str) -> str:
    if line.startswith("#"):
        return click.style(line, dim=True)
    return click.style(line, bold=True, fg="green") if line.startswith("Recommended:") else line


def complain(fault: str) -> None:
    """Print a fault on stderr."""
    name = click.style("simreduce:", fg="red") if in_colour(sys.stderr) else "simreduce:"
    click.echo(f"{name} {fault}", err=True)


def fit_tables() -> None:
    """Lay tables out for the terminal on stdout, if it is one."""
    if sys.stdout is not None and sys.stdout.isatty():
        FITTED.set(_fitted)


def _all_columns(_: click.Context, __: click.Parameter, wide: bool) -> None:
    if wide:
        FITTED.set(None)


def wide_option(command: F) -> F:
    """`--wide`, for every command with tables that a terminal may be too narrow for."""
    option = click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_all_columns,
        help="Print all columns of tables, however narrow the terminal is.",
    )
    return option(command)


def _fitted(table: Table, indent: int) -> list[str]:
    """The lines of a table that is as wide as the terminal at most.

    Columns of words are wrapped; columns that may be spared are left out, and named below. What
    is too wide even then stays as it is.
    """
    width = shutil.get_terminal_size().columns - 1
    kept, left_out = _kept(table, width - indent)
    if _least_width(kept) > width - indent:  # as it is: figures are not cut
        return _as_it_is(table, indent)
    console = _console(width)
    with console.capture() as capture:
        console.print(_drawing(kept, indent))
    lines = [line.rstrip() for line in capture.get().rstrip("\n").split("\n")]
    if left_out:
        lines.append(" " * indent + f"(without {', '.join(left_out)}: --wide)")
    return lines


def _as_it_is(table: Table, indent: int) -> list[str]:
    before = FITTED.set(None)
    try:
        return table.lines(indent=indent)
    finally:
        FITTED.reset(before)


def _console(width: int) -> Console:
    from rich.console import Console  # noqa: PLC0415 - takes time that only terminals pay

    return Console(
        width=width,
        file=io.StringIO(),
        force_terminal=in_colour(sys.stdout),
        color_system="standard" if in_colour(sys.stdout) else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _drawing(table: Table, indent: int) -> Any:
    from rich.padding import Padding  # noqa: PLC0415 - as above
    from rich.table import Table as Drawing  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    drawing = Drawing(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    units = any(column.unit for column in table.columns)
    for column, cells in zip(table.columns, _cells(table), strict=True):
        drawing.add_column(
            Text(f"{column.name}\n{column.unit}" if units else column.name),
            justify="left" if column.left else "right",
            no_wrap=not column.left,
            overflow="fold",
            min_width=_least(column, cells),
        )
    for row in table.rows:
        drawing.add_row(*map(Text, row))
    return Padding(drawing, (0, 0, 0, indent), expand=False)


def _kept(table: Table, width: int) -> tuple[Table, list[str]]:
    """The table without as many spare columns as it takes to fit, and their names."""
    left_out: list[str] = []
    while _least_width(table) > width and any(column.spare for column in table.columns):
        first = max(table.columns, key=lambda column: column.spare).name
        left_out.append(first)
        table = without(first, table)
    return table, left_out


def _least_width(table: Table) -> int:
    columns = zip(table.columns, _cells(table), strict=True)
    widths = [_least(column, cells) for column, cells in columns]
    return sum(widths) + _GAP * (len(widths) - 1)


def _least(column: Column, cells: Sequence[str]) -> int:
    """Characters a column needs: numbers never wrap, words do so at their least width."""
    whole = max(column.width, len(column.name), len(column.unit), *map(len, cells), 0)
    return min(whole, _LEAST) if column.left else whole


def _cells(table: Table) -> list[tuple[str, ...]]:
    """The cells of each column."""
    return [tuple(row[i] for row in table.rows) for i in range(len(table.columns))]
