"""Trees over the positions of a group, as arrays: what chain, binary, double and binomial tree
differ in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simreduce.computing.arrays import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Node 0 is the root, node v the child of `parent[v]`, at position `place[v]` of the group.
    With `turns`, a node sends to its highest child first and hears from its highest child last.
    """

    parent: Ints
    place: Ints
    turns: bool = False

    def levels(self) -> list[Ints]:
        """The nodes by depth from 1 on, ascending."""
        depth, ancestor = (self.parent != np.arange(len(self.parent))).astype(np.int64), self.parent
        for _ in range(len(depth).bit_length()):
            depth, ancestor = depth + depth[ancestor], ancestor[ancestor]
        order = np.argsort(depth, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)[1:]

    def sums(self, parent: Ints) -> Iterator[tuple[Ints, list[Ints]]]:
        """Yield what to add when a level has arrived at `parent`.

        Each item has some parents, and the arrivals that each of them adds. With `turns` a parent
        adds each as it comes, else all at once.
        """
        order = np.argsort(parent, kind="stable")
        parents, first, count = np.unique(parent[order], return_index=True, return_counts=True)
        for size in range(1, int(count.max()) + 1):
            those = count >= size if self.turns else count == size
            terms = range(size - 1, size) if self.turns else range(size)
            if those.any():
                yield parents[those], [order[first[those] + term] for term in terms]
