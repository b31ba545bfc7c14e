"""The result of a simulation, with its critical path: the chain of ops that determines the finish.

It is a value that tables, traces and reports are made from, and that survives JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import inf, isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from simreduce import units
from simreduce.computing.arrays import ULP, Bools, Floats, Ints, ranges
from simreduce.engine.kernel.tables import NONE
from simreduce.engine.lowering import Lowered
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.submission import Timeline
from simreduce.plan import Kind, Plan

RELEASE, DISPATCH, LATENCY, BANDWIDTH, SHARE, LANE = (
    "release", "dispatch", "latency", "bandwidth", "bandwidth share", "lane wait",
)  # fmt: skip
CAUSES = (LANE, BANDWIDTH, SHARE, LATENCY, DISPATCH, RELEASE)

CHANNELS = "channels"
"""Where a stretch is spent at the rate of a kernel's own channels, below that of what it uses."""

_NEAR = 8 * ULP
"""Two computations of one instant differ by less."""


@dataclass(frozen=True, slots=True)
class PathPart:
    """A stretch of the critical path and its cause.

    `bandwidth`: bytes at the full rate that `where`, a link, a memory or a kernel's own channels
    (`CHANNELS`), has for them alone.
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
    lane[lane != NONE] += len(resources.names)
    used, index = np.unique(np.concatenate([limit, lane]), return_inverse=True)
    index = index.reshape(2, -1) - int(NONE in used)
    names = (*resources.names, *lowered.lane_names, CHANNELS)
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
        names=tuple(names[i] for i in used.tolist() if i != NONE),
    )


def _chain(lowered: Lowered, timeline: Timeline) -> tuple[Ints, Bools]:
    """The ops of the path, first to last, and whether it begins at an op when that had waited for a
    pipe. An op may be on it twice: another that it let go on by freeing a lane came before it to a
    pipe.
    """
    ops: list[int] = []
    queued: list[bool] = []
    op = int(np.argmax(timeline.finish)) if len(timeline.finish) else NONE
    done = True  # whether the end of `op` is what counts, not that it freed its lanes before
    while op != NONE:
        holder = int(timeline.pipe_blame[op]) if timeline.pipe_blame is not None and done else NONE
        ops.append(op)
        queued.append(holder != NONE)
        if holder == NONE:
            waited = timeline.start[op] > timeline.ready[op]
            holder = int(timeline.blame[op])
            done = not waited or holder == NONE or bool(lowered.calls.holds[lowered.call[holder]])
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

    Also what says so: a resource (-1: no bytes) or, after all lanes, `CHANNELS`.
    """
    calls, call = lowered.calls, lowered.call[path]
    first, count = calls.use_start[call], np.diff(calls.use_start)[call]
    row = np.repeat(np.arange(len(path)), count)
    entry = ranges(first, count)
    rate = resources.rates[calls.uses[entry]] / calls.weight[entry]
    best = calls.cap[call].copy()
    np.minimum.at(best, row, rate)
    limit = np.full(len(path), NONE, dtype=np.int64)
    # What is paced follows the narrowest of what it uses.
    near = np.where(calls.paced[call], np.inf, best)
    np.minimum.at(near, row, rate)
    narrowest = (rate == near[row])[::-1]  # of equals the first is written last
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
    # Where its own cap says so, it is that of cores, which come last among what an op uses, or else
    # that of its channels.
    capped = (amount > 0) & (limit == NONE)
    last = calls.uses[calls.use_start[call[capped] + 1] - 1]
    channels = len(resources.names) + len(lowered.lane_names)
    cores = [*resources.cores.values(), *resources.moving.values()]
    limit[capped] = np.where(np.isin(last, cores) | calls.paced[call[capped]], last, channels)
    return alone, np.where(amount > 0, limit, NONE)


def _amid(
    resources: Resources, uses: dict[int, float], cap: float, amount: float, begun: float
) -> tuple[float, int]:
    """Return `_alone` of one op while capacities change.

    The resource is the one that was narrowest for most of the time.
    """
    rates = {NONE: cap} | {r: resources.capacity[r] / weight for r, weight in uses.items()}
    changes = [change for change in resources.changes if change[1] in uses]
    spent: dict[int, float] = {}
    now, left = begun, amount
    for time, resource, rate in [*changes, (float("inf"), NONE, cap)]:
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
    found = np.full(len(path), NONE, dtype=np.int64)
    for i in np.flatnonzero(waited).tolist():
        mine, theirs = (
            calls.lanes[calls.lane_start[call] : calls.lane_start[call + 1]].tolist()
            for call in lowered.call[path[[i, i - 1]]].tolist()
        )
        found[i] = next(lane for lane in mine if lane in theirs)
    return found


def parts(path: CriticalPath, finish: Floats, kinds: list[str]) -> list[list[PathPart]]:
    """Per op of the path, its parts in order of time; all together they last from 0 to the end.

    `finish` and `kinds` have an entry per op of the path.
    """
    found: list[list[PathPart]] = [[] for _ in path.op]
    # The lanes that ops of the path have stood ready for, and since when.
    waiters: list[tuple[float, str]] = []
    end = float(finish[-1]) if len(finish) else 0.0
    for i in range(len(path.op) - 1, -1, -1):
        for cause, begin, until, share in _spans(path, i, float(path.begin[i]), end):
            for a, b, lane in _split_by_lane(waiters, begin, until):
                where = _where(path, i, cause, kinds[i])
                found[i] += _split(path, i, cause, where, b - a, lane, share)
        found[i].reverse()
        end = float(path.begin[i])
        if path.lane[i] != NONE:
            waiters.append((float(path.stood[i]), path.names[path.lane[i]]))
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
    for cause, since, until in (
        (DISPATCH, arrived, worked), (LATENCY, dispatched, arrived), (DISPATCH, begin, dispatched),
    ):  # fmt: skip
        if until > since:
            yield cause, since, until, 0.0


