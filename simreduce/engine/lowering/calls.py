"""The costs of ops, by *call*: ops of one call are alike in all but their size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, ranges, row_starts
from simreduce.engine.disturbance import Disturbance, scatter


@dataclass(frozen=True, slots=True)
class Calls:
    """The costs that the ops of a call share; lanes and uses are CSR rows."""

    overhead: Floats
    work: Floats  # s of a core, part of its flow whatever its size
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

    @property
    def is_pipe(self) -> Bools:
        """Whether it is a pipe, for each entry of `lanes`."""
        count = np.diff(self.lane_start)
        within = np.arange(len(self.lanes)) - np.repeat(self.lane_start[:-1], count)
        return np.asarray(within >= np.repeat(self.early, count))

    def select(self, which: AnyInts) -> Calls:
        """These calls, in that order."""
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

    def drop_uses(self, which: Bools) -> Calls:
        """The same calls, but `which` use only the last resource of their row."""
        count = np.diff(self.use_start)
        kept = ~np.repeat(which, count)
        kept[self.use_start[1:] - 1] = True
        return replace(
            self,
            use_start=row_starts(np.where(which, 1, count)),
            uses=self.uses[kept],
            weight=self.weight[kept],
        )

    def append(self, others: Calls) -> Calls:
        """These calls, and then others."""
        columns = {}
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(others, name)
            if name.endswith("_start"):
                theirs = theirs[1:] + mine[-1]
            columns[name] = np.concatenate([mine, theirs])
        return Calls(**columns)


def scatter_costs(call: AnyInts, calls: Calls, disturbance: Disturbance) -> tuple[AnyInts, Calls]:
    """Scatter overhead and latency.

    Every op that pays either has a call of its own, after all others.
    """
    paying = np.flatnonzero(((calls.overhead > 0.0) | (calls.latency > 0.0))[call])
    overhead, latency = (
        u[paying] * disturbance.jitter + 1.0 for u in scatter(disturbance.seed, len(call))
    )
    own = calls.select(call[paying])
    own = replace(own, overhead=own.overhead * overhead, latency=own.latency * latency)
    return give_own_calls(call, paying, np.arange(len(paying)), calls, own)


def give_own_calls(
    call: AnyInts, ops: AnyInts, which: AnyInts, calls: Calls, own: Calls
) -> tuple[AnyInts, Calls]:
    """Gives `ops` the calls `which` of `own`, which come after all others."""
    call = call.copy()
    call[ops] = len(calls.cap) + which
    return call, calls.append(own)
