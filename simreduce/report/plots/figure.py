"""What all plots share: the figure, the style, the looks of series, and axes."""

from __future__ import annotations

import functools
import io
import math
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec

from simreduce import units
from simreduce.errors import InputError, escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_P = ParamSpec("_P")

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#56b4e9", "#222222")
"""Okabe and Ito's, without the yellow, which white hides, and with a darker orange."""
_MARKERS = "os^Dv"
"""As many as have no factor in common with the colours, so that a dozen series all differ."""
_GREY = "#9a9a9a"
MOST_SERIES = 12
"""Series with a look of their own; the others are grey."""
_NAME = 44
"""Characters of a name in a legend."""
_MARGIN = 3 / 72
"""Inches above the title: matplotlib's own padding."""
_FONT = 12
_GREY_TEXT = "#555555"
_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#dddddd",
    "svg.fonttype": "none",
    "svg.hashsalt": "simreduce",
    "text.parse_math": False,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A matplotlib figure that a notebook shows, and that is written as SVG or PNG."""

    figure: Figure

    def svg(self) -> str:
        """The plot as SVG: the same text for the same data and version of matplotlib."""
        return self._save("svg", metadata={"Date": None}).decode()

    def png(self, dots_per_inch: int = 200) -> bytes:
        """The plot as PNG."""
        return self._save("png", dpi=dots_per_inch)

    def _save(self, form: str, **options: Any) -> bytes:
        from matplotlib import rc_context  # noqa: PLC0415 - loads when a plot is drawn

        file = io.BytesIO()
        with rc_context(_STYLE):
            self.figure.savefig(file, format=form, **options)
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png(100)


def check_plot() -> None:
    """Raises InputError with the install command if matplotlib is missing."""
    try:
        import_module("matplotlib.figure")
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'simreduce[plot]'") from None


def with_style(draw: Callable[_P, Figure]) -> Callable[_P, Plot]:
    """Run `draw` in our style, whatever a user's own settings of matplotlib are."""

    @functools.wraps(draw)
    def with_style(*args: _P.args, **kwargs: _P.kwargs) -> Plot:
        check_plot()
        from matplotlib import rc_context  # noqa: PLC0415 - loads when a plot is drawn

        with rc_context(_STYLE):
            return Plot(draw(*args, **kwargs))

    return with_style


def figure(width: float, height: float, title: str, subtitle: str = "") -> Figure:
    """An empty figure with a title, and a subtitle below it; sizes in inches."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - loads when a plot is drawn

    drawn = Figure(figsize=(width, height), layout="constrained")
    lines = textwrap.wrap(clean(title), int(width * 9))
    below = textwrap.wrap(clean(subtitle), int(width * 10))
    # Each text has empty lines where the other stands; the layout makes room for a suptitle only.
    text = "\n".join([*lines, *[""] * len(below)])
    drawn.suptitle(text, x=0.01, ha="left", fontsize=_FONT, fontweight="bold")
    text = "\n".join([*[""] * len(lines), *below])
    drawn.text(0.01, 1 - _MARGIN / height, text, va="top", fontsize=_FONT, color=_GREY_TEXT)
    return drawn


def looks_of(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The colour and the marker of each series, in the order of the first `MOST_SERIES`."""
    looks = {}
    for i, name in enumerate(dict.fromkeys(names)):
        grey = i >= MOST_SERIES
        looks[name] = {
            "color": _GREY if grey else COLOURS[i % len(COLOURS)],
            "marker": "o" if grey else _MARKERS[i % len(_MARKERS)],
            "markersize": 3 if grey else 5,
            "markeredgecolor": "white",
            "markeredgewidth": 0.5,
            "linewidth": 0.8 if grey else 1.4,
            "zorder": 2 if grey else 3,
        }
    return looks


def limits(values: Iterable[float], least: float) -> tuple[float, float]:
    """The ends of a logarithmic axis on which all values lie, at least a factor `least` apart."""
    found = list(values)
    low, high = math.log(min(found)), math.log(max(found))
    lacking = max(math.log(least) - (high - low), 0.0) / 2
    margin = 0.04 * max(high - low, math.log(least)) + lacking
    return math.exp(low - margin), math.exp(high + margin)


def time_ticks(axis: Any, low: float, high: float) -> None:
    """Round times with units beside an axis."""
    from matplotlib.ticker import (  # noqa: PLC0415 - loads when a plot is drawn
        FuncFormatter,
        LogLocator,
        NullFormatter,
    )

    digits = (1, 2, 5) if high / low < 1e3 else (1,)
    axis.set_major_locator(LogLocator(subs=digits, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: units.format_duration(value)))
    axis.set_minor_formatter(NullFormatter())


def size_axis(axes: Axes, sizes: Iterable[int]) -> None:
    """A logarithmic axis of sizes; its labels are powers of two."""
    low, high = limits(sizes, 4.0)
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, -(-(last - first) // 7))
    ticks = [float(1 << power) for power in range(max(first, 0), last + 1, step)]
    axes.set(xscale="log", xlabel="size", xlim=(low, high))
    axes.set_xticks(ticks, [units.exact_size(int(tick)) for tick in ticks])
    axes.set_xticks([], minor=True)


def clean(text: str) -> str:
    """On one line, without characters that SVG cannot hold."""
    return " ".join(escape(text).split())


def short(name: str) -> str:
    return textwrap.shorten(clean(name), _NAME, placeholder="...") or clean(name)[:_NAME]
