"""Slices on named threads of named processes, as trace events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simreduce.trace.chrome import BEGIN, END, US, metadata

Slice = tuple[float, float, str, Mapping[str, Any]]
"""From, to (seconds), its text and what to say of it."""

Thread = tuple[str, str, list[Slice]]
"""Its process, its own name, and slices that do not overlap, in order of time."""


def thread_events(threads: Iterable[Thread]) -> Iterator[dict[str, Any]]:
    """Names of processes and threads first, then slices, by thread and in order of time."""
    threads = list(threads)
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
            yield {
                "ph": BEGIN,
                "name": text,
                "cat": process,
                **place,
                "ts": begin * US,
                "args": dict(args),
            }
            yield {"ph": END, **place, "ts": end * US}
