"""Published timings beside predictions, and fits to them, as text, documents and a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from simreduce import units
from simreduce.engine.calibrate.files import nccl_names
from simreduce.engine.calibrate.fit import VAGUE
from simreduce.engine.calibrate.intervals import MACHINE, OTHER_NET, SIZES, spread
from simreduce.errors import InputError
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
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
from simreduce.files.tables import (
    Column,
    comments,
    percent,
    signed_percent,
    texts,
)
from simreduce.report.chapters import (
    COMPUTE,
    CONGESTION,
    KERNELS,
    MESH,
    SHARDED,
    Chapter,
    complete_key,
    nothing,
)
from simreduce.report.plots import Axis, Facet, Plot, PlotPoint, PlotSeries
from simreduce.report.sections import show_constant
from simreduce.study.accuracy.assess import (
    BRACKETED_FACTOR,
    DIVERSE,
    FASTER,
    NODES,
    cells,
    count_machines,
    cover,
    find_typical_miss,
    impossible,
    inside,
    interval,
    machines,
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
from simreduce.study.accuracy.points import (
    AccuracyComparison,
    PointGroup,
    group_by,
    median_and_p90,
)
from simreduce.study.accuracy.predict import TablePoint, predict
from simreduce.version import __version__

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


def _machines_cell(row: Mapping[str, Any]) -> str:
    return machines_text(row["several_machines"], row["bracketed"])


def _interval_cell(row: Mapping[str, Any]) -> str:
    low, high = row["interval_low"], row["interval_high"]
    return "-" if low is None else f"{low:.2f}-{high:.2f}"


def _limit_cell(row: Mapping[str, Any]) -> str:
    if row["bracketed"]:
        return f"x{BRACKETED_FACTOR:g}"
    limits = row["limit_median"], row["limit_p90"]
    return "".join(f"{limit:.0%}" for limit in limits if limit is not None)


def _off_most(name: str, spare: int, show: Callable[[dict[str, Any]], str]) -> Column:
    """A column of the point at which a machine is off most."""
    return Column(name, left=name in ("off most", "why"), spare=spare, show=show)


def _why(point: Mapping[str, Any]) -> str:
    """The largest part of a predicted time."""
    return "".join(f"{term['part']:.0%} {term['cause']}" for term in point["terms"][:1])


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
        column=Column("machines", left=True, cell=_machines_cell),
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
            _off_most(
                "off most", 0, lambda p: f"{p['collective']}, {units.plural(p['gpus'], 'GPU')}"
            ),
            _off_most("size", 7, lambda p: units.format_size(p["size_bytes"])),
            _off_most("measured", 6, lambda p: units.format_duration(p["measured_s"])),
            _off_most("predicted", 5, lambda p: units.format_duration(p["predicted_s"])),
            _off_most("why", 3, _why),
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
    facets: defaultdict[str, defaultdict[str, list[TablePoint]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for point in found.points:
        series = f"{point.of.collective}, {units.plural(point.ranks, 'GPU')}"
        facets[point.machine][series].append(point)
    return Plot(
        "Busbw of NCCL: published (marks), predicted (lines), 80 % intervals (bands)",
        f"calibration {found.about['calibration']}",
        [
            Facet(
                Axis("size", "bytes"), Axis("busbw", "bytes/s", log=True),
                [each for found in series.items() for each in _two_series(*found)], name, 190.0,
            )
            for name, series in facets.items()
        ],
        4,
        1240.0,
    )  # fmt: skip


def _two_series(name: str, points: Sequence[TablePoint]) -> Iterator[PlotSeries]:
    """Published and predicted bandwidths in the order of sizes."""
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
    groups = group_by(
        points, lambda p: (p.link == OTHER_NET, p.link in ("net", OTHER_NET), p.nbytes > _LARGE)
    )
    return [groups[key] for key in sorted(groups)]


def _worst_lines(found: AccuracyComparison[Calibrated]) -> list[str]:
    """What is compared, and the tables that are farthest off once they are calibrated."""
    tables = group_by(found.points, lambda point: point.of.name)
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


CHAPTERS = (NCCL, LEFT_OUT, UNSEEN, THREE_SIZES, SHARDED, MESH, KERNELS, COMPUTE, CONGESTION)
"""Those of this package; the harness has more."""


def _error_column(key: str) -> Column:
    return Column("error", cell=lambda row: f"{row[key] / row['measured_s'] - 1:+.1%}")


def _duration(name: str, spare: int = 0) -> Column:
    return Column(name, spare=spare, show=units.format_duration)


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
        "measured_s", SECONDS, "The time in the log.", "0.seconds", column=_duration("measured")
    ),
    Key(
        "before_s", SECONDS, "Predicted with the constants of its generation.", "1",
        column=(_duration("before", 1), _error_column("before_s")),
    ),
    Key(
        "fitted_s", SECONDS, "Predicted with the fitted constants.", "2",
        column=(_duration("fitted"), _error_column("fitted_s")),
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
