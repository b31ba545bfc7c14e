"""Curves over sizes, bars and timelines.

Plots of measured beside predicted times and bandwidths.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from simreduce import units
from simreduce.errors import InputError
from simreduce.report.plots.figure import (
    COLOURS,
    MOST_SERIES,
    clean,
    figure,
    limits,
    looks_of,
    short,
    size_axis,
    time_ticks,
    with_style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BARS = 40


class TimelineBar(NamedTuple):
    """A span of a track from `begin` to `end`, in seconds; spans of a kind share a colour."""

    begin: float
    end: float
    kind: str


@with_style
def draw_curves(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    title: str,
    subtitle: str = "",
) -> Figure:
    """A curve for each name: its busbw in bytes/s at each size."""
    drawn = figure(8.0, 5.0, title, subtitle)
    axes = drawn.add_subplot()
    looks = looks_of(curves)
    for name, points in curves.items():
        ordered = sorted(points)
        rates = [rate / 1e9 for _, rate in ordered]
        axes.plot([size for size, _ in ordered], rates, label=short(name), **looks[name])
    if sizes := [size for points in curves.values() for size, _ in points]:
        size_axis(axes, sizes)
    axes.set_ylabel("busbw (GB/s)")
    axes.set_ylim(bottom=0)
    if curves:
        drawn.legend(loc="outside lower left", ncols=3, frameon=False)
    return drawn


@with_style
def draw_sensitivity(
    points: Sequence[tuple[int, float]],
    levels: Sequence[tuple[str, float]],
    title: str,
    subtitle: str = "",
) -> Figure:
    """The time in seconds at each size of buckets, and a line across for each of `levels`."""
    drawn = figure(8.0, 5.0, title, subtitle)
    axes = drawn.add_subplot()
    axes.plot(
        [size for size, _ in points], [seconds * 1e3 for _, seconds in points], marker="o",
        color=COLOURS[0], label="simulated",
    )  # fmt: skip
    for (name, seconds), colour in zip(levels, COLOURS[1:], strict=False):
        axes.axhline(seconds * 1e3, color=colour, linestyle="--", label=short(name))
    size_axis(axes, [size for size, _ in points])
    axes.set_xlabel("bytes of a bucket")
    axes.set_ylabel("time (ms)")
    axes.set_ylim(bottom=0)
    drawn.legend(loc="outside lower left", ncols=3, frameon=False)
    return drawn


@with_style
def draw_bars(
    bars: Sequence[tuple[str, float]],
    title: str,
    subtitle: str = "",
    factor: str = "",
) -> Figure:
    """A bar for each name and time in seconds, the first on top; or how many times as long
    something takes, if that has a name as `factor`.
    """
    scale, show = (1.0, "{:.2f}x".format) if factor else (1e3, units.format_duration)
    shown = bars[:_MOST_BARS]
    more = f" (the first {len(shown)} of {len(bars):,})" if len(shown) < len(bars) else ""
    drawn = figure(8.0, 1.4 + 0.26 * len(shown), f"{title}{more}", subtitle)
    axes = drawn.add_subplot()
    places = range(len(shown))
    axes.barh(places, [value * scale for _, value in shown], color=COLOURS[0], height=0.7)
    for place, (_, value) in enumerate(shown):
        axes.annotate(
            show(value), (value * scale, place), (4, 0), va="center", textcoords="offset points"
        )
    axes.set_yticks(places, [short(name) for name, _ in shown])
    axes.set_xlabel(factor or "time (ms)")
    axes.margins(x=0.15)
    axes.set_xlim(left=0)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    return drawn


@with_style
def draw_timeline(
    tracks: Sequence[tuple[str, Sequence[TimelineBar]]], title: str, subtitle: str = ""
) -> Figure:
    """A row for each track, with a bar for each of its spans."""
    kinds = list(dict.fromkeys(span.kind for _, spans in tracks for span in spans))
    colours = dict(zip(kinds, itertools.cycle(COLOURS), strict=False))
    drawn = figure(10.0, 1.6 + 0.3 * len(tracks), title, subtitle)
    axes = drawn.add_subplot()
    seen = set[str]()
    for place, (_, spans) in enumerate(tracks):
        for kind in kinds:
            bars = [(s.begin * 1e3, (s.end - s.begin) * 1e3) for s in spans if s.kind == kind]
            label = {} if kind in seen or not bars else {"label": short(kind)}
            seen.update([kind] if bars else [])
            axes.broken_barh(bars, (place - 0.35, 0.7), color=colours[kind], alpha=0.8, **label)
    axes.set_yticks(range(len(tracks)), [short(name) for name, _ in tracks])
    axes.set_xlabel("time (ms)")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    if kinds:
        drawn.legend(loc="outside lower left", ncols=6, frameon=False)
    return drawn


_NEAR = 0.2
"""The band of the accuracy plot: predictions at most this part of the measured time off."""
_PANELS = 4
"""Panels of a row."""


class AccuracyPoint(NamedTuple):
    """A measured reduction: median, 95 % interval (`low` to `high`) and prediction, in seconds."""

    algorithm: str
    size_bytes: int
    measured: float
    low: float
    high: float
    predicted: float | None


@with_style
def draw_accuracy(
    rows: Sequence[AccuracyPoint], title: str, subtitle: str = "", notes: Sequence[str] = ()
) -> Figure:
    """Predicted against measured times on the left, times against sizes on the right.

    Raises InputError naming every row without a place on a logarithmic axis.
    """
    _check(rows)
    looks = looks_of(row.algorithm for row in rows)
    text = [line for note in notes for line in textwrap.wrap(clean(note), 150)]
    names = list(looks)[:MOST_SERIES]
    columns = 5 if max(len(short(name)) for name in names) < 22 else 3
    handles = [(_line(looks[name]), short(name)) for name in names]
    if len(looks) > MOST_SERIES:
        rest = len(looks) - MOST_SERIES
        handles.append((_line(list(looks.values())[-1]), f"{rest:,} more, in grey"))
    keys = _key(rows) + handles
    heights = [4.4, 0.2 * -(-len(keys) // columns) + 0.2, 0.17 * len(text) + 0.05]
    drawn = figure(10.0, sum(heights) + 0.8, title, subtitle)
    grid = drawn.add_gridspec(3, 2, height_ratios=heights)
    _scatter(drawn.add_subplot(grid[0, 0]), rows, looks)
    _times_by_size(drawn.add_subplot(grid[0, 1]), rows, looks)
    legend, below = (drawn.add_subplot(grid[i, :]) for i in (1, 2))
    legend.axis("off")
    below.axis("off")
    legend.legend(*zip(*keys, strict=True), loc="upper left", ncols=columns, frameon=False)
    below.text(0, 1, "\n".join(text), va="top", fontsize=8, color="#555555")
    return drawn


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


def _scatter(
    axes: Axes, rows: Sequence[AccuracyPoint], looks: Mapping[str, dict[str, Any]]
) -> None:
    """Predicted against measured times, with the line where both are equal."""
    shown = [(row, row.predicted) for row in rows if row.predicted is not None]
    axes.set(title="Predicted against measured time", xscale="log", yscale="log")
    axes.set(xlabel="measured time", ylabel="predicted time", aspect="equal")
    if not shown:
        axes.text(0.5, 0.5, "nothing is predicted", ha="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    times = [t for row, guess in shown for t in (row.low, row.measured, row.high, guess)]
    low, high = limits(times, 5.0)
    band = [[end * (1 + error) for end in (low, high)] for error in (-_NEAR, _NEAR)]
    axes.fill_between((low, high), *band, color="#ededed", zorder=0)
    axes.plot((low, high), (low, high), color="#555555", linewidth=0.8)
    for row, predicted in shown:
        _mark(axes, (row.measured, predicted), row, looks[row.algorithm], across=True)
    for axis, limit in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        limit(low, high)
        time_ticks(axis, low, high)


def _times_by_size(
    axes: Axes, rows: Sequence[AccuracyPoint], looks: Mapping[str, dict[str, Any]]
) -> None:
    """Measured times as solid curves, predicted ones as dashed curves.

    Rows of one size stand side by side.
    """
    sizes = sorted({row.size_bytes for row in rows})
    places = {name: i for i, name in enumerate(looks)}
    one = len(sizes) == 1
    for name, look in looks.items():
        own = sorted((row for row in rows if row.algorithm == name), key=lambda r: r.size_bytes)
        line = {"color": look["color"], "linewidth": look["linewidth"]}
        if one:
            for row in own:
                if row.predicted is not None:
                    ends = (places[name] - 0.4, places[name] + 0.4)
                    axes.plot(ends, (row.predicted,) * 2, linestyle="--", **line)
        else:
            axes.plot([r.size_bytes for r in own], [r.measured for r in own], **line)
            guesses = [(r.size_bytes, r.predicted) for r in own if r.predicted is not None]
            axes.plot(*zip(*guesses, strict=True), "--", **line) if guesses else None
        for row in own:
            place = places[name] if one else row.size_bytes
            _mark(axes, (place, row.measured), row, look, across=False)
    axes.set(title=f"Time at {units.exact_size(sizes[0])}" if one else "Time by size")
    axes.set(ylabel="time", yscale="log")
    if one:
        axes.set(xticks=[], xlabel="algorithms in the order of the legend")
        axes.set_xlim(-1, len(looks))
    else:
        size_axis(axes, sizes)
    times = [t for r in rows for t in (r.low, r.measured, r.high, r.predicted or r.measured)]
    low, high = limits(times, 5.0)
    axes.set_ylim(low, high)
    time_ticks(axes.yaxis, low, high)


def _mark(
    axes: Axes,
    at: tuple[float, float],
    row: AccuracyPoint,
    look: Mapping[str, Any],
    *,
    across: bool,
) -> None:
    """A mark with the 95 % interval of the measured time as a bar."""
    bar = [[max(row.measured - row.low, 0.0)], [max(row.high - row.measured, 0.0)]]
    error = {"xerr" if across else "yerr": bar}
    mark = {**look, "linestyle": ""}
    axes.errorbar([at[0]], [at[1]], **error, **mark, elinewidth=1)


def _line(look: Mapping[str, Any]) -> Any:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - loads when a plot is drawn

    return Line2D([], [], **look)


def _key(rows: Sequence[AccuracyPoint]) -> list[tuple[Any, str]]:
    """Handles and labels of the legend: the lines and the band."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - loads when a plot is drawn
    from matplotlib.patches import Patch  # noqa: PLC0415 - likewise

    grey = "#555555"
    found = [
        (Line2D([], [], color=grey, linewidth=1.4), "measured"),
        (Line2D([], [], color=grey, linestyle="", marker="|", markersize=9), "95 % interval"),
    ]
    if all(row.predicted is None for row in rows):
        return found
    return [
        *found,
        (Line2D([], [], color=grey, linewidth=1.4, linestyle="--"), "predicted"),
        (Line2D([], [], color=grey, linewidth=0.8), "no error"),
        (Patch(color="#ededed"), f"{100 * _NEAR:g} % error or less"),
    ]


