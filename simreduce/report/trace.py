"""What happened when, for trace viewers: pure functions of recordings, of steps and of runs.

A recording as Chrome's trace-event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing
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

Of a step, what computes has a track, and what moves has as many as overlap; ranks that do the same
share a track, whose name counts them. Each link that carries something has a track, in a process
for each class. Each worker of synchronous replicas has a track, and so have their updates; of a
mesh and of a replayed run each lane of every rank. Counters add up what slices say (`_LEVELS`):
transfers and bytes in flight, GB/s by link class, bytes that ranks of a mesh hold.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from simreduce.computing import group_by
from simreduce.computing.arrays import ULP, Floats, Ints, invert
from simreduce.engine import Curve, Recording
from simreduce.engine.bounds import resource_seconds
from simreduce.plan import Kind
from simreduce.study.tune.meshes import MeshRanking, Ranking
from simreduce.topology import Topology
from simreduce.training import Bucket, StepRecording, StepResult
from simreduce.training.executions import COMPUTE
from simreduce.training.executor import Ran
from simreduce.training.replicas.processes import ReplicasRun
from simreduce.version import __version__

US = 1e6
BEGIN, END = "B", "E"
_INSTANT = 8 * ULP
"""Slices that overlap by less only touch: their ends are two computations of one instant."""

Slice = tuple[float, float, str, str, Mapping[str, Any]]
"""From, to (seconds), its kind, its text and what to say of it."""

Thread = tuple[str, str, list[Slice]]
"""Its process, its own name, and slices that do not overlap, in order of time."""


def trace_text(other: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A trace file in pieces; `other` is what it says of the run as a whole, less its lists."""
    facts = {key: value for key, value in other.items() if not isinstance(value, list)}
    head = json.dumps({"displayTimeUnit": "ns", "otherData": facts}, separators=(",", ":"))
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
        found = [(since, until, *slices[i][2:]) for i, since, until in row]
        yield process, _number_name(name, number), found


def _number_name(name: str, number: int) -> str:
    """The name of a thread, with its number from the second of the name on."""
    return name if number == 1 else f"{name} ({number})"


_LEVELS: Sequence[tuple[str, str, Callable[[float], float]]] = (
    ("bytes", "transfers in flight", lambda _: 1.0),
    ("bytes", "GB in flight", lambda nbytes: nbytes / 1e9),
    ("gb_per_s", "GB/s", float),
    ("held_bytes", "GB held", lambda nbytes: nbytes / 1e9),
)
"""What counters add up: a figure of slices, the name with its unit, and what a slice counts."""


def _counter_events(process: str, number: int, slices: Sequence[Slice]) -> Iterator[dict[str, Any]]:
    """The counters of a process: at each time the sum over the slices that are under way."""
    for figure, unit, worth in _LEVELS:
        changes = defaultdict[float, float](float)
        for begin, end, *_, args in slices:
            if figure in args and begin < end:
                changes[begin] += worth(args[figure])
                changes[end] -= worth(args[figure])
        times = sorted(changes)
        for time, level in zip(times, accumulate(map(changes.__getitem__, times)), strict=True):
            at = {"pid": number, "tid": 0, "ts": time * US}
            args = {unit: max(round(level, 9), 0.0)}
            yield {"ph": _COUNT, "name": f"{process}: {unit}", **at, "args": args}


def thread_events(threads: Iterable[Thread]) -> Iterator[dict[str, Any]]:
    """Names of processes and threads first, then slices, by thread and in order of time, and then
    the counters of each process.
    """
    threads = list(threads)
    processes = list(dict.fromkeys(process for process, _, _ in threads))
    number = {process: i for i, process in enumerate(processes, 1)}
    yield from name_events(processes, ((number[process], name) for process, name, _ in threads))
    for tid, (process, _, slices) in enumerate(threads, 1):
        place = {"pid": number[process], "tid": tid}
        for begin, end, _, text, args in slices:
            about = {"name": text, "cat": process, **place, "ts": begin * US, "args": dict(args)}
            yield {"ph": BEGIN, **about}
            yield {"ph": END, **place, "ts": end * US}
    for process, some in group_by(threads, itemgetter(0)).items():
        every = [each for _, _, slices in some for each in slices]
        yield from _counter_events(process, number[process], every)


