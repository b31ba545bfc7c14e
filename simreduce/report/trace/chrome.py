"""A recording as Chrome's trace-event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing
open.

Processes are the machines, the links and the lanes. A device has a thread for the copies that it
sends and one for its other ops, a link one for the flows that it carries, a lane one for the ops
that hold it; what overlaps goes to further threads of the same name. Arrows lead from a copy to the
first op that uses what it brought. Counters say how many bytes/s every link and memory carries.

Slices are pairs of `B` and `E`, not `X` with a duration: viewers round to nanoseconds, and two
slices that only touch would overlap by one and be dropped. `ts` is the simulated time in
microseconds as it is, not rounded.

Trace events of Chrome's format: files, names, and slices on threads that do not overlap.

Training steps, runs of synchronous replicas and replayed runs as Chrome's trace-event JSON.

Of a step, what computes has a track, and what moves has as many as overlap. Each worker of
synchronous replicas has a track, and so have their updates; of a replayed run each lane of every
recorded rank.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from simreduce.computing.arrays import ULP, Floats, Ints, invert
from simreduce.engine import Curve, Recording
from simreduce.plan import Kind
from simreduce.topology import Topology
from simreduce.training import Bucket, StepPrediction
from simreduce.training.executions import COLLECTIVE, COMPUTE
from simreduce.training.executor import Ran
from simreduce.training.replicas import ReplicasRun
from simreduce.version import __version__

US = 1e6
BEGIN, END = "B", "E"
_INSTANT = 8 * ULP
"""Slices that overlap by less only touch: their ends are two computations of one instant."""

Slice = tuple[float, float, str, Mapping[str, Any]]
"""From, to (seconds), its text and what to say of it."""

Thread = tuple[str, str, list[Slice]]
"""Its process, its own name, and slices that do not overlap, in order of time."""


def document(other: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A trace file in pieces; `other` is what it says of the run as a whole."""
    head = json.dumps({"displayTimeUnit": "ns", "otherData": other}, separators=(",", ":"))
    yield f'{head[:-1]},"traceEvents":['
    between = "\n"
    for event in events:
        yield between + json.dumps(event, separators=(",", ":"))
        between = ",\n"
    yield "\n]}\n"


