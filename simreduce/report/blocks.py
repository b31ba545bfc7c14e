"""Reports as values: blocks that a page and a terminal show. All texts are plain text.

`pages.html` renders them as HTML, `page_text` and `block_lines` as lines of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from simreduce import units
from simreduce.files.tables import Table, comments
from simreduce.report.plots import Axis, Facet, PlotPoint, PlotSeries, bar_facet

if TYPE_CHECKING:
    from simreduce.engine import Calibration
    from simreduce.export.targets import Exported
    from simreduce.report.drawing import Drawing
    from simreduce.topology import Topology

TIME = Axis("time", "seconds", log=False)
"""The axis of times, which begins at 0."""

Written: TypeAlias = Mapping[str, Any]
"""A document, or an object in one, as it was written."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A question, its answer in a few words, and what to add in a sentence."""

    question: str
    answer: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy, such as a command; `about` says what it does."""

    text: str
    about: str


@dataclass(frozen=True, slots=True)
class Rows:
    """A table. One that is `folded` opens on request."""

    caption: str
    table: Table
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing of a `subject`; `words` say what is to be seen."""

    drawing: Drawing
    words: str
    subject: str = "the machine"


@dataclass(frozen=True, slots=True)
class Chart:
    """A facet of a plot, or a timeline, that the page's script draws.

    `words` say what is to be seen, and `table` has the figures.
    """

    words: str
    drawn: Facet | TimelineBlock
    table: Table


def bars(
    words: str, table: Table, rows: Iterable[Written], name: str, figure: str,
    marks: Sequence[int], floors: str = "", axis: Axis = TIME,
) -> Chart:  # fmt: skip
    """A bar for a figure of each row, by the keys of its name, its figure and its lower bound.
    Times are in microseconds.
    """
    scale = _si_of(axis)
    shown = [(row[name], row[figure] * scale) for row in rows]
    least = [row[floors] * scale for row in rows] if floors else ()
    return Chart(words, bar_facet(axis, shown, marks, least), table)


def _si_of(axis: Axis) -> float:
    """What a document's figure is worth on an axis: documents have times in microseconds."""
    return 1e-6 if axis.quantity == "seconds" else 1.0


def colour_words(marks: Sequence[int]) -> str:
    """The legend of bars with these marks."""
    known = {1: "Blue: recommended", 2: "orange: what runs today"}
    words = "; ".join(words for mark, words in known.items() if mark in marks)
    return f"{words[0].upper()}{words[1:]}." if words else "Nothing is recommended."


def stack(words: str, parts: Sequence[tuple[str, float]], table: Table, axis: Axis = TIME) -> Chart:
    """Parts of a time side by side, in microseconds or as shares."""
    scale = _si_of(axis)
    shown = [(name, value * scale) for name, value in parts if value > 0]
    ends = [0.0, *accumulate(value for _, value in shown)]
    series = [
        PlotSeries(name, [PlotPoint(end, 0, begin)], "", "bar", interval="across")
        for (name, _), (begin, end) in zip(shown, pairwise(ends), strict=True)
    ]
    return Chart(words, Facet(axis, Axis(names=("",)), series, height=40.0), table)


def folded_when_long(caption: str, table: Table, most: int) -> Rows:
    """A table that opens on request if it has more than `most` rows."""
    return Rows(caption, table, folded=len(table.rows) > most)


Block: TypeAlias = Paragraph | Code | Rows | Picture | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page. `key` is its anchor: letters and hyphens."""

    key: str
    title: str
    blocks: tuple[Block, ...]


def table_section(key: str, title: str, caption: str, table: Table) -> tuple[Section, ...]:
    """A section of one table; none if the table has no rows."""
    return (Section(key, title, (Rows(caption, table),)),) if table.rows else ()


@dataclass(frozen=True, slots=True)
class Page:
    """A report: the `answer` in one sentence, how `sure` it is, facts, and sections with why."""

    title: str
    about: str
    answer: str
    sure: str
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]


def page_text(
    page: Page, more: Iterable[str] = (), head: Sequence[str] = (), most: int = 60
) -> str:
    """A page for a terminal: its answer first, then facts, `more` lines, and of each table at
    `most` so many rows. Above it is the `head`, by default its title and what it is about.
    """
    lines = [*(head or comments([page.title, page.about, ""])), page.answer]
    lines += filter(None, [page.sure])
    for fact in page.facts:
        words = f"{fact.answer}. {fact.more}" if fact.more else fact.answer
        lines.append(f"  {fact.question}  {words}")
    lines += [f"  {line}" for line in more]
    for section in page.sections:
        lines += section_lines(section, most)
    return "\n".join(lines)


def section_lines(section: Section, most: int) -> Iterator[str]:
    """The lines of a section, an empty one before each block. A chart is its table, below the first
    sentence of its words. Pictures are for pages.
    """
    for block in section.blocks:
        match block:
            case Paragraph(text):
                yield from ("", text)
            case Code(text, about):
                yield from ("", f"# {about}", text)
            case Rows(caption, table):
                yield from ("", caption, *first_rows(table, most))
            case Chart(words):
                yield from ("", words.partition(". ")[0], *first_rows(block.table, most))


def first_rows(
    table: Table,
    most: int | None,
    how: str = "--json has all",
    indent: int = 2,
    *,
    comment: bool = False,
) -> list[str]:
    """The lines of a table, or of its first `most` rows and how to see the others; as a `comment`
    but for its rows.
    """
    lines = replace(table, rows=table.rows[:most]).lines(indent=indent, comment=comment)
    if most is None or len(table.rows) <= most:
        return lines
    others = units.plural(len(table.rows) - most, "other")
    return [*lines, f"{'# ' if comment else ' ' * indent}... and {others} ({how})"]


@dataclass(frozen=True, slots=True)
class Bar:
    """From `begin` to `end` in microseconds, on row `row` of group `group`."""

    group: str
    row: str
    begin: float
    end: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class TimelineBlock:
    """Bars, row by row and in order of time in a row; `whole` is all of the time in microseconds.

    Bars shorter than `resolution` that stand side by side were joined.
    """

    bars: tuple[Bar, ...]
    whole: float
    resolution: float = 0.0


@dataclass(frozen=True, slots=True)
class Attachments:
    """Material for a page besides its document; None or empty where it is not at hand.

    It is the machine, its calibration, and other documents on the same question.

    `explanation` is of `simreduce explain --json`, for the recommended strategy; `sizes` of `bench
    --json`. `commands` are what to type to repeat it, with a word on each; `files` the content of
    the user's files by name; `versions` those of the programs that computed it. `factor` says that
    80 % of predictions of NCCL are within it, for a document that does not say so. `look` is a
    closer look at a step or an update: the load of each link, the critical path, what would help.
    `exports` are the settings of other systems for the recommended strategy. `missing` says why
    there is no explanation.
    """

    machine: Topology | None = None
    calibration: Calibration | None = None
    explanation: Mapping[str, Any] | None = None
    timeline: TimelineBlock | None = None
    sizes: Mapping[str, Any] | None = None
    commands: tuple[tuple[str, tuple[str, ...]], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    factor: float | None = None
    look: Mapping[str, Any] | None = None
    exports: tuple[Exported, ...] = ()
    missing: str = ""
