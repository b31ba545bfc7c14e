"""What ops cost, by *calls*: ops of one call are alike in all but their size. Calls of their own
for those that are not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from simreduce.arrays import AnyInts, Bools, Floats, Ints, ranges, row_starts
from simreduce.engine.disturbance import Disturbance, scatter
from simreduce.engine.lowering.processor import Work

NONE = -1


@dataclass(frozen=True, slots=True)
class Calls:
    """What ops that are called alike have in common. Row c of `uses` is
    `uses[use_start[c]:use_start[c + 1]]`.
    """

    overhead: Floats
    work: Floats  # s of a core that its flow takes whatever its size
    latency: Floats
    holds: Bools
    cap: Floats
    lane_start: Ints
    early: Ints  # how many of its lanes come before its pipes
    lanes: Ints
    use_start: Ints
    uses: Ints
    weight: Floats

    @property
    def piped(self) -> Bools:
        """Whether a call has pipes."""
        return np.diff(self.lane_start) > self.early

    def only(self, which: AnyInts) -> Calls:
        """Some of them, in that order."""
        lanes, uses = np.diff(self.lane_start)[which], np.diff(self.use_start)[which]
        lane, use = ranges(self.lane_start[which], lanes), ranges(self.use_start[which], uses)
        return Calls(
            overhead=self.overhead[which],
            work=self.work[which],
            latency=self.latency[which],
            holds=self.holds[which],
            cap=self.cap[which],
            lane_start=row_starts(lanes),
            early=self.early[which],
            lanes=self.lanes[lane],
            use_start=row_starts(uses),
            uses=self.uses[use],
            weight=self.weight[use],
        )

    def emptied(self, which: Bools) -> Calls:
        """Of those, all but the last of what they use is left out."""
        count = np.diff(self.use_start)
        kept = ~np.repeat(which, count)
        kept[self.use_start[1:] - 1] = True
        return replace(
            self,
            use_start=row_starts(np.where(which, 1, count)),
            uses=self.uses[kept],
            weight=self.weight[kept],
        )

    def followed(self, others: Calls) -> Calls:
        """These, and then others."""
        columns = {}
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(others, name)
            if name.endswith("_start"):
                theirs = theirs[1:] + mine[-1]
            columns[name] = np.concatenate([mine, theirs])
        return Calls(**columns)


def worked(
    call: AnyInts,
    amount: Floats,
    calls: Calls,
    work: Work,
    moving: Collection[int],
    unit: float,
    disturbance: Disturbance,
) -> tuple[AnyInts, Calls, Floats]:
    """Calls and amounts, where ops that cores `work` on have calls of their own, after all others,
    by their size. Their amounts are what a core does, in bytes that it would move in the time at
    `unit` bytes/s: of all else that an op uses it then takes as much for each of them as its bytes
    are fewer. So cores are shared by time, and links by bytes. `moving` are the resources of cores
    that move bytes.
    """
    entry = np.full(len(calls.cap), NONE)
    entry[work.calls] = np.arange(len(work.calls))
    fixed, rated = np.zeros(len(entry)), np.zeros(len(entry), dtype=np.bool_)
    fixed[work.calls], rated[work.calls] = work.at_once, work.per_byte > 0.0
    ops = np.flatnonzero((fixed > 0.0)[call] | (rated[call] & (amount > 0.0)))
    if not len(ops):
        return call, calls, amount
    if disturbance.jitter:
        first = which = np.arange(len(ops))
        scale = scatter(disturbance.seed, len(call))[0][ops] * disturbance.jitter + 1.0
    else:
        sizes, size = np.unique(amount[ops], return_inverse=True)
        keys = call[ops].astype(np.int64) * len(sizes) + size
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        scale = np.ones(len(first))
    old, nbytes = call[ops[first]], amount[ops[first]]
    own, seconds = calls.only(old), fixed[old] * scale
    moved, uses = work.moves(entry[old], nbytes), np.diff(own.use_start)
    done = (seconds + moved) * unit
    each = np.where(
        np.isin(own.uses, list(moving)),
        np.repeat(moved, uses),
        np.repeat(nbytes, uses) * own.weight,
    )
    weight = each / np.repeat(done, uses)
    weight[own.use_start[1:] - 1] = 1.0 / unit
    own = replace(own, work=seconds, cap=np.full(len(old), unit), weight=weight).emptied(
        nbytes == 0.0
    )
    amount = amount.copy()
    amount[ops] = done[which]
    return *_of_their_own(call, ops, which, calls, own), amount


def jittered(call: AnyInts, calls: Calls, disturbance: Disturbance) -> tuple[AnyInts, Calls]:
    """A call of its own, after all others, for every op that pays overhead or latency: both are
    scattered.
    """
    paying = np.flatnonzero(((calls.overhead > 0.0) | (calls.latency > 0.0))[call])
    overhead, latency = (
        u[paying] * disturbance.jitter + 1.0 for u in scatter(disturbance.seed, len(call))
    )
    own = calls.only(call[paying])
    own = replace(own, overhead=own.overhead * overhead, latency=own.latency * latency)
    return _of_their_own(call, paying, np.arange(len(paying)), calls, own)


def _of_their_own(
    call: AnyInts, ops: AnyInts, which: AnyInts, calls: Calls, own: Calls
) -> tuple[AnyInts, Calls]:
    """`ops` have the calls `which` of `own`, which come after all others."""
    call = call.copy()
    call[ops] = len(calls.cap) + which
    return call, calls.followed(own)
