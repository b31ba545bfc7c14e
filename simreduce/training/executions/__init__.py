"""Recordings of runs by other programs: collectives, their sizes and order, and the compute.

One file per format: Chakra's execution traces, the PyTorch profiler's timelines, NCCL's log and
DDP's logging data. `read_executions` finds out which one a file is.
"""

from simreduce.training.executions.execution import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Execution,
    Node,
)
from simreduce.training.executions.reading import read_executions

__all__ = [
    "COLLECTIVE",
    "COMPUTE",
    "RECEIVE",
    "SEND",
    "Execution",
    "Node",
    "read_executions",
]
