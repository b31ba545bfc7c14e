"""Chapters of `simreduce accuracy`: what is predicted, its figures, tables and closing lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from simreduce import units
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    MICROSECONDS,
    PER_SECOND,
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
from simreduce.files.published import KERNEL_SETS, SOURCES, TITLE
from simreduce.files.tables import Column, comments, percent, signed_percent
from simreduce.study.accuracy.congestion import LEAST, group_congestion, predict_congestion
from simreduce.study.accuracy.kernels import find_constant, predict_compute, predict_kernels
from simreduce.study.accuracy.mesh import (
    LEAST_CHOICES,
    StepGroup,
    correlate_ranks,
    group_steps,
    predict_steps,
    predict_tails,
    scale_weakly,
)
from simreduce.study.accuracy.points import AccuracyComparison, PointGroup, group_by
from simreduce.study.accuracy.sharded import predict_sharded

Lines = Callable[[AccuracyComparison[Any]], Iterable[str]]


def nothing(_: AccuracyComparison[Any]) -> Iterable[str]:
    """No lines."""
    return ()


@dataclass(frozen=True)
class Chapter:
    """A chapter of `simreduce accuracy`: how its rows are predicted, and what is shown of them.

    `predict` yields a point, or several, for each published row; `progress` says how many there
    are. `document` is of an `AccuracyComparison`. The text has a table for each of the document's
    lists in `tables`, below the lines that are made for it, then the `closing` lines. A list
    without rows has no table if it is `optional`.
    """

    document: Document
    predict: Callable[..., Iterable[Any]]
    progress: str
    tables: Mapping[str, Lines] = field(default_factory=dict)
    closing: Lines = nothing
    optional: bool = False

    def lines(self, found: AccuracyComparison[Any]) -> Iterator[str]:
        """The text."""
        for name, above in self.tables.items():
            record, rows = self.document.rows(name, found)
            if rows or not self.optional:
                yield from above(found)
                yield from record.table(rows).lines()
        yield from self.closing(found)


def _above(*lines: str) -> Lines:
    """The same lines for all that was found."""
    return lambda _: comments(lines)


_MEDIAN = Key(
    "median", RATIO, "Half of the errors are below this.",
    column=Column("median", show=percent(1)),
)  # fmt: skip
_WORST = Key("worst", RATIO, "The largest error.", column=Column("worst", show=percent(1)))
_P90 = Key("p90", RATIO, "The 90th percentile of errors.", column=Column("90 %", show=percent(1)))
_BIAS = Key(
    "bias", RATIO, "The median of signed errors: above 0, predictions are too long.",
    column=Column("bias", show=signed_percent(1)),
)  # fmt: skip
"""The errors of a group, in each chapter."""


def _figures(path: str, *keys: Key) -> tuple[Key, ...]:
    """The same, of the group at a path of attributes."""
    return tuple(replace(key, get=f"{path}.{key.name}") for key in keys)


def complete_key(what: str) -> Key:
    """Whether all there is was predicted."""
    return Key("complete", FLAG, f"False if the command was stopped and {what} are missing.")


def _signed_error(about: str, digits: int = 1) -> Key:
    return Key("error", RATIO, about, column=Column("error", show=signed_percent(digits)))


def _titles(found: AccuracyComparison[Any], publications: Mapping[str, Any]) -> list[str]:
    """What each publication is."""
    names = dict.fromkeys(point.of.set for point in found.points)
    return [f"{name}: {publications[name].title}" for name in names]


_SHARDED = Record(
    "point",
    "A model on a number of GPUs.",
    Key("model", TEXT, "The model.", "of.name", column=Column("model", left=True)),
    Key("gpus", COUNT, "GPUs.", column=Column("GPUs")),
    Key(
        "published_tokens_per_second", PER_SECOND, "Tokens of a GPU, published.", "published",
        column=Column("published", "tokens/s a GPU", show="{:,.0f}".format),
    ),
    Key(
        "predicted_tokens_per_second", PER_SECOND, "Tokens of a GPU, predicted.", "predicted",
        column=Column("predicted", "tokens/s a GPU", show="{:,.0f}".format),
    ),
    Key(
        "error", RATIO, "The part that the prediction is too high.",
        lambda point: None if point.fitted else point.error,
        column=Column("", show="({:+.1%})".format, missing="(fitted)"), written=False,
    ),
    Key(
        "exposed_us", MICROSECONDS, "Communication that no compute hides.", "exposed",
        column=Column("exposed", "(ms)", show=lambda us: f"{us / 1e3:.1f}"),
    ),
    Key("fitted", FLAG, "Whether the compute was fitted to it."),
)  # fmt: skip
SHARDED = Chapter(
    Document(
        "accuracy-sharded",
        "`simreduce accuracy sharded --json`: published throughputs of FSDP beside predictions.",
        Key("points", list_of(_SHARDED), "Every published throughput."),
        complete_key("rows"),
        command="accuracy sharded",
    ),
    predict_sharded,
    "predicted {} of {} steps",
    {"points": nothing},
)


def _constant(value: float) -> str:
    """A part of a rate, or a time in seconds."""
    return units.format_duration(value) if value < 1e-3 else f"{value:.3f}"


_COMPUTE_GROUP = Record(
    "group",
    "What was timed of a GPU, of one kind.",
    Key("gpu", TEXT, "The GPU.", "0.of.gpu", column=Column("GPU", left=True)),
    Key("group", TEXT, "What they are.", "0.of.group", column=Column("timed", left=True)),
    Key("times", COUNT, "How many were timed.", "0.count", column=Column("times")),
    *_figures("0", _MEDIAN, _WORST, _BIAS),
    Key("constant", or_null(TEXT), "The key of a `compute` file that they determine.",
        "1.constant", column=Column("constant", left=True)),
    Key("now", or_null(RATIO), "What it is: a part of a rate, or seconds.", "1.now",
        column=Column("now", show=_constant, missing="")),
    Key("fits", or_null(RATIO), "With it, half of the predictions would be too long.", "1.fits",
        column=Column("fits", show=_constant, missing="")),
)  # fmt: skip
_COMPUTE_POINT = Record(
    "point",
    "What was timed.",
    Key("gpu", TEXT, "The GPU.", "of.gpu"),
    Key("kind", TEXT, "What it is.", "of.kind"),
    Key("shape", list_of(COUNT), "Its shape.", "of.shape"),
    Key("bits", COUNT, "Bits of its operands.", "of.bits"),
    Key("measured_us", MICROSECONDS, "The median of its times.", "of.seconds"),
    Key("low_us", MICROSECONDS, "Their 10th percentile.", "of.low"),
    Key("high_us", MICROSECONDS, "Their 90th percentile.", "of.high"),
    Key("predicted_us", MICROSECONDS, "The predicted time.", "predicted"),
)
COMPUTE = Chapter(
    Document(
        "accuracy-compute",
        "`simreduce accuracy compute --json`: measured times of what a GPU computes beside"
        " predictions.",
        Key("source", TEXT, "Where the times come from.", "about.source"),
        Key("groups", list_of(_COMPUTE_GROUP), "Errors by GPU and kind.",
            lambda found: _by_constant(found.points)),
        Key("points", list_of(_COMPUTE_POINT), "All that was timed."),
        command="accuracy compute",
    ),
    predict_compute,
    "predicted {} of {} times",
    {"groups": nothing},
    lambda found: ("#", f"# {found.about['source']}"),
)  # fmt: skip


def _by_constant(points: Iterable[Any]) -> Iterator[tuple[PointGroup[Any], object]]:
    """What was timed of each GPU, by group, and the constants that these determine."""
    groups = group_by(points, lambda point: (point.of.gpu, point.of.group)).values()
    return ((group, find_constant(group)) for group in groups)


def _slowed(group: PointGroup[Any]) -> PointGroup[Any] | None:
    """The calls that an incast slows, if there are any."""
    return group_by(group.points, lambda point: point.published >= _SLOWED).get(True)


_SLOWED = 1.1
"""A call that takes so many times as long as alone, or more, is slowed."""
_FROM = f"from {units.format_size(LEAST)} on"
_SYSTEM = Record(
    "system",
    f"The calls of a system, {_FROM}.",
    Key("system", TEXT, "The system.", "of.system", column=Column("system", left=True)),
    Key("calls", COUNT, "How many there are.", "count", column=Column("calls")),
    Key("most", RATIO, "The largest slowdown that was measured.",
        lambda group: max(point.published for point in group.points),
        column=Column("largest", "slowdown", show="{:.2f}".format)),
    Key("median", RATIO, "Half of the errors of slowdowns are below this.",
        column=Column("slowdown", "median", show=percent(1))),
    Key("median_none", RATIO, "The same if none were predicted to be slowed.",
        lambda group: float(np.median([abs(1 / p.published - 1) for p in group.points])),
        column=Column("if none", "is slowed", show=percent(1))),
    Key("worst", RATIO, "The largest error of a slowdown.",
        column=Column("slowdown", "worst", show=percent(1))),
    Key("slowed", COUNT, f"Calls that an incast makes {_SLOWED:g} times as long or longer.",
        lambda group: slowed.count if (slowed := _slowed(group)) else 0,
        column=Column("slowed", "calls")),
    Key("median_slowed", or_null(RATIO), "Half of the errors of their slowdowns are below this.",
        lambda group: slowed.median if (slowed := _slowed(group)) else None,
        column=Column("slowed", "median", show=percent(1))),
    Key("alone", RATIO, "Half of the errors of times alone are below this.",
        lambda group: float(np.median([abs(p.alone / p.of.alone - 1) for p in group.points])),
        column=Column("alone", "median", show=percent(1))),
)  # fmt: skip
_CALL = Record(
    "call",
    "A collective of half of the nodes, alone and beside an incast of the others.",
    Key("system", TEXT, "The system.", "of.system", column=Column("system", left=True)),
    Key("collective", TEXT, "The collective.", "of.collective",
        column=Column("collective", left=True)),
    Key("nodes", COUNT, "Nodes in all.", "of.nodes", column=Column("nodes")),
    Key("size_bytes", BYTES, "Of an all-to-all of each pair, of an all-gather in all.",
        "of.nbytes", column=Column("size", show=units.format_size)),
    Key("measured_us", MICROSECONDS, "The measured time alone.", "of.alone",
        column=Column("alone", "(us)", show="{:.1f}".format)),
    Key("predicted_us", MICROSECONDS, "The predicted time alone.", "alone",
        column=Column("predicted", "(us)", show="{:.1f}".format)),
    Key("measured_slowdown", RATIO, "How many times as long it takes beside the incast.",
        "published", column=Column("slowdown", show="{:.2f}".format)),
    Key("slowdown", RATIO, "The predicted slowdown.", "predicted",
        column=Column("predicted", show="{:.2f}".format)),
    _signed_error("By what part that is too high.", 0),
)  # fmt: skip


def _left_out_lines(found: AccuracyComparison[Any]) -> Iterator[str]:
    yield "#"
    for system, count in found.about["left_out"].items():
        words = f"give it by --machine '{system}=fat_tree:256,radix=32,congestion=tree'"
        yield f"# left out: {units.plural(count, 'call')} of {system}, of no known network; {words}"
    yield f"# {found.about['source']}"


CONGESTION = Chapter(
    Document(
        "accuracy-congestion",
        "`simreduce accuracy congestion --json`: collectives of MPI beside an incast, measured and"
        " predicted.",
        Key("source", TEXT, "Where the times come from.", "about.source"),
        Key("systems", list_of(_SYSTEM), "Errors by system.",
            lambda found: group_congestion(found.points).values()),
        Key("calls", list_of(_CALL), "All that was predicted.", "points"),
        Key("left_out", map_of(COUNT), "Calls of systems whose network is not known, by system.",
            "about.left_out"),
        complete_key("calls"),
        command="accuracy congestion",
    ),
    predict_congestion,
    "predicted {} of {} calls",
    {
        "calls": nothing,
        "systems": _above("", f"errors of slowdowns and of times alone, {_FROM}"),
    },
    _left_out_lines,
)  # fmt: skip
_KERNEL_GROUP = Record(
    "group",
    "The calls of an implementation in a set.",
    Key("set", TEXT, "The publication.", "of.set", column=Column("set", left=True)),
    Key("machine", TEXT, "The machine.", "of.machine", column=Column("machine", left=True)),
    Key("gpus", COUNT, "GPUs.", "of.gpus", column=Column("GPUs")),
    Key(
        "implementation", TEXT, "What the publication calls it.", "of.implementation",
        column=Column("implementation", left=True),
    ),
    Key(
        "strategy", TEXT, "The strategy that does the same.", "of.strategy",
        column=Column("strategy", left=True),
    ),
    Key("calls", COUNT, "Published times.", "count", column=Column("calls")),
    Key("held", FLAG, "Whether it takes no part in any fit.", "of.held",
        column=Column("held", show=lambda held: "yes" if held else "")),
    _MEDIAN,
    _WORST,
    _BIAS,
)  # fmt: skip
_KERNEL_POINT = Record(
    "point",
    "A published call.",
    Key("set", TEXT, "The publication.", "of.set"),
    Key("machine", TEXT, "The machine.", "of.machine"),
    Key("gpus", COUNT, "GPUs.", "of.gpus"),
    Key("size_bytes", BYTES, "The tensor.", "of.nbytes"),
    Key("implementation", TEXT, "What the publication calls it.", "of.implementation"),
    Key("strategy", TEXT, "The strategy that does the same.", "of.strategy"),
    Key("copies", COUNT, "Copies of the tensor that the time holds.", "of.copies"),
    Key("published_us", MICROSECONDS, "The published time.", "published"),
    Key("predicted_us", MICROSECONDS, "The predicted time.", "predicted"),
)


def _kernel_lines(found: AccuracyComparison[Any]) -> Iterator[str]:
    """Errors of what is held out and what is not, and what the sets are."""
    yield "#"
    kernels = [point for point in found.points if point.of.strategy != "nccl"]
    groups = group_by(kernels, lambda point: point.of.held)
    for held, group in sorted(groups.items()):
        words, count = "held out" if held else "fitted", group.count
        yield f"# kernels, {words}: {group.median:.1%} in the median of {count} calls"
    yield from comments(_titles(found, KERNEL_SETS))


def _implementation(point: Any) -> tuple[str, str, int, str]:
    return point.of.set, point.of.machine, point.of.gpus, point.of.implementation


KERNELS = Chapter(
    Document(
        "accuracy-kernels",
        "`simreduce accuracy kernels --json`: published times of kernels beside predictions.",
        Key("groups", list_of(_KERNEL_GROUP), "Errors by set, machine and implementation.",
            lambda found: group_by(found.points, _implementation).values()),
        Key("points", list_of(_KERNEL_POINT), "Every published call."),
        complete_key("calls"),
        command="accuracy kernels",
    ),
    predict_kernels,
    "predicted {} of {} calls",
    {"groups": nothing},
    _kernel_lines,
)  # fmt: skip


def _over_choices(
    figure: Callable[[list[float]], Any], get: Callable[[Any], float]
) -> Callable[[StepGroup], float | None]:
    """A figure of a value of each choice; None without choices."""
    return lambda group: float(figure([*map(get, group.choices)])) if group.choices else None


_STEP_GROUP = Record(
    "group",
    "The steps of a model in a set.",
    Key("set", TEXT, "The publication's table.", column=Column("set", left=True)),
    Key("model", TEXT, "The model, or `all`.", column=Column("model", left=True)),
    Key("steps", COUNT, "Published steps.", "steps.count", column=Column("steps")),
    *_figures("steps", _MEDIAN, _P90, _BIAS),
    Key("choices", COUNT, f"Groups of {LEAST_CHOICES} meshes or more with equal GPUs and batch.",
        lambda group: len(group.choices), column=Column("choices")),
    Key("order", or_null(RATIO),
        "The mean of Kendall's rank correlation of predicted and published times in a choice.",
        _over_choices(np.mean, correlate_ranks),
        column=Column("order", show="{:.2f}".format)),
    Key("regret", or_null(RATIO),
        "The part by which the mesh that is predicted fastest is slower than the fastest; median.",
        _over_choices(np.median, attrgetter("regret")),
        column=Column("regret", show=percent(1))),
    Key("worst_regret", or_null(RATIO), "The largest of them.",
        _over_choices(np.max, attrgetter("regret")), column=Column("worst", show=percent(1))),
)  # fmt: skip
_SCALING = Record(
    "scaling",
    "A recipe on more GPUs, with the same batch on each.",
    Key("model", TEXT, "The model.", "of.model", column=Column("model", left=True)),
    Key("precision", TEXT, "Of products.", "of.precision", column=Column("precision", left=True)),
    Key("least_gpus", COUNT, "GPUs to begin with.", "least", column=Column("from", "GPUs")),
    Key("gpus", COUNT, "GPUs.", "of.gpus", column=Column("to", "GPUs")),
    Key(
        "published", RATIO, "The published time over that on the fewer GPUs.",
        column=Column("published", show="{:.3f}".format),
    ),
    Key(
        "predicted", RATIO, "The predicted time over that on the fewer GPUs.",
        column=Column("predicted", show="{:.3f}".format),
    ),
    _signed_error("The part by which the predicted ratio is too high."),
)  # fmt: skip
_TAIL = Record(
    "tail",
    "A recipe's step on the most GPUs, from those on two smaller numbers with the same batch on"
    " each: all wait for the slowest.",
    Key("model", TEXT, "The model.", "of.model", column=Column("model", left=True)),
    Key("precision", TEXT, "Of products.", "of.precision", column=Column("precision", left=True)),
    Key("few", COUNT, "GPUs of the first step.", column=Column("from", "GPUs")),
    Key("some", COUNT, "GPUs of the second step.", column=Column("and", "GPUs")),
    Key("gpus", COUNT, "GPUs of the third.", "of.gpus", column=Column("to", "GPUs")),
    Key("spread", RATIO, "The spread of GPUs' speeds that explains the first two.",
        column=Column("spread", show=percent(1))),
    Key("published_s", SECONDS, "The published time of the third.", "published",
        column=Column("published", "(s)", show="{:.2f}".format)),
    Key("predicted_s", SECONDS, "Its time by that spread.", "predicted",
        column=Column("predicted", "(s)", show="{:.2f}".format)),
    _signed_error("The part by which that is too long."),
    Key("error_unchanged", RATIO, "The part by which it would be too long at the second's time.",
        lambda tail: tail.unchanged / tail.published - 1.0,
        column=Column("if unchanged", show=signed_percent(1))),
)  # fmt: skip
_STEP_POINT = Record(
    "point",
    "A published step.",
    Key("set", TEXT, "The publication's table.", "of.set"),
    Key("model", TEXT, "The model.", "of.model"),
    Key("gpus", COUNT, "GPUs.", "of.gpus"),
    Key("tp", COUNT, "Tensor parallel ways.", "of.tp"),
    Key("cp", COUNT, "Context parallel ways.", "of.cp"),
    Key("ep", COUNT, "Expert parallel ways.", "of.ep"),
    Key("pp", COUNT, "Pipeline stages.", "of.pp"),
    Key("virtual", COUNT, "Stages of a GPU.", "of.virtual"),
    Key("global_batch", COUNT, "Sequences of a step.", "of.global_batch"),
    Key("micro_batch", COUNT, "Sequences of a micro batch.", "of.micro_batch"),
    Key("precision", TEXT, "Of products.", "of.precision"),
    Key("published_s", SECONDS, "The published time.", "of.seconds"),
    Key("predicted_s", SECONDS, "The predicted time.", "predicted"),
)  # fmt: skip
_DISPATCH = Record(
    "dispatch",
    "A published call that brings tokens to experts, or back.",
    Key("kernel", TEXT, "DeepEP's kernel.", "of.kernel", column=Column("kernel", left=True)),
    Key("machine", TEXT, "The machine.", "of.machine", column=Column("machine", left=True)),
    Key("ranks", COUNT, "Expert parallel ranks.", "of.ranks", column=Column("ranks")),
    Key("tokens", COUNT, "Tokens of a rank.", "of.tokens", column=Column("tokens")),
    Key(
        "direction", TEXT, "`dispatch` or `combine`.", "of.direction",
        column=Column("direction", left=True),
    ),
    Key(
        "published_us", MICROSECONDS, "The published time.", "published",
        column=Column("published", "(us)", show="{:.0f}".format),
    ),
    Key(
        "predicted_us", MICROSECONDS, "The predicted time.", "predicted",
        column=Column("predicted", "(us)", show="{:.0f}".format),
    ),
    _signed_error("The part by which the predicted time is too long."),
)  # fmt: skip


def _dispatch_title(found: AccuracyComparison[Any]) -> list[str]:
    lines = ["", "tokens to experts and back, by no fitted constant:"]
    return comments(lines if found.points else ())


def _mesh_lines(found: AccuracyComparison[Any]) -> list[str]:
    words = ["each model by constants of the GPU that were fitted to the others"]
    deepep = [f"deepep: {TITLE}"] * bool(found.about["dispatches"])
    return comments(["", *words * bool(found.points), *_titles(found, SOURCES), *deepep])


MESH = Chapter(
    Document(
        "accuracy-mesh",
        "`simreduce accuracy mesh --json`: published steps of meshes beside predictions.",
        Key("groups", list_of(_STEP_GROUP), "Errors by set and model.",
            lambda found: group_steps(found.points)),
        Key("scaling", list_of(_SCALING), "Recipes on more GPUs.",
            lambda found: scale_weakly(found.points)),
        Key("tails", list_of(_TAIL), "Recipes on the most GPUs, from two smaller numbers.",
            lambda found: predict_tails(point.of for point in found.points)),
        Key("points", list_of(_STEP_POINT), "Every published step."),
        Key("dispatches", list_of(_DISPATCH), "Calls that bring tokens to experts, or back.",
            "about.dispatches"),
        complete_key("steps"),
        command="accuracy mesh",
    ),
    predict_steps,
    "predicted {} of {} steps",
    {
        "groups": nothing,
        "scaling": _above(
            "", "the same batch on each of more GPUs, as a part of the time on fewer:"
        ),
        "tails": _above("", "the most GPUs from two smaller numbers, as all wait for the slowest:"),
        "dispatches": _dispatch_title,
    },
    _mesh_lines,
    optional=True,
)  # fmt: skip
