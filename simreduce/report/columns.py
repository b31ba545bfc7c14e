"""Rows of cells as lines of text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[tuple[str, ...]], sides: str) -> list[str]:
    """The rows, two blanks in; `sides` says for each column whether its cells stand left (<) or
    right (>).
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(sides))]
    return [
        ("  " + "  ".join(f"{cell:{side}{w}}" for cell, side, w in zip(row, sides, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
