"""Which collective is in flight while a device has nothing to compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simreduce.training.sharded.collectives import COLLECTIVES
from simreduce.training.step import Bucket

Interval = tuple[float, float]


def exposed_by(
    busy: Iterable[Interval], buckets: Sequence[Bucket], seconds: float
) -> tuple[tuple[str, float], ...]:
    """Seconds that each collective, by name, is exposed in a step of `seconds`.

    Where several are in flight, it is the first of all-gather, reduce-scatter and all-reduce, which
    the others wait for or run beside.
    """
    idle = _gaps(sorted(busy), seconds)
    found = []
    for collective in COLLECTIVES:
        mine = sorted((b.start, b.finish) for b in buckets if b.collective == collective)
        if mine:
            covered, idle = _cut(idle, mine)
            found.append((collective, covered))
    return tuple(found)


def _gaps(busy: Sequence[Interval], seconds: float) -> list[Interval]:
    """Return the gaps between the busy intervals in [0, seconds)."""
    gaps, until = [], 0.0
    for begin, end in [*busy, (seconds, seconds)]:
        if begin > until:
            gaps.append((until, begin))
        until = max(until, end)
    return gaps


def _cut(idle: Sequence[Interval], flights: Sequence[Interval]) -> tuple[float, list[Interval]]:
    """Seconds of `idle` within `flights`, and what is left of it. Both are in order."""
    covered, left, first = 0.0, [], 0
    for begin, end in idle:
        at = begin
        while first < len(flights) and flights[first][1] <= begin:
            first += 1
        for start, finish in flights[first:]:
            if start >= end:
                break
            if start > at:
                left.append((at, start))
            covered += max(min(finish, end) - max(start, at), 0.0)
            at = max(at, min(finish, end))
        if at < end:
            left.append((at, end))
    return covered, left
