"""A training step as Chrome's trace-event JSON: a track for what computes, and as many as overlap
for what moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simreduce.trace.chrome import US, document
from simreduce.trace.rows import rows
from simreduce.trace.threads import Slice, Thread, thread_events
from simreduce.training import Bucket, StepPrediction, lanes


def step_trace_text(
    step: StepPrediction, names: Sequence[str], about: Mapping[str, Any]
) -> Iterator[str]:
    """The file in pieces. `names` are those of the gradients, `about` what to say of the run as a
    whole.
    """
    return document(dict(about), step_trace_events(step, names))


def step_trace_events(step: StepPrediction, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A thread for every device that computes, and as many as overlap for reads and reductions."""
    return thread_events(_threads(step, names))


def _threads(step: StepPrediction, names: Sequence[str]) -> Iterator[Thread]:
    for device in dict.fromkeys(span.device for span in step.spans):
        mine = [span for span in step.spans if span.device == device]
        slices: list[Slice] = [
            (
                s.begin,
                s.end,
                f"{'backward' if s.backward else 'forward'} {s.layer}",
                {"layer": s.layer},
            )
            for s in mine
        ]
        yield from _rows("compute", device, slices)
    for process, buckets in lanes(step):
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


def _rows(process: str, name: str, slices: Sequence[Slice]) -> Iterator[Thread]:
    """As many threads as slices overlap."""
    begin, end = (np.array([s[i] for s in slices], dtype=np.float64) for i in (0, 1))
    for number, row in enumerate(rows(np.arange(len(slices)), begin, end), 1):
        thread = name if number == 1 else f"{name} ({number})"
        yield process, thread, [(since, until, *slices[i][2:]) for i, since, until in row]
