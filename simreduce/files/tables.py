"""The text table, the HTML table and the header that every report uses, from plain rows."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

from simreduce.errors import escape
from simreduce.version import __version__

_WORD = len("calibration")
"""Width of the first word of a header line."""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, the unit below it, the alignment of its cells, and the least width.

    Where a page is too narrow, columns with the largest `spare` are left out first, columns with 0
    never. In a table of written rows, `show` makes the text of a value and `cell` the text of a
    whole row; without them, the unit decides. `missing` is the text for a value that a row lacks.
    `keep` says when a column stays: `always`, `known` if it has a value, `varied` if it has
    several. `on` is `text` or `html` for a column that appears there only.
    """

    name: str
    unit: str = ""
    left: bool = False
    width: int = 0
    spare: int = 0
    show: Callable[[Any], str] | None = None
    cell: Callable[[Mapping[str, Any]], str] | None = None
    missing: str = "-"
    keep: Literal["always", "known", "varied"] = "always"
    on: Literal["", "text", "html"] = ""

    def text(self, key: str, row: Mapping[str, Any]) -> str:
        """The cell of a row for the value of `key`."""
        if self.cell:
            return self.cell(row)
        value = row.get(key)
        if value is None:
            return self.missing
        return (self.show or _SHOWN.get(self.unit, _plain))(value)

    def stays(self, key: str, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a table of these rows has this column."""
        if self.keep == "varied":
            return len({self.cell(row) if self.cell else row.get(key) for row in rows}) > 1
        return self.keep == "always" or any(row.get(key) not in (None, "", []) for row in rows)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "(ms)": lambda microseconds: f"{microseconds / 1e3:.3f}",
    "(us)": "{:.2f}".format,
    "(GB/s)": "{:.2f}".format,
    "(GB)": lambda nbytes: f"{nbytes / 1e9:.2f}",
}
"""The text of a written value by the unit below its heading."""


def percent(digits: int) -> Callable[[float], str]:
    """Shows shares as percentages with so many decimals."""
    return f"{{:.{digits}%}}".format


def signed_percent(digits: int) -> Callable[[float], str]:
    """Shows errors as percentages with so many decimals and a sign."""
    return f"{{:+.{digits}%}}".format


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text. Line breaks and other characters that nobody sees are escaped."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        clean = partial(escape, keep="")
        heads = (replace(each, name=clean(each.name)) for each in self.columns)
        object.__setattr__(self, "columns", tuple(heads))
        object.__setattr__(self, "rows", tuple(tuple(map(clean, row)) for row in self.rows))

    @property
    def head(self) -> list[tuple[str, ...]]:
        """Headings, and units if any column has one."""
        names = tuple(column.name for column in self.columns)
        units = tuple(column.unit for column in self.columns)
        return [each for each in (names, units) if any(each)]

    def lines(self, *, indent: int = 0, gap: int = 2, comment: bool = False) -> list[str]:
        """The table as text, `gap` blanks between columns, laid out for the page if there is one.

        `comment` puts a # in front of the headings, as nccl-tests does, so that a program which
        skips comments reads rows only.
        """
        page, table = PAGE.get(), self._with_room() if comment else self
        lay_out = page.lay_out if page else Table.unlimited
        parts = lay_out(table, indent=indent, gap=gap, mark="#" if comment else "")
        return [line for part in parts for line in part]

    def only(self, kept: Sequence[int]) -> Table:
        """The table with the columns at these places."""
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return Table(tuple(self.columns[i] for i in kept), rows)

    def _with_room(self) -> Table:
        """Return the table with a blank before its first headings, as room for a mark."""
        if not self.columns:
            return self
        first, *others = self.columns
        first = replace(first, name=f" {first.name}", unit=first.unit and f" {first.unit}")
        return replace(self, columns=(first, *others))

    def unlimited(self, *, indent: int = 0, gap: int = 2, mark: str = "") -> list[list[str]]:
        """Return the lines of the headings and the lines of the rows, however wide.

        `mark` replaces the first character of headings.
        """
        rows = [*self.head, *self.rows]
        widths = [
            max(column.width, *(len(row[i]) for row in rows))
            for i, column in enumerate(self.columns)
        ]
        sides = ["<" if column.left else ">" for column in self.columns]
        margin, between = " " * indent, " " * gap
        lines = []
        for row in rows:
            cells = zip(row, sides, widths, strict=True)
            padded = between.join(f"{cell:{side}{width}}" for cell, side, width in cells)
            lines.append((margin + padded).rstrip())
        heads = len(self.head)
        return [[f"{mark}{line[len(mark) :]}" for line in lines[:heads]], lines[heads:]]

    def html(self, caption: Iterable[str] = ()) -> str:
        """The table as HTML for a notebook, with the lines of `caption` above it."""
        aligned = ["left" if column.left else "right" for column in self.columns]

        def row(tag: str, cells: Sequence[str]) -> str:
            inside = "".join(
                f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
                for cell, side in zip(cells, aligned, strict=True)
            )
            return f"<tr>{inside}</tr>"

        above = "<br>".join(html.escape(escape(line)) for line in caption)
        return "".join(
            (
                "<table>",
                f'<caption style="text-align: left">{above}</caption>' if above else "",
                "<thead>",
                *(row("th", cells) for cells in self.head),
                "</thead><tbody>",
                *(row("td", cells) for cells in self.rows),
                "</tbody></table>",
            )
        )


def table_of(columns: Iterable[tuple[str, Column]], rows: Iterable[Mapping[str, Any]]) -> Table:
    """The table of written rows: a column for each key, in the order of `columns`."""
    written = list(rows)
    kept = [(key, column) for key, column in columns if column.stays(key, written)]
    cells = tuple(tuple(column.text(key, row) for key, column in kept) for row in written)
    return Table(tuple(column for _, column in kept), cells)


class PageLayout(Protocol):
    """Where reports are read, if lines may have so many characters only."""

    @property
    def width(self) -> int:
        """Characters of a line."""
        ...

    def lay_out(self, table: Table, *, indent: int, gap: int, mark: str) -> list[list[str]]:
        """The lines of headings and of rows in turn, as `Table.unlimited` has them."""
        ...


PAGE: ContextVar[PageLayout | None] = ContextVar("PAGE", default=None)
"""The page; none: lines may be as long as they are."""


def page_width(default: int) -> int:
    """Characters that a line may have, at most `default`."""
    page = PAGE.get()
    return min(default, page.width) if page else default


def columns(names: str, *, left: str = "", units: str = "", spare: str = "") -> tuple[Column, ...]:
    """Return columns from names with a | between them.

    `left` names the left-aligned columns, `spare` the columns that a narrow page does without, the
    first one first.
    """
    words, lefts, spares = names.split("|"), left.split("|"), [*filter(None, spare.split("|"))]
    below = units.split("|") if units else [""] * len(words)
    rank = {word: len(spares) - i for i, word in enumerate(spares)}
    return tuple(
        Column(word, unit, bool(word) and word in lefts, spare=rank.get(word, 0))
        for word, unit in zip(words, below, strict=True)
    )


def texts(names: str, rows: Iterable[tuple[str, ...]]) -> Table:
    """Return a table of left-aligned texts, from headings with a | between them."""
    return Table(columns(names, left=names), tuple(rows))


def comments(lines: Iterable[str]) -> list[str]:
    """The lines behind a #, which programs that read a table skip."""
    return [f"# {line}".rstrip() for line in lines]


def label(name: str, title: str) -> str:
    """`name (title)`, or the name alone where there is no title."""
    return f"{name} ({title})" if title else name


def header(title: str, facts: Iterable[tuple[str, str]]) -> list[str]:
    """The head of a report: its title, then a line a fact, such as `# topology     dgx1v`.

    A fact without a word continues the one above; a fact without text is left out.
    """
    return comments((title, *(f"{word:{_WORD}}  {text}" for word, text in facts if text), ""))


def setup_lines(
    title: str, machine: tuple[str, str], runtime: str, calibration: str, *more: str
) -> list[str]:
    """Return the header lines of a report on one simulation, not yet behind a #.

    `machine` is a name and a digest. Empty lines of `more` are left out.
    """
    name, digest = machine
    return [
        f"simreduce {__version__}: {title}",
        f"topology {name} ({digest}), runtime {runtime}, calibration {calibration}",
        *filter(None, more),
    ]
