"""Published timings beside predictions, and fits to them, as text, documents and a picture.

Chapters of `simreduce accuracy`: what is predicted, its figures, tables and closing lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from simreduce import units
from simreduce.computing import group_by
from simreduce.engine.calibrate import nccl_names
from simreduce.engine.calibrate.fit import VAGUE
from simreduce.engine.calibrate.intervals import MACHINE, OTHER_NET, SIZES, spread
from simreduce.errors import InputError
from simreduce.files.formats.documents import (
    BYTES,
    BYTES_PER_SECOND,
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
    number_in,
    one_of,
    or_null,
)
from simreduce.files.published import KERNEL_SETS, MODELS, SOURCES, TITLE
from simreduce.files.tables import (
    Column,
    comments,
    percent,
    signed_percent,
    texts,
)
from simreduce.report.plots import Facet, Plot, PlotPoint, PlotSeries
from simreduce.report.plots.axes import Axis
from simreduce.report.sections import show_constant
from simreduce.study.accuracy import (
    BRACKETED_FACTOR,
    DIVERSE,
    FASTER,
    NODES,
    AccuracyComparison,
    PointGroup,
    TablePoint,
    cells,
    count_machines,
    cover,
    find_typical_miss,
    group_predicted,
    impossible,
    inside,
    interval,
    machines,
    median_and_p90,
    predict,
    regrets,
    too_fast,
    unseen,
)
from simreduce.study.accuracy.fit import FittedLogs
from simreduce.study.accuracy.hold_out import (
    Calibrated,
    calibrate_on_three,
    leave_machines_out,
    predict_without,
)
from simreduce.study.accuracy.kernels import (
    LEAST,
    find_constant,
    group_congestion,
    predict_compute,
    predict_congestion,
    predict_interference,
    predict_kernels,
)
from simreduce.study.accuracy.mesh import (
    LEAST_CHOICES,
    StepGroup,
    correlate_ranks,
    group_steps,
    predict_sharded,
    predict_steps,
    predict_tails,
    scale_weakly,
)
from simreduce.study.accuracy.one_gpu import SOURCES as PASS_SOURCES, predict_passes
from simreduce.study.accuracy.step_errors import covered
from simreduce.version import __version__

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
    return [f"{name}: {publications[name].title}" for name in names if name in publications]


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


def _passes(name: str, about: str, head: str) -> tuple[Key, Key]:
    """The measured and the predicted time of a part of a step."""
    return (
        Key(f"measured_{name}_us", or_null(MICROSECONDS), f"{about} As measured.", f"of.{name}",
            column=Column(head, "(ms)", show=_in_ms)),
        Key(f"predicted_{name}_us", MICROSECONDS, f"{about} As predicted.", name,
            column=Column("predicted", "", show=_in_ms)),
    )  # fmt: skip


def _in_ms(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1e3:.1f}"


def _in_gb(nbytes: float | None) -> str:
    return f"{nbytes / 1e9:.1f}" if nbytes else ""


_PASS = Record(
    "point",
    "A step that was timed.",
    Key("gpu", TEXT, "The GPU.", "of.gpu", column=Column("GPU", left=True)),
    Key("workload", TEXT, "The model.", "of.workload", column=Column("model", left=True)),
    Key("batch", COUNT, "Samples.", "of.batch", column=Column("batch")),
    Key("kernels", TEXT, "How it runs.", "of.kernels", column=Column("kernels", left=True)),
    Key("precision", TEXT, "Of products.", "of.precision",
        column=Column("precision", left=True)),
    *_passes("forward", "The forward pass.", "forward"),
    *_passes("backward", "The backward pass.", "backward"),
    *_passes("update", "The optimizer.", "update"),
    Key("measured_us", MICROSECONDS, "The step as measured.", "published",
        column=Column("step", "(ms)", show=_in_ms)),
    Key("predicted_us", MICROSECONDS, "The step as predicted.", "predicted",
        column=Column("predicted", "", show=_in_ms)),
    _signed_error("The part by which the predicted step is too long."),
    Key("gradients", or_null(RATIO), "The largest error of the time at which a layer's gradients"
        " are ready, as a part of backward.", "late",
        column=Column("gradients", show=percent(1))),
    Key("measured_peak_bytes", BYTES, "The most that PyTorch allocated; 0 where nobody says.",
        "of.peak", column=Column("peak", "(GB)", show=_in_gb)),
    Key("predicted_peak_bytes", or_null(BYTES), "The most that it allocates as predicted.", "peak",
        column=Column("predicted", "", show=_in_gb)),
    Key("peak_error", or_null(RATIO), "The part by which the predicted peak is too high.",
        column=Column("error", "", show=percent(1))),
    Key("source", TEXT, "Who timed it.", "of.source", column=Column("timed by", left=True)),
)  # fmt: skip


def _who_timed(found: AccuracyComparison[Any]) -> list[str]:
    """The sources of shipped steps, or the file of others."""
    names = dict.fromkeys(point.of.source for point in found.points)
    known = [f"{name}: {PASS_SOURCES[name]}" for name in names if name in PASS_SOURCES]
    return comments(["", *(known or [found.about["source"]])])


ONE_GPU = Chapter(
    Document(
        "accuracy-gpu",
        "`simreduce accuracy gpu --json`: measured training steps of one GPU beside predictions.",
        Key("source", TEXT, "Where the times come from.", "about.source"),
        Key("points", list_of(_PASS), "Every step."),
        command="accuracy gpu",
    ),
    predict_passes,
    "predicted {} of {} steps",
    {"points": nothing},
    _who_timed,
)  # fmt: skip


def _by_constant(points: Iterable[Any]) -> Iterator[tuple[PointGroup[Any], object]]:
    """What was timed of each GPU, by group, and the constants that these determine."""
    groups = group_predicted(points, lambda point: (point.of.gpu, point.of.group)).values()
    return ((group, find_constant(group)) for group in groups)


_BESIDE_GROUP = Record(
    "group",
    "Kernels of one kind beside one thing.",
    Key("gpu", TEXT, "The GPU.", "of.gpu", column=Column("GPU", left=True)),
    Key("group", TEXT, "What they are.", "of.group", column=Column("kernels", left=True)),
    Key("beside", TEXT, "What runs beside them.", "of.what", column=Column("beside", left=True)),
    Key("times", COUNT, "How many were timed.", "count", column=Column("times")),
    Key("measured", RATIO, "The median of how many times as long they took.",
        lambda group: float(np.median([point.published for point in group.points])),
        column=Column("median", "factor", show="{:.2f}".format)),
    Key("predicted", RATIO, "The median of what is predicted.",
        lambda group: float(np.median([point.predicted for point in group.points])),
        column=Column("predicted", show="{:.2f}".format)),
    Key("most", RATIO, "The most that was measured.",
        lambda group: max(point.published for point in group.points),
        column=Column("largest", "factor", show="{:.2f}".format)),
    _MEDIAN, _P90, _WORST, _BIAS,
)  # fmt: skip
_BESIDE_POINT = Record(
    "point",
    "A kernel beside something.",
    Key("gpu", TEXT, "The GPU.", "of.gpu"),
    Key("kind", TEXT, "What it is.", "of.kind"),
    Key("shape", list_of(COUNT), "Its shape.", "of.shape"),
    Key("beside", TEXT, "What runs beside it.", "of.beside"),
    Key("blocks", COUNT, "SMs that it holds.", "of.blocks"),
    Key("moved_bytes_per_s", BYTES_PER_SECOND, "What it moves through memory.", "of.moved"),
    Key("alone_us", MICROSECONDS, "The median by itself.", "of.alone"),
    Key("beside_us", MICROSECONDS, "The median beside it.", "of.seconds"),
    Key("measured_factor", RATIO, "How many times as long it took.", "published"),
    Key("predicted_factor", RATIO, "How many times as long is predicted.", "predicted"),
)  # fmt: skip


def _factor_lines(found: AccuracyComparison[Any]) -> Iterator[str]:
    group = PointGroup(found.points)
    times = units.plural(group.count, "time")
    yield "#"
    yield f"# of {times} half are within {group.median:.1%}, 90 % within {group.p90:.1%}"
    yield f"# {found.about['source']}"


INTERFERENCE = Chapter(
    Document(
        "accuracy-interference",
        "`simreduce accuracy interference --json`: how many times as long kernels take beside"
        " blocks that hold SMs, measured and predicted.",
        Key("source", TEXT, "Where the times come from.", "about.source"),
        Key("groups", list_of(_BESIDE_GROUP), "Errors by kind and by what runs beside.",
            lambda found: group_predicted(
                found.points, lambda p: (p.of.gpu, p.of.group, p.of.what)).values()),
        Key("points", list_of(_BESIDE_POINT), "All that was timed."),
        command="accuracy interference",
    ),
    predict_interference,
    "predicted {} of {} times",
    {"groups": nothing},
    _factor_lines,
)  # fmt: skip


def _slowed(group: PointGroup[Any]) -> PointGroup[Any] | None:
    """The calls that an incast slows, if there are any."""
    return group_predicted(group.points, lambda point: point.published >= _SLOWED).get(True)


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
    for held, group in sorted(group_predicted(kernels, lambda point: point.of.held).items()):
        words, count = "held out" if held else "fitted", group.count
        yield f"# kernels, {words}: {group.median:.1%} in the median of {count} calls"
    yield from comments(_titles(found, KERNEL_SETS))


_BY_KERNEL = attrgetter("of.set", "of.machine", "of.gpus", "of.implementation")
KERNELS = Chapter(
    Document(
        "accuracy-kernels",
        "`simreduce accuracy kernels --json`: published times of kernels beside predictions.",
        Key("groups", list_of(_KERNEL_GROUP), "Errors by set, machine and implementation.",
            lambda found: group_predicted(found.points, _BY_KERNEL).values()),
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
    Key("inside", RATIO, "The part of steps inside 80 % intervals that leave out the model.",
        lambda group: covered(group.steps.points), column=Column("inside", show=percent(0))),
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
    words *= any(point.of.set in SOURCES for point in found.points)  # a user's took part in no fit
    deepep = [f"deepep: {TITLE}"] * bool(found.about["dispatches"])
    named = {point.of.model: None for point in found.points}
    shapes = [f"{name}: the workload {MODELS[name]}" for name in named if name in MODELS]
    lines = [*words, *_titles(found, SOURCES), *deepep, *shapes]
    return comments(["", *lines] if lines else ())


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


_MOST_LISTED = 8
_LEGEND = (
    "# *: more than the limit; networks of EFA, Slingshot and TCP have none but a factor of"
    f" {BRACKETED_FACTOR:g} in the median"
)
_LEGEND_OF_INTERVALS = (
    "# interval: with 80 % the time is so many times the prediction, by the errors on all other"
    " machines"
)
_LEGEND_OF_MACHINES = (
    "# off most: the point at the 90th percentile of a machine's errors, and the largest part of"
    " its predicted time"
)


def compared_points(found: AccuracyComparison[TablePoint]) -> list[TablePoint]:
    """The points of NCCL itself."""
    return [point for point in found.points if point.of.compared]


def _nccl_head(found: AccuracyComparison[TablePoint]) -> list[str]:
    """What is compared, by which constants."""
    points, about = compared_points(found), found.about
    count = units.plural(len({point.of.name for point in points}), "table")
    return comments((
        f"simreduce {__version__}: published timings of NCCL beside predictions",
        f"{count} ({about['tables']}), {len(points):,} points, calibration {about['calibration']}",
        "",
    ))  # fmt: skip


def _coverage_lines(found: AccuracyComparison[TablePoint]) -> Iterator[str]:
    """What cells show, how often intervals cover the times, and where least."""
    yield _LEGEND
    if covered := cover(compared_points(found)):
        yield _LEGEND_OF_INTERVALS
        seen = covered.unseen
        more = "" if seen is None else f", {seen:.0%} on machines of no fitted table"
        yield f"# inside: {covered.inside:.0%} of the points{more}"
        for worst in covered.cells[:1]:
            number = "several" if worst.points[0].nodes > 1 else "one"
            yield (
                f"# inside, by rows of {DIVERSE} machines or more: 70 to 90 % in {covered.kept} of"
                f" {len(covered.cells)}, least {inside(worst):.0%} in {worst.of.collective},"
                f" {number}, {worst.band.name}"
            )
    yield ""


def _physics_lines(found: AccuracyComparison[TablePoint]) -> Iterator[str]:
    """What choices cost, what contradicts physics, and what has no prediction."""
    yield _LEGEND_OF_MACHINES
    costs = [point.regret for point in regrets(compared_points(found))]
    yield (
        f"# regret over {units.plural(len(costs), 'size')}: {np.median(costs):.1%} in the"
        f" median, {max(costs):.1%} at worst"
        if costs
        else "# regret: no size was published with several settings of NCCL"
    )
    for about, points in (
        ("predictions faster than the wires", impossible(found.points)),
        (
            f"published points more than {FASTER:.0%} faster than the machine's bound",
            too_fast(found.points),
        ),
    ):
        yield f"# {about}: {len(points)}"
        yield from map(_physics_line, points[:_MOST_LISTED])
    if refused := {point.of.name: point.refusal for point in found.points if point.refusal}:
        yield "# without a prediction:"
        yield from (f"#   {name}: {why}" for name, why in refused.items())
    yield from found.about["notes"]


def _physics_line(point: TablePoint) -> str:
    predicted = units.format_duration(point.predicted) if isfinite(point.predicted) else "none"
    return (
        f"#   {point.of.name}, {units.format_size(point.nbytes)}: published"
        f" {units.format_duration(point.published)}, predicted {predicted}, bound"
        f" {units.format_duration(point.bound)}"
    )


def machines_text(several: bool, bracketed: bool) -> str:
    """One machine or several, and whether their network has software of its own."""
    return ("several" if several else "one") + " (EFA, ...)" * bracketed


def _interval_cell(row: Mapping[str, Any]) -> str:
    low, high = row["interval_low"], row["interval_high"]
    return "-" if low is None else f"{low:.2f}-{high:.2f}"


def _limit_cell(row: Mapping[str, Any]) -> str:
    if row["bracketed"]:
        return f"x{BRACKETED_FACTOR:g}"
    limits = row["limit_median"], row["limit_p90"]
    return "".join(f"{limit:.0%}" for limit in limits if limit is not None)


_GROUP = (
    Key("tables", COUNT, "Published tables.",
        lambda group: len({point.of.name for point in group.points}),
        column=Column("tables", spare=9)),
    Key("points", COUNT, "Published times.", "count", column=Column("points", spare=4)),
    Key(
        "median_error", RATIO, "The median of |predicted / published - 1|.", "median",
        column=Column("median", show=percent(1)),
    ),
    Key(
        "p90_error", RATIO, "The 90th percentile of that.", "p90",
        column=Column("90 %", show=percent(1)),
    ),
    Key(
        "bias", RATIO, "The median of predicted / published - 1.", "bias",
        column=Column("bias", spare=2, show=signed_percent(1)),
    ),
    Key("machines", COUNT, "Different machines.", count_machines),
    Key(
        "interval_low", or_null(RATIO), "The interval's lower end over the prediction, median.",
        lambda group: interval(group)[0], column=Column("interval", spare=1, cell=_interval_cell),
    ),
    Key(
        "interval_high", or_null(RATIO), "The interval's upper end over the prediction, median.",
        lambda group: interval(group)[1],
    ),
    Key(
        "inside_interval", or_null(RATIO), "The part of the points within the 80 % interval.",
        inside, column=Column("inside", spare=8, show=percent(0)),
    ),
)  # fmt: skip
_CELL = Record(
    "group",
    "A collective on one machine or on several, in one band of sizes.",
    Key("collective", TEXT, "What is done.", "of.collective",
        column=Column("collective", left=True)),
    Key(
        "several_machines", FLAG, "Whether several machines take part.",
        lambda cell: cell.points[0].nodes > 1,
        column=Column(
            "machines",
            left=True,
            cell=lambda row: machines_text(row["several_machines"], row["bracketed"]),
        ),
    ),
    Key("bracketed", FLAG, "Whether the network has software of its own.",
        "points.0.bracketed"),
    Key("size", TEXT, "The band of sizes.", "band.name", column=Column("size", left=True)),
    *_GROUP,
    Key(
        "limit_median", or_null(RATIO), "The greatest median; null without a limit.", "limits.0",
        column=Column("limit", cell=_limit_cell),
    ),
    Key("limit_p90", or_null(RATIO), "The greatest 90th percentile, or null.", "limits.1"),
    Key(
        "missed", FLAG, "Whether an error is greater than its limit.",
        column=Column("", show=lambda missed: "*" if missed else ""),
    ),
)  # fmt: skip


def _known(name: str) -> Callable[[TablePoint], float | None]:
    """The time of that name; None without a prediction or an interval."""

    def known(point: TablePoint) -> float | None:
        time = getattr(point, name)
        return time if isfinite(time) and time else None

    return known


def _rate(name: str) -> Callable[[TablePoint], float | None]:
    """The busbw in GB/s of the time of that name."""
    known = _known(name)
    return lambda point: (time := known(point)) and point.bus_bytes * 1e-9 / time


_BUSBW = number_in("GB/s")
_POINT = (
    Key("table", TEXT, "The published table.", "of.name"),
    Key("source", TEXT, "Who published it.", "of.source"),
    Key("held", FLAG, "Whether it took part in no fit.", "of.held"),
    Key("topology", TEXT, "The machine.", "of.topology"),
    Key("gpus", COUNT, "GPUs that take part.", "ranks"),
    Key("collective", TEXT, "What is done.", "of.collective"),
    Key("size_bytes", BYTES, "The tensor.", "nbytes"),
    Key("strategy", TEXT, 'What NCCL chooses; "" without a prediction.'),
    Key("measured_s", SECONDS, "The published time.", "published"),
    Key(
        "predicted_s", or_null(SECONDS), "The predicted time; null where there is no plan.",
        _known("predicted"),
    ),
    Key(
        "low_s", or_null(SECONDS), "The lower end of its 80 % interval, or null.",
        _known("low"),
    ),
    Key(
        "high_s", or_null(SECONDS), "The upper end of that interval, or null.",
        _known("high"),
    ),
    Key("bound_s", SECONDS, "What any algorithm takes on the machine.", "bound"),
    Key("measured_busbw_gb_per_s", _BUSBW, "The published busbw.", _rate("published")),
    Key(
        "predicted_busbw_gb_per_s", or_null(_BUSBW), "The predicted busbw, or null.",
        _rate("predicted"),
    ),
    Key(
        "terms",
        list_of(
            Record(
                "term",
                "A cause of the predicted time.",
                Key("cause", TEXT, "What it is.", "0"),
                Key("part", RATIO, "Its part of the time.", "1"),
            )
        ),
        "What the predicted time consists of, most first.",
    ),
    Key("refusal", TEXT, 'Why there is no prediction; "" if there is one.'),
)  # fmt: skip
_POINTS = Record("point", "A published time and its prediction.", *_POINT)
_MACHINE = Record(
    "machine",
    "The errors on a machine.",
    Key("machine", TEXT, "The machine.", "points.0.machine", column=Column("machine", left=True)),
    *_GROUP,
    Key(
        "off_most", _POINTS, "The time with the greatest error.", find_typical_miss,
        column=(
            Column("off most", left=True,
                show=lambda p: f"{p['collective']}, {units.plural(p['gpus'], 'GPU')}"),
            Column("size", spare=7, show=lambda p: units.format_size(p["size_bytes"])),
            Column("measured", spare=6, show=lambda p: units.format_duration(p["measured_s"])),
            Column("predicted", spare=5, show=lambda p: units.format_duration(p["predicted_s"])),
            Column("why", left=True, spare=3,
                show=lambda p: "".join(f"{t['part']:.0%} {t['cause']}" for t in p["terms"][:1])),
        ),
    ),
)  # fmt: skip
NCCL = Chapter(
    Document(
        "accuracy-nccl",
        "`simreduce accuracy nccl --json`: predicted times of NCCL beside published ones.",
        Key("calibration", TEXT, "The constants, or `by generation`.", "about.calibration"),
        Key("tables", one_of("all", "held", "fit"), "Which published tables.",
            "about.tables"),
        Key(
            "groups", list_of(_CELL), "Errors by collective, machines and size.",
            lambda found: cells(compared_points(found)),
        ),
        Key(
            "machines", list_of(_MACHINE), "Errors by machine.",
            lambda found: machines(compared_points(found)),
        ),
        Key(
            "regrets",
            list_of(
                Record(
                    "regret",
                    "A choice by prediction that is not the fastest published.",
                    *_POINT,
                    Key("regret", RATIO, "The part that it is slower."),
                )
            ),
            "What choosing by prediction costs.",
            lambda found: regrets(compared_points(found)),
        ),
        Key(
            "faster_than_wires", list_of(_POINTS), "Predictions that no wire allows.",
            lambda found: impossible(found.points),
        ),
        Key(
            "published_faster_than_bound", list_of(_POINTS), "Published times below their bound.",
            lambda found: too_fast(found.points),
        ),
        Key("points", list_of(_POINTS), "Every published time."),
        complete_key("tables"),
        command="accuracy nccl",
    ),
    predict,
    "predicted {} of {} tables",
    {"groups": _nccl_head, "machines": _coverage_lines},
    _physics_lines,
)  # fmt: skip


def draw_points(found: AccuracyComparison[TablePoint]) -> Plot:
    """Busbw over size: a facet for each machine, and a colour for each table. Marks are published,
    lines predicted by the constants that are named, and bands their intervals.
    """
    if not found.points:
        raise InputError("nothing was compared: there is nothing to draw")
    by_machine = group_by(found.points, lambda point: point.machine)
    return Plot(
        "Busbw of NCCL: published (marks), predicted (lines), 80 % intervals (bands)",
        f"calibration {found.about['calibration']}",
        [
            Facet(
                Axis("size", "bytes"), Axis("busbw", "bytes/s", log=True),
                [
                    each
                    for some in group_by(points, lambda p: (p.of.collective, p.ranks)).values()
                    for each in _two_series(some)
                ],
                name, 190.0,
            )
            for name, points in by_machine.items()
        ],
        4,
        1240.0,
    )  # fmt: skip


def _two_series(points: Sequence[TablePoint]) -> Iterator[PlotSeries]:
    """Published and predicted bandwidths of a collective in the order of sizes."""
    name = f"{points[0].of.collective}, {units.plural(points[0].ranks, 'GPU')}"
    ordered = sorted(points, key=lambda point: point.nbytes)
    sizes = [point.nbytes for point in ordered]
    published, predicted, low, high = (
        [rate and rate * 1e9 for rate in map(_rate(which), ordered)]
        for which in ("published", "predicted", "high", "low")
    )
    measured = [PlotPoint(x, y) for x, y in zip(sizes, published, strict=True) if y]
    yield PlotSeries(name, measured, "")
    expected = [
        PlotPoint(x, y, *((least, most) if least and most else ()))
        for x, y, least, most in zip(sizes, predicted, low, high, strict=True)
        if y
    ]
    yield PlotSeries(name, expected, mark="")


def _error_key(name: str, about: str, heading: str, get: str | Callable[[Any], Any] = "") -> Key:
    return Key(name, RATIO, about, get, column=Column(heading, show=percent(1)))


def _quantile(errors: Callable[[Any], npt.ArrayLike], place: int) -> Callable[[Any], float]:
    """The median or the 90th percentile of some errors of a group."""
    return lambda group: median_and_p90(errors(group))[place]


_LEFT_OUT = Record(
    "machine",
    "A machine.",
    Key(
        "calibration", TEXT, "The constants of its generation.",
        column=Column("calibration", left=True),
    ),
    Key("machine", TEXT, "The machine.", column=Column("machine", left=True)),
    Key("cases", COUNT, "Published times.", lambda found: len(found.with_it),
        column=Column("cases")),
    _error_key("median_error", "The median of |predicted / published - 1|.", "median",
        _quantile(attrgetter("with_it"), 0)),
    _error_key("p90_error", "The 90th percentile of that.", "90 %",
        _quantile(attrgetter("with_it"), 1)),
    _error_key("median_error_without_it", "The median without it in the fit.",
        "median without it", _quantile(attrgetter("without"), 0)),
    _error_key("p90_error_without_it", "The 90th percentile without it in the fit.",
        "90 % without it", _quantile(attrgetter("without"), 1)),
)  # fmt: skip
LEFT_OUT = Chapter(
    Document(
        "accuracy-leave-one-out",
        "`simreduce accuracy nccl --leave-one-out --json`: errors on each machine by constants that"
        " were fitted without it.",
        Key("machines", list_of(_LEFT_OUT),
            "Every machine of the tables that constants are fitted to.", "points"),
        command="accuracy nccl",
    ),
    leave_machines_out,
    "fitting without each machine",
    {"machines": nothing},
    lambda _: ["# without it: one step of least squares away from the constants that are shipped"],
)  # fmt: skip


_UNSEEN = Record(
    "cell",
    "Errors in a band of sizes.",
    Key("collective", one_of("all_reduce", "others"), "The collective.", "0.0",
        column=Column("collective", left=True)),
    Key("machines", one_of(*NODES), "How many machines take part.", "0.1",
        column=Column("machines", left=True)),
    Key("from_bytes", BYTES, "The size at which the band begins.", "0.2",
        column=Column("from", show=units.format_size)),
    Key("points", COUNT, "Published times.", "1.count", column=Column("points")),
    Key("median_error", RATIO, "The median of |predicted / published - 1|.", "1.median",
        column=Column("median |error|", show=percent(0))),
    Key("inside", or_null(RATIO), "The part within its 80 % interval.",
        lambda cell: inside(cell[1]), column=Column("inside", show=percent(0))),
)  # fmt: skip


def _unseen_lines(found: AccuracyComparison[TablePoint]) -> Iterator[str]:
    """How many points intervals hold, what was left out, and the order of machines."""
    what, order = found.about["what"], found.about["order"]
    if (held := inside(PointGroup(found.points))) is not None:
        count = units.plural(len(found.points), "point")
        yield f"# inside: {held:.0%} of {count} within 80 % intervals"
    without = "site" if what == "site" else "generation, by constants of those beside it"
    yield f"# each table by constants and intervals without its {without}"
    if order.pairs:
        low, high = np.quantile(order.regrets, (0.5, 0.9))
        yield (
            f"# above 1 MiB: {order.right / order.pairs:.0%} of {order.pairs} pairs of machines"
            " with as many GPUs in order"
        )
        yield (
            f"# the machine chosen is slower than the fastest by {low:.1%} in the median,"
            f" {high:.1%} at the 90th percentile of {len(order.regrets)} choices"
        )


UNSEEN = Chapter(
    Document(
        "accuracy-left-out",
        "`simreduce accuracy nccl --left-out site --json`: errors on sites, or on generations, that"
        " took no part in the constants nor in the intervals.",
        Key("left_out", one_of("site", "generation"), "What took no part.", "about.what"),
        Key("inside", or_null(RATIO), "The part of all times within their 80 % intervals.", inside),
        Key("cells", list_of(_UNSEEN), "By collective, machines and size.",
            lambda found: unseen(found.points)),
        Key("pairs", COUNT, "Pairs of machines with as many GPUs, at sizes above 1 MiB.",
            "about.order.pairs"),
        Key("pairs_in_order", COUNT, "Those whose order is predicted.", "about.order.right"),
        Key("regrets", list_of(RATIO), "How much slower the machine chosen by prediction is than"
            " the fastest, for each collective, size and number of GPUs.", "about.order.regrets"),
        complete_key("tables"),
        command="accuracy nccl",
    ),
    predict_without,
    "predicted {} of {} tables",
    {"cells": nothing},
    _unseen_lines,
)  # fmt: skip


_LARGE = 1 << 20
LIMITS = {False: 0.10, True: 0.05}
"""The greatest median error up to 1 MiB and above."""
LIMIT_90 = 0.20
_MOST_TABLES = 12


_THREE_SIZES = Record(
    "group",
    "Sizes that were not fitted, by machines and size.",
    Key("machines", TEXT, "One or several, and whether the network has software of its own.",
        lambda group: machines_text(group.points[0].link in ("net", OTHER_NET), _apart(group)),
        column=Column("machines", left=True)),
    Key("size", TEXT, "Up to 1 MiB, or above.",
        lambda group: f"{'>' if _large(group) else '<='} {units.format_size(_LARGE)}",
        column=Column("size", left=True)),
    Key("tables", COUNT, "Published tables.",
        lambda group: len({point.of.name for point in group.points}),
        column=Column("tables", spare=3)),
    Key("points", COUNT, "Published times.", "count", column=Column("points", spare=2)),
    *(
        _error_key(heading, "By the constants of its generation.", heading,
            _quantile(lambda group: [point.before for point in group.points], place))
        for place, heading in enumerate(("median", "90 %"))
    ),
    _error_key("calibrated", "The median, calibrated.", "calibrated", "median"),
    _error_key("p90", "The 90th percentile, calibrated.", "90 % then"),
    Key("inside", RATIO, "The part within its 80 % interval.",
        lambda group: np.mean([point.inside for point in group.points]),
        column=Column("inside", show=percent(0))),
    Key("limits", TEXT, "The greatest median and 90th percentile.",
        lambda group: "-" if _apart(group) else f"{LIMITS[_large(group)]:.0%}, {LIMIT_90:.0%}",
        column=Column("limits", spare=1)),
    Key("missed", TEXT, "Whether an error is greater than its limit.",
        lambda group: "*" * (not _apart(group) and _is_far(group)), column=Column("")),
)  # fmt: skip


def _apart(group: PointGroup[Calibrated]) -> bool:
    """Whether the network has software of its own."""
    return group.points[0].link == OTHER_NET


def _large(group: PointGroup[Calibrated]) -> bool:
    return group.points[0].nbytes > _LARGE


def _is_far(group: PointGroup[Calibrated]) -> bool:
    return group.median > LIMITS[_large(group)] or group.p90 > LIMIT_90


def _by_machines(points: Iterable[Calibrated]) -> list[PointGroup[Calibrated]]:
    """By the kind of network, the number of machines and the size, over all collectives."""
    groups = group_predicted(
        points, lambda p: (p.link == OTHER_NET, p.link in ("net", OTHER_NET), p.nbytes > _LARGE)
    )
    return [groups[key] for key in sorted(groups)]


def _worst_lines(found: AccuracyComparison[Calibrated]) -> list[str]:
    """What is compared, and the tables that are farthest off once they are calibrated."""
    tables = group_predicted(found.points, lambda point: point.of.name)
    far = {name: group.p90 for name, group in tables.items() if group.p90 > LIMIT_90}
    lines = [f"90th percentile then more than {LIMIT_90:.0%}, of {len(tables)} tables:"] * bool(far)
    for name in sorted(far, key=lambda name: -far[name])[:_MOST_TABLES]:
        lines.append(f"  {name}: {far[name]:.0%}")
    return comments([*_LEGEND_OF_THREE, *lines])


_LEGEND_OF_THREE = (
    (
        "calibrated: constants fitted to the smallest, the middle and the largest size of each"
        " table; the other sizes are compared"
    ),
    "inside: within the 80 % interval of calibrated machines, by the errors on all other machines",
)
THREE_SIZES = Chapter(
    Document(
        "accuracy-three-sizes",
        "`simreduce accuracy nccl --three-sizes --json`: errors with constants fitted to three"
        " sizes of each table. An error of 0.1 is 10 % too long.",
        Key(
            "points",
            list_of(
                Record(
                    "point",
                    "A size that was not fitted.",
                    Key("table", TEXT, "The published table.", "of.name"),
                    Key("topology", TEXT, "The machine.", "of.topology"),
                    Key("collective", TEXT, "What is done.", "of.collective"),
                    Key("link", TEXT, "The class of the links that matter."),
                    Key("size_bytes", BYTES, "The tensor.", "nbytes"),
                    Key(
                        "error_before", RATIO, "The error with the constants of its generation.",
                        "before",
                    ),
                    Key(
                        "error_calibrated", RATIO, "The error with the fitted constants.", "error"
                    ),
                    Key("interval_low", RATIO,
                        "The interval's lower end over the prediction.", "low"),
                    Key("interval_high", RATIO,
                        "The interval's upper end over the prediction.", "high"),
                )
            ),
            "Every size that was not fitted.",
        ),
        Key("groups", list_of(_THREE_SIZES), "By machines and size.",
            lambda found: _by_machines(found.points), written=False),
        complete_key("tables"),
        command="accuracy nccl",
    ),
    calibrate_on_three,
    "calibrated on {} of {} tables",
    {"groups": nothing},
    _worst_lines,
)  # fmt: skip


CHAPTERS = (
    NCCL,
    LEFT_OUT,
    UNSEEN,
    THREE_SIZES,
    SHARDED,
    MESH,
    KERNELS,
    COMPUTE,
    ONE_GPU,
    INTERFERENCE,
    CONGESTION,
)
"""Those of this package; the harness has more."""


def _error_column(key: str) -> Column:
    return Column("error", cell=lambda row: f"{row[key] / row['measured_s'] - 1:+.1%}")


_FITTED = Record(
    "row",
    "A size of a log.",
    Key("log", TEXT, "The log.", "0.group", column=Column("log", left=True)),
    Key(
        "collective", TEXT, "What is done.", "0.plan.contract.collective",
        column=Column("collective", left=True),
    ),
    Key(
        "size_bytes", BYTES, "The tensor.", "0.nbytes",
        column=Column("size", show=units.format_size),
    ),
    Key(
        "measured_s", SECONDS, "The time in the log.", "0.seconds",
        column=Column("measured", show=units.format_duration),
    ),
    Key(
        "before_s", SECONDS, "Predicted with the constants of its generation.", "1",
        column=(Column("before", spare=1, show=units.format_duration), _error_column("before_s")),
    ),
    Key(
        "fitted_s", SECONDS, "Predicted with the fitted constants.", "2",
        column=(Column("fitted", show=units.format_duration), _error_column("fitted_s")),
    ),
)  # fmt: skip


def _constants(found: FittedLogs) -> dict[str, dict[str, float]]:
    names = nccl_names(found.calibration.nccl)
    return {
        name: {"value": names[name], "error": error} for name, error in found.fit.errors.items()
    }


def _intervals(found: FittedLogs) -> Iterator[tuple[str, int, tuple[float, float]]]:
    """The collectives of the logs, the sizes from which an interval holds, and its ends as parts of
    a prediction.
    """
    links = {case.plan.contract.collective: case.setup.link_class for case in found.cases}
    misfit = found.calibration.nccl.misfit
    for collective, link in links.items():
        for size in SIZES:
            yield collective, size, spread(collective, link, size, file=MACHINE, misfit=misfit)


FITTED = Document(
    "calibrate-nccl-tests",
    "`simreduce calibrate --from-nccl-tests --json`: NCCL's constants of one machine.",
    Key("calibration", TEXT, "The file that keeps them.", "kept"),
    Key("title", TEXT, "What they are of.", "calibration.title"),
    Key(
        "rows", list_of(_FITTED), "Every size that was fitted.",
        lambda found: zip(found.cases, found.before, found.after, strict=True),
    ),
    Key(
        "constants",
        map_of(
            Record(
                "constant",
                "A constant in SI units.",
                Key("value", RATIO, "Its value, in its unit."),
                Key("error", RATIO, "Its standard error, in its unit."),
            )
        ),
        "The constants by name.",
        _constants,
    ),
    Key(
        "intervals",
        list_of(
            Record(
                "interval",
                "How sure times of a collective are.",
                Key("collective", TEXT, "What is done.", "0",
                    column=Column("collective", left=True)),
                Key("from_bytes", BYTES, "The size from which it holds.", "1",
                    column=Column("from", show=units.format_size)),
                Key("low", RATIO, "The lower end of the 80 % interval over the prediction.", "2.0",
                    column=Column("least", show="{:.2f}".format)),
                Key("high", RATIO, "The upper end of the 80 % interval over the prediction.", "2.1",
                    column=Column("most", show="{:.2f}".format)),
            )
        ),
        "How sure predictions are.",
        _intervals,
    ),
    Key(
        "not_determined", map_of(TEXT), "Constants that the logs do not determine, and why.",
        "undetermined",
    ),
    command="calibrate",
)  # fmt: skip
"""Of `FittedLogs`."""


def fitted_lines(found: FittedLogs) -> Iterator[str]:
    """The report: rows, constants and why some are not determined, intervals."""
    document = FITTED.write(found)
    vague, constants = document["not_determined"], document["constants"]
    yield from (f"# {document['title']}", "#", *_FITTED.table(document["rows"]).lines(), "")
    rows = []
    for name in {**constants, **vague}:
        known = constants.get(name, {})
        value, error = (
            show_constant(name, known[key]) if known else "" for key in ("value", "error")
        )
        rows.append((name, value, error, vague.get(name, "")))
    yield from texts("constant|value|standard error|why not determined", rows).lines()
    few = sum(name in vague for name in constants)
    if few:
        rows_words = units.plural(len(found.cases), "row")
        who = f"{rows_words} {units.noun(len(found.cases), 'determines', 'determine')}"
        have = units.noun(few, "has a standard error", "have standard errors")
        yield (
            f"# warning: {who} {len(constants) - few} of"
            f" {units.plural(len(constants), 'constant')}: the other {few} {have} above"
            f" {VAGUE:.0%}."
        )
        yield "# Together they give the times above; alone, none of them says much of the machine."
    yield f"# misfit before: {found.calibration.nccl.misfit:.0%}; intervals widen with it"
    yield from ("", "with 80 % a time at another size is so many times the prediction")
    record, intervals = FITTED.rows("intervals", found)
    yield from record.table(intervals).lines()
    yield f"# kept in {document['calibration']}"
