"""`simreduce explain`: what bounds the time, as a document and as a report for terminals and pages.

Also what limits a plan or a step, and what would help, for other pages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from simreduce import units
from simreduce.computing import grouped
from simreduce.engine import CAUSES, CHANNELS, PathOp, Recording
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
    list_of,
    one_of,
)
from simreduce.files.tables import Column, Table, percent, table_of
from simreduce.planners.algorithms import COLLECTIVES
from simreduce.report.blocks import (
    Attachments,
    Block,
    Fact,
    Page,
    Paragraph,
    Rows,
    Section,
    Written,
    bars,
    folded_when_long,
    page_text,
    stack,
    table_section,
)
from simreduce.report.headings import (
    CALIBRATION_KEY,
    DISTURBANCE_KEY,
    EQUAL_PATHS_KEY,
    LINK,
    MOVED_KEY,
    NCCL_KEY,
    NOMINAL_KEY,
    TOPOLOGY_KEYS,
    opening,
    took_of,
)
from simreduce.report.plots.axes import Axis
from simreduce.report.sections import us
from simreduce.study.tune.whatif import FewRings, Saving


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
        found = grouped(
            ((part.cause, part.where, part.meanwhile, part.at), part.seconds)
            for step in self.path
            for part in step.parts
        )
        rows = [(names, math.fsum(seconds)) for names, seconds in found.items()]
        return sorted(rows, key=lambda row: (-row[1], row[0]))


_SHOWN = 12
"""Rows of a table that the text shows."""


def explanation_text(found: Explained, title: str = "") -> str:
    """The report, with the busiest links; `title` is that of the calibration."""
    document = EXPLAIN.write(found)
    page = explain_report(document, Attachments(explanation=document))
    head = tables.setup_lines(
        page.title,
        (document["topology"], document["topology_digest"]),
        document["runtime"],
        tables.label(document["calibration"], title),
        document["equal_paths"] and f"equal paths: {document['equal_paths']}",
        document.get("nominal", ""),
        document["nccl_settings"] and f"nccl: {document['nccl_settings']}",
        document["disturbance"] and f"disturbed: {document['disturbance']}",
        page.about,
    )
    busy = [each for each in document["links"] if each["share"] > 0]
    links = table_section("links", "Links", "The busiest links and memories", LINK.table(busy))
    page = replace(page, sections=(*page.sections, *links))
    return page_text(page, head=tables.comments([*head, ""]), most=_SHOWN)


def explain_report(document: Written, beside: Attachments) -> Page:
    """The report on an explained plan, which is the `explanation` that stands `beside`."""
    whole = document["time_us"]
    words, time = (spent(document) or [("nothing", 0.0)])[0]
    chained = f", {document['repeat']} of them chained in one step" * (document["repeat"] > 1)
    useful = [c for c in document["changes"] if _saves(c, _LEAST)]
    helps = "nothing by itself", "None of the simulated changes makes the plan faster."
    if useful:
        helps = f"{change_words(useful[0])}", f"Saves {useful[0]['saving_share']:.1%} of the time."
    floor = document["floor_us"] / whole if whole else 1.0
    share = time / whole if whole else 0.0
    lanes = [each for each in document["lanes"] if each["share"] > 0]
    return Page(
        title=f"{document['strategy']} on {document['topology']}: what limits it?",
        about=f"{opening(work_words(document))}, {units.plural(document['ranks'], 'rank')} of "
        f"{document['topology']}{chained}.",
        answer=f"{document['strategy']} takes {took_of(document)}: {share:.0%} of the critical "
        f"path is {words}.",
        sure="",
        facts=(
            Fact(
                "How long does it take?",
                took_of(document),
                f"By its links, no algorithm takes less than {floor:.0%} of that here."
                if floor < 0.995
                else "No algorithm takes less here.",
            ),
            Fact("What limits it?", *limit_fact(beside)),
            Fact("What would help most?", *helps),
            Fact("What would a second NIC buy?", *nic_fact(beside)),
        ),
        sections=(
            *path_section(beside),
            *help_section(beside),
            *table_section("lanes", "Lanes", "The busiest lanes", LANE.table(lanes)),
            *_few_rings(document.get("few_rings")),
        ),
    )


def work_words(document: Written) -> str:
    """`all-reduce of resnet50 (102.2 MB)`."""
    collective = document["collective"].replace("_", "-")
    size = units.format_size(document["size_bytes"])
    return f"{collective} of {document['workload']} ({size})"


def _few_rings(found: Written | None) -> Iterator[Section]:
    """What it costs that RCCL takes few rings, where it does."""
    if found is None:
        return
    size, lifted = units.format_size(found["size_bytes"]), found["lifted"]
    words = (
        f"RCCL takes {found['rings']} rings here, with few channels, which carry less than the"
        f" links: the same call of {size} on other numbers of GPUs"
    )
    with_it = (
        f"With NCCL_MIN_NCHANNELS={found['min_nchannels']}: {us(lifted['time_us'])},"
        f" {lifted['busbw_gb_per_s']:.1f} GB/s."
    )
    table = _ON_GPUS.table(found["gpu_counts"])
    yield Section("rings", "Few rings", (Rows(words, table), Paragraph(with_it)))


def _us(microseconds: float) -> str:
    return f"{round(microseconds, 2) + 0.0:.2f}"


_SORTS = {
    "link": "{} links",
    "nic": "{} network links",
    "memory": "{}",
    "dispatch": "a {}",
    "cpu": "{} of CPU devices",
    "lane": "{}",
    "routing": "{}",
    "together": "{}",
    "setting": "{}",
}
"""Names of resources by the sort of a change."""
_CHANGES = {
    ("lanes", "one more on each"): "one more lane on each of the {}",
    ("bandwidth", "+10%"): "10% more bandwidth of {}",
    ("latency", "-10%"): "10% less latency of {}",
    ("cost", "-10%"): "10% less to start {}",
    ("speed", "+10%"): "10% faster {}",
    ("queue", "none"): "no queue of {}",
    ("symmetric memory", ""): "{} with buffers in symmetric memory",
    ("copy engines", ""): "{} with buffers in symmetric memory and NCCL_CTA_POLICY 2",
}


def change_words(change: Written) -> str:
    """`one more lane on each of the ib_ndr network links`."""
    name = _SORTS.get(change["sort"], "{}").format(change["resource"])
    words = _CHANGES.get((change["figure"], change["change"]))
    return words.format(name) if words else f"{name}: {change['figure']} {change['change']}"


LANE = Record(
    "lane",
    "A lane: a queue of the runtime or of the hardware.",
    Key("name", TEXT, "Its name.", column=Column("lane", left=True)),
    Key("share", RATIO, "The part of the time in which it is busy.",
        column=Column("busy", show=percent(1))),
)  # fmt: skip
CHANGE = Record(
    "change",
    "The same plan, simulated again with one thing changed.",
    Key("sort", one_of(*_SORTS), "What kind of resource changed.", "change.sort"),
    Key("resource", TEXT, "The class of links, kind of op, kind of lane, ...", "change.resource"),
    Key("figure", TEXT, "Which of its figures.", "change.figure"),
    Key(
        "change", TEXT, "By how much, such as `+10%`.", "change.amount",
        column=Column("change", left=True, cell=change_words),
    ),
    Key(
        "time_us", MICROSECONDS, "The whole plan with it.", "seconds",
        column=Column("time", "(us)", spare=2),
    ),
    Key(
        "saving_us", MICROSECONDS, "How much less that is; negative: more.", "saved",
        column=Column("saves", "(us)", spare=1, show=_us),
    ),
    Key(
        "saving_share", RATIO, "That as a part of the time.",
        get_in=lambda saving, whole: saving.saved / whole.seconds if whole.seconds else 0.0,
        column=Column("of the time", cell=lambda row: f"{round(row['saving_share'], 4) + 0.0:.2%}"),
    ),
    Key(
        "saving_low_us", MICROSECONDS, "The lower end of its 95 % interval.", written=False,
        optional=True, column=Column("saves at least", "(us)", show=_us, keep="known"),
    ),
    Key(
        "saving_high_us", MICROSECONDS, "The upper end of that interval.", written=False,
        optional=True, column=Column("at most", "(us)", show=_us, keep="known"),
    ),
)  # fmt: skip
_CAUSE = Record(
    "cause",
    "What the critical path spends time on.",
    Key("cause", one_of(*CAUSES), "What it is.", "0.0", column=Column("cause", left=True)),
    Key("where", TEXT, 'The link, memory, lane or kind of op, or `channels`, where the kernel'
        ' itself moves no more; "" where it has none.', "0.1",
        column=Column("where", left=True)),
    Key(
        "meanwhile", one_of(*CAUSES, ""),
        'For a lane wait: what the holder of the lane spent that time on; "" else.', "0.2",
        column=Column("its holder", left=True, keep="known"),
    ),
    Key("at", TEXT, 'Its link, memory or kind of op; "" else.', "0.3",
        column=Column("at", left=True, keep="known")),
    Key("time_us", MICROSECONDS, "All of these stretches.", "1", column=Column("time", "(us)")),
    Key("share", RATIO, "Its part of the whole time.",
        get_in=lambda cause, whole: cause[1] / whole.seconds,
        column=Column("of the time", show=percent(1))),
)  # fmt: skip
_ON_GPUS = Record(
    "on_gpus",
    "The same call on some of the GPUs of a node.",
    Key("gpus", COUNT, "How many.", column=Column("GPUs")),
    Key("time_us", MICROSECONDS, "How long it takes.", "seconds", column=Column("time", "(us)")),
    Key("busbw_gb_per_s", GB_PER_SECOND, "Its bus bandwidth, as nccl-tests counts it.", "busbw",
        column=Column("busbw", "(GB/s)", show="{:.1f}".format)),
)  # fmt: skip
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
    *(replace(key, get=f"recording.result.{key.name}") for key in TOPOLOGY_KEYS),
    Key("runtime", TEXT, "The system that runs it.", "recording.result.runtime"),
    replace(CALIBRATION_KEY, get="recording.result.calibration"),
    Key("time_us", MICROSECONDS, "The whole plan.", "recording.result.seconds"),
    MOVED_KEY,
    Key(
        "floor_us",
        MICROSECONDS,
        "No algorithm takes less here, by links alone.",
        "recording.result.floors.hardware",
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
        "recording.result.floors",
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
    Key("links", list_of(LINK), "Links and memories, busiest first.", "recording.result.links"),
    Key("lanes", list_of(LANE), "Lanes, busiest first.", "recording.result.lanes"),
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


_OPS = {"copy": "copies", "add": "additions", "concat": "concatenations"}
_CAUSES = {
    "bandwidth": "bandwidth of {}",
    "bandwidth share": "sharing {} with other transfers",
    "latency": "latency of {}",
    "dispatch": "starting {}",
    "release": "waiting for the gradients",
    "lane wait": "waiting for {}",
}


def spent(found: Written) -> list[tuple[str, float]]:
    """The causes of the critical path by class of link: words and microseconds, longest first.

    Waits for a lane count as what its holder did then.
    """
    sums: dict[str, float] = {}
    for part in found["critical_path"]["causes"]:
        cause, where = part["cause"], part["where"]
        if part["meanwhile"]:
            cause, where = part["meanwhile"], part["at"]
        words = _CAUSES.get(cause, "{}").format(_class_words(where, cause))
        sums[words] = sums.get(words, 0.0) + part["time_us"]
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def _class_words(where: str, cause: str) -> str:
    name = where.rsplit(" ", 1)[-1]
    if not name:
        return "the wires"
    if where == CHANNELS:
        return "the kernel's own channels"
    if cause in ("dispatch", "release"):
        return _OPS.get(name, name)
    return "memory" if name == "memory" else f"{name} links"


def path_section(beside: Attachments) -> Iterable[Section]:
    """The section on the critical path and the lower bounds of an explained plan."""
    if beside.explanation is not None:
        yield Section("path", "What limits it", path_blocks(beside.explanation))


def _shares(name: str, parts: Iterable[tuple[str, float]], whole: float) -> Table:
    """Microseconds, and their parts of the whole."""
    columns = tables.columns(f"{name}|time|of the time", units="|(us)|", left=name)
    rows = ((words, f"{t:.2f}", f"{t / (whole or inf):.1%}") for words, t in parts)
    return Table(columns, tuple(rows))


def path_blocks(found: Written) -> tuple[Block, ...]:
    """The critical path of an explained plan, its lower bounds, and its causes one by one."""
    parts = spent(found)
    whole = found["time_us"]
    shown = [*parts[:5], *([("other", sum(t for _, t in parts[5:]))] if len(parts) > 5 else [])]
    ops = units.plural(found["critical_path"]["ops"], "operation")
    chart = stack(
        f"The critical path of {found['strategy']}: a chain of {ops}, each of which begins when "
        f"the one before lets it. It takes {took_of(found)}, spent on:",
        shown,
        _shares("spent on", parts, whole),
    )
    floors = [
        ("the longest chain of operations, each alone", found["floors"]["critical_path_us"]),
        ("the most loaded link or memory at its full rate", found["floors"]["resource_us"]),
        ("the most loaded lane", found["floors"]["lane_us"]),
        ("the machine's links and latencies, by any algorithm", found["floors"]["hardware_us"]),
    ]
    table = _shares("lower bound", [each for each in floors if each[1] > 0], whole)
    causes = _CAUSE.table(found["critical_path"]["causes"])
    return (
        chart,
        Rows("No run of this plan takes less than", table),
        Rows("The causes of the critical path, one by one", causes, folded=True),
    )


def help_section(beside: Attachments) -> Iterable[Section]:
    """The section on changes that save time of a step, an update or the explained plan."""
    found = beside.look or beside.explanation
    if found is None or not found["changes"]:
        return
    changes, what = found["changes"], _what(found)
    table = CHANGE.table(changes)
    caption = f"The same {what}, simulated again with one change"
    if "saving_low_us" in changes[0]:
        caption += " and the same random times; bounds with 95% confidence"
    useful = [c for c in changes if _saves(c, 5e-5)][:10]
    if not useful:
        none = f"None of these changes, by itself, makes this {what} faster."
        yield Section("help", "What would help", (Paragraph(none), Rows(caption, table)))
        return
    words = f"{caption}. Bars: the part of the time that it saves; some may save nothing."
    rows = [{**c, "name": change_words(c)} for c in useful]
    marks, saves = [1, *[0] * (len(rows) - 1)], Axis("of the time", "share", log=False)
    chart = bars(words, table, rows, "name", "saving_share", marks, axis=saves)
    yield Section("help", "What would help", (chart,))


def _what(found: Written) -> str:
    return "update" if "spent" in found else "step" if "path" in found else "plan"


def _saves(change: Written, least: float) -> bool:
    """Whether a change saves that part of the time; where it is known, for sure."""
    return bool(change["saving_share"] > least and change.get("saving_low_us", 1.0) > 0.0)


def _nics(changes: Iterable[Written]) -> list[Written]:
    """One more lane on links of a network, also together with others that bind with them."""
    lanes = [c for c in changes if c["figure"] == "lanes"]
    names = {c["resource"] for c in lanes if c["sort"] == "nic"}
    return [c for c in lanes if names & set(c["resource"].split(" + "))]


def nic_fact(beside: Attachments) -> tuple[str, str]:
    """The saving by one more lane (a port) on each link of a network, in words."""
    found = beside.look or beside.explanation
    if found is None:
        return "not known here", beside.missing or "This file has no simulated changes."
    what = _what(found)
    nics = _nics(found["changes"])
    if not nics:
        where = {"plan": "This reduction crosses no link of a network."}
        return "nothing", where.get(what, "There is no network between machines here.")
    best = max(nics, key=lambda c: c["saving_share"])
    links = best["resource"].replace(" + ", " and ")
    with_it = f"Simulated: with one more {links} port beside each, the same {what}"
    if not _saves(best, 5e-4):
        return "nothing", f"{with_it} is not faster."
    return f"{best['saving_share']:.1%} less time", (
        f"{with_it} takes {us(best['time_us'])} instead of {us(found['time_us'])}."
    )


def limit_words(parts: Iterable[tuple[str, float]], what: str, digits: int) -> tuple[str, str]:
    """The largest share of `what`, in a few words and a sentence with those that follow."""
    (first, most), *others = [*parts] or [("nothing", 1.0)]
    then = ", ".join(f"{name} {part:.{digits}%}" for name, part in others[:2] if part >= _LEAST)
    return first, f"{most:.{digits}%} of {what}{f'; then {then}' if then else ''}."


def limit_fact(beside: Attachments) -> tuple[str, str]:
    """The largest cause of the critical path, in a few words and a sentence."""
    found = beside.explanation
    parts = spent(found) if found else []
    if found is None or not parts:
        return "not known here", beside.missing or "This file has no critical path."
    whole = found["time_us"] or inf  # no part of no time
    return limit_words(((words, time / whole) for words, time in parts), "the critical path", 0)


_KINDS = {
    "forward": "forward passes",
    "backward": "backward passes",
    "update": "updating the variables",
    "launch": "launching the step",
    "read": "reads of variables",
    "wait": "waits in a queue",
}


_LANES = {
    "dp+cp": "reductions and gathers of replicas",
    "edp": "reductions and gathers of experts' replicas",
    "ends": "sums of the embedding at both ends",
    "between stages": "sends between stages",
}
"""Lanes of a mesh."""

_LEAST = 5e-4
"""Part of a step that is said."""


def _path_words(part: Written) -> str:
    if part["kind"] == "transfer":
        lane = str(part["lane"])
        return _LANES.get(lane) or (lane if lane.endswith("s") else f"{lane}s")
    if part["kind"] == "turn":
        return f"{part['lane']} that wait for their turn"
    return _KINDS.get(part["kind"], str(part["kind"]))


def limit_of_step(look: Written) -> tuple[str, str]:
    """The largest part of a step's critical path, in a few words and a sentence.

    Both passes count as compute.
    """
    shares: dict[str, float] = {}
    for part in look["path"]:
        name = "compute" if part["kind"] in ("forward", "backward") else _path_words(part)
        shares[name] = shares.get(name, 0.0) + part["share"]
    parts = sorted(shares.items(), key=lambda each: -each[1])
    return limit_words(parts, "the step's critical path", 1)


_SPENT = (
    ("kind", Column("spent on", left=True, cell=_path_words)),
    ("pieces", Column("pieces")),
    ("time_us", Column("time", "(us)")),
    ("share", Column("of the step", show=percent(1))),
)
_MOVED = (
    ("lane", Column("transfer", left=True)),
    ("what", Column("of", left=True)),
    ("size_bytes", Column("size", show=units.format_size)),
    ("begin_us", Column("begins", "(us)")),
    ("time_us", Column("on the path", "(us)")),
)
"""Columns of the parts of a step's critical path, and of the transfers on it."""


