"""A simulation with all that observers need.

It holds what every op cost and used, and how busy everything was when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simreduce.computing.arrays import Floats, Ints
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.results.path import CriticalPath, PathOp
from simreduce.engine.results.replay import FlowRates, flow_starts, replay
from simreduce.engine.results.result import Result
from simreduce.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """How busy a link, a memory or a lane was.

    `value[i]` holds from `time[i]` to `time[i + 1]`; the last is 0.

    Of a link or a memory: bytes/s, up to `capacity`. Of a lane: 1 while it is held, else 0.
    """

    name: str
    capacity: float
    time: Floats
    value: Floats

    @property
    def total(self) -> float:
        """The integral: bytes, or seconds held."""
        return float((self.value[:-1] * np.diff(self.time)).sum())


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """A `Result` and what it was computed from, made by `Simulator.record`.

    Rates are computed when they are first used.
    """

    plan: Plan
    result: Result
    lowered: Lowered
    resources: Resources

    def __repr__(self) -> str:
        return f"<Recording: {self.result.headline}>"

    @cached_property
    def rates(self) -> FlowRates:
        """The rate of every flow over time."""
        return replay(self.lowered, self.resources, self.result.timeline)

    @cached_property
    def flow_starts(self) -> Floats:
        """When the bytes of each op begin to move; when it is done, for an op that moves none."""
        return flow_starts(self.lowered, self.result.timeline)

    @cached_property
    def lane_times(self) -> tuple[Floats, Floats]:
        """From when on and until when the op of each entry of `Lowered.lanes` has that lane."""
        result, lowered = self.result, self.lowered
        sent = np.minimum(result.start + lowered.overhead, result.finish)
        freed = np.where(lowered.holds, result.finish, sent)
        user, is_pipe = self.user, lowered.is_pipe
        begin = np.where(is_pipe, self.flow_starts[user], result.start[user])
        return begin, np.where(is_pipe, result.finish[user], freed[user])

    @property
    def user(self) -> Ints:
        """The op of each entry of `Lowered.lanes`."""
        return np.repeat(np.arange(len(self.lowered.call)), np.diff(self.lowered.lane_start))

    def resource_curves(self) -> tuple[Curve, ...]:
        """Of every link and memory that carried something, in the topology's order."""
        rates, names, capacity = self.rates, self.resources.names, self.resources.best.capacity
        curves = []
        for resource, rows in _by(rates.resource, np.argsort(rates.resource, kind="stable")):
            value = rates.load[rows]
            new = np.concatenate([[True], value[1:] != value[:-1]])
            curves.append(
                Curve(names[resource], capacity[resource], rates.since[rows][new], value[new])
            )
        return tuple(curves)

    def critical_path(self) -> list[PathOp]:
        """The result's critical path; time lost to others goes to the resource that was full."""
        path = self.result.path
        shared, names = self._shared(path)
        return replace(self.result, path=replace(path, shared=shared, names=names)).critical_path()

    def _shared(self, path: CriticalPath) -> tuple[Ints, tuple[str, ...]]:
        """Return where each op of the path lost most of its time to others.

        The result has indices, and the names they are of.
        """
        rates, where = self.rates, {op: i for i, op in enumerate(path.op.tolist())}
        lost: list[dict[int, float]] = [{} for _ in path.op]
        for row in np.flatnonzero(np.isin(rates.op, path.op) & (rates.limit >= 0)).tolist():
            i = where[int(rates.op[row])]
            seconds = float(rates.end[row] - rates.begin[row])
            full = float(self.lowered.amount[rates.op[row]]) / float(path.alone[i])
            mine = lost[i]
            limit = int(rates.limit[row])
            mine[limit] = mine.get(limit, 0.0) + seconds * (1 - float(rates.rate[row]) / full)
        names = list(path.names)
        shared = path.limit.copy()
        for i, mine in enumerate(lost):
            if mine:
                name = self.resources.names[max(mine, key=lambda r: (mine[r], -r))]
                if name not in names:
                    names.append(name)
                shared[i] = names.index(name)
        return shared, tuple(names)


def _by(column: Ints, order: Ints) -> Iterator[tuple[int, Ints]]:
    """(value, its rows in `order`), value by value; `order` sorts the column."""
    used, first = np.unique(column[order], return_index=True)
    if len(used):
        yield from zip(used.tolist(), np.split(order, first[1:]), strict=True)
