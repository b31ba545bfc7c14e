"""Plots of sweeps: lines with the band of their errors, a heat map, and Pareto frontiers; and of
cost against time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from simreduce import units
from simreduce.errors import InputError
from simreduce.report.plots.figure import (
    COLOURS,
    figure,
    limits,
    looks_of,
    short,
    size_axis,
    time_ticks,
    with_style,
)
from simreduce.study.capacity.prices import format_amount

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

SECONDS, BYTES, RATE, SHARE, PLAIN = "seconds", "bytes", "bytes/s", "share", "plain"
"""What an axis counts: times, sizes, bandwidths, shares of 1, or numbers."""


class Axis(NamedTuple):
    """The name of what an axis shows, and what it counts."""

    name: str
    kind: str = PLAIN

    @property
    def label(self) -> str:
        """The name with its unit."""
        unit = {SECONDS: "", BYTES: "", RATE: " (GB/s)", SHARE: " (%)", PLAIN: ""}[self.kind]
        return f"{self.name}{unit}"

    def scale(self, value: float) -> float:
        """A value as the axis shows it."""
        return value * {RATE: 1e-9, SHARE: 100.0}.get(self.kind, 1.0)

    def show(self, value: float) -> str:
        """A value as text, with its unit."""
        if self.kind == SECONDS:
            return units.format_duration(value)
        if self.kind == RATE:
            return f"{value * 1e-9:.3g}"
        if self.kind == SHARE:
            return f"{value:.0%}"
        return units.exact_size(int(value)) if self.kind == BYTES else f"{value:.4g}"


class PlotValue(NamedTuple):
    """A value at a place of the x axis, and the ends of its interval, None without one."""

    x: float | str
    y: float
    low: float | None = None
    high: float | None = None


@with_style
def draw_lines(
    series: Mapping[str, Sequence[PlotValue]],
    across: Axis,
    up: Axis,
    title: str,
    subtitle: str = "",
) -> Figure:
    """A line for each series; the bands are intervals of the predictions. Words on the x axis stand
    side by side in the order in which they come.
    """
    readings = [each for one in series.values() for each in one]
    if not readings:
        raise InputError("no cell of the sweep has these values: there is nothing to draw")
    drawn = figure(9.0, 5.4, title, subtitle)
    axes = drawn.add_subplot()
    place = _across(axes, across, [each.x for each in readings])
    heights = [h for r in readings for h in (r.y, r.low, r.high) if h is not None]
    _up(axes, up, heights)
    looks = looks_of(series)
    banded = False
    for name, each in series.items():
        ordered = sorted(each, key=lambda r: place(r.x))
        at = [place(r.x) for r in ordered]
        axes.plot(at, [up.scale(r.y) for r in ordered], label=short(name), **looks[name])
        ends = [(place(r.x), r.low, r.high) for r in ordered
                if r.low is not None and r.high is not None]  # fmt: skip
        if ends:
            low, high = ([up.scale(end[i]) for end in ends] for i in (1, 2))
            axes.fill_between([end[0] for end in ends], low, high, color=looks[name]["color"],
                              alpha=0.15, linewidth=0)  # fmt: skip
            banded = True
    note = "bands: 80 % interval of the calibration" if banded else None
    drawn.legend(loc="outside lower left", ncols=3, frameon=False, title=note, alignment="left")
    return drawn


def _across(axes: Axes, axis: Axis, values: Sequence[float | str]) -> Any:
    """Prepare the x axis; returns where a value stands on it."""
    axes.set_xlabel(axis.label)
    words = [each for each in values if isinstance(each, str)]
    if words:
        names = list(dict.fromkeys(str(each) for each in values))
        axes.set_xticks(range(len(names)), [short(name) for name in names],
                        rotation=20 if max(map(len, names)) > 8 else 0)  # fmt: skip
        return lambda value: names.index(str(value))
    numbers = sorted({float(each) for each in values if not isinstance(each, str)})
    if axis.kind == BYTES and numbers[0] > 0:
        size_axis(axes, [int(each) for each in numbers])
        axes.set_xlabel(axis.label)
    elif numbers[0] > 0 and numbers[-1] >= 8 * numbers[0]:
        axes.set_xscale("log")
        shown = numbers if len(numbers) <= 12 else numbers[:: -(-len(numbers) // 12)]
        axes.set_xticks(shown, [axis.show(each) for each in shown])
        axes.set_xticks([], minor=True)
    return axis.scale if axis.kind != BYTES else float


def _up(axes: Axes, axis: Axis, values: Sequence[float]) -> None:
    """Prepare the y axis: times and what differs much on a logarithmic one."""
    axes.set_ylabel(axis.label)
    least, most = min(values), max(values)
    if least > 0 and (axis.kind == SECONDS or most >= 30 * least):
        _logarithmic(axes.yaxis, axis, values, 2.0)
    elif least >= 0:
        axes.set_ylim(0.0, 1.08 * axis.scale(most) or 1.0)


def _logarithmic(ticks: Any, axis: Axis, values: Sequence[float], least: float) -> None:
    """Scale an axis by the logarithm, its ends at least a factor apart, with round values."""
    low, high = limits([axis.scale(each) for each in values], least)
    name = ticks.axis_name
    ticks.axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    time_ticks(ticks, low, high)
    if axis.kind != SECONDS:
        ticks.set_major_formatter(_amounts())


def _amounts() -> FuncFormatter:
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415 - loads when a plot is drawn

    return FuncFormatter(lambda value, _: format_amount(value))


@with_style
def draw_heat(
    cells: Mapping[tuple[str, str], float | None],
    across: Axis,
    up: Axis,
    shown: Axis,
    title: str,
    subtitle: str = "",
) -> Figure:
    """A square for each pair of an x and a y value, in the order in which they come, with its value
    as colour and as text; a cross where there is none.
    """
    values = [each for each in cells.values() if each is not None]
    if not values:
        raise InputError("no cell of the sweep has these values: there is nothing to draw")
    from matplotlib.colors import LogNorm, Normalize  # noqa: PLC0415 - loads when a plot is drawn

    columns = list(dict.fromkeys(x for x, _ in cells))
    rows = list(dict.fromkeys(y for _, y in cells))
    width = min(max(5.0, 1.6 + 0.75 * len(columns)), 16.0)
    drawn = figure(width, min(max(2.6, 1.6 + 0.42 * len(rows)), 14.0), title, subtitle)
    axes = drawn.add_subplot()
    low, high = shown.scale(min(values)), shown.scale(max(values))
    much = low > 0 and high >= 10 * low
    norm = LogNorm(low, high) if much else Normalize(low, high if high > low else low + 1.0)
    table = [
        [math.nan if (value := cells.get((x, y))) is None else shown.scale(value) for x in columns]
        for y in rows
    ]
    image = axes.imshow(table, cmap="cividis", norm=norm, aspect="auto")
    small = len(columns) * len(rows) <= 400
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            text = "x" if math.isnan(value) else shown.show(cells[columns[j], rows[i]] or 0.0)
            light = math.isnan(value) or float(norm(value)) > 0.55
            if small:
                axes.text(j, i, text, ha="center", va="center", fontsize=7,
                          color="#222222" if light else "white")  # fmt: skip
    axes.set_xticks(range(len(columns)), [short(each) for each in columns],
                    rotation=30 if max(map(len, columns)) > 6 else 0)  # fmt: skip
    axes.set_yticks(range(len(rows)), [short(each) for each in rows])
    axes.set(xlabel=across.name, ylabel=up.name)
    axes.grid(visible=False)
    bar = drawn.colorbar(image, ax=axes, label=shown.label)
    if shown.kind == SECONDS:
        _duration_ticks(bar.ax.yaxis)
    return drawn


def _duration_ticks(axis: Any) -> None:
    from matplotlib.ticker import (  # noqa: PLC0415 - loads when a plot is drawn
        FuncFormatter,
        NullFormatter,
    )

    axis.set_major_formatter(FuncFormatter(lambda value, _: units.format_duration(value)))
    axis.set_minor_formatter(NullFormatter())


class PlotPoint(NamedTuple):
    """A cell or a configuration by two values, with the ends of the interval of the first (None
    without one), its label, and whether it meets the target.
    """

    x: float
    y: float
    low: float | None
    high: float | None
    label: str
    meets: bool = True


@with_style
def draw_pareto(
    series: Mapping[str, Sequence[PlotPoint]],
    across: Axis,
    up: Axis,
    best: tuple[bool, bool],
    title: str,
    subtitle: str = "",
) -> Figure:
    """Points of each series, and those that no other beats in both values, with labels. `best` says
    of both axes whether more is better.
    """
    points = [each for one in series.values() for each in one]
    if not points:
        raise InputError("no cell of the sweep has these values: there is nothing to draw")
    drawn = figure(9.0, 5.6, title, subtitle)
    axes = drawn.add_subplot()
    _both_ways(axes, across, up, points)
    looks = looks_of(series)
    for name, each in series.items():
        style = {**looks[name], "linestyle": ""}
        axes.plot([across.scale(p.x) for p in each], [up.scale(p.y) for p in each],
                  label=short(name), **style)  # fmt: skip
        for p in each:
            if p.low is not None and p.high is not None:
                ends = [[across.scale(p.x - p.low)], [across.scale(p.high - p.x)]]
                axes.errorbar(across.scale(p.x), up.scale(p.y), xerr=ends, alpha=0.25,
                              color=looks[name]["color"], linewidth=4.0, zorder=1)  # fmt: skip
    front = pareto([(p.x, p.y) for p in points], best)
    axes.plot(
        [across.scale(points[i].x) for i in front], [up.scale(points[i].y) for i in front],
        color="#222222", linestyle=":", linewidth=1.0, label="frontier", zorder=1,
    )  # fmt: skip
    for k, i in enumerate(front[:20]):
        p = points[i]
        axes.annotate(short(p.label), (across.scale(p.x), up.scale(p.y)), (6, 8 - 18 * (k % 2)),
                      textcoords="offset points", fontsize=7, color=COLOURS[-1])  # fmt: skip
    drawn.legend(loc="outside lower left", ncols=3, frameon=False)
    return drawn


def _both_ways(axes: Axes, across: Axis, up: Axis, points: Sequence[PlotPoint]) -> None:
    axes.set_xlabel(across.label)
    _up(axes, up, [p.y for p in points])
    values = [end for p in points for end in (p.x, p.low, p.high) if end is not None]
    if min(values) > 0 and (across.kind == SECONDS or max(values) >= 30 * min(values)):
        _logarithmic(axes.xaxis, across, values, 2.0)


def pareto(points: Sequence[tuple[float, float]], best: tuple[bool, bool]) -> list[int]:
    """The places of the points that no other beats in both values, by the first value. Of equal
    points the first counts.
    """
    signs = [-1.0 if more else 1.0 for more in best]
    order = sorted(
        range(len(points)), key=lambda i: (signs[0] * points[i][0], signs[1] * points[i][1], i)
    )
    found: list[int] = []
    for i in order:
        if not found or signs[1] * points[i][1] < signs[1] * points[found[-1]][1]:
            found.append(i)
    return found


@with_style
def draw_frontier(
    series: Mapping[str, Sequence[PlotPoint]],
    frontier: Sequence[tuple[float, float]],
    chosen: tuple[float, float] | None,
    units: tuple[str, str],
    title: str,
    subtitle: str = "",
    note: str = "",
) -> Figure:
    """A line for each series of configurations, filled marks where they meet the target, their
    frontier, and a ring around the choice. `units` are the labels of the axes, of time and cost.
    """
    points = [point for each in series.values() for point in each]
    points = [p for p in points if 0.0 < p.x < math.inf and p.y >= 0.0]
    if not points:
        raise InputError("no configuration was evaluated: there is nothing to draw")
    drawn = figure(9.0, 5.6, title, subtitle)
    axes = drawn.add_subplot()
    _cost_axes(axes, points, units)
    looks = looks_of(series)
    for i, (name, each) in enumerate(series.items()):
        _cost_line(axes, name, sorted(each, key=lambda p: p.x), looks[name], below=i % 2 == 1)
    if len(frontier) > 1:
        axes.step(
            *zip(*frontier, strict=True), where="post", color="#222222", linewidth=1.0,
            linestyle=":", zorder=1, label="frontier",
        )  # fmt: skip
    if chosen is not None:
        axes.plot(
            *chosen, marker="o", markersize=15, markerfacecolor="none", markeredgecolor="#222222",
            markeredgewidth=1.4, linestyle="", label="choice", zorder=4,
        )  # fmt: skip
    drawn.legend(loc="outside lower left", ncols=3, frameon=False, title=note or None,
                 alignment="left")  # fmt: skip
    return drawn


def _cost_axes(axes: Axes, points: Sequence[PlotPoint], words: tuple[str, str]) -> None:
    """Ticks of round numbers: costs on a logarithmic axis if they differ much."""
    axes.set(xlabel=words[0], ylabel=words[1])
    times = [end for p in points for end in (p.x, p.low, p.high) if end]
    _logarithmic(axes.xaxis, Axis(""), times, 3.0)
    costs = [p.y for p in points if p.y > 0.0]
    if costs and max(costs) > 6.0 * min(costs):
        _logarithmic(axes.yaxis, Axis(""), costs, 3.0)
        return
    least, most = min(costs, default=0.0), max(costs, default=1.0)
    margin = 0.4 * (most - least) or 0.1 * most
    axes.set_ylim(max(least - margin, 0.0), most + margin)
    axes.yaxis.set_major_formatter(_amounts())


def _cost_line(
    axes: Axes,
    name: str,
    points: Sequence[PlotPoint],
    look: Mapping[str, object],
    *,
    below: bool,
) -> None:
    """A series, with the labels of its points `below` them or above."""
    shown = [p for p in points if 0.0 < p.x < math.inf]
    colour = look["color"]
    line = {**look, "marker": ""}
    axes.plot([p.x for p in shown], [p.y for p in shown], **line, alpha=0.6)
    for p in shown:
        if p.low is not None and p.high is not None:
            ends = [[p.x - p.low], [p.high - p.x]]
            axes.errorbar(p.x, p.y, xerr=ends, color=colour, alpha=0.35, linewidth=4.0,
                          zorder=2)  # fmt: skip
    for meets in (True, False):
        some = [p for p in shown if p.meets is meets]
        style = {**look, "linestyle": "", "markersize": 7}
        if not meets:
            style |= {"markerfacecolor": "white", "markeredgecolor": colour,
                      "markeredgewidth": 1.2}  # fmt: skip
        first = meets or not any(p.meets for p in shown)
        label = {"label": short(name)} if first else {}
        axes.plot([p.x for p in some], [p.y for p in some], **style, **label)
    for p in shown:
        axes.annotate(
            p.label, (p.x, p.y), (0, -13 if below else 7), textcoords="offset points",
            ha="center", fontsize=7, color=COLOURS[-1],
        )  # fmt: skip
