"""MSCCL's algorithms: from plans, as XML and as MSCCL++'s JSON, and proved by interpretation."""

from simreduce.msccl.algorithm import MOST_BYTES, Algorithm, Block, Gpu, Place, Step, xml_text
from simreduce.msccl.from_plan import algorithm_of
from simreduce.msccl.interpreter import problems_of
from simreduce.msccl.plus_plus import plan_text
from simreduce.msccl.reader import read_algorithm

__all__ = [
    "MOST_BYTES",
    "Algorithm",
    "Block",
    "Gpu",
    "Place",
    "Step",
    "algorithm_of",
    "plan_text",
    "problems_of",
    "read_algorithm",
    "xml_text",
]
