"""A simulation with all that observers need: what ops cost and used, and rates of flows over time.

The kernel keeps no history, as a plan may have millions of flows. It does record when each flow
begins and ends, and rates change at no other time. The replay gives the kernel the flows alone,
each of which begins when it did, looks at their rates from instant to instant, and checks that
every flow ends when it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from simreduce.computing.arrays import ULP, Floats, Ints, blocks, ranges
from simreduce.engine.kernel.store import KernelStore
from simreduce.engine.kernel.tables import FLOW, NONE, RESOURCES, SLOTS
from simreduce.engine.lowering import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.result import CriticalPath, PathOp, Result
from simreduce.engine.submission import Timeline
from simreduce.errors import InternalError
from simreduce.plan import Plan

_INSTANT = 32 * ULP
"""Times this close are one instant (the kernel: 4 ulp; the start of a flow is computed anew here).
"""
_AGREE = 1e-9
"""How far the time that a flow takes may be off, relative to it."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowRates:
    """The rates of flows and the loads of resources over time, as two tables.

    Stretches of constant rate of flows: op, from, to, bytes/s, and the full resource that set the
    rate (-1: the flow's own cap, or what others that are held leave it). Loads of resources:
    resource, from when on, bytes/s, in order of time.
    """

    op: Ints
    begin: Floats
    end: Floats
    rate: Floats
    limit: Ints
    resource: Ints
    since: Floats
    load: Floats


def flow_starts(lowered: Lowered, timeline: Timeline) -> Floats:
    """When the bytes of each op begin to move (for an op without bytes: when it is done)."""
    calls, starts = lowered.calls, timeline.finish.copy()
    for some in blocks(len(starts)):
        call = lowered.call[some]
        begun = timeline.start[some] + calls.overhead[call] + calls.latency[call]
        if timeline.begun is not None:
            known = timeline.begun[some]
            begun = np.where(np.isnan(known), begun, known)
        np.minimum(starts[some], begun, out=starts[some], where=lowered.amount[some] > 0)
    return starts


def replay(lowered: Lowered, resources: Resources, timeline: Timeline) -> FlowRates:
    """The rates of a plan that ran alone, on links that changed as `resources` says.

    InternalError if a flow does not end when its bytes have moved.
    """
    flows = np.flatnonzero(lowered.amount > 0)
    begun = flow_starts(lowered, timeline)[flows]
    store = _alone(lowered, resources, flows, begun)
    seen = _Seen(store, lowered, flows, len(resources.capacity))
    last = float(timeline.finish.max(initial=0.0))
    changes = [change for change in resources.changes if change[0] < last]
    now, done = 0.0, not len(flows)
    while not done:
        done, then = store.advance(now, now)
        while not done and changes and changes[0][0] <= now:
            _, resource, rate = changes.pop(0)
            store.set_capacity(resource, rate)
            _, then = store.advance(now, now)
        seen.look(now)
        now = min([then, *(time for time, _, _ in changes[:1])])
    ended, ends = np.asarray(store.state.finish)[: len(flows)], timeline.finish[flows]
    wrong = np.abs(ended - ends) > _AGREE * (ends - begun) + _INSTANT * ends
    if wrong.any():
        many = np.count_nonzero(wrong)
        raise InternalError(f"the rates of {many} flows do not explain when they ended")
    return seen.rates()


def _alone(lowered: Lowered, resources: Resources, flows: Ints, begun: Floats) -> KernelStore:
    """The kernel with the flows, each released when it began, and nothing else."""
    many, n = len(lowered.calls.cap), len(flows)
    free, none = np.zeros(many), np.zeros(0, dtype=np.int64)
    calls = replace(
        lowered.calls, overhead=free, latency=free, lanes=none,
        early=np.zeros(many, dtype=np.int64), lane_start=np.zeros(many + 1, dtype=np.int64),
    )  # fmt: skip
    store = KernelStore(list(resources.capacity), congestion=resources.congestion)
    store.append(
        calls, lowered.call[flows], lowered.amount[flows], np.ones(n, dtype=np.int32),
        np.zeros(n + 1, dtype=np.int64), none, np.arange(n), begun, 0,
    )  # fmt: skip
    return store


