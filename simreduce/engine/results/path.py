"""The critical path: the chain of ops that determines the finish, and the cause of every delay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import ULP, Bools, Floats, Ints, ranges
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.submission import Timeline

RELEASE, DISPATCH, LATENCY, BANDWIDTH, SHARE, LANE = (
    "release", "dispatch", "latency", "bandwidth", "bandwidth share", "lane wait",
)  # fmt: skip
CAUSES = (LANE, BANDWIDTH, SHARE, LATENCY, DISPATCH, RELEASE)

_NONE = -1
_NEAR = 8 * ULP
"""Two computations of one instant differ by less."""


@dataclass(frozen=True, slots=True)
class PathPart:
    """A stretch of the critical path and its cause.

    `bandwidth`: bytes at the full rate that `where`, a link or a memory, has for them alone.
    `bandwidth share`: the time lost because others used `where` too. `latency`, `dispatch` (`where`
    is the kind of op). `release`: the INPUT was not there yet. `lane wait`: an op of the path stood
    ready, but another held its lane `where`; what the holder spent that time on is `meanwhile`, a
    cause, and `at`, its `where` ("" for every other part).
    """

    cause: str
    where: str
    seconds: float
    meanwhile: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class PathOp:
    """One op of the critical path.

    `start` is when it got the lane or pipe that it waited for, and `waited` how long it stood ready
    for that; `parts`, in order of time, what of the path's time is its own (less than from `start`
    to `finish` if the next step needed its lane only).
    """

    op: int
    text: str
    start: float
    finish: float
    waited: float
    parts: tuple[PathPart, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """Columns over the ops of the critical path, first to last.

    The last three columns are indices of `names`, -1 for none.

    `begin` is when an op got its lanes, and `stood` since when it stood ready for them; if it
    waited for a pipe, it is that which counts, and there is neither overhead nor latency after it.
    `alone` is the seconds its bytes take when nobody shares `limit`, its narrowest resource; if
    that are cores, `work` of them do not depend on how many bytes there are; `shared` is the one
    where it lost most to others; `lane` the lane that it got from the op before.
    """

    op: Ints
    stood: Floats
    begin: Floats
    overhead: Floats
    latency: Floats
    alone: Floats
    work: Floats
    limit: Ints
    shared: Ints
    lane: Ints
    names: tuple[str, ...]


def critical(lowered: Lowered, resources: Resources, timeline: Timeline) -> CriticalPath:
    """The path to the op that was done last (the first of several)."""
    path, queued = _chain(lowered, timeline)
    stood, begin = timeline.ready[path], timeline.start[path]
    overhead, latency = (
        lowered.calls.overhead[lowered.call[path]],
        lowered.calls.latency[lowered.call[path]],
    )
    if timeline.begun is not None:
        arrived = begin + overhead + latency
        stood, begin = (
            np.where(queued, arrived, stood),
            np.where(queued, timeline.begun[path], begin),
        )
        overhead, latency = np.where(queued, 0.0, overhead), np.where(queued, 0.0, latency)
    alone, limit = _alone(path, begin + overhead + latency, lowered, resources)
    at_cores = np.isin(limit, list(resources.cores.values()))
    lane = _lanes(path, begin > stood, lowered)
    lane[lane != _NONE] += len(resources.names)
    used, index = np.unique(np.concatenate([limit, lane]), return_inverse=True)
    index = index.reshape(2, -1) - int(_NONE in used)
    names = (*resources.names, *lowered.lane_names)
    return CriticalPath(
        op=path,
        stood=stood,
        begin=begin,
        overhead=overhead,
        latency=latency,
        alone=alone,
        work=np.where(at_cores, np.minimum(lowered.calls.work[lowered.call[path]], alone), 0.0),
        limit=index[0],
        shared=index[0],
        lane=index[1],
        names=tuple(names[i] for i in used.tolist() if i != _NONE),
    )


def _chain(lowered: Lowered, timeline: Timeline) -> tuple[Ints, Bools]:
    """The ops of the path, first to last, and whether it begins at an op when that had waited for a
    pipe. An op may be on it twice: another that it let go on by freeing a lane came before it to a
    pipe.
    """
    ops: list[int] = []
    queued: list[bool] = []
    op = int(np.argmax(timeline.finish)) if len(timeline.finish) else _NONE
    done = True  # whether the end of `op` is what counts, not that it freed its lanes before
    while op != _NONE:
        holder = int(timeline.pipe_blame[op]) if timeline.pipe_blame is not None and done else _NONE
        ops.append(op)
        queued.append(holder != _NONE)
        if holder == _NONE:
            waited = timeline.start[op] > timeline.ready[op]
            holder = int(timeline.blame[op])
            done = not waited or holder == _NONE or bool(lowered.calls.holds[lowered.call[holder]])
        op = holder
    return np.array(ops[::-1], dtype=np.int64), np.array(queued[::-1], dtype=np.bool_)


def waited_until(lowered: Lowered, timeline: Timeline) -> float | None:
    """Return when the path to the end of a plan got a lane that another plan's op had held.

    None if it begins with an input.
    """
    path, _ = _chain(lowered, timeline)
    if not len(path) or not timeline.start[path[0]] > timeline.ready[path[0]]:
        return None
    return float(timeline.start[path[0]])


def _alone(
    path: Ints, begun: Floats, lowered: Lowered, resources: Resources
) -> tuple[Floats, Ints]:
    """Return the seconds that the bytes of each op take alone from `begun` on.

    Also the resource (-1: no bytes) that says so.
    """
    calls, call = lowered.calls, lowered.call[path]
    first, count = calls.use_start[call], np.diff(calls.use_start)[call]
    row = np.repeat(np.arange(len(path)), count)
    entry = ranges(first, count)
    rate = resources.rates[calls.uses[entry]] / calls.weight[entry]
    best = calls.cap[call].copy()
    np.minimum.at(best, row, rate)
    limit = np.full(len(path), _NONE, dtype=np.int64)
    narrowest = (rate == best[row])[::-1]  # of equals the first is written last
    limit[row[::-1][narrowest]] = calls.uses[entry][::-1][narrowest]
    amount = lowered.amount[path]
    alone = np.divide(amount, best, out=np.zeros(len(path)), where=amount > 0)
    if resources.changes:
        for i in np.flatnonzero(amount > 0).tolist():
            mine = slice(calls.use_start[call[i]], calls.use_start[call[i] + 1])
            uses = dict(zip(calls.uses[mine].tolist(), calls.weight[mine].tolist(), strict=True))
            alone[i], limit[i] = _amid(
                resources, uses, float(calls.cap[call[i]]), float(amount[i]), float(begun[i])
            )
    # Where its own cap says so, it is the cores', which come last among what an op uses.
    capped = (amount > 0) & (limit == _NONE)
    limit[capped] = calls.uses[calls.use_start[call[capped] + 1] - 1]
    return alone, np.where(amount > 0, limit, _NONE)


def _amid(
    resources: Resources, uses: dict[int, float], cap: float, amount: float, begun: float
) -> tuple[float, int]:
    """Return `_alone` of one op while capacities change.

    The resource is the one that was narrowest for most of the time.
    """
    rates = {_NONE: cap} | {r: resources.capacity[r] / weight for r, weight in uses.items()}
    changes = [change for change in resources.changes if change[1] in uses]
    spent: dict[int, float] = {}
    now, left = begun, amount
    for time, resource, rate in [*changes, (float("inf"), _NONE, cap)]:
        if time > now:
            narrowest = min(rates, key=lambda r: (rates[r], r))
            full = rates[narrowest]
            seconds = min(left / full if full > 0.0 else float("inf"), time - now)
            spent[narrowest] = spent.get(narrowest, 0.0) + seconds
            if seconds < time - now or time == float("inf"):
                break
            now, left = time, left - full * seconds
        rates[resource] = rate / uses.get(resource, 1.0)
    return sum(spent.values()), max(spent, key=lambda r: (spent[r], -r))


def _lanes(path: Ints, waited: Bools, lowered: Lowered) -> Ints:
    """The lane that each op got from the one before, if it waited for one; else -1."""
    calls = lowered.calls
    found = np.full(len(path), _NONE, dtype=np.int64)
    for i in np.flatnonzero(waited).tolist():
        mine, theirs = (
            calls.lanes[calls.lane_start[call] : calls.lane_start[call + 1]].tolist()
            for call in lowered.call[path[[i, i - 1]]].tolist()
        )
        found[i] = next(lane for lane in mine if lane in theirs)
    return found


class _Waiter(NamedTuple):
    """An op of the path that has stood ready for `lane` since `ready`."""

    ready: float
    lane: str


def parts(path: CriticalPath, finish: Floats, kinds: list[str]) -> list[list[PathPart]]:
    """Per op of the path, its parts in order of time; all together they last from 0 to the end.

    `finish` and `kinds` have an entry per op of the path.
    """
    found: list[list[PathPart]] = [[] for _ in path.op]
    waiters: list[_Waiter] = []
    end = float(finish[-1]) if len(finish) else 0.0
    for i in range(len(path.op) - 1, -1, -1):
        for cause, begin, until, share in _spans(path, i, float(path.begin[i]), end):
            for a, b, lane in _split_by_lane(waiters, begin, until):
                where = _where(path, i, cause, kinds[i])
                found[i] += _split(path, i, cause, where, b - a, lane, share)
        found[i].reverse()
        end = float(path.begin[i])
        if path.lane[i] != _NONE:
            waiters.append(_Waiter(float(path.stood[i]), path.names[path.lane[i]]))
    if end > 0.0:
        found[0].insert(0, PathPart(RELEASE, "", end))
    return found


def _spans(
    path: CriticalPath, i: int, begin: float, end: float
) -> Iterator[tuple[str, float, float, float]]:
    """Yield (cause, from, to, the part of it that was lost to others) of one op up to `end`.

    The last comes first.
    """
    near = _NEAR * end
    dispatched = min(begin + float(path.overhead[i]), end)
    dispatched = end if end - dispatched <= near else dispatched
    arrived = min(dispatched + float(path.latency[i]), end)
    alone = float(path.alone[i])
    if alone == 0.0 or end - arrived <= near:
        arrived = end
    if path.latency[i] == 0.0 and alone == 0.0:
        dispatched = end
    worked = min(arrived + float(path.work[i]), end)
    flow = end - worked
    if flow > near:
        lost = end - arrived - alone
        yield BANDWIDTH, worked, end, min(lost / flow, 1.0) if lost > near else 0.0
    else:
        worked = end
    if worked > arrived:
        yield DISPATCH, arrived, worked, 0.0
    if arrived > dispatched:
        yield LATENCY, dispatched, arrived, 0.0
    if dispatched > begin:
        yield DISPATCH, begin, dispatched, 0.0


def _split_by_lane(
    waiters: list[_Waiter], begin: float, end: float
) -> Iterator[tuple[float, float, str]]:
    """(from, to, the lane that an op of the path stood ready for, or ""), last first.

    Of several the one nearest in the chain counts. Those that were not ready yet before `begin` are
    dropped.
    """
    while waiters:
        ready, lane = waiters[-1]
        if ready < end:
            cut = max(begin, ready)
            yield cut, end, lane
            end = cut
            if end == begin:
                return
        waiters.pop()
    if end > begin:
        yield begin, end, ""


def _where(path: CriticalPath, i: int, cause: str, kind: str) -> str:
    if cause == DISPATCH:
        return kind.lower()
    return _name(path, path.limit[i]) if cause == BANDWIDTH else ""


def _name(path: CriticalPath, index: int) -> str:
    return "" if index == _NONE else path.names[index]


def _split(
    path: CriticalPath, i: int, cause: str, where: str, seconds: float, lane: str, share: float
) -> Iterator[PathPart]:
    """A stretch in one cause, or in bandwidth and what was lost to others. Last first."""
    lost = seconds * share
    if lost > 0.0:
        shared = _name(path, path.shared[i])
        yield PathPart(LANE, lane, lost, SHARE, shared) if lane else PathPart(SHARE, shared, lost)
    kept = seconds - lost
    if kept > 0.0:
        yield PathPart(LANE, lane, kept, cause, where) if lane else PathPart(cause, where, kept)
