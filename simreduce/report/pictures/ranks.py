"""Drawings of where ranks are: nodes by the switches that they share, and a ring in each order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simreduce.report.pictures.patterns import Panel, patterns_picture
from simreduce.report.pictures.shapes import Drawing

_MOST = 12
"""Panels of a picture."""
RANKS_WORDS = (
    "A.3 is node 3, below switches A; nodes on one arc share their switches."
    " Arrows go from each node to the next in the order of ranks, as a ring does; the first is"
    " yellow."
)
"""What is to be seen."""


def ranks_picture(
    switches: Sequence[Sequence[str]],
    orders: Mapping[str, Sequence[str]],
    title: str = "Where ranks are",
    subtitle: str = "",
) -> Drawing | None:
    """Draw a panel for each of the `orders` by name, of nodes in groups that share `switches`.
    None if no order has such a node.
    """
    place = {name: i for i, name in enumerate(name for group in switches for name in group)}
    names = [f"{_letters(i)}.{_short(name)}" for i, group in enumerate(switches) for name in group]
    panels = []
    for heading, some in list(orders.items())[:_MOST]:
        nodes = [name for name in some if name in place]
        if not nodes:
            continue
        ring = zip(nodes, [*nodes[1:], nodes[0]], strict=True)
        edges = [(place[a], place[b]) for a, b in ring if a != b]
        panels.append(Panel(heading, edges, 1.0, place[nodes[0]]))
    return patterns_picture(title, subtitle, names, panels) if panels else None


def _letters(number: int) -> str:
    """A, B, ... Z, AA."""
    head, rest = divmod(number, 26)
    return (_letters(head - 1) if head else "") + chr(ord("A") + rest)


def _short(name: str) -> str:
    """The number at the end of a name, or its first letters."""
    digits = name[len(name.rstrip("0123456789")) :]
    return digits or name[:2]
