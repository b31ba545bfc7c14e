"""Trace events of Chrome's format: files, names, and slices on threads that do not overlap."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simreduce.computing.arrays import ULP, Floats, Ints

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