def name_events(
    processes: Iterable[str], threads: Iterable[tuple[int, str]]
) -> Iterator[dict[str, Any]]:
    """Names and order of processes and of threads, which have the numbers of their processes."""

    def metadata(name: str, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
        return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": args}

    for number, name in enumerate(processes, 1):
        yield metadata("process_name", number, 0, {"name": name})
        yield metadata("process_sort_index", number, 0, {"sort_index": number})
    for tid, (process, name) in enumerate(threads, 1):
        yield metadata("thread_name", process, tid, {"name": name})
        yield metadata("thread_sort_index", process, tid, {"sort_index": tid})


def rows(ops: Ints, begin: Floats, end: Floats) -> list[list[tuple[int, float, float]]]:
    """(op, from, to) in order of time, row by row; each op is in the first row that is free when it
    begins.
    """
    found: list[list[tuple[int, float, float]]] = []
    order = np.lexsort((ops, end, begin))
    for op, start, stop in zip(
        ops[order].tolist(), begin[order].tolist(), end[order].tolist(), strict=True
    ):
        for row in found:
            last, since, until = row[-1]
            if until <= start * (1 + _INSTANT):
                if until > start:
                    row[-1] = (last, since, start)
                break
        else:
            row = []
            found.append(row)
        row.append((op, start, max(start, stop)))
    return found


def split(process: str, name: str, slices: Sequence[Slice]) -> Iterator[Thread]:
    """As many threads of that name as slices overlap: viewers drop or misplace overlapping ones."""
    begin, end = (np.array([s[i] for s in slices], dtype=np.float64) for i in (0, 1))
    for number, row in enumerate(rows(np.arange(len(slices)), begin, end), 1):
        thread = name if number == 1 else f"{name} ({number})"
        yield process, thread, [(since, until, *slices[i][2:]) for i, since, until in row]


def thread_events(threads: Iterable[Thread]) -> Iterator[dict[str, Any]]:
    """Names of processes and threads first, then slices, by thread and in order of time."""
    threads = list(threads)
    processes = list(dict.fromkeys(process for process, _, _ in threads))
    number = {process: i for i, process in enumerate(processes, 1)}
    yield from name_events(processes, ((number[process], name) for process, name, _ in threads))
    for tid, (process, _, slices) in enumerate(threads, 1):
        place = {"pid": number[process], "tid": tid}
        for begin, end, text, args in slices:
            about = {"name": text, "cat": process, **place, "ts": begin * US, "args": dict(args)}
            yield {"ph": BEGIN, **about}
            yield {"ph": END, **place, "ts": end * US}


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


_PASSES = {False: "forward", True: "backward"}


def step_trace_text(
    step: StepPrediction, names: Sequence[str], about: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the pieces of the file. `names` are the gradients'; `about` describes the whole run."""
    return document(dict(about), step_trace_events(step, names))


def step_trace_events(step: StepPrediction, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A thread for every device that computes, and as many as overlap for reads and reductions."""
    return thread_events(_step_threads(step, names))


def _step_threads(step: StepPrediction, names: Sequence[str]) -> Iterator[Thread]:
    for device in dict.fromkeys(span.device for span in step.spans):
        slices: list[Slice] = [
            (s.begin, s.end, f"{_PASSES[s.backward]} {s.layer}", {"layer": s.layer})
            for s in step.spans
            if s.device == device
        ]
        yield from split("compute", device, slices)
    for process, buckets in step.lanes:
        yield from split(process, process, [_slice(b, names) for b in buckets])


def _slice(b: Bucket, names: Sequence[str]) -> Slice:
    first, last = names[b.gradients[-1]], names[b.gradients[0]]
    text = first if first == last else f"{first} to {last}"
    args = {
        "gradients": len(b.gradients),
        "bytes": b.nbytes,
        "ready_us": b.ready * US,
        "waited_us": (b.start - b.ready) * US,
    }
    return b.start, b.finish, text, args


def replicas_trace_text(
    run: ReplicasRun, names: Sequence[str], about: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the pieces of the file. `names` are the workers'; `about` describes the whole run."""
    return document(dict(about), replicas_trace_events(run, names))


def replicas_trace_events(run: ReplicasRun, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what each worker does, and each update from when the first of its means was taken."""
    return thread_events(_replica_threads(run, names))


def _replica_threads(run: ReplicasRun, names: Sequence[str]) -> Iterator[Thread]:
    dropped = Counter((a.worker, a.step) for a in run.dropped)
    slices: list[list[Slice]] = [[] for _ in names]
    over = [0.0] * len(names)  # a step, and the wait for a token begins
    for step in sorted((*run.steps, *run.unfinished), key=lambda step: (step.begun, step.step)):
        mine = slices[step.worker]
        about = {"step": step.step, "local_step": step.local_step}
        parts = (
            (over[step.worker], step.begun, "wait", about),
            (step.begun, step.read, "read", about),
            (step.read, step.computed, f"compute {step.step}", about),
            (
                step.computed,
                step.asked,
                "send",
                about | {"dropped": dropped[step.worker, step.step]},
            ),
        )
        mine += [part for part in parts if part[1] > part[0]]
        over[step.worker] = step.asked
    for name, mine in zip(names, slices, strict=True):
        yield "workers", name, mine
    yield "updates", "updates", [
        (min(u.taken), u.time, f"update {u.number}", {"gradients": list(u.gradients)})
        for u in run.updates
    ]  # fmt: skip


def executed_trace_text(ran: Sequence[Ran], about: Mapping[str, Any]) -> Iterator[str]:
    """The file of an execution's nodes in pieces; `about` is what to say of the run as a whole."""
    facts = {key: value for key, value in about.items() if not isinstance(value, list)}
    return document(facts, thread_events(_executed_threads(ran)))


def pipeline_events(found: Sequence[Ran]) -> Iterator[dict[str, Any]]:
    """A thread for the passes of each stage's rank, and one for what its replicas exchange."""
    return thread_events(_pipeline_threads(found))


def _pipeline_threads(found: Sequence[Ran]) -> Iterator[Thread]:
    ranks = sorted({ran.rank for ran in found})
    for process, kind in (("stages", COMPUTE), ("replicas", COLLECTIVE)):
        for stage, rank in enumerate(ranks, 1):
            slices: list[Slice] = [
                (ran.begin, ran.end, f"{ran.node.phase or ran.node.collective} {ran.node.name}", {})
                for ran in found
                if ran.rank == rank and ran.node.kind == kind and ran.end > ran.begin
            ]
            row = f"stage {stage}, rank {rank}" if kind == COMPUTE else f"replicas of stage {stage}"
            yield from split(process, row, slices)


def _executed_threads(found: Sequence[Ran]) -> Iterator[Thread]:
    lanes: dict[tuple[int, str], list[Slice]] = {}
    for ran in found:
        node = ran.node
        moved = {} if node.kind == COMPUTE else {"bytes": node.nbytes, "kind": node.kind}
        args = moved if node.seconds is None else moved | {"recorded_us": node.seconds * 1e6}
        lanes.setdefault((ran.rank, node.lane or "transfers"), []).append(
            (ran.begin, ran.end, node.name, args)
        )
    for (rank, lane), slices in sorted(lanes.items()):
        yield from split(f"rank {rank}", lane, slices)
