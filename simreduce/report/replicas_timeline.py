"""What workers do in a few updates of one run, as rows of characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from simreduce import tables, units
from simreduce.training.replicas import Run

WIDTH = 64
"""Characters of a timeline, less on a page without room for them."""
_FRAME = "   ||"
"""What stands in a row of a timeline besides its name and its characters."""

UPDATES = 4
"""That are shown, the last ones of the run."""

_MOST = 8
"""Workers that are shown of many."""

_PARTS = "rCs"
_IDLE, _UPDATE = ".", "|"


def replicas_timeline(run: Run, names: Sequence[str], most: int = WIDTH) -> list[str]:
    """A row for every worker: what it does for most of the time that a character stands for. Below,
    when updates were made. Nothing if there is none.
    """
    if not run.updates:
        return []
    first = max(len(run.updates) - UPDATES, 0)
    begin, end = run.updates[first - 1].time if first else 0.0, run.seconds
    shown = range(len(names)) if len(names) <= _MOST else (*range(_MOST - 1), len(names) - 1)
    left = max(len("updates"), *(len(names[w]) for w in shown))
    width = tables.page_width(left + len(_FRAME) + most) - left - len(_FRAME)
    scale = width / (end - begin) if end > begin else 0.0
    rows = [(names[w], _bar(run, w, begin, scale, width)) for w in shown]
    marks = [_IDLE] * width
    for update in run.updates[first:]:
        marks[min(int((update.time - begin) * scale), width - 1)] = _UPDATE
    rows.append(("updates", "".join(marks)))
    since, until = units.format_duration(begin), units.format_duration(end)
    numbers = f"updates {first + 1} to {len(run.updates)}"
    more = [f"  ({units.plural(len(names) - _MOST, 'worker')} more)"] if len(names) > _MOST else []
    return [
        f"the first repetition, {numbers}: r reads, C computes, s sends, {_IDLE} waits or is gone",
        f"  {'':{left}}  {since}{until:>{width - len(since)}}",
        *(f"  {name:{left}} |{bar}|" for name, bar in rows),
        *more,
    ]


def _bar(run: Run, worker: int, begin: float, scale: float, width: int) -> str:
    share = [[0.0] * len(_PARTS) for _ in range(width)]
    for step in (*run.steps, *run.unfinished):
        if step.worker == worker:
            times = [
                min(max((time - begin) * scale, 0.0), float(width))
                for time in (step.begun, step.read, step.computed, step.asked)
            ]
            for part, (since, until) in enumerate(pairwise(times)):
                for cell in range(int(since), min(int(until) + 1, width)):
                    share[cell][part] += max(min(until, cell + 1.0) - max(since, float(cell)), 0.0)
    return "".join(
        _IDLE if sum(cell) < 0.5 else _PARTS[max(range(len(_PARTS)), key=cell.__getitem__)]
        for cell in share
    )
