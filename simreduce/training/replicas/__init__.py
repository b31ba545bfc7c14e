"""Synchronous replicas: `tf.train.SyncReplicasOptimizer` on parameter servers, with backups,
stragglers and failures.
"""

from simreduce.training.replicas.job import Job
from simreduce.training.replicas.network import Delays, Flows, delays, through_ports
from simreduce.training.replicas.processes import replicas
from simreduce.training.replicas.reader import Question, read_replicas
from simreduce.training.replicas.run import Arrival, Run, Step, Update
from simreduce.training.replicas.settings import Settings, easyrec
from simreduce.training.replicas.values import Asked, Slices, Values, by_worker

__all__ = [
    "Arrival",
    "Asked",
    "Delays",
    "Flows",
    "Job",
    "Question",
    "Run",
    "Settings",
    "Slices",
    "Step",
    "Update",
    "Values",
    "by_worker",
    "delays",
    "easyrec",
    "read_replicas",
    "replicas",
    "through_ports",
]
