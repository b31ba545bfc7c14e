"""Plots of cost against time: configurations, their frontier, and how sure times are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simreduce.errors import InputError
from simreduce.plots.figure import COLOURS, figure, limits, looks_of, short, with_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class CostPoint(NamedTuple):
    """A configuration: its time and cost, the ends of the time's interval (None without one), a
    `label` beside the point, and whether it meets the target.
    """

    time: float
    cost: float
    low: float | None
    high: float | None
    label: str
    meets: bool = True


@with_style
def draw_frontier(
    series: Mapping[str, Sequence[CostPoint]],
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
    points = [p for p in points if 0.0 < p.time < math.inf and p.cost >= 0.0]
    if not points:
        raise InputError("no configuration was evaluated: there is nothing to draw")
    drawn = figure(9.0, 5.6, title, subtitle)
    axes = drawn.add_subplot()
    axes.set(xlabel=units[0], ylabel=units[1], xscale="log")
    _axes(axes, points)
    looks = looks_of(series)
    for i, (name, each) in enumerate(series.items()):
        _series(axes, name, sorted(each, key=lambda p: p.time), looks[name], below=i % 2 == 1)
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


def _axes(axes: Axes, points: Sequence[CostPoint]) -> None:
    """Ticks of round numbers: costs on a logarithmic axis if they differ much."""
    from matplotlib.ticker import (  # noqa: PLC0415 - loads when a plot is drawn
        FuncFormatter,
        LogLocator,
        NullFormatter,
    )

    ends = [end for p in points for end in (p.time, p.low, p.high) if end]
    low, high = limits(ends, 3.0)
    axes.set_xlim(low, high)
    costs = [p.cost for p in points if p.cost > 0.0]
    scaled = [(axes.xaxis, low, high)]
    if costs and max(costs) > 6.0 * min(costs):
        axes.set_yscale("log")
        bottom, top = limits(costs, 3.0)
        axes.set_ylim(bottom, top)
        scaled.append((axes.yaxis, bottom, top))
    else:
        least, most = min(costs, default=0.0), max(costs, default=1.0)
        margin = 0.4 * (most - least) or 0.1 * most
        axes.set_ylim(max(least - margin, 0.0), most + margin)
        axes.yaxis.set_major_formatter(FuncFormatter(_amount))
    for axis, least, most in scaled:
        digits = (1, 2, 5) if most / least < 1e3 else (1,)
        axis.set_major_locator(LogLocator(subs=digits, numticks=12))
        axis.set_major_formatter(FuncFormatter(_amount))
        axis.set_minor_formatter(NullFormatter())


def _amount(value: float, _: object = None) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _series(
    axes: Axes,
    name: str,
    points: Sequence[CostPoint],
    look: Mapping[str, object],
    *,
    below: bool,
) -> None:
    """A series, with the labels of its points `below` them or above."""
    shown = [p for p in points if 0.0 < p.time < math.inf]
    colour = look["color"]
    line = {**look, "marker": ""}
    axes.plot([p.time for p in shown], [p.cost for p in shown], **line, alpha=0.6)
    for p in shown:
        if p.low is not None and p.high is not None:
            ends = [[p.time - p.low], [p.high - p.time]]
            axes.errorbar(p.time, p.cost, xerr=ends, color=colour, alpha=0.35, linewidth=4.0,
                          zorder=2)  # fmt: skip
    for meets in (True, False):
        some = [p for p in shown if p.meets is meets]
        style = {**look, "linestyle": "", "markersize": 7}
        if not meets:
            style |= {"markerfacecolor": "white", "markeredgecolor": colour,
                      "markeredgewidth": 1.2}  # fmt: skip
        first = meets or not any(p.meets for p in shown)
        label = {"label": short(name)} if first else {}
        axes.plot([p.time for p in some], [p.cost for p in some], **style, **label)
    for p in shown:
        axes.annotate(
            p.label, (p.time, p.cost), (0, -13 if below else 7), textcoords="offset points",
            ha="center", fontsize=7, color=COLOURS[-1],
        )  # fmt: skip
