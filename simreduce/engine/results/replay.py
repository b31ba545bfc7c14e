"""Recomputes the rate of every flow of a finished run over time.

The kernel keeps no history, as a plan may have millions of flows. It does record when each flow
begins and ends. Rates change at no other time, and max-min fair rates are a function of the active
flows. The replay therefore recomputes them, and checks that every flow moves its last byte at the
instant that the kernel recorded. Where flows slow others that share nothing with what limits them
(`kernel.congestion`), every flow is shown at its mean rate instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simreduce.computing.arrays import ULP, Floats, Ints, blocks, ranges
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.submission import Timeline
from simreduce.errors import InternalError

_INSTANT = 8 * ULP
"""Times this close are one instant (the kernel: 4 ulp; the start of a flow is computed anew here).
"""
_SAME = 1.0 + 1e-12
"""Levels this close saturate together, as in the kernel."""
_AGREE = 1e-9
"""How far the bytes moved may be off, relative to the bytes that had to."""

_NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """The rates of flows and the loads of resources over time, as two tables.

    Stretches of constant rate of flows: op, from, to, bytes/s, and the full resource that set the
    rate (-1: the flow's own cap). Loads of resources: resource, from when on, bytes/s, in order of
    time.
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


def replay(lowered: Lowered, resources: Resources, timeline: Timeline) -> Rates:
    """The rates of a plan that ran alone, on links that changed as `resources` says."""
    flows = np.flatnonzero(lowered.amount > 0)
    begun = flow_starts(lowered, timeline)[flows]
    if resources.congestion:
        return _mean_rates(lowered, flows, begun, timeline.finish[flows])
    last = float(timeline.finish.max(initial=0.0))
    changes = [change for change in resources.changes if change[0] < last]
    times = np.concatenate([begun, timeline.finish[flows], [time for time, _, _ in changes]])
    order = np.argsort(times, kind="stable")
    state = _Replay(lowered, resources, dict(enumerate(resources.capacity)))
    n = len(flows)
    for now, group in _instants(times[order], order):
        ends = [int(flows[i - n]) for i in group if n <= i < 2 * n]
        begins = [int(flows[i]) for i in group if i < n]
        state.change(
            now,
            begins,
            ends,
            {r: rate for i in group if i >= 2 * n for _, r, rate in [changes[i - 2 * n]]},
        )
    state.check()
    return state.rates()


def _mean_rates(lowered: Lowered, flows: Ints, begun: Floats, finish: Floats) -> Rates:
    """Every flow at one rate from its begin to its end."""
    lasts = finish > begun
    flows, begun, finish = flows[lasts], begun[lasts], finish[lasts]
    rate = lowered.amount[flows] / (finish - begun)
    many = np.diff(lowered.use_start)[flows]
    place = ranges(lowered.use_start[flows], many)
    resource, load = lowered.uses[place], lowered.weight[place] * np.repeat(rate, many)
    since = np.concatenate([np.repeat(begun, many), np.repeat(finish, many)])
    resource, change = np.concatenate([resource, resource]), np.concatenate([load, -load])
    order = np.lexsort((since, resource))
    resource, since, total = resource[order], since[order], np.cumsum(change[order])
    first = np.flatnonzero(np.diff(resource, prepend=-1))  # of each resource
    before = np.concatenate([[0.0], total])[first]
    total = np.maximum(total - np.repeat(before, np.diff(np.append(first, len(resource)))), 0.0)
    by_time = np.argsort(since, kind="stable")
    limit = np.full(len(flows), _NONE)
    loads = resource[by_time], since[by_time], total[by_time]
    return Rates(flows, begun, finish, rate, limit, *loads)


def _instants(times: Floats, order: Ints) -> Iterator[tuple[float, list[int]]]:
    """(time, what happens then), first to last."""
    late = (times * (1 + _INSTANT)).tolist()
    values, ids = times.tolist(), order.tolist()
    at = 0
    while at < len(ids):
        first = at
        while at < len(ids) and values[at] <= late[first]:
            at += 1
        yield values[first], ids[first:at]


@dataclass(slots=True)
class _Flow:
    uses: list[tuple[int, float]]  # resource, weight
    left: float
    cap: float
    rate: float = 0.0
    since: float = 0.0
    limit: int = _NONE


@dataclass(slots=True)
class _Replay:
    """The active flows, and the rates recorded so far."""

    lowered: Lowered
    resources: Resources
    capacity: dict[int, float]
    now: float = 0.0
    alive: dict[int, _Flow] = field(default_factory=dict)
    on: dict[int, dict[int, float]] = field(default_factory=dict)  # resource -> op -> weight
    stretches: list[tuple[int, float, float, float, int]] = field(default_factory=list)
    loads: list[tuple[int, float, float]] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)

    def change(
        self, now: float, begins: list[int], ends: list[int], capacity: dict[int, float]
    ) -> None:
        """Begin and end flows and change resources at one instant, then share anew."""
        self.now = now
        self.capacity |= capacity
        touched: dict[int, None] = dict.fromkeys(r for r in capacity if r in self.on)
        for op in begins:
            flow = self._flow(op)
            self.alive[op] = flow
            for resource, weight in flow.uses:
                mine = self.on.setdefault(resource, {})
                mine[op] = mine.get(op, 0.0) + weight
                touched[resource] = None
        for op in ends:
            flow = self.alive.pop(op)
            self._close(op, flow)
            for resource, _ in flow.uses:
                self.on[resource].pop(op, None)
                touched[resource] = None
            spare = max(flow.rate, 1.0) * now * _INSTANT * 2
            amount = float(self.lowered.amount[op])
            if abs(flow.left) > _AGREE * amount + spare and not self._instantly(op):
                self.wrong.append(op)
        component, resources = self._connected(touched)
        self._share(component, resources)
        for resource in resources:
            there = self.on.get(resource, {})
            load = sum(self.alive[op].rate * weight for op, weight in there.items())
            self.loads.append((resource, now, load))

    def _flow(self, op: int) -> _Flow:
        calls, call = self.lowered.calls, int(self.lowered.call[op])
        mine = slice(calls.use_start[call], calls.use_start[call + 1])
        uses = list(zip(calls.uses[mine].tolist(), calls.weight[mine].tolist(), strict=True))
        amount, cap = float(self.lowered.amount[op]), float(calls.cap[call])
        return _Flow(uses, amount, cap, since=self.now)

    def _instantly(self, op: int) -> bool:
        """Whether the bytes are so few that they moved within an instant."""
        uses = self._flow(op)
        rate = min([uses.cap, *(self.capacity[r] / weight for r, weight in uses.uses)])
        return float(self.lowered.amount[op]) <= rate * self.now * _INSTANT * 2

    def _close(self, op: int, flow: _Flow) -> None:
        """End the stretch at the flow's present rate."""
        if self.now > flow.since and flow.rate > 0.0:
            self.stretches.append((op, flow.since, self.now, flow.rate, flow.limit))
            flow.left -= flow.rate * (self.now - flow.since)
        flow.since = self.now

    def _connected(self, touched: dict[int, None]) -> tuple[dict[int, None], list[int]]:
        """The flows and resources connected to one of `touched`."""
        # Not networkx's: who shares with whom changes at every event.
        flows: dict[int, None] = {}
        resources, queue = dict(touched), list(touched)
        for resource in queue:
            for op in self.on.get(resource, ()):
                if op in flows:
                    continue
                flows[op] = None
                for other, _ in self.alive[op].uses:
                    if other not in resources:
                        resources[other] = None
                        queue.append(other)
        return flows, queue

    def _share(self, flows: dict[int, None], resources: list[int]) -> None:
        """Share by progressive filling.

        All rates rise together until a resource is full or a cap is reached, and so on.
        """
        room = {r: self.capacity[r] for r in resources}
        load = {r: sum(self.on.get(r, {}).values()) for r in resources}
        rising = {r: len(self.on.get(r, {})) for r in resources}
        while flows:
            levels = {r: max(room[r], 0.0) / load[r] for r in resources if rising[r]}
            level = min([*levels.values(), *(self.alive[op].cap for op in flows)])
            full = {r for r, at in levels.items() if at <= level * _SAME}
            chosen = {
                op: next((r for r, _ in self.alive[op].uses if r in full), _NONE) for op in flows
            }
            chosen = {
                op: r for op, r in chosen.items() if r != _NONE or self.alive[op].cap <= level
            }
            for op, limit in chosen.items():
                del flows[op]
                flow = self.alive[op]
                for resource, weight in flow.uses:
                    room[resource] -= level * weight
                    load[resource] -= weight
                for resource in {r for r, _ in flow.uses}:
                    rising[resource] -= 1
                if (flow.rate, flow.limit) != (level, limit):
                    self._close(op, flow)
                    flow.rate, flow.limit = level, limit

    def check(self) -> None:
        """InternalError if a flow did not end when its bytes had moved."""
        if self.wrong:
            raise InternalError(
                f"the rates of {len(self.wrong)} flows do not explain when they ended"
            )

    def rates(self) -> Rates:
        whole, real = np.int64, np.float64
        return Rates(
            *_columns(self.stretches, (whole, real, real, real, whole)),
            *_columns(self.loads, (whole, real, real)),
        )


def _columns(rows: Sequence[tuple[float, ...]], dtypes: Iterable[type]) -> Iterator[Any]:
    """The columns of rows. `zip(*rows)` of millions of rows takes long, and no Ctrl-C ends it."""
    for i, dtype in enumerate(dtypes):
        yield np.fromiter((row[i] for row in rows), dtype, len(rows))
