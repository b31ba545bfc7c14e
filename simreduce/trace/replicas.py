"""One run of synchronous replicas as Chrome's trace-event JSON: a track for every worker, and one
for the updates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simreduce.trace.chrome import document
from simreduce.trace.threads import Slice, Thread, thread_events
from simreduce.training.replicas import Run


def replicas_trace_text(run: Run, names: Sequence[str], about: Mapping[str, Any]) -> Iterator[str]:
    """The file in pieces. `names` are those of the workers, `about` what to say of the run as a
    whole.
    """
    return document(dict(about), replicas_trace_events(run, names))


def replicas_trace_events(run: Run, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Of every worker what it does; of every update from when the first of its means was taken."""
    return thread_events(_threads(run, names))


def _threads(run: Run, names: Sequence[str]) -> Iterator[Thread]:
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
