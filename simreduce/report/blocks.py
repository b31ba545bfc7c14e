"""Reports as values: blocks that a page and a terminal show. All texts are plain text.

`pages.html` renders them as HTML, `page_text` and `block_lines` as lines of text.

Timelines: rows of characters for a terminal, bars for charts and pages.

A character stands for an equal span of time. Pages draw the threads that `trace` makes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from simreduce import units
from simreduce.computing import group_by
from simreduce.files import tables
from simreduce.files.tables import Table, comments, page_width
from simreduce.report.plots import Facet, Plot, PlotPoint, PlotSeries, bar_facet
from simreduce.report.plots.axes import Axis

if TYPE_CHECKING:
    from simreduce.engine import Calibration
    from simreduce.export import Exported
    from simreduce.report.drawing import Drawing
    from simreduce.report.trace import Thread
    from simreduce.topology import Topology
    from simreduce.training import StepResult


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


BEST, TODAY = 1, 2
"""Marks of bars, which add up: what to run, and what runs today."""


def differences(
    words: str, table: Table, rows: Sequence[Written], name: str, figure: str,
    marks: Sequence[int], most: int,
) -> Chart:  # fmt: skip
    """Bars of how much each row's time differs from that of today, or else of the fastest.

    It has the first `most` rows and those with marks. The longest bars end at twice that time.
    """
    shown = [
        (row, mark)
        for place, (row, mark) in enumerate(zip(rows, marks, strict=True))
        if place < most or mark
    ]
    today = [row[figure] for row, mark in shown if mark & TODAY]
    base = min(today or [row[figure] for row, _ in shown], default=0.0)
    beside = f"{'today' if today else 'the fastest'} ({units.format_duration(base * 1e-6)})"
    apart = [row[figure] - base for row, _ in shown]
    slowest = max([0.02 * base, *apart])
    ends = min([0.0, *apart]) * 1e-6, min(slowest, base) * 1e-6
    labels = [
        f"{each / (base or inf):+.1%}, {'-+'[each > 0]}{units.format_duration(abs(each) * 1e-6)}"
        if each
        else units.format_duration(base * 1e-6)
        for each in apart
    ]
    facet = bar_facet(
        Axis(f"beside {beside}", "seconds", log=False, ends=ends),
        [(row[name], each * 1e-6) for (row, _), each in zip(shown, apart, strict=True)],
        [mark for _, mark in shown],
        labels=labels,
    )
    known = {BEST: "blue: recommended", BEST + TODAY: "blue: recommended, and what runs today",
             TODAY: "orange: what runs today"}  # fmt: skip
    sides = f"to the left: faster than {beside}; to the right: slower"
    legend = [text for mark, text in known.items() if any(mark == each for _, each in shown)]
    legend.append(sides if today else f"to the right: slower than {beside}")
    # A sentence of its own: where there is no drawing, the first one stands above the table.
    words += f". In the chart: {'; '.join(legend)}{', cut at twice that time' * (slowest > base)}."
    words += f" {len(shown)} of {len(rows)} rows; the table has all." * (len(shown) < len(rows))
    return Chart(words, facet, table)


def _si_of(axis: Axis) -> float:
    """What a document's figure is worth on an axis: documents have times in microseconds."""
    return 1e-6 if axis.quantity == "seconds" else 1.0


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
    `most` so many rows. The `head` is by default its title and what it is about.
    """
    answer = [
        *filter(None, (page.answer, page.sure)),
        *(f"  {f.question}  {f.answer}{f.more and '. '}{f.more}" for f in page.facts),
        *(f"  {line}" for line in more),
    ]
    lines = answer_first(head or comments([page.title, page.about]), answer)
    for section in page.sections:
        lines += section_lines(section, most)
    return "\n".join(lines)


def answer_first(head: Sequence[str], answer: Iterable[str]) -> list[str]:
    """The title of a `head`, the answer, and what else the head says of the question."""
    return [head[0], *answer, "", *head[1:]]


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
    """From `begin` to `end` in microseconds, on row `row` of group `group`.

    It stands for `ops`, and waits for the op `after`.
    """

    group: str
    row: str
    begin: float
    end: float
    kind: str
    text: str
    ops: tuple[str | int, ...] = ()
    after: str | int | None = None


@dataclass(frozen=True, slots=True)
class TimelineBlock:
    """Bars, row by row and in order of time in a row; `whole` is all of the time in microseconds.

    Bars shorter than `resolution` that stand side by side were joined. So many rows are left out,
    as they are `alike` to others.
    """

    bars: tuple[Bar, ...]
    whole: float
    resolution: float = 0.0
    alike: int = 0


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
    there is no explanation, and `hurried` what is left out for time, if no budget limits it.
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
    hurried: str = ""


WIDTH = 64
"""Characters of a timeline, less on a page without room for them."""
_FRAME = "   ||"
"""What stands in a row of a timeline besides its name and its characters."""
IDLE = "."


TimelineRow: TypeAlias = tuple[str, Iterable[tuple[float, float, str]]]
"""A name, and spans: from and to in seconds, and a character."""


def timeline_rows(
    rows: Sequence[TimelineRow], begin: float, end: float, until: str, most: int = WIDTH
) -> list[str]:
    """The begin and the end, then each row with its name, in `most` characters, or as many as the
    page has room for. A character is that of the spans that take most of its time; `=` stands for
    one of its spans at a time, `-` for less, and how many at once, + from 10; `|` has no length.
    """
    left = max((len(name) for name, _ in rows), default=0)
    width = page_width(left + len(_FRAME) + most) - left - len(_FRAME)
    since = units.format_duration(begin) if begin else "0"
    lines = [f"  {'':{left}}  {since}{until:>{width - len(since)}}"]
    for name, spans in rows:
        text = "".join(map(_character, _shares(spans, begin, end, width)))
        lines.append(f"  {name:{left}} |{text}|")
    return lines


def _shares(
    spans: Iterable[tuple[float, float, str]], begin: float, end: float, width: int
) -> list[dict[str, float]]:
    """How many spans of each kind are under way, on average, in each of `width` equal parts of the
    time from `begin` to `end`.
    """
    found: list[dict[str, float]] = [defaultdict(float) for _ in range(width)]
    scale = width / (end - begin) if end > begin else 0.0
    for since, until, kind in spans:
        first, last = (
            min(max((time - begin) * scale, 0.0), float(width)) for time in (since, until)
        )
        for cell in range(min(int(first), width - 1), min(int(last) + 1, width)):
            found[cell][kind] += max(min(last, cell + 1.0) - max(first, float(cell)), 0.0)
    return found


def _character(cell: Mapping[str, float]) -> str:
    busy = sum(cell.values())
    if "|" in cell:
        return "|"
    if "=" in cell and busy > 0.0:
        return "-" if busy < 0.5 else "=" if busy < 1.5 else f"{busy:.0f}" if busy < 9.5 else "+"
    return max(cell, key=cell.__getitem__) if busy >= 0.5 else IDLE


_MOST = 8
"""Devices that have a row each; of more, three are shown."""

LEGEND = (
    "  F forward, B backward, . neither; below: - less than half of the time, = one at a time, "
    "2 to 9 at once, + more"
)


def timeline_plot(timeline: TimelineBlock, title: str, subtitle: str) -> Plot:
    """The bars of each row, in a colour for each kind."""
    rows = list(dict.fromkeys(bar.row for bar in timeline.bars))
    series = [
        PlotSeries(
            kind,
            [PlotPoint(b.end * 1e-6, rows.index(b.row), b.begin * 1e-6) for b in bars],
            "",
            "bar",
            interval="across",
        )
        for kind, bars in group_by(timeline.bars, lambda bar: bar.kind).items()
    ]
    facet = Facet(TIME, Axis(names=rows), series, height=22.0 * len(rows) + 10)
    return Plot(title, subtitle, [facet], width=860.0)


def timeline(step: StepResult, most: int = WIDTH) -> list[str]:
    """Rows of what computes (F forward, B backward), and of what moves."""
    tracks = group_by(step.spans, lambda span: span.device)
    names = list(tracks)
    shown = names if len(names) <= _MOST else [*names[:2], names[-1]]
    rows: list[TimelineRow] = [
        (name, [(span.begin, span.end, "FB"[span.backward]) for span in tracks[name]])
        for name in shown
    ]
    rows += [(name, [(b.start, b.finish, "=") for b in some]) for name, some in step.lanes]
    more = [f"  ({units.plural(len(names) - 3, 'GPU')} more)"] if len(names) > len(shown) else []
    return [*timeline_rows(rows, 0.0, step.seconds, f"{step.seconds * 1e3:.3f} ms", most), *more]


MOST_BARS = 30_000
"""Bars of a page; short ones that stand side by side become one until there are no more."""

_PATH = "critical path"
_FEW = 24
"""Rows that are shown at once, whatever their groups."""


def timeline_of_threads(
    threads: Iterable[Thread],
    path: Iterable[int] = (),
    most: int = MOST_BARS,
    chain: Iterable[tuple[float, float, str]] = (),
) -> TimelineBlock:
    """The timeline of a trace's threads. Slices whose op is on `path` are marked. A `chain` of
    (from, to, words), in microseconds, is a critical path that has no ops.
    """
    marked = frozenset(path)
    ordered = [
        [
            Bar(
                process,
                name,
                begin * 1e6,
                end * 1e6,
                _PATH if args.get("op") in marked else kind,
                f"{text}, {units.format_size(args['bytes'])}" if args.get("bytes") else text,
                (args["op"],) if "op" in args else (),
                args.get("after"),
            )
            for begin, end, kind, text, args in slices
        ]
        for process, name, slices in threads
        if slices
    ]
    chained = [Bar(_PATH, _PATH, begin, end, _PATH, words) for begin, end, words in chain]
    chained += [
        replace(bar, group=_PATH, row=_PATH, text=f"{bar.row}: {bar.text}", ops=())
        for row in ordered
        if not row[0].group.startswith(("links", "lanes"))
        for bar in row
        if bar.kind == _PATH
    ]
    chained.sort(key=lambda bar: (bar.begin, bar.end))
    rows = [*_fold_alike(ordered)] if len(ordered) > _FEW else ordered
    alike = len(ordered) - len(rows)
    ordered = [*filter(None, [chained]), *rows]
    whole = max((bar.end for row in ordered for bar in row), default=0.0)
    resolution, found = 0.0, ordered
    whole_path = len(chained) <= most // 2
    while sum(map(len, found)) > most and resolution <= whole > 0.0:
        resolution = 2 * resolution or whole / 20_000
        found = [
            row if whole_path and row is chained else _join(row, resolution) for row in ordered
        ]
    return TimelineBlock(tuple(bar for row in found for bar in row), whole, resolution, alike)


def _fold_alike(rows: Sequence[Sequence[Bar]]) -> Iterator[list[Bar]]:
    """The rows, with one for those of a group whose bars have the same times and kinds."""
    alike = group_by(
        rows,
        lambda row: (row[0].group, *((f"{b.begin:.9g}", f"{b.end:.9g}", b.kind) for b in row)),
    )
    for same in alike.values():
        name = f"{same[0][0].row} and {len(same) - 1} alike" if len(same) > 1 else same[0][0].row
        yield [
            replace(column[0], row=name, ops=tuple(op for bar in column for op in bar.ops))
            for column in zip(*same, strict=True)
        ]


def _join(row: Sequence[Bar], resolution: float) -> list[Bar]:
    """The row with short bars of one kind joined where less than `resolution` is between them."""
    found: list[tuple[Bar, int]] = []
    for bar in row:
        last, count = found[-1] if found else (bar, 0)
        near = bar.begin - last.end < resolution and bar.end - bar.begin < resolution
        if count and near and bar.kind == last.kind and bar.end - last.begin < 8 * resolution:
            ops, text = (*last.ops, *bar.ops), f"{count + 1} short ones"
            found[-1] = replace(last, end=bar.end, text=text, ops=ops), count + 1
        else:
            found.append((bar, 1))
    return [bar for bar, _ in found]


def timeline_chart(timeline: TimelineBlock, words: str) -> Chart:
    """The chart of a timeline."""
    if timeline.resolution:
        took = units.format_duration(timeline.resolution * 1e-6)
        words += f" Bars shorter than {took} that stand side by side are drawn as one."
    left_out = f" Rows with the same times are drawn as one ({timeline.alike:,} are left out)."
    words += left_out * bool(timeline.alike)
    return Chart(words, timeline, _table(timeline))


def timeline_data(timeline: TimelineBlock) -> dict[str, Any]:
    """What a page's script draws of a timeline: its groups with their rows, and each text once.

    Bars have numbers in the order of the items, and say which other they wait `after`, or -1.
    """
    texts = {text: i for i, text in enumerate(dict.fromkeys(bar.text for bar in timeline.bars))}
    groups = {
        group: group_by(bars, lambda bar: bar.row)
        for group, bars in group_by(timeline.bars, lambda bar: bar.group).items()
    }
    items = [
        (group, row, kind, some)
        for group, rows in groups.items()
        for row, mine in enumerate(rows.values())
        for kind, some in group_by(mine, lambda bar: bar.kind).items()
    ]
    ordered = [bar for *_, some in items for bar in some]
    number = {op: i for i in reversed(range(len(ordered))) for op in ordered[i].ops}
    data = [
        {
            "group": group,
            "row": row,
            "kind": kind,
            "begin": [round(bar.begin, 4) for bar in some],
            "end": [round(bar.end, 4) for bar in some],
            "text": [texts[bar.text] for bar in some],
            "after": [-1 if bar.after is None else number.get(bar.after, -1) for bar in some],
        }
        for group, row, kind, some in items
    ]
    return {
        "whole": timeline.whole,
        "kinds": list(dict.fromkeys(bar.kind for bar in timeline.bars)),
        "texts": list(texts),
        "groups": [{"name": group, "rows": list(rows)} for group, rows in groups.items()],
        "items": data,
    }


def _table(timeline: TimelineBlock) -> Table:
    """A row for every row of the timeline: how many bars, and how busy."""
    found = group_by(timeline.bars, lambda bar: (bar.group, bar.row))
    columns = tables.columns(
        "part|row|bars|first begins|last ends|busy", units="|||(us)|(us)|", left="part|row"
    )
    rows = (
        (
            group,
            row,
            str(len(bars)),
            f"{bars[0].begin:.2f}",
            f"{bars[-1].end:.2f}",
            f"{sum(bar.end - bar.begin for bar in bars) / (timeline.whole or 1.0):.0%}",
        )
        for (group, row), bars in found.items()
    )
    return Table(columns, tuple(rows))