class ComparedBandwidth(NamedTuple):
    """Bandwidths in bytes/s at one size; `predicted` is None without a prediction, and `low` to
    `high` is its interval.
    """

    size_bytes: int
    measured: float
    predicted: float | None
    low: float | None = None
    high: float | None = None


@with_style
def draw_multiples(
    panels: Mapping[str, Mapping[str, Sequence[ComparedBandwidth]]],
    title: str,
    subtitle: str = "",
) -> Figure:
    """A panel for each name, with a colour for each series: marks are measured, lines predicted,
    and a band is a prediction's interval.
    """
    if not panels:
        raise InputError("nothing was compared: there is nothing to draw")
    rows = -(-len(panels) // _PANELS)
    drawn = figure(13.0, 0.8 + 2.7 * rows, title, subtitle)
    grid = drawn.subplots(rows, _PANELS, squeeze=False).ravel()
    for axes, (name, series) in zip(grid, panels.items(), strict=False):
        _panel(axes, name, series)
    for axes in grid[len(panels) :]:
        axes.axis("off")
    drawn.supxlabel("size")
    drawn.supylabel("busbw (GB/s)")
    return drawn


def _panel(axes: Axes, name: str, series: Mapping[str, Sequence[ComparedBandwidth]]) -> None:
    from matplotlib.ticker import (  # noqa: PLC0415 - loads when a plot is drawn
        FuncFormatter,
        LogLocator,
        NullFormatter,
    )

    looks = looks_of(series)
    for label, rows in series.items():
        look, ordered = looks[label], sorted(rows)
        mark = {**look, "linestyle": "", "markersize": 3}
        axes.plot(
            [r.size_bytes for r in ordered], [r.measured / 1e9 for r in ordered],
            label=short(label), **mark,
        )  # fmt: skip
        shown = [(r.size_bytes, r.predicted / 1e9) for r in ordered if r.predicted is not None]
        if shown:
            axes.plot(*zip(*shown, strict=True), color=look["color"], linewidth=1.1)
        ends = [(r.size_bytes, r.low / 1e9, r.high / 1e9) for r in ordered if r.low and r.high]
        if ends:
            axes.fill_between(
                *zip(*ends, strict=True), color=look["color"], alpha=0.12, linewidth=0
            )
    axes.set_title(short(name), fontsize=9)
    sizes = [float(row.size_bytes) for rows in series.values() for row in rows]
    low, high = limits(sizes, 16.0)
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    ticks = [float(1 << power) for power in range(0, 50, 10) if low <= 1 << power <= high]
    axes.set_xticks(ticks, [units.exact_size(int(tick)) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="lower right", fontsize=6, handletextpad=0.2, labelspacing=0.2)
