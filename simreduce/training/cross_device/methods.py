"""TensorFlow's CrossDeviceOps as values, with the defaults of their constructors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from simreduce.planners.packing.small_tensors import DEFAULT_GROUP
from simreduce.planners.strategy import text
from simreduce.training.cross_device.one_device import Accumulation

Version: TypeAlias = Literal["1.12", "1.14", "2.x"]
"""A TensorFlow version, which fixes the rules."""

VERSIONS: tuple[Version, ...] = ("1.12", "1.14", "2.x")


@dataclass(frozen=True, slots=True)
class ReductionToOneDevice:
    """Everything to `reduce_to_device`, the first destination unless given, and back from there."""

    reduce_to_device: int | None = None
    accumulation: Accumulation = "add_n"


@dataclass(frozen=True, slots=True)
class AllReduceCrossDeviceOps:
    """All-reduce by `nccl` or `hierarchical_copy`.

    One pack is still a concatenation of everything, 0 is none.

    TensorFlow 2's NcclAllReduce and HierarchicalCopyAllReduce are this with the one or the other;
    they have no packing of small gradients.
    """

    all_reduce_alg: str = "nccl"
    num_packs: int = 1
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class MultiWorkerAllReduce:
    """All-reduce over the devices of several workers, by ranges of sizes.

    See `parse_multi_worker_spec`.
    """

    all_reduce_spec: object = text.DEFAULT
    num_packs: int = 0
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class CollectiveAllReduce:
    """Runtime collectives over the devices of a value, whose tasks are the workers.

    Up to 1.14, `all_reduce_merge_scope` gradients share a collective; in 2.x, packs of
    `bytes_per_pack` do (0: one pack). `communication` is `auto`, `ring` or `nccl`; `auto` is the
    ring.
    """

    all_reduce_merge_scope: int = 32
    bytes_per_pack: int = 0
    communication: str = "auto"


CrossDeviceOps: TypeAlias = (
    ReductionToOneDevice | AllReduceCrossDeviceOps | MultiWorkerAllReduce | CollectiveAllReduce
)
