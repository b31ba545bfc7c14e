"""Recordings of runs by other programs: collectives, their sizes and order, and the compute.

One file per format: Chakra's execution traces, the PyTorch profiler's timelines, NCCL's log and
DDP's logging data. `read_executions` finds out which one a file is.
"""

from simreduce.training.executions.execution import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    FORWARD,
    RECEIVE,
    SEND,
    UPDATE,
    Execution,
    ExecutionError,
    ExecutionNode,
    NodeList,
    write as write_chakra,
)
from simreduce.training.executions.reading import ALONE, SUFFIXES, is_record, read_executions

__all__ = [
    "ALONE",
    "BACKWARD",
    "COLLECTIVE",
    "COMPUTE",
    "FORWARD",
    "RECEIVE",
    "SEND",
    "SUFFIXES",
    "UPDATE",
    "Execution",
    "ExecutionError",
    "ExecutionNode",
    "NodeList",
    "is_record",
    "read_executions",
    "write_chakra",
]
