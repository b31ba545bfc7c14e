"""What NCCL's own library says of a machine beside our predictions, as text and as a document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import simreduce as sr
from simreduce import units
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    number_in,
    or_null,
)
from simreduce.files.tables import Column, comments
from simreduce.planners.nccl import NcclChoice
from simreduce.planners.nccl.constants import version_text
from simreduce.report.headings import TOPOLOGY_KEYS
from simreduce_validate.nccl_library.asking import COLLECTIVES
from simreduce_validate.nccl_library.comparing import (
    KINDS,
    ComparedAnswer,
    ComparedCall,
    ComparedFigure,
    settings_of,
)

_FIRST = 12
"""Differences that are shown without --details."""
_US = number_in("us", lambda microseconds: round(microseconds, 4))
"""The answers' unit is microseconds already."""


def _of_choice(figure: Callable[[NcclChoice], Any]) -> Callable[[ComparedCall], Any]:
    """A figure of our choice; None where there is none."""

    def get(found: ComparedCall) -> Any:
        return figure(found.choice) if isinstance(found.choice, NcclChoice) else None

    return get


def _estimate_us(choice: NcclChoice) -> float | None:
    return None if math.isnan(choice.seconds) else choice.seconds * 1e6


_KIND = Record(
    "kind",
    "A kind of figures.",
    Key("kind", TEXT, "Its name.", column=Column("kind", left=True)),
    Key("values", COUNT, "Figures that were compared.", column=Column("values")),
    Key("equal", COUNT, "Those that are equal.", column=Column("equal")),
    Key("about", TEXT, "What they are.", column=Column("what", left=True, spare=1)),
)
_DIFFERENCE = Record(
    "difference",
    "A figure that differs.",
    Key("kind", TEXT, "Its kind.", column=Column("what differs", left=True)),
    Key("where", TEXT, "Which one it is.", column=Column("where", left=True)),
    Key(
        "nccl", TEXT, "What the library says.", lambda found: _texts(found)[0],
        column=Column("NCCL", left=True),
    ),
    Key(
        "simreduce", TEXT, "What we say.", lambda found: _texts(found)[1],
        column=Column("simreduce", left=True),
    ),
)  # fmt: skip
_GRAPH = Record(
    "graph",
    "A result of NCCL's search.",
    Key("pattern", TEXT, "What it searched for.", "where", column=Column("graph", left=True)),
    Key(
        "nccl", or_null(TEXT), "Channels, speeds and paths by the library; null for none.",
        lambda found: _head(found.library), column=Column("NCCL", left=True),
    ),
    Key(
        "simreduce", or_null(TEXT), "The same by us.", lambda found: _head(found.ours),
        column=Column("simreduce", left=True),
    ),
)  # fmt: skip
_CALL = Record(
    "call",
    "A call.",
    Key(
        "collective", TEXT, "The collective.", "call.collective",
        column=Column("collective", left=True),
    ),
    Key("size_bytes", BYTES, "The tensor.", "call.nbytes", column=Column("size", "(B)")),
    Key(
        "nccl", or_null(TEXT), "The library's choice; null where the version does not say it.",
        lambda each: f"{each.call.algorithm}+{each.call.protocol}" if each.call.algorithm else None,
        column=Column("NCCL", left=True),
    ),
    Key(
        "nccl_blocks", or_null(COUNT), "Blocks of the kernel that the library launches.",
        "call.blocks", column=Column("blocks"),
    ),
    Key(
        "nccl_estimate_us", or_null(_US), "The library's estimate; null before 2.22.",
        "call.estimate_us", column=Column("NCCL", "(us)", show="{:.1f}".format, keep="known"),
    ),
    Key(
        "simreduce", or_null(TEXT), "Our choice; null where the variables leave none.",
        _of_choice(lambda choice: f"{choice.algorithm}+{choice.protocol}"),
        column=Column("simreduce", left=True),
    ),
    Key(
        "simreduce_channels", or_null(COUNT), "Our channels.",
        _of_choice(lambda choice: choice.channels),
        column=Column("channels"),
    ),
    Key(
        "simreduce_estimate_us", or_null(_US), "Ours of it; null for none.",
        _of_choice(_estimate_us),
        column=Column("simreduce", "(us)", show="{:.1f}".format),
    ),
    Key(
        "nccl_costs_us", map_of(_US), "The library's estimate of each choice.",
        "call.costs_us",
    ),
    Key("simreduce_costs_us", map_of(_US), "The same by us.", "costs_us"),
)  # fmt: skip
_COST = Record(
    "cost",
    "An estimate of a choice.",
    Key("collective", TEXT, "The collective.", column=Column("collective", left=True)),
    Key("size_bytes", BYTES, "The tensor.", column=Column("size", "(B)")),
    Key("choice", TEXT, "Algorithm and protocol.", column=Column("choice", left=True)),
    Key("nccl", _US, "By the library.", column=Column("NCCL", "(us)", show="{:.1f}".format)),
    Key("simreduce", _US, "By us.", column=Column("simreduce", "(us)", show="{:.1f}".format)),
)