_SENT, _USED, _COUNT = "s", "f", "C"
_ARROW, _COPY, _LINKS = "transfer", "copy", "links and memories"
_PASS = re.compile(r"(\d+)[A-Z](\d+)(\.\d+)?")
"""The name of a pass of a mesh: its stage, its kind, its micro batch and the part of it."""
_VERBS = {int(kind): kind.name.lower() for kind in Kind}


def recording_text(
    recording: Recording, topology: Topology, about: Mapping[str, Any]
) -> Iterator[str]:
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
    return trace_text(other, recording_events(recording, topology))


def recording_events(recording: Recording, topology: Topology) -> Iterator[dict[str, Any]]:
    """Names of processes and threads first, then everything in order of time."""
    sheet = _Sheet(recording, topology)
    yield from name_events(sheet.processes, ((each.process, each.name) for each in sheet.threads))
    for event in sorted(sheet.events, key=itemgetter(0)):
        yield sheet.write(*event)


def recording_threads(recording: Recording, topology: Topology) -> Iterator[Thread]:
    """The slices of a recording by thread, without arrows and counters."""
    sheet = _Sheet(recording, topology)
    for each in sheet.threads:
        slices: list[Slice] = [(begin, end, *sheet.about(op, each)) for op, begin, end in each.row]
        yield sheet.processes[each.process - 1], each.name, slices


class _Thread(NamedTuple):
    process: int
    name: str
    of_device: bool
    row: Sequence[tuple[int, float, float]]


