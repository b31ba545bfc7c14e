"""Synchronous replicas on parameter servers, with backups, stragglers and failures.

They are `tf.train.SyncReplicasOptimizer`.
"""

from simreduce.training.replicas.accumulator import GradientRequest, Slices, VariableValues
from simreduce.training.replicas.job import ReplicasJob, SyncSettings, easyrec
from simreduce.training.replicas.network import Delays, LinkNetwork, delays, port_delays
from simreduce.training.replicas.processes import (
    Arrival,
    ReplicasRun,
    Update,
    WorkerStep,
    simulate_replicas,
)
from simreduce.training.replicas.reader import (
    REPLICAS,
    ReplicasQuestion,
    parse_replicas,
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
