"""A training step as Chrome's trace-event JSON: a track for what computes, and as many as overlap for what moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simreduce.trace.chrome import BEGIN, END, US, document, metadata
from simreduce.trace.rows import rows
from simreduce.training import Bucket, Step

Slice = tuple[float, float, str, Mapping[str, Any]]
"""From, to (seconds), its text and what to say of it."""


def step_trace_text(step: Step, names: Sequence[str], about: Mapping[str, Any]) -> Iterator[str]:
    """The file in pieces. `names` are those of the gradients, `about` what to say of the run as a whole."""
    return document(dict(about), step_trace_events(step, names))


def step_trace_events(step: Step, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Names of processes and threads first, then slices, by thread and in order of time."""
    threads = list(_threads(step, names))
    processes = list(dict.fromkeys(process for process, _, _ in threads))
    for number, process in enumerate(processes, 1):
        yield metadata("process_name", number, 0, {"name": process})
        yield metadata("process_sort_index", number, 0, {"sort_index": number})
    for tid, (process, name, _) in enumerate(threads, 1):
        yield metadata("thread_name", processes.index(process) + 1, tid, {"name": name})
        yield metadata("thread_sort_index", processes.index(process) + 1, tid, {"sort_index": tid})
    for tid, (process, _, slices) in enumerate(threads, 1):
        place = {"pid": processes.index(process) + 1, "tid": tid}
        for begin, end, text, args in slices:
            yield {"ph": BEGIN, "name": text, "cat": process, **place, "ts": begin * US, "args": dict(args)}
            yield {"ph": END, **place, "ts": end * US}


def _threads(step: Step, names: Sequence[str]) -> Iterator[tuple[str, str, list[Slice]]]:
    """(process, thread, its slices)."""
    for device in dict.fromkeys(span.device for span in step.spans):
        mine = [span for span in step.spans if span.device == device]
        slices: list[Slice] = [
            (s.begin, s.end, f"{'backward' if s.backward else 'forward'} {s.layer}", {"layer": s.layer})
            for s in mine
        ]
        yield from _rows("compute", device, slices)
    for process, buckets in (("reads", step.reads), ("reductions", step.buckets)):
        yield from _rows(process, process, [_slice(b, names) for b in buckets])


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


def _rows(process: str, name: str, slices: Sequence[Slice]) -> Iterator[tuple[str, str, list[Slice]]]:
    """As many threads as slices overlap."""
    begin, end = (np.array([s[i] for s in slices], dtype=np.float64) for i in (0, 1))
    for number, row in enumerate(rows(np.arange(len(slices)), begin, end), 1):
        thread = name if number == 1 else f"{name} ({number})"
        yield process, thread, [(since, until, *slices[i][2:]) for i, since, until in row]
