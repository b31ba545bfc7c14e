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

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simreduce.arrays import Floats, Ints, invert
from simreduce.engine import Curve, Recording
from simreduce.plan import Kind
from simreduce.topology import Topology
from simreduce.trace.rows import rows
from simreduce.version import __version__

US = 1e6
BEGIN, END, _SENT, _USED, _COUNT = "B", "E", "s", "f", "C"
_ARROW = "transfer"


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


def document(other: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A trace file in pieces; `other` is what it says of the run as a whole."""
    head = json.dumps({"displayTimeUnit": "ns", "otherData": other}, separators=(",", ":"))
    yield f'{head[:-1]},"traceEvents":['
    between = "\n"
    for event in events:
        yield between + json.dumps(event, separators=(",", ":"))
        between = ",\n"
    yield "\n]}\n"


def trace_events(recording: Recording, topology: Topology) -> Iterator[dict[str, Any]]:
    """Names of processes and threads first, then everything in order of time."""
    return _Sheet(recording).drawn(topology)


@dataclass(frozen=True, slots=True)
class _Thread:
    process: int
    name: str
    slices: str  # which of the texts and details its slices have


@dataclass(slots=True)
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

    def drawn(self, topology: Topology) -> Iterator[dict[str, Any]]:
        """All events."""
        self._devices(topology)
        self._links()
        self._lanes()
        yield from self._names()
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
                        process,
                        f"{name} {what}",
                        "op",
                        ops,
                        result.start,
                        result.finish,
                        arrows,
                        used,
                    )

    def _links(self) -> None:
        """Flows by link (and memory), and how much each carries."""
        recording, names = self.recording, self.recording.resources.names
        lowered = recording.lowered
        process = self._process("links and memories")
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
        begin, end = (
            np.zeros(len(lowered.call)),
            np.zeros(len(lowered.call)),
        )  # by op, of the lane at hand
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
        arrows: Mapping[int, int] | None = None,
        used: Mapping[int, list[int]] | None = None,
    ) -> None:
        """As many threads as `ops` need."""
        for number, row in enumerate(rows(ops, begin[ops], end[ops]), 1):
            self.threads.append(
                _Thread(process, name if number == 1 else f"{name} ({number})", slices)
            )
            thread = len(self.threads) - 1
            for op, since, until in row:
                self._extend([since], BEGIN, [op], thread)
                for copy in (used or {}).get(op, ()):
                    self._extend([since], _USED, [copy], thread)
                if op in (arrows or {}):
                    self._extend([since], _SENT, [op], thread)
                self._extend([until], END, [op], thread)

    def _extend(
        self, time: list[float], phase: Iterable[str], op: Iterable[int], place: int
    ) -> None:
        self.time += time
        self.phase += phase
        self.op += op
        self.place += [place] * len(time)

    def _names(self) -> Iterator[dict[str, Any]]:
        """Metadata: what viewers call processes and threads, and their order."""
        for process, name in enumerate(self.processes, 1):
            yield metadata("process_name", process, 0, {"name": name})
            yield metadata("process_sort_index", process, 0, {"sort_index": process})
        for tid, thread in enumerate(self.threads, 1):
            yield metadata("thread_name", thread.process, tid, {"name": thread.name})
            yield metadata("thread_sort_index", thread.process, tid, {"sort_index": tid})

    def _event(self, i: int) -> dict[str, Any]:
        phase, op, ts = self.phase[i], self.op[i], self.time[i] * US
        if phase == _COUNT:
            curve = self.curves[self.place[i]]
            process = self.processes.index("links and memories") + 1
            unit, scale = self.units[self.place[i]]
            args = {unit: float(curve.value[op]) / scale}
            return {
                "ph": phase,
                "name": curve.name,
                "pid": process,
                "tid": 0,
                "ts": ts,
                "args": args,
            }
        thread = self.threads[self.place[i]]
        place = {"pid": thread.process, "tid": self.place[i] + 1, "ts": ts}
        if phase == END:
            return {"ph": phase, **place}
        if phase != BEGIN:
            bound = {"bp": "e"} if phase == _USED else {}
            return {"ph": phase, "name": _ARROW, "cat": _ARROW, "id": op, **place, **bound}
        kind = Kind(int(self.recording.result.kind[op])).name.lower()
        return {
            "ph": phase,
            "name": self._title(op, thread),
            "cat": kind,
            **place,
            "args": self._details(op, thread),
        }

    def _title(self, op: int, thread: _Thread) -> str:
        """What fits in a slice: no more than the thread's name does not say already."""
        result = self.recording.result
        kind, target = Kind(int(result.kind[op])), result.devices[result.device[op]]
        verb = kind.name.lower()
        if thread.slices == "op":
            return f"to {target}" if kind == Kind.COPY else verb
        return (
            f"{result.devices[result.source[op]]} to {target}"
            if kind == Kind.COPY
            else f"{verb} {target}"
        )

    def _details(self, op: int, thread: _Thread) -> dict[str, Any]:
        recording, result, lowered = self.recording, self.recording.result, self.recording.lowered
        details: dict[str, Any] = {"op": op, "bytes": int(result.nbytes[op])}
        seconds = float(result.finish[op] - recording.flow_starts[op])
        # A flow of cores that is no more than its work moves no bytes.
        call = lowered.call[op]
        work = float(lowered.calls.work[call])
        moves = not work or lowered.amount[op] > work * lowered.calls.cap[call] * (1 + 1e-9)
        if moves and lowered.amount[op] > 0 and seconds > 0:
            details["gb_per_s"] = float(result.nbytes[op]) / seconds / 1e9
        if thread.slices == "op":
            details["ready_us"] = float(result.ready[op]) * US
            details["waited_us"] = float(result.start[op] - result.ready[op]) * US
            details["dispatch_us"] = (float(lowered.calls.overhead[call]) + work) * US
            details["latency_us"] = float(lowered.calls.latency[call]) * US
            if lowered.calls.piped[call]:
                arrived = float(
                    result.start[op] + lowered.calls.overhead[call] + lowered.calls.latency[call]
                )
                details["pipe_wait_us"] = max(float(recording.flow_starts[op]) - arrived, 0.0) * US
        return details


def metadata(name: str, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    """An event that names a process or a thread."""
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": args}


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
