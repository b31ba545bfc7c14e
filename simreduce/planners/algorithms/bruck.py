"""Bruck's algorithms (Bruck, Ho, Kipnis, Upfal and Weathersby 1997), for any n in ceil(log2 n)
steps.

All-gather: in the steps 1, 2, 4, ... rank p is sent by rank p + step what that has so far, the
parts from its own on round the circle of ranks: ceil(log2 n) a + (n-1)/n M/B. All-to-all: in the
steps ..., 4, 2, 1 every part that has `step` ranks or more to go goes that far: n = 2^k: log2 n (a
+ M/(2B)), any other n no more than ceil(log2 n) of the same.

What is one message of a library, which packs it, is several copies here, because its parts are no
interval. They leave at once, when all of the last message is there, and share the port, which takes
as long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.family import Knobs
from simreduce.planners.algorithms.recursive_doubling import steps


def all_gather(b: PlanBuilder, shards: Values, _: Knobs) -> Values:
    """Rank p has the parts from p on: `upper` up to the last and, once it has gone past that,
    `lower` from the first.
    """
    n, rank = shards.shape[1], np.arange(shards.shape[1])
    edges = np.concatenate([shards.lo, shards.hi[:, -1:]], axis=1)
    upper = lower = shards
    arrived = [shards[:, :0]]
    for step in steps(n):
        count = min(step, n - step)
        giver = (rank + step) % n
        turn, after = (
            n - step,
            n - step - count + 1,
        )  # the givers of ranks after..turn-1 go past the last part
        gates = _gates(b, shards.device, arrived)
        first = upper[:, giver].view(edges[:, giver], edges[:, np.minimum(giver + count, n)])
        rest = lower[:, after + step :].view(edges[:, :1], edges[:, 1:count])
        first = b.copies(first, shards.device, after=gates[:, giver])
        rest = b.copies(rest, shards.device[:, after:turn], after=gates[:, after + step :])
        arrived = [first, rest]
        upper = _concatenate(_join(b, upper[:, :turn], first[:, :turn]), upper[:, turn:])
        last = _join(b, lower[:, turn + 1 :], first[:, turn + 1 :])
        lower = _concatenate(lower[:, :after], rest, first[:, turn : turn + 1], last)
    return _concatenate(upper[:, :1], _join(b, lower[:, 1:], upper[:, 1:]))


def all_to_all(b: PlanBuilder, values: Values, _: Knobs) -> Values:
    """A run: a giver's parts for takers `first` to `last` - 1, held by rank `at`."""
    groups, n = values.shape
    cut = values.cut(n)
    edges = np.concatenate([cut.lo, cut.hi[..., -1:]], axis=2)
    group, giver, half = (axis.ravel() for axis in np.indices((groups, n, 2)))
    run = np.stack([group, giver, giver, np.where(half, 0, giver), np.where(half, giver, n)])
    run = run[:, run[4] > run[3]]
    held = values[run[0], run[1]]
    moved = held[:0]
    for step in reversed(steps(n)):
        group, giver, at, first, last = run
        gates = _gates(b, values.device, [moved])
        middle = np.clip(
            first + step - (first - at) % n, first, last
        )  # from here on they are `step` or more away
        stays, goes = middle > first, last > middle
        sent = np.stack([group, giver, (at + step) % n, middle, last])[:, goes]
        group, giver, target, low, high = sent
        going = held[goes].view(edges[group, giver, low], edges[group, giver, high])
        moved = b.copies(going, values.device[group, target], after=gates[group, at[goes]])
        held = Values.concatenate([held[stays], moved])
        run[4] = middle
        run = np.concatenate([run[:, stays], sent], axis=1)
    order = np.lexsort((run[1], run[2], run[0]))
    group, giver, at = run[:3, order]
    parts = held[order].view(edges[group, giver, at], edges[group, giver, at + 1])
    return parts.reshape(groups, n, n)


def _gates(b: PlanBuilder, device: Ints, arrived: Sequence[Values]) -> Ints:
    """By device: an op that is done when all that arrived there has."""
    place = np.empty(len(b.devices), dtype=np.int64)
    place[device.ravel()] = np.arange(device.size)
    at = place[np.concatenate([v.device.ravel() for v in arrived])]
    ops = np.concatenate([v.op.ravel() for v in arrived])
    return b.barriers(
        device, np.bincount(at, minlength=device.size), ops[np.argsort(at, kind="stable")]
    )


def _join(b: PlanBuilder, first: Values, second: Values) -> Values:
    return b.joins(Values.stack([first, second], axis=2))


def _concatenate(*parts: Values) -> Values:
    return Values.concatenate(parts, axis=1)
