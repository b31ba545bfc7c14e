"""What a framework can be set to in rankings and in `tune`, which tries all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simreduce import dtypes
from simreduce.planners.packing import joined_sizes
from simreduce.planners.packing.ready import ready_order
from simreduce.training.sharded import DDP, METHODS
from simreduce.training.sharded.settings import FSDP, HSDP, ZERO1, ZERO2, ZERO3
from simreduce.workload import Workload

MIB = 1 << 20
DEEPSPEED_ELEMENTS = 500_000_000
"""DeepSpeed's `reduce_bucket_size` and `allgather_bucket_size`."""

JAX_BYTES = 30 * MIB
"""`xla_gpu_all_reduce_combine_threshold_bytes`."""

VIEW = "+ddp=25,1,view"
"""DDP's own caps with `gradient_as_bucket_view`."""

_PACKS = (1, 2, 3, 4, 6, 8, 12, 16)

_FEWER = 8
"""Of the sizes, one in so many is ranked."""

_RATIO = 2 ** (1 / 4)
"""From one size of buckets to the next that is tried."""

_SMALLEST = 1 << 18
"""Bytes of the smallest buckets that are tried."""

Packers = Callable[[Workload], list[tuple[str, int]]]
"""The texts of packers, each with the bytes of a bucket."""


def _ddp(workload: Workload) -> list[tuple[str, int]]:
    """Caps; first caps beside the cap that DDP has unset, as PyTorch knows them only then.

    Recorded buckets have no views: a record of copies into buckets has them in its compute.
    """
    sizes = bucket_sizes(workload)
    if workload.finest:
        return [("+ddp", 0), *((f"+ddp={size / MIB:g}", size) for size in sizes)]
    words = (",view", "")
    found = [(f"+ddp={size / MIB:g}{word}", size) for word in words for size in sizes]
    firsts = [size for size in sizes if size < 25 * MIB]
    found += [(f"+ddp=25,{first / MIB:g}{w}", 25 * MIB) for w in words for first in firsts]
    return [("+ddp", 0), *found, (VIEW, 0)]


def _threshold(workload: Workload) -> list[tuple[str, int]]:
    sizes = bucket_sizes(workload, within=True)
    return [("+fusion", 0), ("+fusion=0", 0), *((f"+fusion={size}", size) for size in sizes)]


def _jax(workload: Workload) -> list[tuple[str, int]]:
    return [(f"+fusion={JAX_BYTES}", 0), *_threshold(workload)[1:]]


def _deepspeed(workload: Workload) -> list[tuple[str, int]]:
    """The one size of buckets that it has without ZeRO."""
    return [(f"+bucket={DEEPSPEED_ELEMENTS * dtypes.SIZES[workload.gradients[0].dtype]}", 0)]


def _anything(workload: Workload) -> list[tuple[str, int]]:
    """All packings of all targets, and numbers of packs."""
    found = [("", 0), *((f"+packs={count}", 0) for count in _PACKS)]
    return [*found, *_ddp(workload)[1:], *_threshold(workload)[1:]]


PACKINGS: Mapping[str, Packers] = {
    "nccl": lambda _: [("", 0)],
    "pytorch": _ddp,
    "horovod": _threshold,
    "deepspeed": _deepspeed,
    "jax": _jax,
    "any": _anything,
}
"""By framework, the default first; `any` has all packings of all."""

WAYS: Mapping[str, tuple[str, ...]] = {
    "pytorch": (DDP, FSDP, HSDP),
    "deepspeed": (DDP, ZERO1, ZERO2, ZERO3),
    "any": (DDP, *METHODS),
}
"""Methods of a step that are tried where the scenario names none, by framework: others have DDP."""


def some_packings(name: str, workload: Workload) -> list[str]:
    """The packings to rank: the default, and others with sizes two octaves from each other.

    DDP's are views of their buckets, which no copies are made of.
    """
    sizes = {0, *bucket_sizes(workload)[::-_FEWER]}
    found = [text for text, nbytes in PACKINGS[name](workload) if nbytes in sizes]
    views = any(text.endswith(",view") for text in found)
    return [text for text in found if not (views and "=" in text) or text.endswith(",view")]


def bucket_sizes(workload: Workload, *, within: bool = False) -> list[int]:
    """Bytes of buckets that are worth trying: four for each doubling, up to all in one.

    Recorded buckets are joined, and none exceeds a size `within` which they should be.
    """
    gradients, whole = workload.gradients, workload.nbytes
    if workload.finest:
        recorded = [gradients[i].nbytes for i in ready_order(gradients)]
        return joined_sizes(recorded, workload.finest, within=within)
    found, size = [], float(min(_SMALLEST, whole))
    while size < whole:
        found.append(_readable(int(size)))
        size *= _RATIO
    return [*dict.fromkeys(found), -(-whole // MIB) * MIB]


def _readable(nbytes: int) -> int:
    """The size to two digits and a half of its unit."""
    unit = max(1 << max(nbytes.bit_length() - 6, 0), 1)
    return nbytes // unit * unit
