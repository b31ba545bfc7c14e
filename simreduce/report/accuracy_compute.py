"""Measured times of what a GPU computes beside predictions, as text and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simreduce import units
from simreduce.files.formats.documents import (
    COUNT,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    or_null,
)
from simreduce.files.tables import Column, percent, signed_percent
from simreduce.study.accuracy.compute import ComputePoint, group_compute


def _constant(key: str) -> Column:
    """A part of a rate, or a time in seconds."""

    def cell(row: Mapping[str, Any]) -> str:
        value = row[key]
        if value is None:
            return ""
        return units.format_duration(value) if value < 1e-3 else f"{value:.3f}"

    return Column(key, cell=cell)


_GROUP = Record(
    "group",
    "What was timed of a GPU, of one kind.",
    Key("gpu", TEXT, "The GPU.", "timed.gpu", column=Column("GPU", left=True)),
    Key("group", TEXT, "What they are.", "timed.group", column=Column("timed", left=True)),
    Key("times", COUNT, "How many were timed.", lambda group: len(group.points),
        column=Column("times")),
    Key("median", RATIO, "Half of the errors are below this.",
        column=Column("median", show=percent(1))),
    Key("worst", RATIO, "The largest error.", column=Column("worst", show=percent(1))),
    Key("bias", RATIO, "The median of signed errors: above 0, predictions are too long.",
        column=Column("bias", show=signed_percent(1))),
    Key("constant", or_null(TEXT), "The key of a `compute` file that they determine.",
        column=Column("constant", left=True, show=lambda name: name or "")),
    Key("now", or_null(RATIO), "What it is: a part of a rate, or seconds.",
        column=_constant("now")),
    Key("fits", or_null(RATIO), "With it, half of the predictions would be too long.",
        column=_constant("fits")),
)  # fmt: skip
_POINT = Record(
    "point",
    "What was timed.",
    Key("gpu", TEXT, "The GPU.", "timed.gpu"),
    Key("kind", TEXT, "What it is.", "timed.kind"),
    Key("shape", list_of(COUNT), "Its shape.", "timed.shape"),
    Key("bits", COUNT, "Bits of its operands.", "timed.bits"),
    Key("measured_us", MICROSECONDS, "The median of its times.", "timed.seconds"),
    Key("low_us", MICROSECONDS, "Their 10th percentile.", "timed.low"),
    Key("high_us", MICROSECONDS, "Their 90th percentile.", "timed.high"),
    Key("predicted_us", MICROSECONDS, "The predicted time.", "predicted"),
)
ACCURACY_COMPUTE = Document(
    "accuracy-compute",
    "`simreduce accuracy compute --json`: measured times of what a GPU computes beside"
    " predictions.",
    Key("source", TEXT, "Where the times come from.", "0"),
    Key(
        "groups", list_of(_GROUP), "Errors by GPU and kind.", lambda found: group_compute(found[1])
    ),
    Key("points", list_of(_POINT), "All that was timed.", "1"),
    command="accuracy compute",
)
"""Of a source and its `ComputePoint` values."""


def compute_lines(source: str, points: Sequence[ComputePoint]) -> Iterator[str]:
    """Errors by GPU and kind, and where the times come from."""
    document = ACCURACY_COMPUTE.write((source, points))
    yield from _GROUP.table(document["groups"]).lines()
    yield "#"
    yield f"# {source}"
