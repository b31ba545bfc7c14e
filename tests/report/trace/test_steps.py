"""A step for trace viewers: the events of the format, and that they are those of the step."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from simreduce.report.trace import step_threads, thread_events, trace_text
from tests.training.small import TICK, job, run


@pytest.fixture(scope="module")
def events():
    # Two reductions at once, so that one of them is on a track of its own.
    step = run(job([4, 4], [1, 2], [1, 1]), "ring")
    return list(thread_events(step_threads(step, ["a", "b"])))


def slices(events, process):
    """(name, from, to) of every slice of a process."""
    number = next(
        e["pid"] for e in events if e.get("name") == "process_name" and e["args"]["name"] == process
    )
    mine = [e for e in events if e["ph"] in "BE" and e["pid"] == number]
    return [(b["name"], b["ts"], e["ts"]) for b, e in zip(mine[::2], mine[1::2], strict=True)]


def test_what_computes_and_what_moves_is_where_the_step_has_it(events):
    """In microseconds."""
    us = TICK * 1e6

    assert [
        ("forward layer0", 0.0, us), ("forward layer1", us, 3 * us),
        ("backward layer1", 3 * us, 4 * us), ("backward layer0", 4 * us, 5 * us),
    ] == slices(events, "compute")  # fmt: skip
    assert [("b", 4 * us, 11 * us), ("a", 5 * us, 12 * us)] == slices(events, "reductions")


def test_slices_that_overlap_have_threads_of_their_own(events):
    """Every thread has a name, and begins and ends alternate in it."""
    names = {e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    phases: dict[int, str] = {}
    for e in events:
        if e["ph"] in "BE":
            phases[e["tid"]] = phases.get(e["tid"], "") + e["ph"]

    assert {"2 GPUs", "reductions", "reductions (2)"} == names
    assert {"BE"} == {p[i : i + 2] for p in phases.values() for i in range(0, len(p), 2)}


def test_the_file_is_one_json_document():
    """With what is said of the run as a whole."""
    step = run(job([4, 4], [1, 2], [1, 1]), "ring+packs=1")
    found = thread_events(step_threads(step, ["a", "b"]))
    document = json.loads("".join(trace_text({"scenario": "mine"}, found)))
    named = Counter(e["name"] for e in document["traceEvents"] if e["ph"] == "B")

    assert {"scenario": "mine"} == document["otherData"]
    assert 1 == named["b to a"]
