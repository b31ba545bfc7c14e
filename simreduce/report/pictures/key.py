"""The key of a picture: kinds of boxes and lines, with figures, units and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simreduce import units
from simreduce.report.pictures.scene import WORDS, LinkPair, count_text, figures_text
from simreduce.report.pictures.shapes import (
    FAINT,
    Drawing,
    Line,
    Rect,
    Shape,
    Text,
    shift,
    text_width,
)
from simreduce.report.pictures.style import FILLS, colour, dashes, stroke
from simreduce.topology import Node, Topology
from simreduce.topology.listing import figure_lines

_MOST_ROWS, _MOST_NOTES = 24, 8
_ROW, _NOTE = 20.0, 15.0

Row = tuple[Shape, str]
"""A sample, 14 pixels high, and its meaning."""


def draw_key(topology: Topology, wires: Sequence[LinkPair], classes: Sequence[str]) -> Drawing:
    """The key: boxes on the left, lines on their right, notes below."""
    left = _column(_boxes(tuple(topology.nodes.values())), 30)
    right = _column(_lines(wires, classes), 44)
    aside = left.width + 30
    below = max(left.height, right.height) + 6
    notes = [
        (
            "Rates are per direction: what a large copy reaches, of the nominal rate where that "
            "differs; then the latency."
        ),
        "Wider lines carry more; a line for several (x n) is as wide as all of them.",
        *_shorten(
            [f"Besides their links, {line}." for line in figure_lines(topology)], _MOST_NOTES
        ),
    ]
    texts = [Text(0, below + _NOTE * k + 8, note, 10, fill=FAINT) for k, note in enumerate(notes)]
    width = max(aside + right.width, *(text_width(note, 10) for note in notes))
    shapes = (*left.shapes, *(shift(shape, aside, 0) for shape in right.shapes), *texts)
    return Drawing(width, below + _NOTE * len(notes), shapes)


def _column(rows: Sequence[Row], sample: float) -> Drawing:
    """Rows below each other; samples are `sample` pixels wide."""
    shapes: list[Shape] = []
    shown = rows[:_MOST_ROWS]
    for k, (shape, text) in enumerate(shown):
        shapes += [shift(shape, 0, k * _ROW), Text(sample + 10, k * _ROW + 11, text)]
    texts = [text for _, text in shown]
    if len(rows) > len(shown):
        texts.append(f"and {len(rows) - len(shown):,} more")
        shapes.append(Text(sample + 10, len(shown) * _ROW + 11, texts[-1]))
    width = max((text_width(text, 11) for text in texts), default=0.0)
    return Drawing(sample + 10 + width, len(texts) * _ROW, tuple(shapes))


def _boxes(nodes: Sequence[Node]) -> list[Row]:
    """A row for every kind and model, in the order of the kinds."""
    found: dict[tuple[str, str, float], int] = {}
    for node in nodes:
        alike = node.kind, node.model, node.memory_bandwidth
        found[alike] = found.get(alike, 0) + 1
    order = list(WORDS)
    rows: list[Row] = []
    for (kind, model, memory), count in sorted(
        found.items(), key=lambda e: (order.index(e[0][0]), e[0])
    ):
        words = f"{WORDS[kind]} {model}".strip()
        if math.isfinite(memory):
            words += f", memory {units.format_bandwidth(memory)}"
        rows.append((Rect(0, 0, 30, 14, FILLS[kind]), f"{words} (x {count:,})"))
    return rows


def _lines(wires: Sequence[LinkPair], classes: Sequence[str]) -> list[Row]:
    """A row for every kind of link, family by family, the widest first."""
    found: dict[tuple[object, ...], list[LinkPair]] = {}
    for cable in wires:
        found.setdefault(cable.figures, []).append(cable)
    rows: list[Row] = []
    for some in sorted(
        found.values(), key=lambda some: (colour(some[0].there.link_class), -some[0].bandwidth)
    ):
        cable = some[0]
        link_class = cable.there.link_class
        sample = Line(
            ((0, 7), (44, 7)),
            colour(link_class),
            stroke(cable.bandwidth),
            dashes(link_class, classes),
        )
        rows.append((sample, f"{_figures_of_pair(cable)} ({count_text(len(some), 'link')})"))
    return rows


def _figures_of_pair(cable: LinkPair) -> str:
    if cable.back is None:
        return f"{figures_text(cable.there)}, one way"
    if len(cable.figures) == 1:
        return figures_text(cable.there)
    return f"{figures_text(cable.there)}; back {figures_text(cable.back)}"


def _shorten(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"And {len(lines) - most + 1:,} more."]
