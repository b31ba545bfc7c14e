"""`simreduce explain`: what bounds the time, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from simreduce import units
from simreduce.engine import CAUSES, LANE as LANE_WAIT, PathOp, PathPart, Recording, Result, Use
from simreduce.files import tables
from simreduce.files.formats.documents import (
    ABSENT,
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    ITSELF,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    keys_of,
    list_of,
    one_of,
)
from simreduce.files.tables import Column, Table
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.report.blocks import Written
from simreduce.report.headings import (
    CALIBRATION_KEY,
    DISTURBANCE_KEY,
    EQUAL_PATHS_KEY,
    LINK,
    MOVED_KEY,
    NCCL_KEY,
    NOMINAL_KEY,
    TOPOLOGY_KEYS,
)
from simreduce.study.advice import moved_lines

if TYPE_CHECKING:
    from simreduce.study.tune.few_rings import FewRings
    from simreduce.study.tune.whatif import Saving


class Explained(NamedTuple):
    """A recording of a plan, what changes would save of it, and `about` it the keys of the document
    from `question` to `disturbance`; not `complete` if changes are missing. `moved` are the seconds
    where starts are moved (`Simulator.find_moved`), if that tells. `few_rings` says what a
    limit of rings costs, where there is one.
    """

    recording: Recording
    savings: Sequence[Saving]
    about: Written
    complete: bool = True
    moved: float | None = None
    few_rings: FewRings | None = None

    @property
    def result(self) -> Result:
        """The prediction."""
        return self.recording.result

    @property
    def seconds(self) -> float:
        """All of the time."""
        return self.recording.result.seconds

    @property
    def path(self) -> Sequence[PathOp]:
        """The critical path."""
        return self.recording.critical_path()

    @property
    def causes(self) -> list[tuple[tuple[str, ...], float]]:
        """Causes of the critical path and their seconds, longest first."""
        parts = [part for step in self.path for part in step.parts]
        return _group(parts, lambda part: (part.cause, part.where, part.meanwhile, part.at))


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
    """The cause of a part and its class of link.

    The cause of a wait for a lane is what the lane's holder did.
    """
    cause, where = (
        (part.meanwhile, part.at) if part.cause == LANE_WAIT else (part.cause, part.where)
    )
    return cause, where.rsplit(" ", 1)[-1]


def explanation_text(found: Explained, title: str = "") -> str:
    """Where the time goes, what is busy, how far from the floors, and what would help; `title` is
    that of the calibration.
    """
    recording, result, about = found.recording, found.result, found.about
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
                about["equal_paths"] and f"equal paths: {about['equal_paths']}",
                about.get("nominal", ""),
                about["nccl_settings"] and f"nccl: {about['nccl_settings']}",
                f"disturbed: {result.disturbance}" if result.disturbance else "",
            )
        ),
        "",
        *_times(recording),
        *(f"  {line}" for line in moved_lines(found.moved)),
        "",
        *_path(recording),
        "",
        *_busy("busiest links and memories", result.links),
        *_busy("busiest lanes", result.lanes),
        *_help(found),
        *_few_rings(found.few_rings),
    ]
    return "\n".join(lines).rstrip()


def _us(microseconds: float) -> str:
    return f"{round(microseconds, 2) + 0.0:.2f}"


def _times(recording: Recording) -> Iterator[str]:
    """The time, and the bounds that it cannot be below."""
    result, floors = recording.result, recording.result.floors
    rows = [("time", _us(result.seconds * 1e6), "")]
    for name, seconds in (
        ("this plan: longest chain of ops, each alone", floors.critical_path),
        ("this plan: most loaded link or memory at full rate", floors.resource),
        ("this plan: most loaded lane", floors.lane),
        ("any algorithm: links and latencies", floors.hardware),
    ):
        if seconds > 0:
            rows.append((name, _us(seconds * 1e6), _share(seconds, result.seconds)))
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
        rows.append((cause, where, _us(seconds * 1e6), _share(seconds, whole)))
    yield from _four("cause|where", rows)
    if any(part.cause == LANE_WAIT for part in parts):
        yield ""
        yield "the same, with what the holder of the lane did for the waits"
        found = [(*names, _us(s * 1e6), _share(s, whole)) for names, s in _group(parts, _spent)]
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


def _help(found: Explained) -> list[str]:
    if not found.savings:
        return []
    rows = (CHANGE.write(saving, found) for saving in found.savings)
    return [
        "the same plan, simulated again with one change",
        *CHANGE.table(rows).lines(indent=2),
    ]


def _few_rings(found: FewRings | None) -> Iterator[str]:
    if found is None:
        return
    rows = tuple(
        (str(at.gpus), _us(at.seconds * 1e6), f"{at.busbw / 1e9:.1f}") for at in found.counts
    )
    columns = (Column("GPUs"), Column("time (us)"), Column("busbw (GB/s)"))
    yield ""
    yield f"RCCL takes {found.rings} rings on {found.gpus} GPUs, with few channels, which carry"
    yield f"less than the links; the same call of {found.nbytes} bytes on other numbers of GPUs"
    yield from Table(columns, rows).lines(indent=2)
    yield (
        f"with NCCL_MIN_NCHANNELS={found.channels}: {_us(found.lifted.seconds * 1e6)} us,"
        f" {found.lifted.busbw / 1e9:.1f} GB/s"
    )


_NAMES = {
    "link": "{} links",
    "nic": "{} network links",
    "memory": "{}",
    "dispatch": "dispatch of {}",
    "cpu": "{} of CPU devices",
    "lane": "{} lanes",
    "routing": "{}",
    "together": "{} together",
}


_SORTS = {
    "link": "{} links",
    "nic": "{} network links",
    "memory": "{}",
    "dispatch": "a {}",
    "cpu": "{} of CPU devices",
    "lane": "{}",
    "routing": "{}",
    "together": "{}",
    "compute": "{}",
}
_CHANGES = {
    ("lanes", "one more on each"): "one more lane on each of the {}",
    ("bandwidth", "+10%"): "10% more bandwidth of {}",
    ("latency", "-10%"): "10% less latency of {}",
    ("cost", "-10%"): "10% less to start {}",
    ("speed", "+10%"): "10% faster {}",
    ("queue", "none"): "no queue of {}",
}


def change_words(change: Written) -> str:
    """`one more lane on each of the ib_ndr network links`."""
    name = _SORTS.get(change["sort"], "{}").format(change["resource"])
    words = _CHANGES.get((change["figure"], change["change"]))
    return words.format(name) if words else f"{name}: {change['figure']} {change['change']}"


def _resource_cell(row: Written) -> str:
    return _NAMES[row["sort"]].format(row["resource"])


def _percent_cell(row: Written) -> str:
    return f"{round(row['saving_share'], 4) + 0.0:.2%}"


def _saving_share(saving: Saving, whole: Explained) -> float:
    return saving.saved / whole.seconds if whole.seconds else 0.0


def _cause_share(cause: tuple[tuple[str, ...], float], whole: Explained) -> float:
    return cause[1] / whole.seconds


LANE = Record(
    "lane",
    "A lane: a queue of the runtime or of the hardware.",
    Key("name", TEXT, "Its name."),
    Key("share", RATIO, "The part of the time in which it is busy."),
)
CHANGE = Record(
    "change",
    "The same plan, simulated again with one thing changed.",
    Key(
        "sort", one_of(*_NAMES), "What kind of resource changed.", "change.sort",
        column=Column("what", left=True, on="text", cell=_resource_cell),
    ),
    Key("resource", TEXT, "The class of links, kind of op, kind of lane, ...", "change.resource"),
    Key(
        "figure", TEXT, "Which of its figures.", "change.figure",
        column=Column("figure", left=True, on="text"),
    ),
    Key(
        "change", TEXT, "By how much, such as `+10%`.", "change.amount",
        column=(
            Column("change", left=True, on="text"),
            Column("change", left=True, on="html", cell=change_words),
        ),
    ),
    Key(
        "time_us", MICROSECONDS, "The whole plan with it.", "seconds",
        column=(
            Column("time (us)", spare=2, show=_us, on="text"), Column("time", "(us)", on="html")
        ),
    ),
    Key(
        "saving_us", MICROSECONDS, "How much less that is; negative: more.", "saved",
        column=(
            Column("saves (us)", spare=1, show=_us, on="text"),
            Column("saves", "(us)", show=_us, on="html"),
        ),
    ),
    Key(
        "saving_share", RATIO, "That as a part of the time.", get_in=_saving_share,
        column=(
            Column("saves", on="text", cell=_percent_cell),
            Column("of the time", on="html", cell=_percent_cell),
        ),
    ),
    Key(
        "saving_low_us", MICROSECONDS, "The lower end of its 95 % interval.", written=False,
        optional=True, column=Column("saves at least", "(us)", show=_us, keep="known", on="html"),
    ),
    Key(
        "saving_high_us", MICROSECONDS, "The upper end of that interval.", written=False,
        optional=True, column=Column("at most", "(us)", show=_us, keep="known", on="html"),
    ),
)  # fmt: skip
_CAUSE = Record(
    "cause",
    "What the critical path spends time on.",
    Key("cause", one_of(*CAUSES), "What it is.", "0.0"),
    Key("where", TEXT, 'The link, memory, lane or kind of op; "" where it has none.', "0.1"),
    Key(
        "meanwhile",
        one_of(*CAUSES, ""),
        'For a lane wait: what the holder of the lane spent that time on; "" else.',
        "0.2",
    ),
    Key("at", TEXT, 'Its link, memory or kind of op; "" else.', "0.3"),
    Key("time_us", MICROSECONDS, "All of these stretches.", "1"),
    Key("share", RATIO, "Its part of the whole time.", get_in=_cause_share),
)
_ON_GPUS = Record(
    "on_gpus",
    "The same call on some of the GPUs of a node.",
    Key("gpus", COUNT, "How many."),
    Key("time_us", MICROSECONDS, "How long it takes.", "seconds"),
    Key("busbw_gb_per_s", GB_PER_SECOND, "Its bus bandwidth, as nccl-tests counts it.", "busbw"),
)
EXPLAIN = Document(
    "explain",
    "`simreduce explain --json`: what bounds the time of a plan, and what would help.",
    *(
        replace(key, get=f"about.{key.name}")
        for key in (
            Key("question", TEXT, "The scenario or the machine that was asked about."),
            Key("strategy", TEXT, "The strategy."),
            Key("collective", one_of(*COLLECTIVES), "What is done."),
            Key("workload", TEXT, "The name of what is reduced."),
            Key("size_bytes", BYTES, "All gradients, or the tensor."),
            Key("ranks", COUNT, "GPUs that take part."),
            Key("repeat", COUNT, "How many of it are chained in one step."),
            EQUAL_PATHS_KEY,
            NCCL_KEY,
            DISTURBANCE_KEY,
        )
    ),
    replace(NOMINAL_KEY, get=lambda found: found.about.get("nominal") or ABSENT),
    *keys_of("result", *TOPOLOGY_KEYS),
    Key("runtime", TEXT, "The system that runs it.", "result.runtime"),
    replace(CALIBRATION_KEY, get="result.calibration"),
    Key("time_us", MICROSECONDS, "The whole plan.", "result.seconds"),
    MOVED_KEY,
    Key(
        "floor_us",
        MICROSECONDS,
        "No algorithm takes less here, by links alone.",
        "result.floors.hardware",
    ),
    Key(
        "floors",
        Record(
            "floors",
            "Lower bounds of what this plan is predicted to take, with the costs of its runtime.",
            Key(
                "critical_path_us",
                MICROSECONDS,
                "By the ops that wait for each other.",
                "critical_path",
            ),
            Key("resource_us", MICROSECONDS, "By the busiest link or memory.", "resource"),
            Key("lane_us", MICROSECONDS, "By the busiest lane.", "lane"),
            Key("cut_us", MICROSECONDS, "By bytes over the narrowest cut of the machine.", "cut"),
            Key(
                "hardware_us",
                MICROSECONDS,
                "By cuts, ports and latencies of links, for any algorithm.",
                "hardware",
            ),
        ),
        "Each lower bound.",
        "result.floors",
    ),
    Key(
        "critical_path",
        Record(
            "critical_path",
            "The chain of ops that the end waited for.",
            Key("ops", COUNT, "How many.", lambda found: len(found.path)),
            Key("causes", list_of(_CAUSE), "What they spend time on, most first."),
        ),
        "What the time consists of.",
        ITSELF,
    ),
    Key("links", list_of(LINK), "Links and memories, busiest first.", "result.links"),
    Key("lanes", list_of(LANE), "Lanes, busiest first.", "result.lanes"),
    Key("changes", list_of(CHANGE), "What would help, most first.", "savings"),
    Key(
        "few_rings",
        Record(
            "few_rings",
            "What it costs that RCCL takes few rings on so many GPUs of a node.",
            Key("rings", COUNT, "How many it takes."),
            Key("size_bytes", BYTES, "A size that all numbers of GPUs cut equally.", "nbytes"),
            Key("gpu_counts", list_of(_ON_GPUS), "The call by number of GPUs.", "counts"),
            Key(
                "min_nchannels",
                COUNT,
                "NCCL_MIN_NCHANNELS that lifts the limit.",
                "channels",
            ),
            Key("lifted", _ON_GPUS, "The call with it."),
        ),
        "Where RCCL takes few rings, what that costs.",
        lambda found: found.few_rings or ABSENT,
        optional=True,
    ),
    Key("complete", FLAG, "False if the command was stopped and changes are missing."),
)


def explanation_document(
    recording: Recording,
    savings: Sequence[Saving],
    about: Written,
    *,
    complete: bool = True,
    moved: float | None = None,
) -> dict[str, Any]:
    """The document of `--json`: `EXPLAIN`. `about` has the keys from `question` to
    `disturbance`.
    """
    return EXPLAIN.write(Explained(recording, savings, about, complete, moved))
