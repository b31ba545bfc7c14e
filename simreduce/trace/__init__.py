"""What happened when, for trace viewers: pure functions of recordings and of steps."""

from simreduce.trace.chrome import trace_events, trace_text
from simreduce.trace.steps import step_trace_events, step_trace_text

__all__ = ["step_trace_events", "step_trace_text", "trace_events", "trace_text"]
