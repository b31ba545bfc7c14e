"""Curves over sizes, bars and timelines."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simreduce import units
from simreduce.report.plots.figure import COLOURS, figure, looks_of, short, size_axis, with_style

if TYPE_CHECKING:
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
