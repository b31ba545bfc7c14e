"""A plan as the arrays that the kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, ranges, row_starts
from simreduce.engine.lowering.calls import Calls
from simreduce.engine.lowering.dependencies import find_successors
from simreduce.plan import Plan
from simreduce.plan.plan import NO_STREAM


@dataclass(frozen=True, slots=True)
class Lowered:
    """One plan, ready to run: `call[op]` is its place in `calls`.

    An op waits for its operands, its controls and the op before it on its stream, each counted
    once. AnyInts of ops are 32 bits wide where they fit.
    """

    call: AnyInts
    calls: Calls
    amount: Floats
    waits: AnyInts  # how many ops each one waits for
    successor_start: AnyInts
    successors: AnyInts  # ascending in every row
    lane_names: tuple[str, ...]
    stream: AnyInts  # that orders each op, or NO_STREAM

    def part(self, plan: Plan, first: int) -> Lowered:
        """Return the lowering of `plan`, which has this plan's ops from `first` on.

        It has the working set of this plan. Not for plans with jitter, which depends on the ids of
        ops.
        """
        mine = slice(first, first + len(plan))
        which, call = np.unique(self.call[mine], return_inverse=True)
        dependencies = self._dependencies(plan, first)
        return Lowered(
            call.astype(self.call.dtype),
            self.calls.select(which),
            self.amount[mine],
            *dependencies,
            self.lane_names,
            self.stream[mine],
        )

    def _dependencies(self, plan: Plan, first: int) -> tuple[AnyInts, AnyInts, AnyInts]:
        """The waits and successors of a part.

        A stream may run through several parts, so a part that has streams is searched anew.
        """
        if (stream := self.stream[first : first + len(plan)]).max(initial=NO_STREAM) > NO_STREAM:
            return find_successors(plan, stream)
        start = self.successor_start[first : first + len(plan) + 1]
        successors = self.successors[start[0] : start[-1]] - np.int32(first)
        return self.waits[first : first + len(plan)], start - start[0], successors

    @property
    def overhead(self) -> Floats:
        """Seconds of dispatch, by op."""
        return self.calls.overhead[self.call]

    @property
    def work(self) -> Floats:
        """Seconds of a core that do not depend on the size, by op."""
        return self.calls.work[self.call]

    @property
    def latency(self) -> Floats:
        """Seconds, by op."""
        return self.calls.latency[self.call]

    @property
    def holds(self) -> Bools:
        """Whether lanes are kept during latency and flow, by op."""
        return self.calls.holds[self.call]

    @property
    def cap(self) -> Floats:
        """Limits of rates, by op."""
        return self.calls.cap[self.call]

    @property
    def lane_start(self) -> Ints:
        """Where the rows of `lanes` begin, by op."""
        return row_starts(np.diff(self.calls.lane_start)[self.call])

    @property
    def lanes(self) -> Ints:
        """The rows, one after another, by op."""
        return self.calls.lanes[self._rows(self.calls.lane_start)]

    @property
    def is_pipe(self) -> Bools:
        """Whether it is a pipe, for each entry of `lanes`."""
        return self.calls.is_pipe[self._rows(self.calls.lane_start)]

    @property
    def use_start(self) -> Ints:
        """Where the rows of `uses` and `weight` begin, by op."""
        return row_starts(np.diff(self.calls.use_start)[self.call])

    @property
    def uses(self) -> Ints:
        """The rows, one after another, by op."""
        return self.calls.uses[self._rows(self.calls.use_start)]

    @property
    def weight(self) -> Floats:
        """The rows, one after another, by op."""
        return self.calls.weight[self._rows(self.calls.use_start)]

    def _rows(self, start: Ints) -> Ints:
        return ranges(start[self.call], np.diff(start)[self.call])


def hold_lanes(
    lanes: Sequence[Ints], seconds: Sequence[float], lane_names: tuple[str, ...]
) -> Lowered:
    """Ops that move no bytes: each holds its `lanes` for so many seconds."""
    n, none = len(seconds), np.zeros(0, dtype=np.int64)
    count, nothing = np.array([len(each) for each in lanes]), np.zeros(n, dtype=np.int64)
    calls = Calls(
        overhead=np.array(seconds, dtype=np.float64),
        work=np.zeros(n),
        latency=np.zeros(n),
        holds=np.ones(n, dtype=np.bool_),
        cap=np.full(n, np.inf),
        lane_start=row_starts(count),
        early=count,
        lanes=np.concatenate(lanes),
        use_start=row_starts(nothing),
        uses=none,
        weight=np.zeros(0),
    )
    return Lowered(
        np.arange(n), calls, np.zeros(n), nothing, row_starts(nothing), none, lane_names, none
    )
