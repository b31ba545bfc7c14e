"""Rings along the axes of a grid: the torus of two and of three dimensions, and BlueConnect.

All-reduce of S on a torus of n = p x q, along the rows, then along the columns on what is left, and
back: [2(p-1) + 2(q-1)]a + 2(n-1)/n S/B, and one more term of 2(r-1)a in three dimensions, with
every step one message on a rank's single port (Mikami et al. 2018). Reduce-scatter and all-gather
are a half each.

n of any size has the factors with the least sum, the rows the longest: 12 is 3 rows of 4
neighbours. A prime n is one row: the ring. A family does not see in which tasks its ranks are, so a
row is a task only where the factors happen to be the tasks' size; `blueconnect` goes by the tasks.

Position i of n = p1 x ... x pk is the point of the grid with that number in C order: neighbours lie
along the last axis. In `reduce_scatter_by_axis` the first axis comes first, so that what a position
holds is one interval at all times and every step sends one message; on the i-th axis rings of pi
positions work on what p1 ... p(i-1) have left of S: sum (pi-1)(a + S/(p1 ... pi B)).
`all_gather_by_axis` is the same in reverse. An all-reduce may leave any part anywhere, so it starts
along the last axis, as neighbours tend to have the faster links.

Every axis has one channel on the way to the sums and one on the way back, so that one tensor can
move along one axis while another moves along the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms import ring
from simreduce.planners.algorithms.planner import Family, Knobs


def all_reduce_by_axis(b: PlanBuilder, values: Values, axes: Sequence[int], channel: int) -> Values:
    """Reduce-scatter along every axis, the last first, then all-gather back."""
    turned = np.arange(values.shape[1]).reshape(axes).T.reshape(-1)
    parts = reduce_scatter_by_axis(b, values[:, turned], axes[::-1], channel)
    return all_gather_by_axis(b, parts, axes[::-1], channel)[:, np.argsort(turned)]


def reduce_scatter_by_axis(
    b: PlanBuilder, values: Values, axes: Sequence[int], channel: int
) -> Values:
    """Reduce-scatter along every axis, the first axis first.

    The parts are as `cut(n)` makes them, also for sizes that n does not divide.
    """
    held, parts = values, values[:, 0].cut(values.shape[1])
    for axis, p in enumerate(axes):
        rest = held.shape[1] // p
        chunks = parts.reshape(-1, p, rest)
        lo, hi = chunks.lo[:, None, None, :, 0], chunks.hi[:, None, None, :, -1]
        # A line holds the positions that differ only in their place on the axis.
        lines = held.reshape(-1, p, rest).swapaxes(1, 2)
        own = lines[..., None].view(lo, hi).reshape(-1, p, p)
        summed = ring.reduce_scatter_pieces(b, own, channel + axis)
        held = summed.reshape(-1, rest, p).swapaxes(1, 2).reshape(-1, rest)
        parts = chunks.reshape(-1, rest)
    return held.reshape(*values.shape)


def all_gather_by_axis(b: PlanBuilder, parts: Values, axes: Sequence[int], channel: int) -> Values:
    """Along every axis, the last first."""
    held, rest = parts, 1
    for axis in reversed(range(len(axes))):
        p = axes[axis]
        lines = held.reshape(-1, p, rest).swapaxes(1, 2)
        whole = ring.all_gather(b, lines.reshape(-1, p), Knobs(channel + len(axes) + axis))
        held = whole.reshape(-1, rest, p).swapaxes(1, 2)
        rest *= p
    return held.reshape(*parts.shape)


def near_equal(n: int, axes: int) -> tuple[int, ...]:
    """The factors of n with the least sum, ascending: 12 is 3 x 4 or 2 x 2 x 3, and a prime n is 1
    x n.
    """
    if axes == 1:
        return (n,)
    first = [p for p in range(1, n + 1) if n % p == 0]
    return min((tuple(sorted((p, *near_equal(n // p, axes - 1)))) for p in first), key=sum)


def prime_factors(n: int) -> tuple[int, ...]:
    """12 is (2, 2, 3); 1 has none."""
    least = next((p for p in range(2, n + 1) if n % p == 0), None)
    return () if least is None else (least, *prime_factors(n // least))


def torus(dimensions: int) -> Family:
    """The torus of `dimensions` dimensions.

    A reduce-scatter starts along the columns instead, as its parts are intervals.
    """

    # A collective on a grid with these axes takes two channels for each from one on.
    def along(
        by_axis: Callable[[PlanBuilder, Values, Sequence[int], int], Values],
        b: PlanBuilder,
        values: Values,
        knobs: Knobs,
    ) -> Values:
        return by_axis(b, values, near_equal(values.shape[1], dimensions), knobs.channel)

    return Family(
        f"torus_{dimensions}d",
        f"rings along the {dimensions} axes of a torus",
        all_reduce=partial(along, all_reduce_by_axis),
        reduce_scatter=partial(along, reduce_scatter_by_axis),
        all_gather=partial(along, all_gather_by_axis),
        channels=2 * dimensions,
    )