class _Sheet:
    """Events thread by thread, and in a thread by time: the time, the phase, the op (of a counter
    the index of its value), and the place of the thread or counter.
    """

    def __init__(self, recording: Recording, topology: Topology) -> None:
        self.recording, lowered = recording, recording.lowered
        self.costs = lowered.by_op
        self.arrows = _arrows(recording)
        self.used = group_by(self.arrows, self.arrows.__getitem__)
        self.processes: list[str] = []
        self.threads: list[_Thread] = []
        self.counters: list[tuple[Curve, str, float]] = []  # with their units
        self.events: list[tuple[float, str, int, int]] = []
        self._add_devices(topology)
        self._add_links()
        self._add_lanes()

    def _add_devices(self, topology: Topology) -> None:
        """A process per machine; its devices in the order of the plan."""
        result = self.recording.result
        boxes = [topology.nodes[name].machine for name in result.devices]
        is_copy = result.kind == Kind.COPY
        is_work = ~is_copy & (result.kind != Kind.INPUT)
        for box, devices in group_by(range(len(boxes)), boxes.__getitem__).items():
            process = self._process(f"machine {box}" if box else "fabric")
            for device in devices:
                name = result.devices[device]
                for ops, what in (
                    (np.flatnonzero(is_copy & (result.source == device)), "copies out"),
                    (np.flatnonzero(is_work & (result.device == device)), "compute"),
                ):
                    self._rows(
                        process, f"{name} {what}", ops, result.start, result.finish, of_device=True
                    )

    def _add_links(self) -> None:
        """Flows by link (and memory), and how much each carries."""
        recording, names = self.recording, self.recording.resources.names
        lowered = recording.lowered
        process = self._process(_LINKS)
        first, users = invert(self.costs.use_start, self.costs.uses, len(names))
        for resource, name in enumerate(names):
            ops = np.unique(users[first[resource] : first[resource + 1]])
            moving = ops[lowered.amount[ops] > 0].astype(np.int64)
            self._rows(process, name, moving, recording.flow_starts, recording.result.finish)
        in_cores = recording.resources.in_cores
        for place, curve in enumerate(recording.resource_curves()):
            unit = ("cores", 1.0) if curve.name in in_cores else ("GB/s", 1e9)
            self.counters.append((curve, *unit))
            self.events += [(at, _COUNT, i, place) for i, at in enumerate(curve.time.tolist())]

    def _add_lanes(self) -> None:
        """Who holds each lane."""
        recording, lowered, lanes = self.recording, self.recording.lowered, self.costs.lanes
        if len(lanes):
            process = self._process("lanes")
        user, (since, until) = recording.user, recording.lane_times
        begin, end = np.zeros((2, len(lowered.call)))  # by op, of the lane at hand
        first, entries = invert(np.arange(len(lanes) + 1), lanes, len(lowered.lane_names))
        for lane, name in enumerate(lowered.lane_names):
            mine = entries[first[lane] : first[lane + 1]]
            ops = user[mine]
            begin[ops], end[ops] = since[mine], until[mine]
            self._rows(process, name, ops, begin, end)

    def _process(self, name: str) -> int:
        self.processes.append(name)
        return len(self.processes)

    def _rows(
        self,
        process: int,
        name: str,
        ops: Ints,
        begin: Floats,
        end: Floats,
        *,
        of_device: bool = False,
    ) -> None:
        """As many threads as `ops` need; arrows lead from and to those of devices."""
        for number, row in enumerate(rows(ops, begin[ops], end[ops]), 1):
            thread = len(self.threads)
            self.threads.append(_Thread(process, _number_name(name, number), of_device, row))
            for op, since, until in row:
                self.events.append((since, BEGIN, op, thread))
                if of_device:
                    self.events += [(since, _USED, copy, thread) for copy in self.used.get(op, ())]
                    if op in self.arrows:
                        self.events.append((since, _SENT, op, thread))
                self.events.append((until, END, op, thread))

    def write(self, time: float, phase: str, op: int, place: int) -> dict[str, Any]:
        """The event as Chrome's format has it."""
        ts = time * US
        if phase == _COUNT:
            curve, unit, scale = self.counters[place]
            at = {"pid": self.processes.index(_LINKS) + 1, "tid": 0, "ts": ts}
            args = {unit: float(curve.value[op]) / scale}
            return {"ph": phase, "name": curve.name, **at, "args": args}
        thread = self.threads[place]
        at = {"pid": thread.process, "tid": place + 1, "ts": ts}
        if phase == END:
            return {"ph": phase, **at}
        if phase != BEGIN:
            bound = {"bp": "e"} if phase == _USED else {}
            return {"ph": phase, "name": _ARROW, "cat": _ARROW, "id": op, **at, **bound}
        verb, name, details = self.about(op, thread)
        return {"ph": phase, "name": name, "cat": verb, **at, "args": details}

    def about(self, op: int, thread: _Thread) -> tuple[str, str, dict[str, Any]]:
        """The kind of a slice, its text and what to say of it."""
        result = self.recording.result
        verb = _VERBS[result.kind.item(op)]
        source, target = (result.devices[ends.item(op)] for ends in (result.source, result.device))
        # The thread's name says some of it already.
        if thread.of_device:
            name = f"to {target}" if verb == _COPY else verb
        else:
            name = f"{source} to {target}" if verb == _COPY else f"{verb} {target}"
        return verb, name, self._details(op, thread)

    def _details(self, op: int, thread: _Thread) -> dict[str, Any]:
        result, lowered = self.recording.result, self.recording.lowered
        nbytes = result.nbytes.item(op)
        details: dict[str, Any] = {"op": op, "bytes": nbytes}
        flow = self.recording.flow_starts.item(op)
        seconds = result.finish.item(op) - flow
        # A flow of cores that is no more than its work moves no bytes.
        amount, work = lowered.amount.item(op), self.costs.work.item(op)
        moves = not work or amount > work * self.costs.cap.item(op) * (1 + 1e-9)
        if moves and amount > 0 and seconds > 0:
            details["gb_per_s"] = nbytes / seconds / 1e9
        if thread.of_device:
            start, ready = result.start.item(op), result.ready.item(op)
            overhead, latency = self.costs.overhead.item(op), self.costs.latency.item(op)
            details |= {
                "after": int(result.timeline.blame[op]),
                "ready_us": ready * US,
                "waited_us": (start - ready) * US,
                "dispatch_us": (overhead + work) * US,
                "latency_us": latency * US,
            }
            if lowered.calls.piped.item(lowered.call.item(op)):
                details["pipe_wait_us"] = max(flow - (start + overhead + latency), 0.0) * US
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


