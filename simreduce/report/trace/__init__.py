"""What happened when, for trace viewers: pure functions of recordings, of steps and of runs."""

from simreduce.report.trace.chrome import (
    executed_trace_text,
    pipeline_events,
    replicas_trace_events,
    replicas_trace_text,
    step_trace_events,
    step_trace_text,
    trace_events,
    trace_text,
)

__all__ = [
    "executed_trace_text",
    "pipeline_events",
    "replicas_trace_events",
    "replicas_trace_text",
    "step_trace_events",
    "step_trace_text",
    "trace_events",
    "trace_text",
]