class _Seen:
    """The rates of the flows of a kernel, as it goes on."""

    def __init__(self, store: KernelStore, lowered: Lowered, flows: Ints, resources: int) -> None:
        n = len(flows)
        self._store, self._flows = store, flows
        own = lowered.calls.select(lowered.call[flows])
        self._start, self._uses, self._weight = own.use_start, own.uses, own.weight
        ints, floats = np.zeros(0, dtype=np.int64), np.zeros(0)
        self._alive = ints
        self._rate, self._limit, self._since = np.zeros(n), np.full(n, NONE), np.zeros(n)
        self._load = np.zeros(resources)
        self._stretches: list[tuple[Any, ...]] = [(ints, floats, floats, floats, ints)]
        self._loads: list[tuple[Any, ...]] = [(ints, floats, floats)]

    def look(self, now: float) -> None:
        """Note what has changed at this instant."""
        alive, rate, limit = self._now()
        gone = np.setdiff1d(self._alive, alive, assume_unique=True)
        new = (rate != self._rate[alive]) | (limit != self._limit[alive])
        closed = np.concatenate([gone, alive[new]])
        if not len(closed):
            return
        moved = closed[(self._rate[closed] > 0) & (self._since[closed] < now)]
        until = np.full(len(moved), now)
        self._stretches.append(
            (self._flows[moved], self._since[moved], until, self._rate[moved], self._limit[moved])
        )
        self._rate[gone], self._limit[gone] = 0.0, NONE
        self._rate[alive], self._limit[alive], self._since[alive[new]] = rate, limit, now
        self._alive = alive
        many = np.diff(self._start)[alive]
        place = ranges(self._start[alive], many)
        taken = self._weight[place] * np.repeat(rate, many)
        load = np.bincount(self._uses[place], taken, minlength=len(self._load)).astype(float)
        other = np.flatnonzero(load != self._load)
        self._loads.append((other, np.full(len(other), now), load[other]))
        self._load = load

    def _now(self) -> tuple[Ints, Floats, Ints]:
        """The flows that move, in order, and the rate and the limit of each."""
        state, flows = self._store.state, self._store.state.flows
        resources, slots = flows.scalar[RESOURCES], np.arange(flows.scalar[SLOTS])
        ops = _pick(state.slot_op, slots)
        slots = slots[_pick(state.phase, ops) == FLOW]
        slots = slots[np.argsort(_pick(state.slot_op, slots), kind="stable")]
        crowd = _pick(flows.crowd, slots)
        bottleneck = _pick(flows.bottleneck, crowd)
        group = resources + crowd if flows.congestion[0] > 0.0 else bottleneck
        rate, fair = (_pick(column, index).astype(float) for column, index in
                      ((flows.level, group), (flows.rate, crowd)))  # fmt: skip
        limit = np.where((bottleneck < resources) & (rate == fair), bottleneck, NONE)
        return _pick(state.slot_op, slots), rate, limit

    def rates(self) -> FlowRates:
        """All of them, as tables."""
        return FlowRates(*_joined(self._stretches), *_joined(self._loads))


def _pick(column: Any, index: Ints) -> Any:
    """Those entries of a column of the kernel's."""
    if isinstance(column, list):
        found = [column[i] for i in index.tolist()]
        return np.array(found) if found else np.zeros(0, dtype=np.int64)
    return column[index]


def _joined(tables: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """The columns of the tables one after another."""
    return (np.concatenate(column) for column in zip(*tables, strict=True))


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
        """From when on and until when the op of each entry of lanes by op has that lane."""
        result, each = self.result, self.lowered.by_op
        sent = np.minimum(result.start + each.overhead, result.finish)
        freed = np.where(each.holds, result.finish, sent)
        user, is_pipe = self.user, each.is_pipe
        begin = np.where(is_pipe, self.flow_starts[user], result.start[user])
        return begin, np.where(is_pipe, result.finish[user], freed[user])

    @property
    def user(self) -> Ints:
        """The op of each entry of lanes by op."""
        lowered = self.lowered
        lanes = np.diff(lowered.calls.lane_start)[lowered.call]
        return np.repeat(np.arange(len(lowered.call)), lanes)

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
