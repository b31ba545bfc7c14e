"""Packers, one file each, combine gradients before the reduction; `PACKERS` is the registry.

A packer is a frozen value with one verb, `arrange(gradients) -> Arrangement`. `pack` and `unpack`
add the ops of any arrangement to a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simreduce.planners.packing.arrangement import (
    Arrangement,
    GradientSpan,
    Packer,
    pack,
    place,
    unpack,
)
from simreduce.planners.packing.bytes_per_pack import BytesPerPack, group_by_size
from simreduce.planners.packing.concat_and_split import ConcatAndSplit
from simreduce.planners.packing.ddp import DdpBuckets
from simreduce.planners.packing.finest import joined_sizes, why_too_fine
from simreduce.planners.packing.fusion import Fusion
from simreduce.planners.packing.gradient_repacking import GradientRepacking
from simreduce.planners.packing.none import NoPacking
from simreduce.planners.packing.scoped_allocator import ScopedAllocator
from simreduce.planners.packing.small_tensors import SmallTensors, extract_ranges

PACKERS: Mapping[str, Callable[[str | None], Packer]] = {
    "packs": ConcatAndSplit.parse,
    "small": SmallTensors.parse,
    "repack": GradientRepacking.parse,
    "bucket": BytesPerPack.parse,
    "merge": ScopedAllocator.parse,
    "ddp": DdpBuckets.parse,
    "fusion": Fusion.parse,
}
"""Parsers of packers by the key that users type after `+`.

Each takes the text after `=`, or None if there is no `=`.
"""

SUMMARIES: Mapping[str, str] = {
    "packs": "all gradients as one vector, cut into so many parts",
    "small": "small gradients together: up to so many bytes each, and so many of them",
    "repack": "all gradients as one vector, cut into so many parts, as tf_cnn_benchmarks does it",
    "bucket": "gradients one after the other, in buckets of so many bytes",
    "merge": "so many gradients one after the other in one buffer of TensorFlow's",
    "ddp": "the buckets of PyTorch's DDP, of so many MiB, or of its default",
    "fusion": "Horovod's buffers, of so many bytes, or of its default",
}
"""Short descriptions of the packers, by key."""

LISTS: Mapping[str, int] = {"small": 1, "repack": 1, "ddp": 3, "fusion": 1, "bucket": 1}
"""Packers whose value may have commas in it, and how many."""

__all__ = [
    "LISTS",
    "PACKERS",
    "SUMMARIES",
    "Arrangement",
    "BytesPerPack",
    "ConcatAndSplit",
    "DdpBuckets",
    "Fusion",
    "GradientRepacking",
    "GradientSpan",
    "NoPacking",
    "Packer",
    "ScopedAllocator",
    "SmallTensors",
    "extract_ranges",
    "group_by_size",
    "joined_sizes",
    "pack",
    "place",
    "unpack",
    "why_too_fine",
]
