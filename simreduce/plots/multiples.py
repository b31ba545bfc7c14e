"""Small multiples: measured and predicted bandwidth over size, a panel for each machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simreduce import units
from simreduce.errors import InputError
from simreduce.plots.figure import figure, limits, looks_of, short, with_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 4


class Compared(NamedTuple):
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
    panels: Mapping[str, Mapping[str, Sequence[Compared]]],
    title: str,
    subtitle: str = "",
) -> Figure:
    """A panel for each name, with a colour for each series: marks are measured, lines predicted,
    and a band is a prediction's interval.
    """
    if not panels:
        raise InputError("nothing was compared: there is nothing to draw")
    rows = -(-len(panels) // _COLUMNS)
    drawn = figure(13.0, 0.8 + 2.7 * rows, title, subtitle)
    grid = drawn.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for axes, (name, series) in zip(grid, panels.items(), strict=False):
        _panel(axes, name, series)
    for axes in grid[len(panels) :]:
        axes.axis("off")
    drawn.supxlabel("size")
    drawn.supylabel("busbw (GB/s)")
    return drawn


def _panel(axes: Axes, name: str, series: Mapping[str, Sequence[Compared]]) -> None:
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
