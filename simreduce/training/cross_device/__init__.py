"""The calls of tf.distribute's CrossDeviceOps as plans: reduce, batch_reduce and broadcast."""

from simreduce.training.cross_device.calls import (
    batch_reduce,
    broadcast,
    broadcast_variables,
    reduce,
    reduce_non_distributed,
    result_labels,
)
from simreduce.training.cross_device.methods import (
    AllReduceCrossDeviceOps,
    CollectiveAllReduce,
    CrossDeviceOps,
    MultiWorkerAllReduce,
    ReductionToOneDevice,
    Version,
)
from simreduce.training.cross_device.value import PerDevice, PerDeviceSlices

__all__ = [
    "AllReduceCrossDeviceOps",
    "CollectiveAllReduce",
    "CrossDeviceOps",
    "MultiWorkerAllReduce",
    "PerDevice",
    "PerDeviceSlices",
    "ReductionToOneDevice",
    "Version",
    "batch_reduce",
    "broadcast",
    "broadcast_variables",
    "reduce",
    "reduce_non_distributed",
    "result_labels",
]
