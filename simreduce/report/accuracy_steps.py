"""Measured times of what a GPU computes beside predictions, as text and as a document.

Collectives of MPI beside an incast, measured and predicted, as text and as a document.

Published times of kernels beside predictions, as text and as a document.

Published steps of meshes beside predictions, as text and as a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from simreduce import units
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    MICROSECONDS,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    or_null,
)
from simreduce.files.published.dispatch import TITLE
from simreduce.files.published.kernels import KERNEL_SETS
from simreduce.files.published.steps import SOURCES
from simreduce.files.tables import Column, percent, signed_percent
from simreduce.study.accuracy.congestion import LEAST, SLOWED, CongestionPoint, group_congestion
from simreduce.study.accuracy.kernels import (
    ComputePoint,
    DispatchPoint,
    KernelPoint,
    group_compute,
    group_kernels,
)
from simreduce.study.accuracy.mesh import (
    LEAST_CHOICES,
    StepPoint,
    predict_tails,
    scale_weakly,
    summarize_steps,
)


def _constant(key: str) -> Column:
    """A part of a rate, or a time in seconds."""

    def cell(row: Mapping[str, Any]) -> str:
        value = row[key]
        if value is None:
            return ""
        return units.format_duration(value) if value < 1e-3 else f"{value:.3f}"

    return Column(key, cell=cell)


_MEDIAN = Key(
    "median", RATIO, "Half of the errors are below this.",
    column=Column("median", show=percent(1)),
)  # fmt: skip
_WORST = Key("worst", RATIO, "The largest error.", column=Column("worst", show=percent(1)))
_BIAS = Key(
    "bias", RATIO, "The median of signed errors: above 0, predictions are too long.",
    column=Column("bias", show=signed_percent(1)),
)  # fmt: skip
"""The errors of a group, in each kind of report."""

_COMPUTE_GROUP = Record(
    "group",
    "What was timed of a GPU, of one kind.",
    Key("gpu", TEXT, "The GPU.", "timed.gpu", column=Column("GPU", left=True)),
    Key("group", TEXT, "What they are.", "timed.group", column=Column("timed", left=True)),
    Key("times", COUNT, "How many were timed.", lambda group: len(group.points),
        column=Column("times")),
    _MEDIAN,
    _WORST,
    _BIAS,
    Key("constant", or_null(TEXT), "The key of a `compute` file that they determine.",
        column=Column("constant", left=True, show=lambda name: name or "")),
    Key("now", or_null(RATIO), "What it is: a part of a rate, or seconds.",
        column=_constant("now")),
    Key("fits", or_null(RATIO), "With it, half of the predictions would be too long.",
        column=_constant("fits")),
)  # fmt: skip
_COMPUTE_POINT = Record(
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
        "groups",
        list_of(_COMPUTE_GROUP),
        "Errors by GPU and kind.",
        lambda found: group_compute(found[1]),
    ),
    Key("points", list_of(_COMPUTE_POINT), "All that was timed.", "1"),
    command="accuracy compute",
)
"""Of a source and its `ComputePoint` values."""


def compute_lines(source: str, points: Sequence[ComputePoint]) -> Iterator[str]:
    """Errors by GPU and kind, and where the times come from."""
    document = ACCURACY_COMPUTE.write((source, points))
    yield from _COMPUTE_GROUP.table(document["groups"]).lines()
    yield "#"
    yield f"# {source}"


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


@dataclass(frozen=True)
class ComparedKernels:
    """Calls beside predictions; not `complete` if it was stopped."""

    points: Sequence[KernelPoint]
    complete: bool


_KERNEL_GROUP = Record(
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
    _MEDIAN,
    _WORST,
    _BIAS,
)  # fmt: skip
_KERNEL_POINT = Record(
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
        "groups", list_of(_KERNEL_GROUP), "Errors by set, machine and implementation.",
        lambda found: group_kernels(found.points),
    ),
    Key("points", list_of(_KERNEL_POINT), "Every published call."),
    Key("complete", FLAG, "False if the command was stopped and calls are missing."),
    command="accuracy kernels",
)  # fmt: skip
"""Of `ComparedKernels`."""


def kernel_lines(found: ComparedKernels) -> Iterator[str]:
    """Errors by implementation, of what is held out and what is not, and what the sets are."""
    document: Mapping[str, Any] = ACCURACY_KERNELS.write(found)
    yield from _KERNEL_GROUP.table(document["groups"]).lines()
    yield "#"
    kernels = [point for point in found.points if point.call.strategy != "nccl"]
    for held, words in ((False, "fitted"), (True, "held out")):
        errors = [abs(point.error) for point in kernels if point.held == held]
        if errors:
            yield f"# kernels, {words}: {median(errors):.1%} in the median of {len(errors)} calls"
    for name in dict.fromkeys(point.call.set for point in found.points):
        yield f"# {name}: {KERNEL_SETS[name].title}"


@dataclass(frozen=True)
class ComparedSteps:
    """Steps, and calls of experts, beside predictions; not `complete` if it was stopped."""

    points: Sequence[StepPoint]
    complete: bool
    dispatches: Sequence[DispatchPoint] = ()


_STEP_GROUP = Record(
    "group",
    "The steps of a model in a set.",
    Key("set", TEXT, "The publication's table.", column=Column("set", left=True)),
    Key("model", TEXT, "The model, or `all`.", column=Column("model", left=True)),
    Key("steps", COUNT, "Published steps.", column=Column("steps")),
    _MEDIAN,
    Key("p90", RATIO, "The 90th percentile of errors.", column=Column("90 %", show=percent(1))),
    _BIAS,
    Key(
        "choices", COUNT,
        f"Groups of {LEAST_CHOICES} meshes or more with equal GPUs and batch.",
        column=Column("choices"),
    ),
    Key(
        "order", or_null(RATIO),
        "The mean of Kendall's rank correlation of predicted and published times in a choice.",
        column=Column("order", show="{:.2f}".format),
    ),
    Key(
        "regret", or_null(RATIO),
        "The part by which the mesh that is predicted fastest is slower than the fastest; median.",
        column=Column("regret", show=percent(1)),
    ),
    Key(
        "worst_regret", or_null(RATIO), "The largest of them.",
        column=Column("worst", show=percent(1)),
    ),
)  # fmt: skip
_SCALING = Record(
    "scaling",
    "A recipe on more GPUs, with the same batch on each.",
    Key("model", TEXT, "The model.", column=Column("model", left=True)),
    Key("precision", TEXT, "Of products.", column=Column("precision", left=True)),
    Key("least_gpus", COUNT, "GPUs to begin with.", "least", column=Column("from", "GPUs")),
    Key("gpus", COUNT, "GPUs.", column=Column("to", "GPUs")),
    Key(
        "published", RATIO, "The published time over that on the fewer GPUs.",
        column=Column("published", show="{:.3f}".format),
    ),
    Key(
        "predicted", RATIO, "The predicted time over that on the fewer GPUs.",
        column=Column("predicted", show="{:.3f}".format),
    ),
    Key(
        "error", RATIO, "The part by which the predicted ratio is too high.",
        lambda each: each.predicted / each.published - 1.0,
        column=Column("error", show=signed_percent(1)),
    ),
)  # fmt: skip
_TAIL = Record(
    "tail",
    "A recipe's step on the most GPUs, from those on two smaller numbers with the same batch on"
    " each: all wait for the slowest.",
    Key("model", TEXT, "The model.", column=Column("model", left=True)),
    Key("precision", TEXT, "Of products.", column=Column("precision", left=True)),
    Key("few", COUNT, "GPUs of the first step.", column=Column("from", "GPUs")),
    Key("some", COUNT, "GPUs of the second step.", column=Column("and", "GPUs")),
    Key("gpus", COUNT, "GPUs of the third.", column=Column("to", "GPUs")),
    Key("spread", RATIO, "The spread of GPUs' speeds that explains the first two.",
        column=Column("spread", show=percent(1))),
    Key("published_s", SECONDS, "The published time of the third.", "published",
        column=Column("published", "(s)", show="{:.2f}".format)),
    Key("predicted_s", SECONDS, "Its time by that spread.", "predicted",
        column=Column("predicted", "(s)", show="{:.2f}".format)),
    Key("error", RATIO, "The part by which that is too long.",
        column=Column("error", show=signed_percent(1))),
    Key("error_unchanged", RATIO, "The part by which it would be too long at the second's time.",
        column=Column("if unchanged", show=signed_percent(1))),
)  # fmt: skip
_STEP_POINT = Record(
    "point",
    "A published step.",
    Key("set", TEXT, "The publication's table.", "step.set"),
    Key("model", TEXT, "The model.", "step.model"),
    Key("gpus", COUNT, "GPUs.", "step.gpus"),
    Key("tp", COUNT, "Tensor parallel ways.", "step.tp"),
    Key("cp", COUNT, "Context parallel ways.", "step.cp"),
    Key("ep", COUNT, "Expert parallel ways.", "step.ep"),
    Key("pp", COUNT, "Pipeline stages.", "step.pp"),
    Key("virtual", COUNT, "Stages of a GPU.", "step.virtual"),
    Key("global_batch", COUNT, "Sequences of a step.", "step.global_batch"),
    Key("micro_batch", COUNT, "Sequences of a micro batch.", "step.micro_batch"),
    Key("precision", TEXT, "Of products.", "step.precision"),
    Key("published_s", SECONDS, "The published time.", "step.seconds"),
    Key("predicted_s", SECONDS, "The predicted time.", "predicted"),
)  # fmt: skip
_DISPATCH = Record(
    "dispatch",
    "A published call that brings tokens to experts, or back.",
    Key("kernel", TEXT, "DeepEP's kernel.", "call.kernel", column=Column("kernel", left=True)),
    Key("machine", TEXT, "The machine.", "call.machine", column=Column("machine", left=True)),
    Key("ranks", COUNT, "Expert parallel ranks.", "call.ranks", column=Column("ranks")),
    Key("tokens", COUNT, "Tokens of a rank.", "call.tokens", column=Column("tokens")),
    Key(
        "direction", TEXT, "`dispatch` or `combine`.", "call.direction",
        column=Column("direction", left=True),
    ),
    Key(
        "published_us", MICROSECONDS, "The published time.", "seconds",
        column=Column("published", "(us)", show="{:.0f}".format),
    ),
    Key(
        "predicted_us", MICROSECONDS, "The predicted time.", "predicted",
        column=Column("predicted", "(us)", show="{:.0f}".format),
    ),
    Key(
        "error", RATIO, "The part by which the predicted time is too long.",
        column=Column("error", show=signed_percent(1)),
    ),
)  # fmt: skip


ACCURACY_MESH = Document(
    "accuracy-mesh",
    "`simreduce accuracy mesh --json`: published steps of meshes beside predictions.",
    Key(
        "groups", list_of(_STEP_GROUP), "Errors by set and model.",
        lambda found: summarize_steps(found.points),
    ),
    Key(
        "scaling", list_of(_SCALING), "Recipes on more GPUs.",
        lambda found: scale_weakly(found.points),
    ),
    Key(
        "tails", list_of(_TAIL), "Recipes on the most GPUs, from two smaller numbers.",
        lambda found: predict_tails(point.step for point in found.points),
    ),
    Key("points", list_of(_STEP_POINT), "Every published step."),
    Key("dispatches", list_of(_DISPATCH), "Calls that bring tokens to experts, or back."),
    Key("complete", FLAG, "False if the command was stopped and steps are missing."),
    command="accuracy mesh",
)  # fmt: skip
"""Of `ComparedSteps`."""


def mesh_lines(found: ComparedSteps) -> Iterator[str]:
    """Errors by set and model, weak scaling, and what the sets are."""
    document: Mapping[str, Any] = ACCURACY_MESH.write(found)
    if document["groups"]:
        yield from _STEP_GROUP.table(document["groups"]).lines()
    if document["scaling"]:
        yield from ("#", "# the same batch on each of more GPUs, as a part of the time on fewer:")
        yield from _SCALING.table(document["scaling"]).lines()
    if document["tails"]:
        yield from ("#", "# the most GPUs from two smaller numbers, as all wait for the slowest:")
        yield from _TAIL.table(document["tails"]).lines()
    if document["dispatches"]:
        if document["groups"]:
            yield from ("#", "# tokens to experts and back, by no fitted constant:")
        yield from _DISPATCH.table(document["dispatches"]).lines()
    yield "#"
    if document["groups"]:
        yield "# each model by constants of the GPU that were fitted to the others"
    for name in dict.fromkeys(point.step.set for point in found.points):
        yield f"# {name}: {SOURCES[name].title}"
    if document["dispatches"]:
        yield f"# deepep: {TITLE}"
