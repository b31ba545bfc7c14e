"""Rings and trees as an SVG: one panel each, the ranks in a circle, lines as wide as their share."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simreduce.synthesis.network import Edge

_PANEL, _COLUMNS, _HEAD, _FOOT = 240, 4, 64, 24
_MARK = 15.0
_WIDEST, _THINNEST = 5.0, 1.2


@dataclass(frozen=True, slots=True)
class Panel:
    """One pattern: what to write above it, its directed edges, the rank to mark, if any, and its share."""

    title: str
    edges: Sequence[Edge]
    share: float
    root: int | None = None


def svg(title: str, subtitle: str, names: Sequence[str], panels: Sequence[Panel]) -> str:
    """The drawing; `names` are those of the ranks."""
    columns = max(1, min(_COLUMNS, len(panels)))
    width = max(columns * _PANEL, 2 * _PANEL) + 2 * _FOOT
    height = _HEAD + -(-len(panels) // columns) * (_PANEL + 16) + _FOOT
    most = max((panel.share for panel in panels), default=1.0)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif">'
        ),
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        (
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="13" markerHeight="13" '
            'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 1L9 5L0 9z" fill="#1b4f8a"/></marker></defs>'
        ),
        f'<text x="{_FOOT}" y="26" font-size="16" font-weight="bold" fill="#222222">{html.escape(title)}</text>',
        f'<text x="{_FOOT}" y="46" font-size="12" fill="#555555">{html.escape(subtitle)}</text>',
    ]
    for i, panel in enumerate(panels):
        x, y = _FOOT + i % columns * _PANEL, _HEAD + i // columns * (_PANEL + 16)
        lines.append(f'<g transform="translate({x} {y})">')
        lines += _drawn(names, panel, most)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _drawn(names: Sequence[str], panel: Panel, most: float) -> Iterator[str]:
    centre, radius = _PANEL / 2, _PANEL / 2 - 38
    turn = 2 * math.pi / max(1, len(names))
    places = [
        (centre + radius * math.sin(turn * i), centre + 14 - radius * math.cos(turn * i))
        for i in range(len(names))
    ]
    # Many ranks need small marks.
    mark = min(_MARK, 0.42 * turn * radius)
    yield f'<text x="{centre}" y="14" font-size="12" fill="#222222" text-anchor="middle">{html.escape(panel.title)}</text>'
    stroke = _THINNEST + (_WIDEST - _THINNEST) * panel.share / most
    for u, v in panel.edges:
        (ax, ay), (bx, by) = places[u], places[v]
        far = math.hypot(bx - ax, by - ay)
        dx, dy = (bx - ax) / far, (by - ay) / far
        yield (
            f'<line x1="{ax + dx * mark:.1f}" y1="{ay + dy * mark:.1f}" x2="{bx - dx * (mark + 3):.1f}" '
            f'y2="{by - dy * (mark + 3):.1f}" stroke="#6f9bd1" stroke-width="{stroke:.2f}" '
            'marker-end="url(#tip)"/>'
        )
    for i, (x, y) in enumerate(places):
        fill = "#f2b134" if i == panel.root else "#e8eef5"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{mark:.1f}" fill="{fill}" stroke="#1b4f8a"/>'
        if mark >= 7:
            label = html.escape(_short(names[i]))
            yield (
                f'<text x="{x:.1f}" y="{y + 4:.1f}" font-size="{min(12.0, mark * 0.85):.1f}" fill="#222222" '
                f'text-anchor="middle">{label}</text>'
            )


def _short(name: str) -> str:
    """The number of a GPU, `3.5` for `n3.gpu5`."""
    digits = ["".join(c for c in part if c.isdigit()) for part in name.split(".")]
    return ".".join(digits) if all(digits) else name[:4]
