"""How trees or rings that work side by side share a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

T = TypeVar("T")


def divide(shares: Sequence[tuple[T, float]], lo: int, hi: int) -> list[tuple[T, int, int]]:
    """The elements [lo, hi) by shares; only those that get some, but one at least."""
    upto = list(accumulate((share for _, share in shares), initial=0.0))
    edges = [lo + round((hi - lo) * part / upto[-1]) for part in upto]
    cut = [(one, a, z) for (one, _), (a, z) in zip(shares, pairwise(edges), strict=True)]
    return [each for each in cut if each[1] < each[2]] or cut[:1]