def step_path_section(beside: Attachments) -> Iterable[Section]:
    """The critical path of a step, and the transfer that it waits for most."""
    look = beside.look
    if look is None:
        return
    parts = [(_path_words(part), part["time_us"]) for part in look["path"]]
    chart = stack(
        f"The critical path of a step of {look['strategy']}: a chain of passes and transfers, each "
        f"of which begins when the one before lets it. Its {us(sum(t for _, t in parts))} are "
        "spent on:",
        parts,
        table_of(_SPENT, look["path"]),
    )
    yield Section("path", "What limits it", (chart, *_transfers(look), *_alone(look)))


def _transfers(look: Written) -> Iterable[Block]:
    found = look["transfers"]
    if not found:
        yield Paragraph("No transfer is on the critical path: all of them are hidden.")
        return
    every = sum(p["pieces"] for p in look["path"] if p["kind"] in ("transfer", "read"))
    count = units.plural(every, "transfer")
    if every > len(found):
        count = f"the first {len(found)} of {count}"
    caption = f"What the step waits for, longest first: {count}"
    yield folded_when_long(caption, table_of(_MOVED, found), 10)


def _tensors(name: str) -> str:
    """`reads of 4 tensors (a to b)` for the `reads of 4: a to b` of a timeline."""
    return re.sub(r"\b(\d+): (.+)", r"\1 tensors (\2)", name)


def _alone(look: Written) -> Iterable[Block]:
    """The longest of them by itself."""
    alone = look["alone"]
    if alone is None:
        return
    size, name = units.format_size(alone["size_bytes"]), _tensors(str(alone["strategy"]))
    yield Paragraph(
        f"The longest of them: {name}, {size}. With nothing beside it on the links, it takes "
        f"{us(alone['time_us'])}."
    )
    yield from path_blocks({**alone, "strategy": name})
