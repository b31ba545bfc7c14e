"""What `simreduce accuracy` prints of published timings beside predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simreduce import units
from simreduce.accuracy.assess import (
    BRACKETED_FACTOR,
    DIVERSE,
    FASTER,
    Cell,
    Group,
    cells,
    cover,
    impossible,
    machines,
    regrets,
    too_fast,
)
from simreduce.accuracy.predict import Point
from simreduce.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    one_of,
    or_null,
)
from simreduce.tables import Table, columns, comments
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


def accuracy_lines(points: Sequence[Point], calibration: str, tables: str) -> list[str]:
    """The tables, then what contradicts physics, then what has no prediction."""
    compared = [point for point in points if not point.table.library]
    count = units.plural(len({point.table.name for point in compared}), "table")
    about = f"{count} ({tables}), {len(compared):,} points, calibration {calibration}"
    title = f"simreduce {__version__}: published timings of NCCL beside predictions"
    return [
        *comments((title, about, "")),
        *_cells_table(cells(compared)).lines(),
        _LEGEND,
        *_coverage_lines(compared),
        "",
        *_machines_table(compared).lines(),
        _LEGEND_OF_MACHINES,
        *_regret_lines(compared),
        *_physics_lines(points),
        *_refusal_lines(points),
    ]


def _cells_table(found: Sequence[Cell]) -> Table:
    head = "collective|machines|size|tables|points|median|90 %|bias|interval|inside|limit|"
    rows = []
    for cell in found:
        limits = [f"{limit:.0%}" for limit in cell.limits if limit is not None]
        network = " (EFA, ...)" if cell.bracketed else ""
        number = f"{'several' if cell.several else 'one'}{network}"
        limit = f"x{BRACKETED_FACTOR:g}" if cell.bracketed else "".join(limits)
        mark = "*" if cell.missed else ""
        rows.append(
            (cell.collective, number, cell.band.name, *_group_cells(cell.group), limit, mark)
        )
    about = columns(
        head, left="collective|machines|size", spare="tables|points|inside|bias|interval"
    )
    return Table(about, tuple(rows))


def _group_cells(group: Group) -> tuple[str, ...]:
    inside = "-" if group.inside is None else f"{group.inside:.0%}"
    return (
        str(group.tables),
        str(group.points),
        f"{group.median:.1%}",
        f"{group.p90:.1%}",
        f"{group.bias:+.1%}",
        "-" if group.low is None else f"{group.low:.2f}-{group.high:.2f}",
        inside,
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


def _machines_table(points: Sequence[Point]) -> Table:
    about = "tables|points|median|90 %|bias|interval|inside"
    head = f"machine|{about}|off most|size|measured|predicted|why"
    rows = []
    for name, group, worst in machines(points):
        why = f"{worst.terms[0][1]:.0%} {worst.terms[0][0]}" if worst.terms else ""
        rows.append(
            (
                name,
                *_group_cells(group),
                f"{worst.table.collective}, {units.plural(worst.ranks, 'GPU')}",
                units.format_size(worst.nbytes),
                units.format_duration(worst.seconds),
                units.format_duration(worst.predicted or 0.0),
                why,
            )
        )
    spare = "tables|inside|size|measured|predicted|points|why|bias"
    return Table(columns(head, left="machine|off most|why", spare=spare), tuple(rows))


def _regret_lines(points: Sequence[Point]) -> list[str]:
    found = [regret for _, regret in regrets(points)]
    if not found:
        return ["# regret: no size was published with several settings of NCCL"]
    worst = max(found)
    over = units.plural(len(found), "size")
    return [f"# regret over {over}: {np.median(found):.1%} in the median, {worst:.1%} at worst"]


def _physics_lines(points: Sequence[Point]) -> list[str]:
    fast, wrong = impossible(points), too_fast(points)
    lines = [f"# predictions faster than the wires: {len(fast)}"]
    lines += [f"#   {_place(p)}: {_seconds(p)}" for p in fast[:_MOST_LISTED]]
    lines.append(
        f"# published points more than {FASTER:.0%} faster than the machine's bound: {len(wrong)}"
    )
    return lines + [f"#   {_place(p)}: {_seconds(p)}" for p in wrong[:_MOST_LISTED]]


def _seconds(point: Point) -> str:
    predicted = "none" if point.predicted is None else units.format_duration(point.predicted)
    return (
        f"published {units.format_duration(point.seconds)}, predicted {predicted}, bound"
        f" {units.format_duration(point.bound)}"
    )


def _place(point: Point) -> str:
    return f"{point.table.name}, {units.format_size(point.nbytes)}"


def _refusal_lines(points: Sequence[Point]) -> list[str]:
    refused = {p.table.name: p.refusal for p in points if p.refusal}
    return ["# without a prediction:"] * bool(refused) + [
        f"#   {name}: {why}" for name, why in refused.items()
    ]


_GROUP = (
    Key("tables", COUNT, "Published tables."),
    Key("points", COUNT, "Published times."),
    Key("median_error", RATIO, "The median of |predicted / published - 1|."),
    Key("p90_error", RATIO, "The 90th percentile of that."),
    Key("bias", RATIO, "The median of predicted / published - 1."),
    Key("machines", COUNT, "Different machines."),
    Key("interval_low", or_null(RATIO), "The interval's lower end over the prediction, median."),
    Key("interval_high", or_null(RATIO), "The interval's upper end over the prediction, median."),
    Key("inside_interval", or_null(RATIO), "The part of the points within the 80 % interval."),
)
_POINT = (
    Key("table", TEXT, "The published table."),
    Key("source", TEXT, "Who published it."),
    Key("held", FLAG, "Whether it took part in no fit."),
    Key("topology", TEXT, "The machine."),
    Key("gpus", COUNT, "GPUs that take part."),
    Key("collective", TEXT, "What is done."),
    Key("size_bytes", BYTES, "The tensor."),
    Key("strategy", TEXT, 'What NCCL chooses; "" without a prediction.'),
    Key("measured_s", SECONDS, "The published time."),
    Key("predicted_s", or_null(SECONDS), "The predicted time; null where there is no plan."),
    Key("low_s", or_null(SECONDS), "The lower end of its 80 % interval, or null."),
    Key("high_s", or_null(SECONDS), "The upper end of that interval, or null."),
    Key("bound_s", SECONDS, "What any algorithm takes on the machine."),
    Key("measured_busbw_gb_per_s", GB_PER_SECOND, "The published busbw."),
    Key("predicted_busbw_gb_per_s", or_null(GB_PER_SECOND), "The predicted busbw, or null."),
    Key(
        "terms",
        list_of(
            Record(
                "term",
                "A cause of the predicted time.",
                Key("cause", TEXT, "What it is."),
                Key("part", RATIO, "Its part of the time."),
            )
        ),
        "What the predicted time consists of, most first.",
    ),
    Key("refusal", TEXT, 'Why there is no prediction; "" if there is one.'),
)
POINT = Record("point", "A published time and its prediction.", *_POINT)
ACCURACY = Document(
    "accuracy-nccl",
    "`simreduce accuracy nccl --json`: predicted times of NCCL beside published ones.",
    Key("calibration", TEXT, "The constants, or `by generation`."),
    Key("tables", one_of("all", "held", "fit"), "Which published tables."),
    Key(
        "groups",
        list_of(
            Record(
                "group",
                "A collective on one machine or on several, in one band of sizes.",
                Key("collective", TEXT, "What is done."),
                Key("several_machines", FLAG, "Whether several machines take part."),
                Key("bracketed", FLAG, "Whether the network has software of its own."),
                Key("size", TEXT, "The band of sizes."),
                *_GROUP,
                Key("limit_median", or_null(RATIO), "The greatest median; null without a limit."),
                Key("limit_p90", or_null(RATIO), "The greatest 90th percentile, or null."),
                Key("missed", FLAG, "Whether an error is greater than its limit."),
            )
        ),
        "Errors by collective, machines and size.",
    ),
    Key(
        "machines",
        list_of(
            Record(
                "machine",
                "The errors on a machine.",
                Key("machine", TEXT, "The machine."),
                *_GROUP,
                Key("off_most", POINT, "The time with the greatest error."),
            )
        ),
        "Errors by machine.",
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
    ),
    Key("faster_than_wires", list_of(POINT), "Predictions that no wire allows."),
    Key("published_faster_than_bound", list_of(POINT), "Published times below their bound."),
    Key("points", list_of(POINT), "Every published time."),
    Key("complete", FLAG, "False if the command was stopped and tables are missing."),
    command="accuracy nccl",
)


def accuracy_document(
    points: Sequence[Point], calibration: str, tables: str, *, complete: bool = True
) -> dict[str, Any]:
    """The document of `--json`: `ACCURACY`."""
    compared = [point for point in points if not point.table.library]
    return {
        **ACCURACY.head(),
        "calibration": calibration,
        "tables": tables,
        "groups": [
            {
                "collective": cell.collective,
                "several_machines": cell.several,
                "bracketed": cell.bracketed,
                "size": cell.band.name,
                **_group_document(cell.group),
                "limit_median": cell.limits[0],
                "limit_p90": cell.limits[1],
                "missed": cell.missed,
            }
            for cell in cells(compared)
        ],
        "machines": [
            {"machine": name, **_group_document(group), "off_most": _point_document(worst)}
            for name, group, worst in machines(compared)
        ],
        "regrets": [
            {**_point_document(point), "regret": regret} for point, regret in regrets(compared)
        ],
        "faster_than_wires": [_point_document(point) for point in impossible(points)],
        "published_faster_than_bound": [_point_document(point) for point in too_fast(points)],
        "points": [_point_document(point) for point in points],
        "complete": complete,
    }


def _group_document(group: Group) -> dict[str, Any]:
    return {
        "tables": group.tables,
        "points": group.points,
        "median_error": group.median,
        "p90_error": group.p90,
        "bias": group.bias,
        "machines": group.machines,
        "interval_low": group.low,
        "interval_high": group.high,
        "inside_interval": group.inside,
    }


def _point_document(point: Point) -> dict[str, Any]:
    factor = point.nbytes * point.busbw_factor * 1e-9
    predicted = point.predicted
    return {
        "table": point.table.name,
        "source": point.table.source,
        "held": point.table.held,
        "topology": point.table.topology,
        "gpus": point.ranks,
        "collective": point.table.collective,
        "size_bytes": point.nbytes,
        "strategy": point.strategy,
        "measured_s": point.seconds,
        "predicted_s": predicted,
        "low_s": point.low or None,
        "high_s": point.high or None,
        "bound_s": point.bound,
        "measured_busbw_gb_per_s": factor / point.seconds,
        "predicted_busbw_gb_per_s": None if predicted is None else factor / predicted,
        "terms": [{"cause": cause, "part": part} for cause, part in point.terms],
        "refusal": point.refusal,
    }
