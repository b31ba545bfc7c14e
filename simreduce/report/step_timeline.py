"""The timeline of a training step: bars to draw, and rows of characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simreduce import units
from simreduce.files import tables
from simreduce.report import plots
from simreduce.training import Bucket, Span, StepPrediction, lanes

WIDTH = 64
"""Characters of a timeline, less on a page without room for them."""
_FRAME = "   ||"
"""What stands in a row of a timeline besides its name and its characters."""

_MOST = 8
"""Devices that have a row each; of more, three are shown."""

_FORWARD, _BACKWARD, _BUSY, _RARE, _IDLE = "FB=-."

LEGEND = (
    "  F forward, B backward, . neither; below: - less than half of the time, = one at a time, "
    "2 to 9 at once, + more"
)


def step_tracks(step: StepPrediction) -> list[tuple[str, list[plots.TimelineBar]]]:
    """The compute of each device and all transfers, as `plots.draw_timeline` takes them."""
    tracks: dict[str, list[plots.TimelineBar]] = {}
    for span in step.spans:
        kind = "backward" if span.backward else "forward"
        tracks.setdefault(span.device, []).append(plots.TimelineBar(span.begin, span.end, kind))
    for name, buckets in lanes(step):
        tracks[name] = [plots.TimelineBar(b.start, b.finish, name) for b in buckets]
    return list(tracks.items())


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
    moving = lanes(step)
    left = max((len(name) for name in (*shown, *(what for what, _ in moving))), default=0)
    width = tables.page_width(left + len(_FRAME) + most) - left - len(_FRAME)
    rows = [(name, _compute_bar(tracks[name], step.seconds, width)) for name in shown]
    rows += [(what, _moving_bar(buckets, step.seconds, width)) for what, buckets in moving]
    length = f"{step.seconds * 1e3:.3f} ms"
    scale = f"0{length:>{width - 1}}"
    more = [f"  ({units.plural(len(names) - 3, 'GPU')} more)"] if len(names) > len(shown) else []
    return [f"  {'':{left}}  {scale}", *(f"  {name:{left}} |{bar}|" for name, bar in rows), *more]


def _cells(begin: float, end: float, seconds: float, width: int) -> Iterable[tuple[int, float]]:
    """The cells that an interval touches, and how much of each it covers."""
    scale = width / seconds if seconds else 0.0
    first, last = max(begin * scale, 0.0), min(end * scale, float(width))
    for cell in range(int(first), min(int(last) + 1, width)):
        covered = min(last, cell + 1.0) - max(first, float(cell))
        if covered > 0.0:
            yield cell, covered


def _compute_bar(spans: Sequence[Span], seconds: float, width: int) -> str:
    share = [[0.0, 0.0] for _ in range(width)]
    for span in spans:
        for cell, covered in _cells(span.begin, span.end, seconds, width):
            share[cell][span.backward] += covered
    return "".join(
        _IDLE if forward + backward < 0.5 else _BACKWARD if backward > forward else _FORWARD
        for forward, backward in share
    )


def _moving_bar(buckets: Sequence[Bucket], seconds: float, width: int) -> str:
    """How many are under way at once, on average."""
    busy = [0.0] * width
    for bucket in buckets:
        for cell, covered in _cells(bucket.start, bucket.finish, seconds, width):
            busy[cell] += covered
    return "".join(map(_load, busy))


def _load(busy: float) -> str:
    if busy < 0.5:
        return _RARE if busy > 0.0 else _IDLE
    return _BUSY if busy < 1.5 else f"{busy:.0f}" if busy < 9.5 else "+"
