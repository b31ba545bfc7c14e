"""Published times of kernels beside predictions, as text and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

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
)
from simreduce.files.published.kernels import KERNEL_SETS
from simreduce.files.tables import Column, percent, signed_percent
from simreduce.study.accuracy.kernels import KernelPoint, group_kernels


@dataclass(frozen=True)
class ComparedKernels:
    """Calls beside predictions; not `complete` if it was stopped."""

    points: Sequence[KernelPoint]
    complete: bool


_GROUP = Record(
    "group",
    "The calls of an implementation in a set.",
    Key("set", TEXT, "The publication.", "call.set", column=Column("set", left=True)),
    Key("machine", TEXT, "The machine.", "call.machine", column=Column("machine", left=True)),
    Key("gpus", COUNT, "GPUs.", "call.gpus", column=Column("GPUs")),
    Key(
        "implementation", TEXT, "What the publication calls it.", "call.implementation",
        column=Column("implementation", left=True),
    ),
    Key(
        "strategy", TEXT, "The strategy that does the same.", "call.strategy",
        column=Column("strategy", left=True),
    ),
    Key("calls", COUNT, "Published times.", lambda group: len(group.points),
        column=Column("calls")),
    Key("held", FLAG, "Whether it takes no part in any fit.",
        column=Column("held", show=lambda held: "yes" if held else "")),
    Key(
        "median", RATIO, "Half of the errors are below this.",
        column=Column("median", show=percent(1)),
    ),
    Key("worst", RATIO, "The largest error.", column=Column("worst", show=percent(1))),
    Key(
        "bias", RATIO, "The median of signed errors: above 0, predictions are too long.",
        column=Column("bias", show=signed_percent(1)),
    ),
)  # fmt: skip
_POINT = Record(
    "point",
    "A published call.",
    Key("set", TEXT, "The publication.", "call.set"),
    Key("machine", TEXT, "The machine.", "call.machine"),
    Key("gpus", COUNT, "GPUs.", "call.gpus"),
    Key("size_bytes", BYTES, "The tensor.", "call.nbytes"),
    Key("implementation", TEXT, "What the publication calls it.", "call.implementation"),
    Key("strategy", TEXT, "The strategy that does the same.", "call.strategy"),
    Key("copies", COUNT, "Copies of the tensor that the time holds.", "call.copies"),
    Key("published_us", MICROSECONDS, "The published time.", "call.seconds"),
    Key("predicted_us", MICROSECONDS, "The predicted time.", "predicted"),
)
ACCURACY_KERNELS = Document(
    "accuracy-kernels",
    "`simreduce accuracy kernels --json`: published times of kernels beside predictions.",
    Key(
        "groups", list_of(_GROUP), "Errors by set, machine and implementation.",
        lambda found: group_kernels(found.points),
    ),
    Key("points", list_of(_POINT), "Every published call."),
    Key("complete", FLAG, "False if the command was stopped and calls are missing."),
    command="accuracy kernels",
)  # fmt: skip
"""Of `ComparedKernels`."""


def kernel_lines(found: ComparedKernels) -> Iterator[str]:
    """Errors by implementation, of what is held out and what is not, and what the sets are."""
    document: Mapping[str, Any] = ACCURACY_KERNELS.write(found)
    yield from _GROUP.table(document["groups"]).lines()
    yield "#"
    kernels = [point for point in found.points if point.call.strategy != "nccl"]
    for held, words in ((False, "fitted"), (True, "held out")):
        errors = [abs(point.error) for point in kernels if point.held == held]
        if errors:
            yield f"# kernels, {words}: {median(errors):.1%} in the median of {len(errors)} calls"
    for name in dict.fromkeys(point.call.set for point in found.points):
        yield f"# {name}: {KERNEL_SETS[name].title}"
