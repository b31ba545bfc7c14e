"""Partners 1, 2, 4, ... away: recursive doubling, Rabenseifner's all-reduce, Bruck's algorithms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.errors import NotFoldable
from simreduce.plan import PlanBuilder, Values
from simreduce.planners.algorithms.planner import After, Collective, Knobs, common_parts, pull, size


def recursive_doubling(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Distances 1, 2, 4, ...

    Thakur, Rabenseifner and Gropp 2005: in every step a rank swaps all it has with a partner twice
    as far away as in the step before, and both add. n = 2^k: log2 n (a + M/B), and every rank adds
    log2 n times M. Any other n: the n - 2^k ranks too many fold in before (every second of the
    first 2(n - 2^k) ranks gives all it has to its neighbour) and receive the result after, which
    takes 2 (a + M/B) more.
    """
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
    return _concatenate(b.adds([host, exchange(b, values[:, others], host, channel)]), rest)


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
    return _concatenate(held, got)[:, np.argsort(np.concatenate([stay, others]))]


def all_reduce_by(b: PlanBuilder, values: Values, knobs: Knobs, core: Collective) -> Values:
    """All-reduce over any n by `core`, an all-reduce over a power of two.

    If one of several equal machines is planned for all, n is a power of two itself.
    """
    n, channel = size(values, knobs), knobs.channel
    if knobs.machines > 1 and n & (n - 1):
        raise NotFoldable(
            f"{n} ranks are no power of two: some do more than others, so machines cannot fold"
        )
    held = core(b, fold(b, values, channel), knobs)
    return unfold(b, held, held[:, : values.shape[1] - held.shape[1]], values, channel)


def halving_doubling(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """Halve, then double, over the ranks that are not folded.

    Rabenseifner 2004; Thakur et al. 2005: recursive halving, then doubling. n = 2^k: a
    reduce-scatter in which partners n/2, n/4, ... 1 apart swap halves of what is left, and an
    all-gather in reverse: 2 log2 n a + 2 (n-1)/n M/B, half of it for each. Any other n: n - 2^k
    ranks fold into neighbours first and get the result last. An all-reduce takes 2 (a + M/B) more.
    A reduce-scatter or all-gather takes up to (k + 2) a + (1 + 1/n + 2 (2^k - 1)/n) M/B.
    """
    return all_reduce_by(b, values, knobs, _all_reduce)


def halving_reduce_scatter(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """A rank with another folded into it ends with both parts, and hands over the second."""
    n, channel = values.shape[1], knobs.channel
    stay, others = core_of(n)
    edges = _edges(common_parts(values, knobs))
    terms = _halve(b, fold(b, values, channel), edges[:, np.append(stay, n)], channel)
    own = _sum(b, [t.view(edges[:, stay], edges[:, stay + 1]) for t in terms])
    folded = [t[:, : len(others)] for t in terms]
    theirs = _sum(b, [t.view(edges[:, others], edges[:, others + 1]) for t in folded])
    return unfold(b, own, theirs, values, channel)


def doubling_all_gather(b: PlanBuilder, shards: Values, knobs: Knobs) -> Values:
    """A rank with another folded into it takes over its part, and in the end tells it all."""
    stay, others = core_of(shards.shape[1])
    held = shards[:, stay]
    if len(others):
        host, rest = held[:, : len(others)], held[:, len(others) :]
        brought = exchange(b, shards[:, others], host, knobs.channel)
        held = _concatenate(_join(b, host, brought), rest)
    swap, hosts = _Swap(b, knobs.channel), slice(len(others))
    held = _double(b, held, _edges(held), swap)
    return unfold(b, held, held[:, hosts], shards, knobs.channel, swap.sent[:, hosts])


def _all_reduce(b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    edges = _edges(common_parts(values, knobs))
    shards = _sum(b, _halve(b, values, edges, knobs.channel))
    return _double(b, shards, edges, _Swap(b, knobs.channel))


def _halve(b: PlanBuilder, held: Values, edges: Ints, channel: int) -> list[Values]:
    """Over a power of two ranks: the terms of rank r's part, edges[:, r] to edges[:, r + 1]."""
    rank, terms, swap = np.arange(held.shape[1]), [held], _Swap(b, channel)
    for distance in reversed(steps(edges.shape[1] - 1)):
        held = _sum(b, terms)
        first = rank & -distance  # of the parts that a rank keeps
        kept = held.view(edges[:, first], edges[:, first + distance])
        terms = [kept, swap(held, rank ^ distance, kept)]
    return terms


def _double(b: PlanBuilder, held: Values, edges: Ints, swap: _Swap) -> Values:
    """Over a power of two: the adjacent parts of all ranks, as one on every rank."""
    rank = np.arange(held.shape[1])
    for distance in steps(edges.shape[1] - 1):
        theirs = (rank ^ distance) & -distance  # the first of the parts that the partner has
        wanted = held.view(edges[:, theirs], edges[:, theirs + distance])
        arrived = swap(held, rank ^ distance, wanted)
        upper = (rank & distance) // distance  # 1 where what a rank has comes after what arrives
        pair = Values.stack([held, arrived], axis=2)
        held = b.joins(pair[:, rank[:, None], np.stack([upper, 1 - upper], axis=1)])
    return held


def _edges(cut: Values) -> Ints:
    return np.concatenate([cut.lo, cut.hi[:, -1:]], axis=1)


def _sum(b: PlanBuilder, terms: list[Values]) -> Values:
    return b.adds(terms) if len(terms) > 1 else terms[0]


class _Swap:
    """Ordered exchanges: swapped parts may differ in size. `sent`: each sender's last copy."""

    def __init__(self, b: PlanBuilder, channel: int) -> None:
        self.b, self.channel, self.sent = b, channel, np.empty((0, 0), dtype=np.int64)

    def __call__(self, held: Values, partner: Ints, wanted: Values) -> Values:
        here = held.shape[1]
        after = self.sent[:, partner % here] if self.sent.size else ()
        arrived = from_partner(self.b, held, partner, wanted, self.channel, after)
        self.sent = arrived.op[:, partner % here]
        return arrived


def bruck_all_gather(b: PlanBuilder, shards: Values, _: Knobs) -> Values:
    """Rank p has the parts from p on: `upper` up to the last and, once it has gone past that,
    `lower` from the first.

    Bruck, Ho, Kipnis, Upfal and Weathersby 1997, for any n in ceil(log2 n) steps. In the steps 1,
    2, 4, ... rank p is sent by rank p + step what that has so far, the parts from its own on round
    the circle of ranks: ceil(log2 n) a + (n-1)/n M/B.

    What is one message of a library, which packs it, is several copies here and in
    `bruck_all_to_all`, because its parts are no interval. They leave at once, when all of the last
    message is there, and share the port, which takes as long.
    """
    n, rank, edges = shards.shape[1], np.arange(shards.shape[1]), _edges(shards)
    upper = lower = shards
    arrived = [shards[:, :0]]
    for step in steps(n):
        count, giver = min(step, n - step), (rank + step) % n
        # The givers of ranks after..turn-1 go past the last part.
        turn, after = n - step, n - step - count + 1
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


def bruck_all_to_all(b: PlanBuilder, values: Values, _: Knobs) -> Values:
    """A run: a giver's parts for takers `first` to `last` - 1, held by rank `at`.

    In the steps ..., 4, 2, 1 every part that has `step` ranks or more to go goes that far: n = 2^k:
    log2 n (a + M/(2B)), any other n no more than ceil(log2 n) of the same.
    """
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
