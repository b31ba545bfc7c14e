"""Training steps, runs of synchronous replicas and replayed runs as Chrome's trace-event JSON.

Of a step, what computes has a track, and what moves has as many as overlap. Each worker of
synchronous replicas has a track, and so have their updates; of a replayed run each lane of every
recorded rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simreduce.report.trace.events import US, Slice, Thread, document, split, thread_events
from simreduce.training import Bucket, StepPrediction, lanes as lanes_of
from simreduce.training.executions import COLLECTIVE, COMPUTE
from simreduce.training.executor import Ran
from simreduce.training.replicas import ReplicasRun

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
    for process, buckets in lanes_of(step):
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