def _split_by_lane(
    waiters: list[tuple[float, str]], begin: float, end: float
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
    return "" if index == NONE else path.names[index]


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


Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Use:
    """How busy a link, a memory or a lane was: `share` of the whole time, from 0 to 1.

    A lane itself moves no bytes. To NCCL's bytes on a link its flags are added, and what its
    protocol loses there.
    """

    name: str
    share: float
    nbytes: float = 0.0


ROUNDED = 1e-9
"""A run that is faster than a floor by less than this, relatively, meets it."""


@dataclass(frozen=True, slots=True)
class Floors:
    """Seconds that no prediction can be below, each for its own reason.

    The first three are of this plan, with what its runtime costs. `cut` and `hardware` are of links
    alone, for any algorithm on the plan's devices: bytes over cuts, and these, ports and latencies.
    """

    critical_path: float
    resource: float
    lane: float
    cut: float
    hardware: float

    @property
    def seconds(self) -> float:
        """The highest of them."""
        return max(self.critical_path, self.resource, self.lane, self.hardware)

    def under(self, seconds: float, *, exact: bool = True) -> Floors:
        """The floors of a run of so many seconds.

        A floor that is higher by rounding alone becomes `seconds`.

        A run adds up the same times as a floor does, but rounds elsewhere: what is due within 4 ulp
        happens at one instant, and levels within 1e-12 are one level. `ROUNDED` has room for a
        million such instants in a row. Where ops may end early, so may the run.
        """
        near = seconds * (1.0 + ROUNDED) if exact else inf
        met = {f.name: seconds for f in fields(self) if seconds < getattr(self, f.name) <= near}
        return replace(self, **met)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """The prediction for one plan on one machine. Times in seconds from the plan's submission."""

    seconds: float
    topology: str
    topology_digest: str
    runtime: str
    calibration: str
    digested: Plan | str  # the plan, or its digest if the result was read from JSON
    transfers: int
    floors: Floors
    links: tuple[Use, ...]  # directed links and memories, busiest first
    lanes: tuple[Use, ...]  # busiest first
    devices: tuple[str, ...]
    kind: Array
    source: Array
    device: Array
    nbytes: Array
    ready: Array
    start: Array
    finish: Array
    blame: Array
    path: CriticalPath
    begun: Array | None = None  # when ops got their pipes, as in `Timeline`
    disturbance: str = ""  # in words

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    @property
    def headline(self) -> str:
        """How long the plan takes, where, and what is busiest."""
        took = units.format_duration(self.seconds)
        busy = f", busiest {self.bottleneck} {self.links[0].share:.0%}" if self.links else ""
        moved = units.plural(self.transfers, "transfer")
        return f"{took} on {self.topology} ({self.runtime}, {self.calibration}), {moved}{busy}"

    @property
    def plan_digest(self) -> str:
        """The digest of the plan."""
        return self.digested if isinstance(self.digested, str) else self.digested.digest

    @property
    def timeline(self) -> Timeline:
        """When each op was ready, started and was done. `pipe_blame` is not kept."""
        return Timeline(self.ready, self.start, self.finish, self.blame, self.begun)

    @property
    def bottleneck(self) -> str:
        """The busiest link; "" when nothing moved."""
        return self.links[0].name if self.links else ""

    def critical_path(self) -> list[PathOp]:
        """The chain of ops that the end waited for, first to last.

        Each began when the one before let it.

        The seconds of all their parts add up to `seconds`.
        """
        ops = self.path.op
        finish = self.finish[ops]
        kinds = [Kind(k).name for k in self.kind[ops].tolist()]
        return [
            PathOp(op, self.describe(op), begun, done, begun - free, tuple(own))
            for op, free, begun, done, own in zip(
                ops.tolist(), self.path.stood.tolist(), self.path.begin.tolist(), finish.tolist(),
                parts(self.path, finish, kinds), strict=True,
            )
        ]  # fmt: skip

    def describe(self, op: int) -> str:
        """`COPY gpu0 -> gpu1 4096 B`."""
        kind, target = Kind(int(self.kind[op])).name, self.devices[self.device[op]]
        where = f"{self.devices[self.source[op]]} -> {target}" if kind == "COPY" else target
        return f"{kind} {where} {int(self.nbytes[op])} B"

    def to_json(self) -> str:
        """One JSON document, which has every field, bit for bit."""
        names = ["plan_digest" if f.name == "digested" else f.name for f in fields(self)]
        document = {name: getattr(self, name) for name in names}
        if self.begun is not None:
            document["begun"] = [None if isnan(time) else time for time in self.begun.tolist()]
        return json.dumps(document, separators=(",", ":"), default=_plain)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same fields, bit for bit."""
        return self is other or (isinstance(other, Result) and self.to_json() == other.to_json())

    def __hash__(self) -> int:
        return hash((self.plan_digest, self.topology_digest, self.seconds))


def _plain(value: Any) -> Any:
    """An array as a list, a dataclass as a table."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {f.name: getattr(value, f.name) for f in fields(value)}