def ranking_threads(ranking: Ranking) -> list[Thread]:
    """The threads of the best step: of a mesh the ranks that differ and what they hold, else
    devices, transfers and, where plans were simulated together, links.
    """
    step, found = ranking.closely, ranking.recording
    if isinstance(ranking, MeshRanking):
        alike = step.devices // len({each.rank for each in step.ran})
        return [*executed_threads(step.ran, alike), *_held_threads(step)]
    names = [gradient.name for gradient in ranking.scenario.workload.gradients]
    return [*step_threads(step, names), *(_link_threads(found, names) if found else ())]


def step_threads(step: StepResult, names: Sequence[str]) -> Iterator[Thread]:
    """A thread for every device that computes, and as many as overlap for reads and reductions.
    `names` are the gradients'.
    """
    word, done = ("forward", "backward"), list[tuple[float, str]]()
    for device, spans in group_by(step.spans, lambda span: span.device).items():
        slices: list[Slice] = [
            (s.begin, s.end, word[s.backward], f"{word[s.backward]} {s.layer}",
             {"layer": s.layer, "op": f"{device} {i}"})
            for i, s in enumerate(spans)
        ]  # fmt: skip
        done += [(end, args["op"]) for _, end, *_, args in slices]
        yield from split("compute", device, slices)
    moved = [_slice(process, b, names) for process, buckets in step.lanes for b in buckets]
    done = sorted([*done, *((end, args["op"]) for _, end, *_, args in moved)])
    for begin, *_, args in moved:  # what ended last before it began, or as it did, let it begin
        last = bisect_right(done, begin * (1 + _INSTANT), key=itemgetter(0)) - 1
        args["after"] = done[last][1] if last >= 0 else ""
    for process, found in group_by(moved, itemgetter(2)).items():
        yield from split(process, process, found)


def _slice(
    kind: str, b: Bucket, names: Sequence[str]
) -> tuple[float, float, str, str, dict[str, Any]]:
    ends = [names[b.gradients[i]] for i in (-1, 0)] if b.gradients else [f"{len(b.ranks)} ranks"]
    text = " to ".join(dict.fromkeys(ends))
    args = {
        "gradients": len(b.gradients),
        "bytes": b.nbytes,
        "ready_us": b.ready * US,
        "waited_us": (b.start - b.ready) * US,
        "op": f"{kind} {text} {b.start}",
    }
    return b.start, b.finish, kind, text, args


def _link_threads(recording: StepRecording, names: Sequence[str]) -> Iterator[Thread]:
    """A thread for each link and memory that carries something, in a process for each class. A
    slice lasts as long as a transfer, and has its mean rate on the link.
    """
    lanes = {b: name for name, buckets in recording.step.lanes for b in buckets}
    found, best = defaultdict[str, list[Slice]](list), recording.resources.best
    for each in recording.moved:
        begin, end, kind, text, _ = _slice(lanes.get(each.bucket, ""), each.bucket, names)
        needed = resource_seconds(each.lowered, best)
        for i in np.flatnonzero((needed > 0) & (begin < end)).tolist():
            nbytes = float(needed[i] * best.rates[i])
            rate = {"carried_bytes": nbytes, "gb_per_s": nbytes / (end - begin) / 1e9}
            found[best.names[i]].append((begin, end, kind, text, rate))
    for name in sorted(found.keys() - best.in_cores, key=best.names.index):
        yield from split(f"{_LINKS}: {name.partition(' ')[2]}", name, found[name])


