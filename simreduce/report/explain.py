"""`simreduce explain`: what bounds the time, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from simreduce import tables, units
from simreduce.algorithms import COLLECTIVES
from simreduce.engine import CAUSES, LANE, PathPart, Recording, Use
from simreduce.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    number_in,
    one_of,
)
from simreduce.report.heads import CALIBRATION_KEY, DISTURBANCE_KEY, TOPOLOGY_KEYS
from simreduce.tables import Column, Table
from simreduce.tune.whatif import Saving

_ROWS = 4
"""Links and lanes that the text names; the document names all."""


def _group(
    parts: Iterable[PathPart], key: Callable[[PathPart], tuple[str, ...]]
) -> list[tuple[tuple[str, ...], float]]:
    """Keys and their seconds, most first."""
    found: dict[tuple[str, ...], list[float]] = {}
    for part in parts:
        found.setdefault(key(part), []).append(part.seconds)
    rows = [(names, math.fsum(seconds)) for names, seconds in found.items()]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _spent(part: PathPart) -> tuple[str, str]:
    """What a part was spent on, by whoever held the lane if somebody waited for one, and on which
    class of link.
    """
    cause, where = (part.meanwhile, part.at) if part.cause == LANE else (part.cause, part.where)
    return cause, where.rsplit(" ", 1)[-1]


def explanation_text(
    recording: Recording, savings: Sequence[Saving], about: Mapping[str, Any], title: str = ""
) -> str:
    """Where the time goes, what is busy, how far from the floors, and what would help."""
    result = recording.result
    chained = f", {about['repeat']} of them chained in one step" if about["repeat"] > 1 else ""
    what = (
        f"{about['strategy']}, {about['collective'].replace('_', '-')} of {about['workload']} "
        f"({units.format_size(about['size_bytes'])}), "
        f"{units.plural(about['ranks'], 'rank')}{chained}"
    )
    lines = [
        *tables.comments(
            tables.setup_lines(
                what,
                (result.topology, result.topology_digest),
                result.runtime,
                tables.label(result.calibration, title),
                f"disturbed: {result.disturbance}" if result.disturbance else "",
            )
        ),
        "",
        *_times(recording),
        "",
        *_path(recording),
        "",
        *_busy("busiest links and memories", result.links),
        *_busy("busiest lanes", result.lanes),
        *_help(savings, result.seconds),
    ]
    return "\n".join(lines).rstrip()


def _us(seconds: float) -> str:
    return f"{round(seconds * 1e6, 2) + 0.0:.2f}"


def _times(recording: Recording) -> Iterator[str]:
    """The time, and the floors that it cannot be below."""
    result, floors = recording.result, recording.result.floors
    rows = [("time", _us(result.seconds), "")]
    for name, seconds in (
        ("floor: longest chain of ops, each alone", floors.critical_path),
        ("floor: most loaded link or memory at full rate", floors.resource),
        ("floor: most loaded lane", floors.lane),
        ("floor: the machine's narrowest cut between ranks", floors.cut),
    ):
        if seconds > 0:
            rows.append((name, _us(seconds), _share(seconds, result.seconds)))
    columns = (Column("", left=True), Column("(us)"), Column("of the time"))
    yield from Table(columns, tuple(rows)).lines(indent=2)


def _path(recording: Recording) -> Iterator[str]:
    steps, whole = recording.critical_path(), recording.result.seconds
    parts = [part for step in steps for part in step.parts]
    yield f"critical path: {units.plural(len(steps), 'op')}, the end of each lets the next begin"
    rows: list[tuple[str, ...]] = []
    for cause in CAUSES:
        mine = [part for part in parts if part.cause == cause]
        if not mine:
            continue
        places = _group(mine, lambda part: (part.where,))
        name, most = places[0][0][0], places[0][1]
        where = (
            f"{name} {_share(most, whole)}, and {len(places) - 1} more" if len(places) > 1 else name
        )
        seconds = math.fsum(part.seconds for part in mine)
        rows.append((cause, where, _us(seconds), _share(seconds, whole)))
    yield from _four("cause|where", rows)
    if any(part.cause == LANE for part in parts):
        yield ""
        yield "the same, with what the holder of the lane did for the waits"
        found = [(*names, _us(s), _share(s, whole)) for names, s in _group(parts, _spent)]
        yield from _four("spent on|class", found)


def _four(names: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table of two columns of names, a time and its share."""
    columns = tables.columns(f"{names}|(us)|of the time", left=names)
    return Table(columns, tuple(rows)).lines(indent=2)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _busy(title: str, uses: Sequence[Use]) -> list[str]:
    busy = [use for use in uses if use.share > 0]
    if not busy:
        return []
    rows = tuple((use.name, f"{use.share:.1%}") for use in busy[:_ROWS])
    more = [f"  and {len(busy) - _ROWS} more"] if len(busy) > _ROWS else []
    return [title, *Table((Column("", left=True), Column("")), rows).lines(indent=2), *more, ""]


