"""Published timings beside predictions, and fits to them, as text, documents and a picture."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simreduce import units
from simreduce.engine.calibrate.files import unit_of
from simreduce.engine.calibrate.fit import VAGUE
from simreduce.engine.calibrate.nccl import nccl_names
from simreduce.engine.calibrate.sure import MACHINE, SIZES, spread
from simreduce.errors import InputError
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    ITSELF,
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
from simreduce.files.tables import (
    Column,
    Table,
    columns,
    comments,
    page_width,
    percent,
    signed_percent,
)
from simreduce.report.plots import Axis, Facet, Plot, PlotPoint, PlotSeries
from simreduce.study.accuracy.assess import (
    BRACKETED_FACTOR,
    DIVERSE,
    FASTER,
    NODES,
    Group,
    MachineOrder,
    cells,
    cover,
    impossible,
    machines,
    median_and_p90,
    order_machines,
    regrets,
    summarize,
    too_fast,
    unseen,
)
from simreduce.study.accuracy.fit import FittedLogs
from simreduce.study.accuracy.hold_out import Calibrated, LeftOut
from simreduce.study.accuracy.predict import Point
from simreduce.study.accuracy.sharded import ShardedPoint
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


class AccuracyComparison(NamedTuple):
    """Published points beside predictions with a calibration; not `complete` if the command was
    stopped.
    """

    points: Sequence[Point]
    calibration: str
    tables: str
    complete: bool = True

    @property
    def compared(self) -> list[Point]:
        """The points of NCCL itself."""
        return [point for point in self.points if point.table.compared]


def accuracy_lines(found: AccuracyComparison) -> list[str]:
    """The tables, then what contradicts physics, then what has no prediction."""
    document, compared = ACCURACY.write(found), found.compared
    count = units.plural(len({point.table.name for point in compared}), "table")
    about = f"{count} ({found.tables}), {len(compared):,} points, calibration {found.calibration}"
    title = f"simreduce {__version__}: published timings of NCCL beside predictions"
    regrets = [point["regret"] for point in document["regrets"]]
    fast, wrong = document["faster_than_wires"], document["published_faster_than_bound"]
    refused = {p["table"]: p["refusal"] for p in document["points"] if p["refusal"]}
    lines = [
        *comments((title, about, "")),
        *_CELL.table(document["groups"]).lines(),
        _LEGEND,
        *_coverage_lines(compared),
        "",
        *_MACHINE.table(document["machines"]).lines(),
        _LEGEND_OF_MACHINES,
        f"# regret over {units.plural(len(regrets), 'size')}: {np.median(regrets):.1%} in the"
        f" median, {max(regrets):.1%} at worst"
        if regrets
        else "# regret: no size was published with several settings of NCCL",
        f"# predictions faster than the wires: {len(fast)}",
        *map(_physics_line, fast[:_MOST_LISTED]),
        f"# published points more than {FASTER:.0%} faster than the machine's bound: {len(wrong)}",
        *map(_physics_line, wrong[:_MOST_LISTED]),
        *(["# without a prediction:"] if refused else []),
    ]
    return lines + [f"#   {name}: {why}" for name, why in refused.items()]


def _physics_line(point: Mapping[str, Any]) -> str:
    predicted = point["predicted_s"]
    return (
        f"#   {point['table']}, {units.format_size(point['size_bytes'])}: published"
        f" {units.format_duration(point['measured_s'])}, predicted"
        f" {'none' if predicted is None else units.format_duration(predicted)}, bound"
        f" {units.format_duration(point['bound_s'])}"
    )


def _coverage_lines(points: Sequence[Point]) -> list[str]:
    """How often intervals cover the times, and where least."""
    found = cover(points)
    if found is None:
        return []
    lines = [
        _LEGEND_OF_INTERVALS,
        f"# inside: {found.inside:.0%} of the points"
        + ("" if found.unseen is None else f", {found.unseen:.0%} on machines of no fitted table"),
    ]
    if (worst := found.worst) is not None:
        number = "several" if worst.several else "one"
        lines.append(
            f"# inside, by rows of {DIVERSE} machines or more: 70 to 90 % in {found.kept} of"
            f" {len(found.cells)}, least {worst.group.inside:.0%} in {worst.collective}, {number},"
            f" {worst.band.name}"
        )
    return lines


def _machines_cell(row: Mapping[str, Any]) -> str:
    number = "several" if row["several_machines"] else "one"
    return f"{number} (EFA, ...)" if row["bracketed"] else number


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
    Key(
        "tables", COUNT, "Published tables.", "group.tables", column=Column("tables", spare=9)
    ),
    Key("points", COUNT, "Published times.", "group.points", column=Column("points", spare=4)),
    Key(
        "median_error", RATIO, "The median of |predicted / published - 1|.", "group.median",
        column=Column("median", show=percent(1)),
    ),
    Key(
        "p90_error", RATIO, "The 90th percentile of that.", "group.p90",
        column=Column("90 %", show=percent(1)),
    ),
    Key(
        "bias", RATIO, "The median of predicted / published - 1.", "group.bias",
        column=Column("bias", spare=2, show=signed_percent(1)),
    ),
    Key("machines", COUNT, "Different machines.", "group.machines"),
    Key(
        "interval_low", or_null(RATIO), "The interval's lower end over the prediction, median.",
        "group.low", column=Column("interval", spare=1, cell=_interval_cell),
    ),
    Key(
        "interval_high", or_null(RATIO), "The interval's upper end over the prediction, median.",
        "group.high",
    ),
    Key(
        "inside_interval", or_null(RATIO), "The part of the points within the 80 % interval.",
        "group.inside", column=Column("inside", spare=8, show=percent(0)),
    ),
)  # fmt: skip
_CELL = Record(
    "group",
    "A collective on one machine or on several, in one band of sizes.",
    Key("collective", TEXT, "What is done.", column=Column("collective", left=True)),
    Key(
        "several_machines", FLAG, "Whether several machines take part.", "several",
        column=Column("machines", left=True, cell=_machines_cell),
    ),
    Key("bracketed", FLAG, "Whether the network has software of its own."),
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


def _rate(seconds: str) -> Callable[[Point], float | None]:
    """The busbw in GB/s of the time of that name."""

    def rate(point: Point) -> float | None:
        time = getattr(point, seconds)
        return None if time is None else point.nbytes * point.busbw_factor * 1e-9 / time

    return rate


_BUSBW = number_in("GB/s")
_POINT = (
    Key("table", TEXT, "The published table.", "table.name"),
    Key("source", TEXT, "Who published it.", "table.source"),
    Key("held", FLAG, "Whether it took part in no fit.", "table.held"),
    Key("topology", TEXT, "The machine.", "table.topology"),
    Key("gpus", COUNT, "GPUs that take part.", "ranks"),
    Key("collective", TEXT, "What is done.", "table.collective"),
    Key("size_bytes", BYTES, "The tensor.", "nbytes"),
    Key("strategy", TEXT, 'What NCCL chooses; "" without a prediction.'),
    Key("measured_s", SECONDS, "The published time.", "seconds"),
    Key(
        "predicted_s", or_null(SECONDS), "The predicted time; null where there is no plan.",
        "predicted",
    ),
    Key(
        "low_s", or_null(SECONDS), "The lower end of its 80 % interval, or null.",
        lambda point: point.low or None,
    ),
    Key(
        "high_s", or_null(SECONDS), "The upper end of that interval, or null.",
        lambda point: point.high or None,
    ),
    Key("bound_s", SECONDS, "What any algorithm takes on the machine.", "bound"),
    Key("measured_busbw_gb_per_s", _BUSBW, "The published busbw.", _rate("seconds")),
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
    Key("machine", TEXT, "The machine.", "name", column=Column("machine", left=True)),
    *_GROUP,
    Key(
        "off_most", _POINTS, "The time with the greatest error.",
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
ACCURACY = Document(
    "accuracy-nccl",
    "`simreduce accuracy nccl --json`: predicted times of NCCL beside published ones.",
    Key("calibration", TEXT, "The constants, or `by generation`."),
    Key("tables", one_of("all", "held", "fit"), "Which published tables."),
    Key(
        "groups", list_of(_CELL), "Errors by collective, machines and size.",
        lambda found: cells(found.compared),
    ),
    Key(
        "machines", list_of(_MACHINE), "Errors by machine.",
        lambda found: machines(found.compared),
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
        lambda found: regrets(found.compared),
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
    Key("complete", FLAG, "False if the command was stopped and tables are missing."),
    command="accuracy nccl",
)  # fmt: skip
"""Of an `AccuracyComparison`."""


def draw_points(points: Sequence[Point], calibration: str) -> Plot:
    """Busbw over size: a facet for each machine, and a colour for each table. Marks are published,
    lines predicted by the constants that `calibration` names, and bands their intervals.
    """
    if not points:
        raise InputError("nothing was compared: there is nothing to draw")
    facets: defaultdict[str, defaultdict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        series = f"{point.table.collective}, {units.plural(point.ranks, 'GPU')}"
        facets[point.machine][series].append(point)
    return Plot(
        "Busbw of NCCL: published (marks), predicted (lines), 80 % intervals (bands)",
        f"calibration {calibration}",
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


def _two_series(name: str, points: Sequence[Point]) -> Iterator[PlotSeries]:
    """Published and predicted bandwidths in the order of sizes."""
    ordered = sorted(points, key=lambda point: point.nbytes)
    rates = [(point.nbytes, point.nbytes * point.busbw_factor, point) for point in ordered]
    yield PlotSeries(name, [PlotPoint(x, rate / p.seconds) for x, rate, p in rates], "")
    predicted = [
        PlotPoint(x, rate / p.predicted, rate / p.high, rate / p.low)
        if p.low and p.high
        else PlotPoint(x, rate / p.predicted)
        for x, rate, p in rates
        if p.predicted is not None
    ]
    yield PlotSeries(name, predicted, mark="")


def _error_key(name: str, about: str, heading: str) -> Key:
    return Key(name, RATIO, about, column=Column(heading, show=percent(1)))


_LEFT_OUT = Record(
    "machine",
    "A machine.",
    Key(
        "calibration", TEXT, "The constants of its generation.",
        column=Column("calibration", left=True),
    ),
    Key("machine", TEXT, "The machine.", column=Column("machine", left=True)),
    Key("cases", COUNT, "Published times.", column=Column("cases")),
    _error_key("median_error", "The median of |predicted / published - 1|.", "median"),
    _error_key("p90_error", "The 90th percentile of that.", "90 %"),
    _error_key(
        "median_error_without_it", "The median without it in the fit.", "median without it"
    ),
    _error_key(
        "p90_error_without_it", "The 90th percentile without it in the fit.", "90 % without it"
    ),
)  # fmt: skip
LEFT_OUT = Document(
    "accuracy-leave-one-out",
    "`simreduce accuracy nccl --leave-one-out --json`: errors on each machine by constants that "
    "were fitted without it.",
    Key(
        "machines", list_of(_LEFT_OUT),
        "Every machine of the tables that constants are fitted to.", ITSELF,
    ),
    command="accuracy nccl",
)  # fmt: skip
"""Of `LeftOut` values."""


def left_out_lines(found: Iterable[LeftOut]) -> list[str]:
    """The table."""
    return [
        *_LEFT_OUT.table(map(_LEFT_OUT.write, found)).lines(),
        "# without it: one step of least squares away from the constants that are shipped",
    ]


class LeftOutPoints(NamedTuple):
    """Predictions without the site, or the generation, of each table."""

    what: str
    points: Sequence[Point]
    complete: bool

    @property
    def order(self) -> MachineOrder:
        """How machines are ordered above 1 MiB."""
        return order_machines(self.points)

    @property
    def inside(self) -> float | None:
        """The part of the points within their intervals."""
        whole = summarize(self.points)
        return whole.inside if whole else None


_UNSEEN = Record(
    "cell",
    "Errors in a band of sizes.",
    Key("collective", one_of("all_reduce", "others"), "The collective."),
    Key("machines", one_of(*NODES), "How many machines take part."),
    Key("from_bytes", BYTES, "The size at which the band begins.", "size"),
    Key("points", COUNT, "Published times.", "group.points"),
    Key("median_error", RATIO, "The median of |predicted / published - 1|.", "group.median"),
    Key("inside", or_null(RATIO), "The part within its 80 % interval.", "group.inside"),
)


UNSEEN = Document(
    "accuracy-left-out",
    "`simreduce accuracy nccl --left-out site --json`: errors on sites, or on generations, that "
    "took no part in the constants nor in the intervals.",
    Key("left_out", one_of("site", "generation"), "What took no part.", "what"),
    Key("inside", or_null(RATIO), "The part of all times within their 80 % intervals."),
    Key("cells", list_of(_UNSEEN), "By collective, machines and size.",
        lambda found: unseen(found.points)),
    Key("pairs", COUNT, "Pairs of machines with as many GPUs, at sizes above 1 MiB.",
        "order.pairs"),
    Key("pairs_in_order", COUNT, "Those whose order is predicted.",
        "order.right"),
    Key("regrets", list_of(RATIO), "How much slower the machine chosen by prediction is than the"
        " fastest, for each collective, size and number of GPUs.",
        "order.regrets"),
    Key("complete", FLAG, "False if the command was stopped and tables are missing."),
    command="accuracy nccl",
)  # fmt: skip
"""Of `LeftOutPoints`."""


def unseen_lines(found: LeftOutPoints) -> list[str]:
    """Median errors and covered parts by machines and size, then the order of machines."""
    every = {(c.collective, c.machines, c.size): c.group for c in unseen(found.points)}
    rows = []
    for collective, nodes in dict.fromkeys((c, m) for c, m, _ in every):
        mine = [every.get((collective, nodes, size)) for size in SIZES]
        cases: tuple[tuple[str, Callable[[Group], float | None]], ...] = (
            ("median |error|", lambda group: group.median),
            ("inside", lambda group: group.inside),
        )
        for figure, get in cases:
            shown = (None if group is None else get(group) for group in mine)
            texts = ("-" if value is None else f"{value:.0%}" for value in shown)
            rows.append((collective, nodes, figure, *texts))
    head = "collective|machines|figure|< 64 KiB|to 1 MiB|to 8 MiB|to 64 MiB|above"
    lines = Table(columns(head, left="collective|machines|figure"), tuple(rows)).lines()
    order = found.order
    if found.inside is not None:
        count = units.plural(len(found.points), "point")
        lines.append(f"# inside: {found.inside:.0%} of {count} within 80 % intervals")
    without = "site" if found.what == "site" else "generation, by constants of those beside it"
    lines.append(f"# each table by constants and intervals without its {without}")
    if order.pairs:
        low, high = np.quantile(order.regrets, (0.5, 0.9))
        lines.append(
            f"# above 1 MiB: {order.right / order.pairs:.0%} of {order.pairs} pairs of machines"
            " with as many GPUs in order"
        )
        lines.append(
            f"# the machine chosen is slower than the fastest by {low:.1%} in the median,"
            f" {high:.1%} at the 90th percentile of {len(order.regrets)} choices"
        )
    return lines


_LARGE = 1 << 20
LIMITS = {False: 0.10, True: 0.05}
"""The greatest median error up to 1 MiB and above."""
LIMIT_90 = 0.20
_MOST_TABLES = 12
_LEGEND_INSIDE = (
    "# inside: within the 80 % interval of calibrated machines, by the errors on all other machines"
)


def three_sizes_lines(found: Sequence[Calibrated]) -> list[str]:
    """The errors by number of machines and size, over all collectives."""
    groups: defaultdict[tuple[bool, bool, bool], list[Calibrated]] = defaultdict(list)
    for each in found:
        groups[each.bracketed, each.several, each.nbytes > _LARGE].append(each)
    rows = []
    for (bracketed, several, large), mine in sorted(groups.items()):
        before = median_and_p90([p.before for p in mine])
        after = median_and_p90([p.after for p in mine])
        limit = LIMITS[large]
        missed = not bracketed and (after[0] > limit or after[1] > LIMIT_90)
        rows.append(
            (
                ("several" if several else "one") + (" (EFA, ...)" if bracketed else ""),
                f"{'>' if large else '<='} {units.format_size(_LARGE)}",
                str(len({p.table.name for p in mine})),
                str(len(mine)),
                *(f"{error:.1%}" for error in (*before, *after)),
                f"{np.mean([p.inside for p in mine]):.0%}",
                "-" if bracketed else f"{limit:.0%}, {LIMIT_90:.0%}",
                "*" if missed else "",
            )
        )
    legend = (
        "# calibrated: constants fitted to the smallest, the middle and the largest size of each"
        " table; the other sizes are compared"
    )
    head = "machines|size|tables|points|median|90 %|calibrated|90 % then|inside|limits|"
    table = Table(
        columns(head, left="machines|size", spare="tables|points|limits"), tuple(rows)
    ).lines()
    return [*table, legend, _LEGEND_INSIDE, *_worst_lines(found)]


THREE_SIZES = Document(
    "accuracy-three-sizes",
    "`simreduce accuracy nccl --three-sizes --json`: errors with constants fitted to three sizes "
    "of each table. An error of 0.1 is 10 % too long.",
    Key(
        "points",
        list_of(
            Record(
                "point",
                "A size that was not fitted.",
                Key("table", TEXT, "The published table.", "table.name"),
                Key("topology", TEXT, "The machine.", "table.topology"),
                Key("collective", TEXT, "What is done.", "table.collective"),
                Key("link", TEXT, "The class of the links that matter."),
                Key("size_bytes", BYTES, "The tensor.", "nbytes"),
                Key(
                    "error_before", RATIO, "The error with the constants of its generation.",
                    "before",
                ),
                Key(
                    "error_calibrated", RATIO, "The error with the fitted constants.", "after"
                ),
                Key(
                    "interval_low", RATIO, "The interval's lower end over the prediction.", "low"
                ),
                Key(
                    "interval_high", RATIO, "The interval's upper end over the prediction.", "high"
                ),
            )
        ),
        "Every size that was not fitted.",
    ),
    Key("complete", FLAG, "False if the command was stopped and tables are missing."),
    command="accuracy nccl",
)  # fmt: skip
"""Of `points`, which are `Calibrated`, and `complete`."""


def _worst_lines(found: Sequence[Calibrated]) -> list[str]:
    """The tables that are farthest off once they are calibrated."""
    tables: defaultdict[str, list[float]] = defaultdict(list)
    for each in found:
        tables[each.table.name].append(each.after)
    far = {name: median_and_p90(errors)[1] for name, errors in tables.items()}
    worst = [name for name in sorted(far, key=lambda n: -far[n]) if far[name] > LIMIT_90]
    if not worst:
        return []
    lines = [f"# 90th percentile then more than {LIMIT_90:.0%}, of {len(tables)} tables:"]
    return lines + [f"#   {name}: {far[name]:.0%}" for name in worst[:_MOST_TABLES]]


_SHARDED = Record(
    "point",
    "A model on a number of GPUs.",
    Key("model", TEXT, "The model.", column=Column("model", left=True)),
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
SHARDED = Document(
    "accuracy-sharded",
    "`simreduce accuracy sharded --json`: published throughputs of FSDP beside predictions.",
    Key("points", list_of(_SHARDED), "Every published throughput."),
    Key("complete", FLAG, "False if the command was stopped and rows are missing."),
    command="accuracy sharded",
)
"""Of `points`, which are `ShardedPoint` values, and `complete`."""


def sharded_lines(points: Iterable[ShardedPoint]) -> list[str]:
    """A row for each number of GPUs."""
    return _SHARDED.table(map(_SHARDED.row, points)).lines()


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
                Key("collective", TEXT, "What is done.", "0"),
                Key("from_bytes", BYTES, "The size from which it holds.", "1"),
                Key("low", RATIO, "The lower end of the 80 % interval over the prediction.", "2.0"),
                Key(
                    "high", RATIO, "The upper end of the 80 % interval over the prediction.", "2.1"
                ),
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


def fitted_lines(found: FittedLogs) -> list[str]:
    """The report: rows, constants, intervals, what is not determined."""
    document = FITTED.write(found)
    lines = [f"# {document['title']}", "#", *_FITTED.table(document["rows"]).lines()]
    vague, constants = document["not_determined"], document["constants"]
    sure = {name: each for name, each in constants.items() if name not in vague}
    lines += ["#", "# constants, with standard errors:"] if sure else ["#"]
    for name, constant in sure.items():
        value, error = (_show(name, constant[key]) for key in ("value", "error"))
        lines.append(f"#   {name}: {value} +- {error}")
    if few := len(constants) - len(sure):
        rows = len(found.cases)
        who = f"{units.plural(rows, 'row')} {units.noun(rows, 'determines', 'determine')}"
        have = units.noun(few, "has a standard error", "have standard errors")
        lines.append(
            f"# warning: {who} {len(sure)} of {units.plural(len(constants), 'constant')}: the other"
            f" {few} {have} above {VAGUE:.0%}."
        )
        lines.append(
            "# Together they give the times above; alone, none of them says much of the machine."
        )
    lines.append(f"# misfit before: {found.calibration.nccl.misfit:.0%}; intervals widen with it")
    bands: defaultdict[str, list[str]] = defaultdict(list)
    for each in document["intervals"]:
        size = units.format_size(each["from_bytes"])
        bands[each["collective"]].append(f"{each['low']:.2f}-{each['high']:.2f} from {size}")
    lines.append("# with 80 % a time at another size is so many times the prediction:")
    lines += [f"#   {name}: {', '.join(texts)}" for name, texts in bands.items()]
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for name, why in document["not_determined"].items():
        reasons[why].append(name)
    lines += ["# not determined by these logs:"] * bool(reasons)
    for why, mine in reasons.items():
        text = textwrap.wrap(f"{why}: {', '.join(mine)}", page_width(100) - 4)
        lines += [f"#   {line}" for line in text]
    return [*lines, f"# kept in {document['calibration']}"]


def _show(name: str, value: float) -> str:
    unit = unit_of(name)
    if unit == "time":
        return units.format_duration(value)
    return units.format_bandwidth(value) if unit == "rate" else f"{value:.3g}"
