"""Collectives of MPI beside an incast, measured and predicted, as text and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from simreduce import units
from simreduce.files.formats.documents import (
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
    map_of,
    or_null,
)
from simreduce.files.tables import Column, percent, signed_percent
from simreduce.study.accuracy.congestion import LEAST, SLOWED, CongestionPoint, group_congestion


class ComparedCongestion(NamedTuple):
    """Calls beside predictions, and how many were left out, by system."""

    source: str
    points: Sequence[CongestionPoint]
    left_out: Mapping[str, int]
    complete: bool = True


_FROM = f"from {units.format_size(LEAST)} on"
_SYSTEM = Record(
    "system",
    f"The calls of a system, {_FROM}.",
    Key("system", TEXT, "The system.", column=Column("system", left=True)),
    Key("calls", COUNT, "How many there are.", lambda group: len(group.judged),
        column=Column("calls")),
    Key("most", RATIO, "The largest slowdown that was measured.",
        column=Column("largest", "slowdown", show="{:.2f}".format)),
    Key("median", RATIO, "Half of the errors of slowdowns are below this.",
        column=Column("slowdown", "median", show=percent(1))),
    Key("median_none", RATIO, "The same if none were predicted to be slowed.",
        column=Column("if none", "is slowed", show=percent(1))),
    Key("worst", RATIO, "The largest error of a slowdown.",
        column=Column("slowdown", "worst", show=percent(1))),
    Key("slowed", COUNT, f"Calls that an incast makes {SLOWED:g} times as long or longer.",
        lambda group: len(group.slowed), column=Column("slowed", "calls")),
    Key("median_slowed", or_null(RATIO), "Half of the errors of their slowdowns are below this.",
        column=Column("slowed", "median", show=percent(1))),
    Key("alone", RATIO, "Half of the errors of times alone are below this.",
        column=Column("alone", "median", show=percent(1))),
)  # fmt: skip
_CALL = Record(
    "call",
    "A collective of half of the nodes, alone and beside an incast of the others.",
    Key("system", TEXT, "The system.", "call.system", column=Column("system", left=True)),
    Key("collective", TEXT, "The collective.", "call.collective",
        column=Column("collective", left=True)),
    Key("nodes", COUNT, "Nodes in all.", "call.nodes", column=Column("nodes")),
    Key("size_bytes", BYTES, "Of an all-to-all of each pair, of an all-gather in all.",
        "call.nbytes", column=Column("size", show=units.format_size)),
    Key("measured_us", MICROSECONDS, "The measured time alone.", "call.alone",
        column=Column("alone", "(us)", show="{:.1f}".format)),
    Key("predicted_us", MICROSECONDS, "The predicted time alone.", "alone",
        column=Column("predicted", "(us)", show="{:.1f}".format)),
    Key("measured_slowdown", RATIO, "How many times as long it takes beside the incast.",
        "call.slowdown", column=Column("slowdown", show="{:.2f}".format)),
    Key("slowdown", RATIO, "The predicted slowdown.",
        column=Column("predicted", show="{:.2f}".format)),
    Key("error", RATIO, "By what part that is too high.",
        column=Column("error", show=signed_percent(0))),
)  # fmt: skip
ACCURACY_CONGESTION = Document(
    "accuracy-congestion",
    "`simreduce accuracy congestion --json`: collectives of MPI beside an incast, measured and"
    " predicted.",
    Key("source", TEXT, "Where the times come from."),
    Key("systems", list_of(_SYSTEM), "Errors by system.",
        lambda found: group_congestion(found.points)),
    Key("calls", list_of(_CALL), "All that was predicted.", "points"),
    Key("left_out", map_of(COUNT), "Calls of systems whose network is not known, by system."),
    Key("complete", FLAG, "False if the command was stopped and calls are missing."),
    command="accuracy congestion",
)  # fmt: skip
"""Of a `ComparedCongestion`."""


def congestion_lines(found: ComparedCongestion) -> Iterator[str]:
    """Every call, errors by system, and where the times come from."""
    document = ACCURACY_CONGESTION.write(found)
    yield from _CALL.table(document["calls"]).lines()
    yield "#"
    yield f"# errors of slowdowns and of times alone, {_FROM}"
    yield from _SYSTEM.table(document["systems"]).lines()
    yield "#"
    for system, count in found.left_out.items():
        words = f"give it by --machine '{system}=fat_tree:256,radix=32,congestion=tree'"
        yield f"# left out: {units.plural(count, 'call')} of {system}, of no known network; {words}"
    yield f"# {found.source}"