def _help(savings: Sequence[Saving], seconds: float) -> list[str]:
    if not savings:
        return []
    rows: list[tuple[str, ...]] = []
    for s in savings:
        percent = f"{s.saved / seconds:.2%}" if seconds else "-"
        c = s.change
        rows.append(
            (
                _NAMES[c.sort].format(c.resource),
                c.figure,
                c.amount,
                _us(s.seconds),
                _us(s.saved),
                percent,
            )
        )
    columns = tables.columns(
        "what|figure|change|time (us)|saves (us)|saves",
        left="what|figure|change",
        spare="time (us)|saves (us)",
    )
    return [
        "the same plan, simulated again with one change",
        *Table(columns, tuple(rows)).lines(indent=2),
    ]


_NAMES = {
    "link": "{} links",
    "nic": "{} network links",
    "memory": "{}",
    "dispatch": "dispatch of {}",
    "cpu": "{} of CPU devices",
    "lane": "{} lanes",
    "together": "{} together",
}


_CAUSE = Record(
    "cause",
    "What the critical path spends time on.",
    Key("cause", one_of(*CAUSES), "What it is."),
    Key("where", TEXT, 'The link, memory, lane or kind of op; "" where it has none.'),
    Key(
        "meanwhile",
        one_of(*CAUSES, ""),
        'For a lane wait: what the holder of the lane spent that time on; "" else.',
    ),
    Key("at", TEXT, 'Its link, memory or kind of op; "" else.'),
    Key("time_us", MICROSECONDS, "All of these stretches."),
    Key("share", RATIO, "Its part of the whole time."),
)
EXPLAIN = Document(
    "explain",
    "`simreduce explain --json`: what bounds the time of a plan, and what would help.",
    Key("question", TEXT, "The scenario or the machine that was asked about."),
    Key("strategy", TEXT, "The strategy."),
    Key("collective", one_of(*COLLECTIVES), "What is done."),
    Key("workload", TEXT, "The name of what is reduced."),
    Key("size_bytes", BYTES, "All gradients, or the tensor."),
    Key("ranks", COUNT, "GPUs that take part."),
    Key("repeat", COUNT, "How many of it are chained in one step."),
    DISTURBANCE_KEY,
    *TOPOLOGY_KEYS,
    Key("runtime", TEXT, "The system that runs it."),
    CALIBRATION_KEY,
    Key("time_us", MICROSECONDS, "The whole plan."),
    Key("floor_us", MICROSECONDS, "The least time that any schedule takes: the highest floor."),
    Key(
        "floors",
        Record(
            "floors",
            "Lower bounds of the time of any schedule.",
            Key("critical_path_us", MICROSECONDS, "By the ops that wait for each other."),
            Key("resource_us", MICROSECONDS, "By the busiest link or memory."),
            Key("lane_us", MICROSECONDS, "By the busiest lane."),
            Key("cut_us", MICROSECONDS, "By the narrowest cut of the machine."),
        ),
        "Each lower bound.",
    ),
    Key(
        "critical_path",
        Record(
            "critical_path",
            "The chain of ops that the end waited for.",
            Key("ops", COUNT, "How many."),
            Key("causes", list_of(_CAUSE), "What they spend time on, most first."),
        ),
        "What the time consists of.",
    ),
    Key(
        "links",
        list_of(
            Record(
                "link",
                "A link or a memory.",
                Key("name", TEXT, "Its name."),
                Key("share", RATIO, "The part of the time in which it is busy."),
                Key(
                    "bytes",
                    number_in("B"),
                    "What it carries; not whole where routes are split.",
                ),
            )
        ),
        "Links and memories, busiest first.",
    ),
    Key(
        "lanes",
        list_of(
            Record(
                "lane",
                "A lane: a queue of the runtime or of the hardware.",
                Key("name", TEXT, "Its name."),
                Key("share", RATIO, "The part of the time in which it is busy."),
            )
        ),
        "Lanes, busiest first.",
    ),
    Key(
        "changes",
        list_of(
            Record(
                "change",
                "The same plan, simulated again with one thing changed.",
                Key("sort", one_of(*_NAMES), "What kind of resource changed."),
                Key("resource", TEXT, "The class of links, kind of op, kind of lane, ..."),
                Key("figure", TEXT, "Which of its figures."),
                Key("change", TEXT, "By how much, such as `+10%`."),
                Key("time_us", MICROSECONDS, "The whole plan with it."),
                Key("saving_us", MICROSECONDS, "How much less that is; negative: more."),
                Key("saving_share", RATIO, "That as a part of the time."),
            )
        ),
        "What would help, most first.",
    ),
    Key("complete", FLAG, "False if the command was stopped and changes are missing."),
)


