"""Synchronous replicas on parameter servers, with backups, stragglers and failures.

They are `tf.train.SyncReplicasOptimizer`.
"""

from simreduce.training.replicas.job import (
    REPLICAS,
    ReplicasJob,
    ReplicasQuestion,
    SyncSettings,
    easyrec,
    parse_replicas,
)
from simreduce.training.replicas.network import (
    Delays,
    GradientRequest,
    LinkNetwork,
    Slices,
    VariableValues,
    delays,
    port_delays,
)
from simreduce.training.replicas.processes import (
    Arrival,
    ReplicasRun,
    Update,
    WorkerStep,
    simulate_replicas,
)

__all__ = [
    "REPLICAS",
    "Arrival",
    "Delays",
    "GradientRequest",
    "LinkNetwork",
    "ReplicasJob",
    "ReplicasQuestion",
    "ReplicasRun",
    "Slices",
    "SyncSettings",
    "Update",
    "VariableValues",
    "WorkerStep",
    "delays",
    "easyrec",
    "parse_replicas",
    "port_delays",
    "simulate_replicas",
]
