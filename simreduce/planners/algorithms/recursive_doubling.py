"""Recursive doubling (Thakur, Rabenseifner and Gropp 2005): in every step a rank swaps all it has
with a partner twice as far away as in the step before, and both add.

n = 2^k: log2 n (a + M/B), and every rank adds log2 n times M. Any other n: the n - 2^k ranks too
many fold in before (every second of the first 2(n - 2^k) ranks gives all it has to its neighbour)
and receive the result after, which takes 2 (a + M/B) more.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.errors import NotFoldable
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.family import After, Knobs, pull, size

Core = Callable[[PlanBuilder, Values, Knobs], Values]
"""An all-reduce over a power of two."""


def all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Distances 1, 2, 4, ..."""
    return all_reduce_by(b, values, knobs, _doubling)


def _doubling(b: PlanBuilder, held: Values, knobs: Knobs) -> Values:
    rank = np.arange(held.shape[1])
    for distance in steps(size(held, knobs)):
        held = b.adds([held, from_partner(b, held, rank ^ distance, held, knobs.channel)])
    return held


def steps(n: int) -> list[int]:
    """The powers of two below n."""
    return [1 << i for i in range((n - 1).bit_length())]


def exchange(b: PlanBuilder, sent: Values, to: Values, channel: int, after: After = ()) -> Values:
    """Send every value to the device of `to` at the same place. Receiving is one after another:
    partners that swap then begin together, when both have done what comes before, as a send-receive
    call does.
    """
    return b.copies(sent, to.device, stream=b.streams(to.device, channel), after=after)


def from_partner(
    b: PlanBuilder, held: Values, partner: Ints, wanted: Values, channel: int, after: After = ()
) -> Values:  # fmt: skip
    """`exchange` with partners: every rank gets `wanted` of what its partner holds."""
    return pull(b, held, partner, wanted, stream=b.streams(wanted.device, channel), after=after)


def core_of(n: int) -> tuple[Ints, Ints]:
    """The ranks that stay when the others are folded, a power of two; and those others. The rank
    that others[i] is folded into is before it: stay[i].
    """
    power = 1 << (n.bit_length() - 1)
    rank, surplus = np.arange(power), n - power
    stay = rank + np.minimum(rank, surplus)
    return stay, stay[:surplus] + 1


def fold(b: PlanBuilder, values: Values, channel: int) -> Values:
    """Return the values of the ranks that stay, once the others have given them all they have."""
    stay, others = core_of(values.shape[1])
    if not len(others):
        return values
    host, rest = values[:, stay[: len(others)]], values[:, stay[len(others) :]]
    arrived = exchange(b, values[:, others], host, channel)
    return Values.concatenate([b.adds([host, arrived]), rest], axis=1)


def unfold(
    b: PlanBuilder, held: Values, given: Values, values: Values, channel: int, after: After = ()
) -> Values:
    """By rank: what those that stayed hold, and on the device of `values` what `given` gives to
    each of the others.
    """
    stay, others = core_of(values.shape[1])
    if not len(others):
        return held
    got = exchange(b, given, values[:, others], channel, after)
    return Values.concatenate([held, got], axis=1)[:, np.argsort(np.concatenate([stay, others]))]


def all_reduce_by(b: PlanBuilder, values: Values, knobs: Knobs, core: Core) -> Values:
    """All-reduce over any n by an all-reduce over a power of two.

    If one of several equal machines is planned for all, n is a power of two itself.
    """
    n, channel = size(values, knobs), knobs.channel
    if knobs.machines > 1 and n & (n - 1):
        raise NotFoldable(
            f"{n} ranks are no power of two: some do more than others, so machines cannot fold"
        )
    held = core(b, fold(b, values, channel), knobs)
    return unfold(b, held, held[:, : values.shape[1] - held.shape[1]], values, channel)
