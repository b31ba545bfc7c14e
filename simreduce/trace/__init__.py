"""What happened when, for trace viewers: pure functions of recordings."""

from simreduce.trace.chrome import trace_events, trace_text

__all__ = ["trace_events", "trace_text"]
