"""Sharded data parallelism: ZeRO's stages, PyTorch's FSDP, and FSDP with replicas."""

from simreduce.training.sharded.collectives import PlanKey, ShardedMethod, sharded_method
from simreduce.training.sharded.settings import (
    DDP,
    METHODS,
    SHARDING,
    Do,
    Instruction,
    Segment,
    Sharding,
    Unit,
    largest_unit,
    most_gathered,
    read_sharding,
    schedule,
    segments,
    wrap,
)
from simreduce.training.sharded.simulation import (
    record_sharded_step,
    running_sharded,
    simulate_sharded_step,
    write_sharded_execution,
)

__all__ = [
    "DDP",
    "METHODS",
    "SHARDING",
    "Do",
    "Instruction",
    "PlanKey",
    "Segment",
    "ShardedMethod",
    "Sharding",
    "Unit",
    "largest_unit",
    "most_gathered",
    "read_sharding",
    "record_sharded_step",
    "running_sharded",
    "schedule",
    "segments",
    "sharded_method",
    "simulate_sharded_step",
    "wrap",
    "write_sharded_execution",
]
