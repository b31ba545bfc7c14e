"""`allreduce_merge_scope` and the scoped-allocator rewrite (TensorFlow
scoped_allocator_optimizer.cc).

Each k consecutive gradients share a name scope, and the rewrite replaces the collectives of a scope
by one over a common buffer. Producers write straight into it, every gradient at a 64-byte boundary:
nothing is copied to pack or to unpack. A scope with a single collective is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.planners.packing.arrangement import Arrangement
from simreduce.planners.packing.options import required, whole
from simreduce.workload import Gradient

ALIGN = 64
"""Bytes; every field of the buffer starts at a multiple."""


@dataclass(frozen=True, slots=True)
class ScopedAllocator:
    """One collective for each `scope` consecutive gradients of one dtype."""

    scope: int

    @staticmethod
    def parse(text: str | None) -> ScopedAllocator:
        """Parse the K in `+merge=K`; 0 and less mean 1, as for `--allreduce_merge_scope`."""
        number = required("merge", text, "32")
        size = whole(
            "merge", number.removeprefix("-"), 0, "the number of gradients per scope", "32"
        )
        return ScopedAllocator(1 if number.startswith("-") else max(size, 1))

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """A scope of several dtypes is not merged. Upstream's rewrite fails on it as a whole and
        merges nothing.
        """
        indices = range(len(gradients))
        scopes = [tuple(indices[i : i + self.scope]) for i in range(0, len(gradients), self.scope)]
        mixed = {scope for scope in scopes if len({gradients[i].dtype for i in scope}) > 1}
        if mixed and faithful:
            mixed = set(scopes)
        groups = [
            part
            for scope in scopes
            for part in (((i,) for i in scope) if scope in mixed else [scope])
        ]
        return Arrangement(tuple(groups), align=ALIGN)
