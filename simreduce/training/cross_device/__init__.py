"""The calls of tf.distribute's CrossDeviceOps as plans: reduce, batch_reduce and broadcast."""

from simreduce.training.cross_device.one_device import PerDevice, PerDeviceSlices
from simreduce.training.cross_device.ops import (
    AllReduceCrossDeviceOps,
    CollectiveAllReduce,
    CrossDeviceOps,
    MultiWorkerAllReduce,
    ReductionToOneDevice,
    Version,
    batch_reduce,
    broadcast,
    broadcast_variables,
    reduce,
    reduce_non_distributed,
    result_labels,
)

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
