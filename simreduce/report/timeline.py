"""Timelines for a page, from the trace events that `trace` makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simreduce import units
from simreduce.files import tables
from simreduce.files.tables import Table
from simreduce.report.blocks import Bar, Chart, TimelineBlock

MOST_BARS = 30_000
"""Bars of a page; short ones that stand side by side become one until there are no more."""

_PATH = "critical path"
_WORDS = ("forward", "backward", "wait", "read", "compute", "send", "update")
"""First words of slices that say what kind they are."""
_BY_WORD = ("compute", "workers", "updates", "stages")
"""Processes whose slices have such words; those of others may be names of gradients."""
_FEW = 24
"""Rows that are shown at once, whatever their groups."""


def timeline_of_events(
    events: Iterable[Mapping[str, Any]],
    path: Iterable[int] = (),
    most: int = MOST_BARS,
    chain: Iterable[tuple[float, float, str]] = (),
) -> TimelineBlock:
    """The timeline of a trace's slices. Those whose op is on `path` are marked. A `chain` of (from,
    to, words), in microseconds, is a critical path that has no ops.
    """
    marked = frozenset(path)
    processes: dict[int, str] = {}
    threads: dict[int, tuple[int, str]] = {}
    opened: dict[int, Mapping[str, Any]] = {}
    rows: dict[int, list[Bar]] = {}
    for event in events:
        phase, tid = event["ph"], event["tid"]
        if phase == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif phase == "M" and event["name"] == "thread_name":
            threads[tid] = event["pid"], event["args"]["name"]
        elif phase == "B":
            opened[tid] = event
        elif phase == "E" and tid in opened:
            begun = opened.pop(tid)
            process, row = threads[tid]
            kind = _PATH if begun["args"].get("op") in marked else _kind(begun)
            bar = Bar(processes[process], row, begun["ts"], event["ts"], kind, _text(begun))
            rows.setdefault(tid, []).append(bar)
    ordered = [rows[tid] for tid in sorted(rows)]
    own = [_on_path(row) for row in ordered if not row[0].group.startswith(("links", "lanes"))]
    ordered = [*filter(None, [_chained(chain), *own]), *ordered]
    if len(ordered) <= _FEW:
        ordered = [[replace(bar, group="all") for bar in row] for row in ordered]
    whole = max((bar.end for row in ordered for bar in row), default=0.0)
    resolution, found = 0.0, ordered
    joined = {row[0].group for row in ordered}
    if sum(len(row) for row in ordered if row[0].group == _PATH) <= most // 2:
        joined.discard(_PATH)
    while sum(map(len, found)) > most and resolution <= whole > 0.0:
        resolution = 2 * resolution or whole / 20_000
        found = [_join(row, resolution) if row[0].group in joined else row for row in ordered]
    return TimelineBlock(tuple(bar for row in found for bar in row), whole, resolution)


def _on_path(row: Sequence[Bar]) -> list[Bar]:
    """The bars of a row that are on the critical path, as a group of their own."""
    return [replace(bar, group=_PATH) for bar in row if bar.kind == _PATH]


def _chained(chain: Iterable[tuple[float, float, str]]) -> list[Bar]:
    """One row for all of a chain."""
    return [Bar(_PATH, _PATH, begin, end, _PATH, words) for begin, end, words in chain]


def _kind(event: Mapping[str, Any]) -> str:
    """`copy`, `add`, `forward`."""
    word = str(event["name"]).partition(" ")[0]
    return word if word in _WORDS and event["cat"] in _BY_WORD else str(event["cat"])


def _text(event: Mapping[str, Any]) -> str:
    nbytes = event["args"].get("bytes")
    return f"{event['name']}, {units.format_size(nbytes)}" if nbytes else str(event["name"])


def _join(row: Sequence[Bar], resolution: float) -> list[Bar]:
    """The row with short bars of one kind joined where less than `resolution` is between them."""
    found: list[tuple[Bar, int]] = []
    for bar in row:
        last, count = found[-1] if found else (bar, 0)
        near = bar.begin - last.end < resolution and bar.end - bar.begin < resolution
        if count and near and bar.kind == last.kind and bar.end - last.begin < 8 * resolution:
            text = f"{count + 1} short ones"
            found[-1] = (
                Bar(bar.group, bar.row, last.begin, bar.end, bar.kind, text),
                count + 1,
            )
        else:
            found.append((bar, 1))
    return [bar for bar, _ in found]


def draw_timeline(timeline: TimelineBlock, words: str) -> Chart:
    """The chart of a timeline."""
    texts: dict[str, int] = {}
    kinds = list(dict.fromkeys(bar.kind for bar in timeline.bars))
    groups: dict[str, dict[str, dict[str, list[Bar]]]] = {}
    for bar in timeline.bars:
        rows = groups.setdefault(bar.group, {})
        rows.setdefault(bar.row, {}).setdefault(bar.kind, []).append(bar)
        texts.setdefault(bar.text, len(texts))
    data = {
        "whole": timeline.whole,
        "kinds": kinds,
        "texts": list(texts),
        "groups": [
            {
                "name": group,
                "rows": list(rows),
                "items": [
                    {
                        "row": row,
                        "kind": kind,
                        "begin": [round(bar.begin, 4) for bar in bars],
                        "end": [round(bar.end, 4) for bar in bars],
                        "text": [texts[bar.text] for bar in bars],
                    }
                    for row, by_kind in enumerate(rows.values())
                    for kind, bars in by_kind.items()
                ],
            }
            for group, rows in groups.items()
        ],
    }
    if timeline.resolution:
        took = units.format_duration(timeline.resolution * 1e-6)
        words += f" Bars shorter than {took} that stand side by side are drawn as one."
    return Chart("timeline", words, data, _table(timeline))


def _table(timeline: TimelineBlock) -> Table:
    """A row for every row of the timeline: how many bars, and how busy."""
    found: dict[tuple[str, str], list[Bar]] = {}
    for bar in timeline.bars:
        found.setdefault((bar.group, bar.row), []).append(bar)
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