def explanation_document(
    recording: Recording,
    savings: Sequence[Saving],
    about: Mapping[str, Any],
    *,
    complete: bool = True,
) -> dict[str, Any]:
    """The document of `--json`: `EXPLAIN`. `about` has the keys from `question` to
    `disturbance`.
    """
    result = recording.result
    steps, whole = recording.critical_path(), result.seconds
    parts = [part for step in steps for part in step.parts]
    return {
        **EXPLAIN.head(),
        **about,
        "topology": result.topology,
        "topology_digest": result.topology_digest,
        "runtime": result.runtime,
        "calibration": result.calibration,
        "time_us": whole * 1e6,
        "floor_us": result.floors.seconds * 1e6,
        "floors": {
            "critical_path_us": result.floors.critical_path * 1e6,
            "resource_us": result.floors.resource * 1e6,
            "lane_us": result.floors.lane * 1e6,
            "cut_us": result.floors.cut * 1e6,
        },
        "critical_path": {
            "ops": len(steps),
            "causes": [
                {
                    "cause": cause,
                    "where": where,
                    "meanwhile": meanwhile,
                    "at": at,
                    "time_us": seconds * 1e6,
                    "share": seconds / whole,
                }
                for (cause, where, meanwhile, at), seconds in _group(
                    parts, lambda part: (part.cause, part.where, part.meanwhile, part.at)
                )
            ],
        },
        "links": [{"name": u.name, "share": u.share, "bytes": u.nbytes} for u in result.links],
        "lanes": [{"name": u.name, "share": u.share} for u in result.lanes],
        "changes": change_keys(savings, whole),
        "complete": complete,
    }


def change_keys(savings: Sequence[Saving], whole: float) -> list[dict[str, Any]]:
    """What each change saves of `whole` seconds."""
    return [
        {
            "sort": s.change.sort,
            "resource": s.change.resource,
            "figure": s.change.figure,
            "change": s.change.amount,
            "time_us": s.seconds * 1e6,
            "saving_us": s.saved * 1e6,
            "saving_share": s.saved / whole if whole else 0.0,
        }
        for s in savings
    ]
