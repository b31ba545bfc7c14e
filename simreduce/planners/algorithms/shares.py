"""How trees or rings that work side by side share a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan import Values

T = TypeVar("T")


def divide(shares: Sequence[tuple[T, float]], lo: int, hi: int) -> list[tuple[T, int, int]]:
    """The elements [lo, hi) by shares; only those that get some, but one at least."""
    upto = list(accumulate((share for _, share in shares), initial=0.0))
    edges = [lo + round((hi - lo) * part / upto[-1]) for part in upto]
    cut = [(one, a, z) for (one, _), (a, z) in zip(shares, pairwise(edges), strict=True)]
    return [each for each in cut if each[1] < each[2]] or cut[:1]


def takers(shares: Sequence[tuple[T, float]], tensor: Values) -> tuple[T, ...]:
    """Return who gets some of a tensor, given by rank."""
    return tuple(one for one, _, _ in divide(shares, 0, int(tensor.elements[0])))


def divide_all(shares: Sequence[tuple[T, float]], tensors: Values) -> list[tuple[T, Ints, Ints]]:
    """`divide` of tensors of shape (tensors, ranks) that have the same `takers`: the elements from
    and up to, by tensor.
    """
    upto = np.array(list(accumulate((share for _, share in shares), initial=0.0)))
    size = tensors.elements[:, :1]
    edges = tensors.lo[:, :1] + np.rint(size * upto / upto[-1]).astype(np.int64)
    some = np.flatnonzero(edges[0, 1:] > edges[0, :-1]).tolist() or [0]
    return [(shares[i][0], edges[:, i], edges[:, i + 1]) for i in some]
