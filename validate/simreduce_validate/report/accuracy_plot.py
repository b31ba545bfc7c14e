"""Measured beside predicted times as a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from simreduce import units
from simreduce.errors import InputError
from simreduce.report.plots import Facet, Plot, PlotPoint, PlotSeries
from simreduce.report.plots.axes import Axis, log_ends

_NEAR = 0.2
"""The band of the plot: predictions at most this part of the measured time off."""


class AccuracyPoint(NamedTuple):
    """A measured reduction: median, 95 % interval (`low` to `high`) and prediction, in seconds."""

    algorithm: str
    size_bytes: int
    measured: float
    low: float
    high: float
    predicted: float | None


def accuracy_plot(
    rows: Sequence[AccuracyPoint], title: str, subtitle: str = "", notes: Sequence[str] = ()
) -> Plot:
    """Predicted against measured times on the left, times against sizes on the right.

    Raises InputError naming every row without a place on a logarithmic axis.
    """
    _check(rows)
    own: dict[str, list[AccuracyPoint]] = {}
    for row in sorted(rows, key=lambda row: row.size_bytes):
        own.setdefault(row.algorithm, []).append(row)
    own = {row.algorithm: own[row.algorithm] for row in rows}
    facets = [_against_each_other(own), _by_size(own)]
    return Plot(title, subtitle, facets, 2, 1000.0, notes)


def _check(rows: Sequence[AccuracyPoint]) -> None:
    if not rows:
        raise InputError("nothing was measured: there is nothing to draw")
    problems = []
    for row in rows:
        place = f"{row.algorithm}, {row.size_bytes} B"
        if row.size_bytes <= 0:
            problems.append(f"{place}: the size must be at least 1 B")
        for key in ("measured", "low", "high", "predicted"):
            value = getattr(row, key)
            if value is not None and not 0 < value < math.inf:
                problems.append(f"{place}: {key}: {value} s; must be more than 0 s and finite")
        if row.low > row.high:
            problems.append(f"{place}: low: {row.low} s is more than high: {row.high} s")
    if problems:
        raise InputError(problems)


def _keys(*, near: Sequence[PlotPoint] = ()) -> list[PlotSeries]:
    """The lines that need no colour, and the band of what is `near`."""
    return [
        PlotSeries(f"no error; band: {_NEAR:.0%} or less", near, mark="", colour="#777777"),
        PlotSeries("measured, with 95 % interval", colour="#555555"),
        PlotSeries("predicted", (), "dashed", "", "#555555"),
    ]


def _against_each_other(own: dict[str, list[AccuracyPoint]]) -> Facet:
    """Predicted against measured times, with the line where both are equal."""
    series = {
        name: [PlotPoint(r.measured, r.predicted, r.low, r.high) for r in rows if r.predicted]
        for name, rows in own.items()
    }
    near: list[PlotPoint] = []
    x, y = Axis("measured time", "seconds"), Axis("predicted time", "seconds")
    if times := [end for points in series.values() for p in points for end in p[:4] if end]:
        ends = low, high = log_ends(times)
        x, y = replace(x, log=True, ends=ends), replace(y, log=True, ends=ends)
        # Four points, so that the band is cut off straight at the ends of the axes.
        near = [PlotPoint(t, t, t * (1 - _NEAR), t * (1 + _NEAR))
                for t in sorted((low, low / (1 - _NEAR), high / (1 + _NEAR), high))]  # fmt: skip
    drawn = [PlotSeries(name, points, "", interval="across") for name, points in series.items()]
    title = "Predicted against measured time"
    return Facet(x, y, [*_keys(near=near), *drawn], title, 360.0, "nothing is predicted")


def _by_size(own: dict[str, list[AccuracyPoint]]) -> Facet:
    """Measured times as solid curves, predicted ones as dashed curves. Rows of one size stand side
    by side.
    """
    sizes = {row.size_bytes for rows in own.values() for row in rows}
    one = len(sizes) == 1
    x = Axis(names=list(own)) if one else Axis("size", "bytes")
    title = f"Time at {units.exact_size(*sizes)}" if one else "Time by size"
    series = _keys()
    for k, (name, rows) in enumerate(own.items()):
        points = [PlotPoint(k if one else r.size_bytes, r.measured, r.low, r.high) for r in rows]
        series.append(PlotSeries(name, points, "" if one else "solid", interval="up"))
        series += _predicted(name, rows, k if one else None)
    return Facet(x, Axis("time", "seconds", log=True), series, title, 360.0)


def _predicted(name: str, rows: Sequence[AccuracyPoint], place: int | None) -> Iterator[PlotSeries]:
    """A curve, or a dash for each row at the only size."""
    known = [(row.size_bytes, row.predicted) for row in rows if row.predicted is not None]
    if place is None:
        yield PlotSeries(name, [PlotPoint(*each) for each in known], "dashed", "")
        return
    for _, time in known:
        yield PlotSeries(name, [PlotPoint(place + d, time) for d in (-0.4, 0.4)], "dashed", "")
