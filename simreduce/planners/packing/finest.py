"""Which packings can be made of a recorded job's buckets.

A record has the sizes of buckets, not of the gradients in them. So its buckets can be joined and
not divided: a packing can be told of them if its own buckets are sums of recorded ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce import units
from simreduce.planners.packing.arrangement import Packer
from simreduce.planners.packing.bytes_per_pack import BytesPerPack
from simreduce.planners.packing.ddp import MIB, DdpBuckets
from simreduce.planners.packing.fusion import Fusion

_RATIO = 2 ** (1 / 4)
"""From one number of buckets that are joined to the next."""


def why_too_fine(packer: Packer, finest: int) -> str:
    """Why a packer may not be tried on buckets that are known down to `finest` bytes; "" if it may.

    With 0, all may.
    """
    known = f"the record has buckets of {units.exact_size(finest)}, and not the gradients in them"
    if isinstance(packer, DdpBuckets):
        if packer.cap < finest:
            return f"bucket_cap_mb {packer.cap / MIB:g} makes smaller buckets: {known}"
        if finest and packer.first_cap not in (MIB, packer.cap):
            return f"a first bucket of {packer.first_cap / MIB:g} MiB cannot be made: {known}"
    size = {Fusion: "threshold", BytesPerPack: "size"}.get(type(packer))
    if size is not None and getattr(packer, size) < finest and not _is_whole(packer):
        return f"buffers of {units.exact_size(getattr(packer, size))} are smaller: {known}"
    return ""


def _is_whole(packer: Packer) -> bool:
    """Whether a size of 0 puts everything in one pack."""
    return isinstance(packer, BytesPerPack) and not packer.size


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
