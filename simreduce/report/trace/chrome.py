"""A recording as Chrome's trace-event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing
open.

Processes are the machines, the links and the lanes. A device has a thread for the copies that it
sends and one for its other ops, a link one for the flows that it carries, a lane one for the ops
that hold it; what overlaps goes to further threads of the same name. Arrows lead from a copy to the
first op that uses what it brought. Counters say how many bytes/s every link and memory carries.

Slices are pairs of `B` and `E`, not `X` with a duration: viewers round to nanoseconds, and two
slices that only touch would overlap by one and be dropped. `ts` is the simulated time in
microseconds as it is, not rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from simreduce.computing.arrays import Floats, Ints, invert
from simreduce.engine import Curve, Recording
from simreduce.plan import Kind
from simreduce.report.trace.events import BEGIN, END, US, document, name_events, rows
from simreduce.topology import Topology
from simreduce.version import __version__

_SENT, _USED, _COUNT = "s", "f", "C"
_ARROW, _COPY, _LINKS = "transfer", "copy", "links and memories"

_NOTHING: Mapping[int, Any] = MappingProxyType({})


def trace_text(recording: Recording, topology: Topology, about: Mapping[str, Any]) -> Iterator[str]:
    """The file in pieces. `about` is what to say of the run as a whole."""
    result = recording.result
    other = {
        "version": __version__,
        "topology": result.topology,
        "topology_digest": result.topology_digest,
        "runtime": result.runtime,
        "calibration": result.calibration,
        **about,
        "time_us": result.seconds * US,
    }
    yield from document(other, trace_events(recording, topology))


def trace_events(recording: Recording, topology: Topology) -> Iterator[dict[str, Any]]:
    """Names of processes and threads first, then everything in order of time."""
    return _Sheet(recording).drawn(topology)


@dataclass(frozen=True, slots=True)
class _Thread:
    process: int
    name: str
    slices: str  # which of the texts and details its slices have


class _Columns(NamedTuple):
    """Columns of ops that slices show, as lists, which are quicker to index than arrays."""

    verb: list[str]
    source: list[str]
    target: list[str]
    nbytes: list[int]
    ready: list[float]
    start: list[float]
    finish: list[float]
    flow: list[float]
    amount: list[float]
    overhead: list[float]
    work: list[float]
    latency: list[float]
    cap: list[float]
    piped: list[bool]

    @staticmethod
    def of(recording: Recording) -> _Columns:
        result, lowered = recording.result, recording.lowered
        names, verbs = result.devices, {int(kind): kind.name.lower() for kind in Kind}
        return _Columns(
            [verbs[kind] for kind in result.kind.tolist()],
            [names[device] for device in result.source.tolist()],
            [names[device] for device in result.device.tolist()],
            *(
                column.tolist()
                for column in (
                    result.nbytes, result.ready, result.start, result.finish,
                    recording.flow_starts, lowered.amount, lowered.overhead, lowered.work,
                    lowered.latency, lowered.cap, lowered.calls.piped[lowered.call],
                )
            ),
        )  # fmt: skip


@dataclass
class _Sheet:
    """Events in columns, thread by thread; in a thread, by time."""

    recording: Recording
    processes: list[str] = field(default_factory=list)
    threads: list[_Thread] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    units: list[tuple[str, float]] = field(default_factory=list)  # of each curve, and what one is
    time: list[float] = field(default_factory=list)
    phase: list[str] = field(default_factory=list)
    op: list[int] = field(default_factory=list)  # of a counter, the index of its value
    place: list[int] = field(default_factory=list)  # thread, or curve

    @cached_property
    def ops(self) -> _Columns:
        """The columns of the ops."""
        return _Columns.of(self.recording)

    def drawn(self, topology: Topology) -> Iterator[dict[str, Any]]:
        """All events."""
        self._devices(topology)
        self._links()
        self._lanes()
        threads = [(thread.process, thread.name) for thread in self.threads]
        yield from name_events(self.processes, threads)
        order = np.argsort(np.array(self.time), kind="stable")
        for i in order.tolist():
            yield self._event(i)

    def _devices(self, topology: Topology) -> None:
        """A process per machine; its devices in the order of the plan."""
        result = self.recording.result
        arrows = _arrows(self.recording)
        used: dict[int, list[int]] = {}
        for copy, user in arrows.items():
            used.setdefault(user, []).append(copy)
        boxes = [topology.nodes[name].machine for name in result.devices]
        is_copy = result.kind == Kind.COPY
        is_work = ~is_copy & (result.kind != Kind.INPUT)
        for box in dict.fromkeys(boxes):
            process = self._process(f"machine {box}" if box else "fabric")
            for device, name in enumerate(result.devices):
                if boxes[device] != box:
                    continue
                for ops, what in (
                    (np.flatnonzero(is_copy & (result.source == device)), "copies out"),
                    (np.flatnonzero(is_work & (result.device == device)), "compute"),
                ):
                    self._rows(
                        process, f"{name} {what}", "op", ops, result.start, result.finish,
                        arrows, used,
                    )  # fmt: skip

    def _links(self) -> None:
        """Flows by link (and memory), and how much each carries."""
        recording, names = self.recording, self.recording.resources.names
        lowered = recording.lowered
        process = self._process(_LINKS)
        first, users = invert(lowered.use_start, lowered.uses, len(names))
        for resource, name in enumerate(names):
            ops = np.unique(users[first[resource] : first[resource + 1]])
            moving = ops[lowered.amount[ops] > 0].astype(np.int64)
            self._rows(
                process, name, "flow", moving, recording.flow_starts, recording.result.finish
            )
        in_cores = recording.resources.in_cores
        for curve in recording.resource_curves():
            self.curves.append(curve)
            self.units.append(("cores", 1.0) if curve.name in in_cores else ("GB/s", 1e9))
            count = len(curve.time)
            self._extend(curve.time.tolist(), [_COUNT] * count, range(count), len(self.curves) - 1)

    def _lanes(self) -> None:
        """Who holds each lane."""
        recording, lowered = self.recording, self.recording.lowered
        if len(lowered.lanes):
            process = self._process("lanes")
        user, (since, until) = recording.user, recording.lane_times
        begin, end = np.zeros((2, len(lowered.call)))  # by op, of the lane at hand
        first, entries = invert(
            np.arange(len(lowered.lanes) + 1), lowered.lanes, len(lowered.lane_names)
        )
        for lane, name in enumerate(lowered.lane_names):
            mine = entries[first[lane] : first[lane + 1]]
            ops = user[mine]
            begin[ops], end[ops] = since[mine], until[mine]
            self._rows(process, name, "hold", ops, begin, end)

    def _process(self, name: str) -> int:
        self.processes.append(name)
        return len(self.processes)

    def _rows(
        self,
        process: int,
        name: str,
        slices: str,
        ops: Ints,
        begin: Floats,
        end: Floats,
        arrows: Mapping[int, int] = _NOTHING,
        used: Mapping[int, list[int]] = _NOTHING,
    ) -> None:
        """As many threads as `ops` need."""
        for number, row in enumerate(rows(ops, begin[ops], end[ops]), 1):
            self.threads.append(
                _Thread(process, name if number == 1 else f"{name} ({number})", slices)
            )
            thread = len(self.threads) - 1
            for op, since, until in row:
                self._extend([since], BEGIN, [op], thread)
                for copy in used.get(op, ()):
                    self._extend([since], _USED, [copy], thread)
                if op in arrows:
                    self._extend([since], _SENT, [op], thread)
                self._extend([until], END, [op], thread)

    def _extend(
        self, time: list[float], phase: Iterable[str], op: Iterable[int], place: int
    ) -> None:
        self.time += time
        self.phase += phase
        self.op += op
        self.place += [place] * len(time)

    def _event(self, i: int) -> dict[str, Any]:
        phase, op, ts = self.phase[i], self.op[i], self.time[i] * US
        if phase == _COUNT:
            curve = self.curves[self.place[i]]
            process = self.processes.index(_LINKS) + 1
            unit, scale = self.units[self.place[i]]
            place = {"pid": process, "tid": 0, "ts": ts}
            args = {unit: float(curve.value[op]) / scale}
            return {"ph": phase, "name": curve.name, **place, "args": args}
        thread = self.threads[self.place[i]]
        place = {"pid": thread.process, "tid": self.place[i] + 1, "ts": ts}
        if phase == END:
            return {"ph": phase, **place}
        if phase != BEGIN:
            bound = {"bp": "e"} if phase == _USED else {}
            return {"ph": phase, "name": _ARROW, "cat": _ARROW, "id": op, **place, **bound}
        return {
            "ph": phase,
            "name": self._title(op, thread),
            "cat": self.ops.verb[op],
            **place,
            "args": self._details(op, thread),
        }

    def _title(self, op: int, thread: _Thread) -> str:
        """The title of a slice, without what the thread's name says already."""
        ops = self.ops
        verb, target = ops.verb[op], ops.target[op]
        if thread.slices == "op":
            return f"to {target}" if verb == _COPY else verb
        return f"{ops.source[op]} to {target}" if verb == _COPY else f"{verb} {target}"

    def _details(self, op: int, thread: _Thread) -> dict[str, Any]:
        ops = self.ops
        details: dict[str, Any] = {"op": op, "bytes": ops.nbytes[op]}
        start, seconds = ops.start[op], ops.finish[op] - ops.flow[op]
        # A flow of cores that is no more than its work moves no bytes.
        amount, work = ops.amount[op], ops.work[op]
        moves = not work or amount > work * ops.cap[op] * (1 + 1e-9)
        if moves and amount > 0 and seconds > 0:
            details["gb_per_s"] = ops.nbytes[op] / seconds / 1e9
        if thread.slices == "op":
            overhead, latency = ops.overhead[op], ops.latency[op]
            details["ready_us"] = ops.ready[op] * US
            details["waited_us"] = (start - ops.ready[op]) * US
            details["dispatch_us"] = (overhead + work) * US
            details["latency_us"] = latency * US
            if ops.piped[op]:
                details["pipe_wait_us"] = max(ops.flow[op] - (start + overhead + latency), 0.0) * US
        return details


def _arrows(recording: Recording) -> dict[int, int]:
    """Of every copy, the op that first uses what it brought (on the receiver, or sending it on) and
    begins after it.
    """
    plan, start = recording.plan, recording.result.start
    first, users = invert(plan.operand_start, plan.operands, len(plan))
    found: dict[int, int] = {}
    for copy in np.flatnonzero(plan.kind == Kind.COPY).tolist():
        after = [
            op for op in users[first[copy] : first[copy + 1]].tolist() if start[op] > start[copy]
        ]
        if after:
            found[copy] = min(after, key=lambda op: (float(start[op]), op))
    return found
