"""What happened when, for trace viewers: pure functions of recordings, of steps and of runs."""

from simreduce.report.trace.chrome import (
    executed_events,
    pipeline_events,
    recording_events,
    recording_text,
    replicas_events,
    step_events,
    trace_text,
)

__all__ = [
    "executed_events",
    "pipeline_events",
    "recording_events",
    "recording_text",
    "replicas_events",
    "step_events",
    "trace_text",
]
