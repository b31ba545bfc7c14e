"""What other programs recorded of a run: which collectives, how large, in which order, and what was
computed meanwhile.

One file per format: Chakra's execution traces, the PyTorch profiler's timelines, NCCL's log and
DDP's logging data. `read_executions` finds out which one a file is.
"""

from simreduce.executions.execution import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Execution,
    Node,
)
from simreduce.executions.reading import read_executions

__all__ = [
    "COLLECTIVE",
    "COMPUTE",
    "RECEIVE",
    "SEND",
    "Execution",
    "Node",
    "read_executions",
]
