"""The values of a plan by chunk: what makes them, who reads them, and which copies can be added as
they arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

from simreduce.plan import Kind, Plan
from simreduce.plan.plan import NO_STREAM

Content: TypeAlias = tuple[int, int]
"""The op that makes a chunk's value, and which chunk."""

_VIEWS = (Kind.SLICE, Kind.CONCAT, Kind.OUTPUT)
_READERS = (Kind.COPY, Kind.ADD, Kind.OUTPUT)


class PlanChunks:
    """A plan in chunks: `unit` elements each, `chunks` of them."""

    def __init__(self, plan: Plan) -> None:
        edges = np.unique(np.concatenate([plan.lo, plan.hi]))
        self.unit = max(int(np.gcd.reduce(edges)), 1)
        self.chunks = int(edges[-1]) // self.unit
        self.lo: list[int] = (plan.lo // self.unit).tolist()
        self.hi: list[int] = (plan.hi // self.unit).tolist()
        self.kind = [Kind(kind) for kind in plan.kind.tolist()]
        self.reads = [plan.operands_of(op) for op in range(len(plan))]
        self.channel = _channels(plan)
        self.contents: list[list[Content]] = []
        self.readers: dict[Content, list[int]] = defaultdict(list)
        for op, kind in enumerate(self.kind):
            own = range(self.lo[op], self.hi[op])
            found = {c: (op, c) for c in own}
            if kind in _VIEWS:
                found = {content[1]: content for read in self.reads[op]
                         for content in self.contents[read]}  # fmt: skip
            self.contents.append([found[c] for c in own])
            if kind in _READERS:
                for content in {content for part in self.parts(op) for content in part}:
                    self.readers[content].append(op)

    def parts(self, op: int) -> Iterator[list[Content]]:
        """Yield the contents of each operand that an op reads."""
        for read in self.reads[op]:
            first = self.lo[read]
            yield self.contents[read][self.lo[op] - first : self.hi[op] - first]

    def is_free(self, content: Content, op: int) -> bool:
        """Whether op `op` is the last that reads this."""
        readers = self.readers.get(content)
        return not readers or (readers[-1] <= op and self.kind[readers[-1]] != Kind.OUTPUT)

    def sums(self) -> tuple[dict[int, int], dict[int, list[Content]]]:
        """Copies that are added as they arrive, with their sums; and by sum what they are added to.

        Such a copy is read by the sum only. It is added to an operand that was made before it, and
        that nobody else reads from then on.
        """
        sum_of: dict[int, int] = {}
        base_of: dict[int, list[Content]] = {}
        for op, kind in enumerate(self.kind):
            if kind != Kind.ADD:
                continue
            parts = list(self.parts(op))
            alone = [copy for part in parts if (copy := self._copy_alone(part, op)) is not None]
            for part in sorted(parts, key=_made):
                late = [copy for copy in alone if copy > _made(part)]
                readers = {reader for content in part for reader in self.readers[content]} - {op}
                if late and max(readers, default=-1) < min(late):
                    base_of[op] = part
                    sum_of |= dict.fromkeys(late, op)
                    break
        return sum_of, base_of

    def _copy_alone(self, part: list[Content], op: int) -> int | None:
        """The copy that makes all of a part, if only op `op` reads it."""
        makers = {maker for maker, _ in part}
        copy = next(iter(makers), -1)
        whole = (self.lo[copy], self.hi[copy]) == (self.lo[op], self.hi[op])
        alone = len(makers) == 1 and all(self.readers[content] == [op] for content in part)
        return copy if alone and whole and self.kind[copy] == Kind.COPY else None


def _made(part: Iterable[Content]) -> int:
    return max((maker for maker, _ in part), default=-1)


def _channels(plan: Plan) -> list[int]:
    """The channel of each op, from 0 on without gaps."""
    found = np.where(plan.stream == NO_STREAM, 0, plan.stream // len(plan.devices))
    copies = plan.kind == Kind.COPY
    numbers: list[int] = np.where(
        copies, np.searchsorted(np.unique(found[copies]), found), 0
    ).tolist()
    return numbers
