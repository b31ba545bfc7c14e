"""What happened when, for trace viewers: pure functions of recordings, of steps and of runs."""

from simreduce.report.trace.chrome import trace_events, trace_text
from simreduce.report.trace.runs import (
    replay_trace_text,
    replicas_trace_events,
    replicas_trace_text,
    step_trace_events,
    step_trace_text,
)

__all__ = [
    "replay_trace_text",
    "replicas_trace_events",
    "replicas_trace_text",
    "step_trace_events",
    "step_trace_text",
    "trace_events",
    "trace_text",
]
