"""The timeline of a training step: bars to draw, and rows of characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from simreduce import units
from simreduce.report.characters import IDLE, WIDTH, letters, shares, timeline_rows
from simreduce.report.plots import Axis, Facet, Plot, PlotPoint, PlotSeries
from simreduce.training import Bucket, Span, StepPrediction, lanes

_MOST = 8
"""Devices that have a row each; of more, three are shown."""

LEGEND = (
    "  F forward, B backward, . neither; below: - less than half of the time, = one at a time, "
    "2 to 9 at once, + more"
)


def step_plot(step: StepPrediction, title: str, subtitle: str) -> Plot:
    """The compute of each device and all transfers: a row of bars for each."""
    moving = lanes(step)
    rows = list(dict.fromkeys([*(span.device for span in step.spans), *(n for n, _ in moving)]))
    bars: dict[str, list[PlotPoint]] = {}
    for span in step.spans:
        kind = "backward" if span.backward else "forward"
        point = PlotPoint(span.end, rows.index(span.device), span.begin)
        bars.setdefault(kind, []).append(point)
    for name, buckets in moving:
        bars[name] = [PlotPoint(b.finish, rows.index(name), b.start) for b in buckets]
    series = [PlotSeries(kind, some, "", "bar", interval="across") for kind, some in bars.items()]
    axis = Axis("time", "seconds", log=False)
    facet = Facet(axis, Axis(names=rows), series, height=22.0 * len(rows) + 10)
    return Plot(title, subtitle, [facet], width=860.0)


def timeline(step: StepPrediction, most: int = WIDTH) -> list[str]:
    """Rows of `most` characters, or as many as the page has room for: what computes (F forward, B
    backward), and what moves: - less than half of the time, = one at a time, or how many at once, +
    from 10.
    """
    tracks: dict[str, list[Span]] = {}
    for span in step.spans:
        tracks.setdefault(span.device, []).append(span)
    names = list(tracks)
    shown = names if len(names) <= _MOST else [*names[:2], names[-1]]
    rows: list[tuple[str, Callable[[int], str]]] = [
        (name, partial(_compute_bar, tracks[name], step.seconds)) for name in shown
    ]
    rows += [(name, partial(_moving_bar, some, step.seconds)) for name, some in lanes(step)]
    more = [f"  ({units.plural(len(names) - 3, 'GPU')} more)"] if len(names) > len(shown) else []
    return [*timeline_rows(rows, "0", f"{step.seconds * 1e3:.3f} ms", most), *more]


def _compute_bar(spans: Sequence[Span], seconds: float, width: int) -> str:
    kinds = ((span.begin, span.end, "FB"[span.backward]) for span in spans)
    return letters(shares(kinds, 0.0, seconds, "FB", width))


def _moving_bar(buckets: Sequence[Bucket], seconds: float, width: int) -> str:
    """How many are under way at once, on average."""
    moving = ((bucket.start, bucket.finish, "=") for bucket in buckets)
    return "".join(_load(cell["="]) for cell in shares(moving, 0.0, seconds, "=", width))


def _load(busy: float) -> str:
    if busy < 0.5:
        return "-" if busy > 0.0 else IDLE
    return "=" if busy < 1.5 else f"{busy:.0f}" if busy < 9.5 else "+"
