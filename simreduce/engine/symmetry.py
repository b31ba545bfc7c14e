"""Parts of a plan that do the same on like resources: one is simulated for all.

NCCL's channels often go one way round the GPUs of a machine and differ in where they begin. Part c
of a plan then does on resource f_c(x) what the first part does on x, at the same time. So resource
r carries what the first part does on every x with f_c(x) = r for some c. Where all f_c(x) carry the
same, one of these x represents them all, and the first part takes as long as the whole plan. If
several parts do the same on one resource, its weight is their number.

Queues are taken in the order of ops, so no queue may be one of several for different parts.

Plans that each run by themselves may share nothing, and be alike: their `likeness` tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from simreduce.computing.arrays import Floats, Ints, row_starts
from simreduce.engine.lowering.calls import Calls
from simreduce.engine.lowering.lowering import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.errors import InternalError

_COSTS = ("overhead", "work", "latency", "holds", "cap", "early", "lane_start", "use_start")
_OPS = ("call", "amount", "waits", "successor_start", "successors", "stream")


@dataclass(frozen=True, slots=True)
class Symmetry:
    """The resource that represents each resource, and how many parts use each in the same way.

    `stand_in` is -1 for resources that no part uses.
    """

    stand_in: Ints
    weight: Floats

    def fold(self, part: Lowered) -> Lowered:
        """Return the first part, which takes as long as all parts together.

        It may have more ops than the one that was compared, and no other ways.
        """
        calls, every = part.calls, len(self.stand_in)
        if (self.stand_in[calls.uses] < 0).any():
            raise InternalError("a part of a plan uses other resources than were compared")
        row = np.repeat(np.arange(len(calls.cap)), np.diff(calls.use_start))
        pairs, place = np.unique(row * every + self.stand_in[calls.uses], return_inverse=True)
        weight = np.bincount(place, calls.weight * self.weight[calls.uses], minlength=len(pairs))
        count = np.bincount(pairs // every, minlength=len(calls.cap))
        folded = replace(
            calls,
            use_start=row_starts(count),
            uses=(pairs % every).astype(calls.uses.dtype),
            weight=weight.astype(np.float64),
        )
        return replace(part, calls=folded)


def find_symmetry(parts: Sequence[Lowered], capacity: Sequence[float]) -> Symmetry | None:
    """Return the symmetry by which the first part of a plan represents all; None if they differ.

    Ops of one place belong together, and all lanes have numbers by the same names.
    """
    first, *others = parts
    which, at, place = np.unique(first.call, return_index=True, return_inverse=True)
    own = first.calls.select(which)
    uses, lanes = _Images(own.uses), _Images(own.lanes)
    for part in others:
        if not np.array_equal(part.amount, first.amount):
            return None
        call = part.call[at]
        calls = part.calls.select(call)
        if not (np.array_equal(part.call, call[place]) and _same(calls, own)):
            return None
        if not (uses.add(calls.uses) and lanes.add(calls.lanes)):
            return None
    carried, queued = uses.carried(), lanes.carried()
    if carried is None or queued is None or any(of != {x: 1} for x, of in queued.items()):
        return None
    stand_in, weight = np.full(len(capacity), -1), np.ones(len(capacity))
    for x, of in carried.items():
        if any(capacity[y] != capacity[x] for y in uses.of(x)):
            return None
        stand_in[x], weight[x] = min(of), of[x]
    return Symmetry(stand_in, weight)


def _same(some: Calls, others: Calls) -> bool:
    """Whether calls cost the same and use as many resources, with the same weights."""
    names = (*_COSTS, "weight")
    return all(np.array_equal(getattr(some, name), getattr(others, name)) for name in names)


def likeness(lowered: Lowered, resources: Resources) -> bytes:
    """A digest that two plans share if each does by itself what the other does, on like resources
    and in queues of its own: what they do takes equal times, to the bit.

    The kernel knows resources and lanes by numbers, so these must also be in the same order.
    """
    calls, digest = lowered.calls, blake2b(digest_size=16)
    used, place = np.unique(calls.uses, return_inverse=True)
    queues = np.unique(calls.lanes, return_inverse=True)[1]
    columns = [getattr(lowered, name) for name in _OPS] + [getattr(calls, name) for name in _COSTS]
    columns += [calls.weight, place, queues, np.array(resources.capacity)[used]]
    if congestion := resources.congestion:
        columns += [congestion.fills[used], congestion.hops(calls.use_start, calls.uses)]
    for column in columns:
        digest.update(f"{column.dtype.str} {len(column)} ".encode())
        digest.update(column.tobytes())
    return digest.digest()


class _Images:
    """The functions f_c on what the first part uses; f_0 is the identity."""

    def __init__(self, own: Ints) -> None:
        self._own = own.tolist()
        self._by_part = [{x: x for x in self._own}]

    def add(self, image: Ints) -> bool:
        """Whether what another part uses in the place of each is one for each."""
        found: dict[int, int] = {}
        same = all(
            found.setdefault(x, y) == y for x, y in zip(self._own, image.tolist(), strict=True)
        )
        self._by_part.append(found)
        return same

    def of(self, x: int) -> list[int]:
        """Every f_c(x)."""
        return [image[x] for image in self._by_part]

    def carried(self) -> Mapping[int, Counter[int]] | None:
        """Return, by x, all y that some f_c takes to x, with how many do.

        None if some f_c(x) carries something else than x.
        """
        found: dict[int, Counter[int]] = {}
        for image in self._by_part:
            for x, y in image.items():
                found.setdefault(y, Counter())[x] += 1
        if any(found[y] != found[x] for x in self._by_part[0] for y in self.of(x)):
            return None
        return {x: found[x] for x in self._by_part[0]}
