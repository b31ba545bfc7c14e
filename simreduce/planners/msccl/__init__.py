"""MSCCL's algorithms: from plans, as XML and as MSCCL++'s JSON, and proved by interpretation."""

from simreduce.planners.msccl.algorithm import (
    MOST_BYTES,
    ChunkPlace,
    MscclAlgorithm,
    MscclGpu,
    Step,
    ThreadBlock,
    read_algorithm,
    xml_text,
)
from simreduce.planners.msccl.from_plan import algorithm_of
from simreduce.planners.msccl.interpreter import problems_of
from simreduce.planners.msccl.plus_plus import plan_text

__all__ = [
    "MOST_BYTES",
    "ChunkPlace",
    "MscclAlgorithm",
    "MscclGpu",
    "Step",
    "ThreadBlock",
    "algorithm_of",
    "plan_text",
    "problems_of",
    "read_algorithm",
    "xml_text",
]