def _kinds(report: ComparedAnswer) -> list[dict[str, Any]]:
    found = []
    for kind, about in KINDS.items():
        values = [each.equal for each in report.figures if each.kind == kind]
        if values:
            row = {"kind": kind, "values": len(values), "equal": sum(values), "about": about}
            found.append(row)
    return found


LIBRARY = Document(
    "validate-nccl",
    "`simreduce validate --backend nccl --json`: what NCCL's own library says, beside us.",
    *(
        Key(key.name, key.kind, key.about, f"machine.{name}")
        for key, name in zip(TOPOLOGY_KEYS, ("name", "digest"), strict=True)
    ),
    Key("nccl_version", TEXT, "The version of NCCL that was asked.", "answer.version"),
    Key("nccl_settings", map_of(TEXT), "Its variables.", "answer.settings"),
    Key("asked", TEXT, "The date.", "answer.asked"),
    Key("kinds", list_of(_KIND), "How many figures are equal.", _kinds),
    Key(
        "differences", list_of(_DIFFERENCE), "What differs, in the order in which one follows from"
        " another.",
        lambda report: [each for each in report.figures if not each.equal],
    ),
    Key(
        "graphs", list_of(_GRAPH), "The results of the search.",
        lambda report: [each for each in report.figures if each.kind == "graphs"],
    ),
    Key("calls", list_of(_CALL), "Every call."),
    command="validate",
)  # fmt: skip


def _head(head: Any) -> str | None:
    if head is None:
        return None
    channels, inside, between, types, crosses, _ = head
    speeds = f"{inside:g} GB/s" if inside == between else f"{inside:g}, {between:g} GB/s"
    return f"{channels} x {speeds} {types}{' crossing' if crosses else ''}"


def _texts(found: ComparedFigure) -> tuple[str, str]:
    """Both values of a figure as text; of lists of rows the first row that differs."""
    if found.kind == "graphs":
        return _head(found.library) or "none", _head(found.ours) or "none"
    library, ours = found.library, found.ours
    if found.kind in ("orders", "rings", "trees"):
        both = range(min(len(library), len(ours)))
        channel = next((i for i in both if library[i] != ours[i]), None)
        if channel is None:
            return units.plural(len(library), "channel"), units.plural(len(ours), "channel")
        rows = library[channel], ours[channel]
        return f"channel {channel}: {_value(rows[0])}", _value(rows[1])
    return _value(library), _value(ours)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_value, value))
    return "none" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)


def library_lines(report: ComparedAnswer, *, details: bool) -> Iterator[str]:
    """Counts of what is equal, what differs first, graphs and choices; with `details` everything
    that differs, and all costs.
    """
    document, answer = LIBRARY.write(report), report.answer
    variables = " ".join(f"{name}={value}" for name, value in answer.settings.items())
    settings = settings_of(answer)
    said = [f"NCCL {answer.version} itself, on fake GPUs, beside what simreduce nccl says"]
    if settings.release != answer.release:
        known = version_text(settings.release)
        said = [f"{said[0]} of {known}, the newest version that it knows"]
    machine = f"topology {report.machine.name} ({report.machine.digest})"
    yield from comments(
        [f"simreduce {sr.__version__}: {said[0]}", ", ".join(filter(None, (machine, variables)))]
    )
    asked = {call.collective for call in answer.calls}
    if lost := [name for name in COLLECTIVES if name not in asked]:
        yield from comments([f"not asked, as the variables leave no algorithm: {', '.join(lost)}"])
    yield ""
    yield from _KIND.table(document["kinds"]).lines(comment=True)
    differences = document["differences"]
    if differences:
        shown = differences if details else differences[:_FIRST]
        yield ""
        yield from _DIFFERENCE.table(shown).lines(comment=True)
        if left := len(differences) - len(shown):
            yield f"# {units.plural(left, 'more difference')}; --details has all"
    yield ""
    yield from _GRAPH.table(document["graphs"]).lines(comment=True)
    yield ""
    yield from _CALL.table(document["calls"]).lines(comment=True)
    if details:
        yield ""
        yield from _COST.table(_cost_rows(document["calls"])).lines(comment=True)


def _cost_rows(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "collective": call["collective"],
            "size_bytes": call["size_bytes"],
            "choice": pair,
            "nccl": call["nccl_costs_us"].get(pair),
            "simreduce": call["simreduce_costs_us"].get(pair),
        }
        for call in calls
        for pair in dict.fromkeys((*call["nccl_costs_us"], *call["simreduce_costs_us"]))
    ]