def _held_threads(step: StepResult) -> Iterator[Thread]:
    """What a rank of each stage holds: its states all the time, and the activations of each micro
    batch from its forward pass to the end of its backward pass.
    """
    ranks = sorted(group_by(step.ran, lambda each: each.rank).items())
    for stage, (memory, (_, ran)) in enumerate(zip(step.held, ranks, strict=True), 1):
        kept, passes = memory.activations.nbytes, defaultdict[str, list[Ran]](list)
        for each in ran:
            if found := _PASS.fullmatch(each.node.name):
                passes[f"stage {found[1]}, micro batch {found[2]}"].append(each)
        states, each_pass = (
            {"held_bytes": n} for n in (memory.peak - kept, kept / memory.in_flight)
        )
        held: list[Slice] = [(0.0, step.seconds, "held", "parameters and their states", states)]
        held += [
            (some[0].begin, some[-1].end, "held", f"activations of {text}", each_pass)
            for text, some in passes.items()
        ]
        yield from split(f"memory of stage {stage}", "held", held)


def replicas_threads(run: ReplicasRun, names: Sequence[str]) -> Iterator[Thread]:
    """What each of the workers `names` does, and each update from when the first of its means was
    taken.
    """
    dropped = Counter((a.worker, a.step) for a in run.dropped)
    slices: list[list[Slice]] = [[] for _ in names]
    over = [0.0] * len(names)  # a step, and the wait for a token begins
    for step in sorted((*run.steps, *run.unfinished), key=lambda step: (step.begun, step.step)):
        mine = slices[step.worker]
        about = {"step": step.step, "local_step": step.local_step}
        parts = (
            (over[step.worker], step.begun, "wait", "wait", about),
            (step.begun, step.read, "read", "read", about),
            (step.read, step.computed, "compute", f"compute {step.step}", about),
            (
                step.computed,
                step.asked,
                "send",
                "send",
                about | {"dropped": dropped[step.worker, step.step]},
            ),
        )
        mine += [part for part in parts if part[1] > part[0]]
        over[step.worker] = step.asked
    for name, mine in zip(names, slices, strict=True):
        yield "workers", name, mine
    yield "updates", "updates", [
        (min(u.taken), u.time, "update", f"update {u.number}", {"gradients": list(u.gradients)})
        for u in run.updates
    ]  # fmt: skip


def executed_threads(found: Sequence[Ran], alike: int = 1) -> Iterator[Thread]:
    """A thread for every lane of each rank of an execution, which stands for so many `alike`."""
    lanes: dict[tuple[int, str], list[Slice]] = {}
    more = f" and {alike - 1} alike" if alike > 1 else ""
    for ran in found:
        node = ran.node
        kind = node.phase or "compute" if node.kind == COMPUTE else "transfer"
        args = {
            "op": f"{ran.rank}.{ran.number}",
            **({"after": "{}.{}".format(*ran.cause)} if ran.cause else {}),
            **({} if node.kind == COMPUTE else {"bytes": node.nbytes, "kind": node.kind}),
            **({} if node.seconds is None else {"recorded_us": node.seconds * 1e6}),
        }
        mine = lanes.setdefault((ran.rank, node.lane or "transfers"), [])
        if ran.begin < ran.since:
            mine.append((ran.begin, ran.since, "wait", f"wait for {node.name}", {}))
        mine.append((ran.since, ran.end, kind, node.name, args))
    for (number, lane), slices in sorted(lanes.items()):
        yield from split(f"rank {number}{more}", lane, slices)
