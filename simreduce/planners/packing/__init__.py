"""Packers combine gradients before the reduction; `PACKERS` is the registry.

A packer is a frozen value with one verb, `arrange(gradients) -> Arrangement`. `pack` and `unpack`
add the ops of any arrangement to a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simreduce import units
from simreduce.planners.packing.arrangement import (
    Arrangement,
    GradientSpan,
    NoPacking,
    Packer,
    pack,
    place,
    unpack,
)
from simreduce.planners.packing.packers import (
    MIB,
    BytesPerPack,
    ConcatAndSplit,
    DdpBuckets,
    Fusion,
    GradientRepacking,
    ScopedAllocator,
    SmallTensors,
    extract_ranges,
    group_by_size,
)

_RATIO = 2 ** (1 / 4)
"""From one number of buckets that are joined to the next."""


def why_too_fine(packer: Packer, finest: int) -> str:
    """Why a packer may not be tried on buckets that are known down to `finest` bytes; "" if it may.

    With 0, all may.

    A record has the sizes of buckets, not of the gradients in them. So its buckets can be joined
    and not divided: a packing can be tried if its own buckets are sums of recorded ones.
    """
    known = f"the record has buckets of {units.exact_size(finest)}, and not the gradients in them"
    if isinstance(packer, DdpBuckets):
        if packer.cap < finest:
            return f"bucket_cap_mb {packer.cap / MIB:g} makes smaller buckets: {known}"
        if finest and packer.first_cap not in (MIB, packer.cap):
            return f"a first bucket of {packer.first_cap / MIB:g} MiB cannot be made: {known}"
    size = finest
    if isinstance(packer, Fusion):
        size = packer.threshold
    elif isinstance(packer, BytesPerPack):
        size = packer.size or finest  # 0 puts everything in one pack
    return f"buffers of {units.exact_size(size)} are smaller: {known}" if size < finest else ""


def joined_sizes(sizes: Sequence[int], finest: int, *, within: bool = False) -> list[int]:
    """Bytes of buckets that join one, two, ... of recorded ones with these sizes, up to all.

    They are those of the smallest that joins as many, or with `within` a size that none exceeds.
    The first and the last bucket are no measure: the first may have a cap of its own, and the last
    is what was left over.
    """
    inner = sizes[1:-1] if len(sizes) > 2 else sizes
    found, count = [finest], _RATIO
    while round(count) < len(inner):
        n, count = round(count), count * _RATIO
        if n > 1 or within:
            sums = [sum(inner[i : i + n]) for i in range(len(inner) - n + 1)]
            found.append(max(sums) + MIB - 1 if within else min(sums))
    found.append(sum(sizes) + MIB - 1)
    whole = [size // MIB * MIB or size for size in found]
    return list(dict.fromkeys(size for size in whole if size >= finest))


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
