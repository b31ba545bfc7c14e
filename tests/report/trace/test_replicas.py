"""A run of synchronous replicas for trace viewers."""

from __future__ import annotations

import json

from simreduce.report.trace import replicas_threads, thread_events, trace_text
from simreduce.training.distributions import Constant
from simreduce.training.replicas import ReplicasJob, SyncSettings
from simreduce.training.replicas.network import delays
from simreduce.training.replicas.processes import simulate_replicas
from tests.report.trace.test_steps import slices


def made():
    """One gradient of two is enough; worker 1 dies in its second step."""
    compute = (Constant(2.0), Constant(5.0))
    return simulate_replicas(
        ReplicasJob(
            SyncSettings(1, 2, 0), delays(2, 1, 0.5, 0.25), compute, dies={1: 8.0}, update=0.125
        ),
        3,
    )


def test_every_part_of_every_step_is_there():
    """In microseconds; what takes no time is not."""
    events = list(thread_events(replicas_threads(made(), ["a", "b"])))

    assert [
        ("read", 0.0, 0.5e6),
        ("compute 0", 0.5e6, 2.5e6),
        ("send", 2.5e6, 2.75e6),
        ("wait", 2.75e6, 2.875e6),
        ("read", 2.875e6, 3.375e6),
        ("compute 1", 3.375e6, 5.375e6),
        ("send", 5.375e6, 5.625e6),
    ] == slices(events, "workers")[:7]
    assert ("compute 1", 6.25e6, 8.0e6) in slices(events, "workers")
    assert ("update 1", 2.75e6, 2.875e6) == slices(events, "updates")[0]
    late = [e["args"] for e in events if e["ph"] == "B" and e["args"].get("dropped")]
    assert {"step": 0, "local_step": 0, "dropped": 1} in late  # of worker 1, after update 1
    assert len(made().dropped) == len(late)


def test_the_file_is_one_json_document():
    found = thread_events(replicas_threads(made(), ["a", "b"]))
    document = json.loads("".join(trace_text({"scenario": "mine"}, found)))

    assert {"scenario": "mine"} == document["otherData"]
    assert document["traceEvents"]
