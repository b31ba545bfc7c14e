"""Timelines for a terminal: rows of characters, each for an equal span of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from simreduce.files.tables import page_width

WIDTH = 64
"""Characters of a timeline, less on a page without room for them."""
_FRAME = "   ||"
"""What stands in a row of a timeline besides its name and its characters."""
IDLE = "."


def timeline_rows(
    rows: Sequence[tuple[str, Callable[[int], str]]], since: str, until: str, most: int = WIDTH
) -> list[str]:
    """The begin and the end, then each row with its name; a row is made of its width."""
    left = max((len(name) for name, _ in rows), default=0)
    width = page_width(left + len(_FRAME) + most) - left - len(_FRAME)
    scale = f"  {'':{left}}  {since}{until:>{width - len(since)}}"
    return [scale, *(f"  {name:{left}} |{row(width)}|" for name, row in rows)]


def shares(
    spans: Iterable[tuple[float, float, str]], begin: float, end: float, kinds: str, width: int
) -> list[dict[str, float]]:
    """How many spans (from, to, kind) of each kind are under way, on average, in each of `width`
    equal parts of the time from `begin` to `end`.
    """
    found = [dict.fromkeys(kinds, 0.0) for _ in range(width)]
    scale = width / (end - begin) if end > begin else 0.0
    for since, until, kind in spans:
        first, last = (
            min(max((time - begin) * scale, 0.0), float(width)) for time in (since, until)
        )
        for cell in range(int(first), min(int(last) + 1, width)):
            found[cell][kind] += max(min(last, cell + 1.0) - max(first, float(cell)), 0.0)
    return found


def letters(cells: Iterable[dict[str, float]]) -> str:
    """The kind of most of each part; `IDLE` where less than half of it has any."""
    return "".join(
        max(cell, key=cell.__getitem__) if sum(cell.values()) >= 0.5 else IDLE for cell in cells
    )
