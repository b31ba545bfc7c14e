"""Trees and rings as text."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.planners.synthesis.network import Edge, Network
from simreduce.planners.synthesis.trees import SpanningTree


def ring_text(network: Network, ring: Sequence[int]) -> str:
    """`gpu0 > gpu3 > gpu2 > gpu0`."""
    return " > ".join(network.names[rank] for rank in (*ring, ring[0]))


def tree_lines(network: Network, tree: SpanningTree) -> list[str]:
    """Return the tree as indented lines, its root first.

    A rank's children follow below it in rank order, two columns further right.
    """
    same = {(b, a) for a, b in tree.up} == set(tree.down)
    if same or not tree.up:
        return _indent(network, tree.root, tree.down)
    up = _indent(network, tree.root, [(b, a) for a, b in reversed(tree.up)])
    return [
        "up:",
        *up,
        *(["down:", *_indent(network, tree.root, tree.down)] if tree.down else []),
    ]


def _indent(network: Network, root: int, down: Sequence[Edge]) -> list[str]:
    lines: list[str] = []

    def write(rank: int, depth: int) -> None:
        lines.append("  " * depth + network.names[rank])
        for parent, child in sorted(down):
            if parent == rank:
                write(child, depth + 1)

    write(root, 0)
    return lines
