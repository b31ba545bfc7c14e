"""Horovod: its environment.

Names: docs/tensor-fusion.rst, docs/autotune.rst; 0.28. `HOROVOD_FUSION_THRESHOLD` is in bytes,
`HOROVOD_CYCLE_TIME` in milliseconds.
"""

from __future__ import annotations

from simreduce.export.framework import (
    Choice,
    Framework,
    bucket_sizes,
    holding,
    like_nccl,
    not_by_nccl,
    not_gradients,
)
from simreduce.export.writers import Line, environment
from simreduce.planners.packing import BytesPerPack, DdpBuckets, Fusion
from simreduce.planners.packing.arrangement import NoPacking
from simreduce.workload import Workload


def _refusals(choice: Choice) -> list[str]:
    strategy = choice.resolved
    hierarchical = {r.algorithm for r in strategy.ranges} == {"nccl/pscpu"}
    found = {
        "Horovod reduces every buffer alike, whatever the sizes of its gradients": (
            len(strategy.ranges) > 1
        ),
        f"Horovod fuses up to a threshold; it has no +{strategy.packing}": (
            not isinstance(strategy.packer, Fusion | NoPacking)
        ),
    }
    return [
        *not_gradients(choice, "Horovod"), *([] if hierarchical else not_by_nccl(choice)),
        *holding(found),
    ]  # fmt: skip


def _files(choice: Choice) -> dict[str, str]:
    strategy = choice.resolved
    packer = strategy.packer if isinstance(strategy.packer, Fusion) else Fusion(0)
    cycle = None if choice.cycle is None else f"{choice.cycle * 1e3:g}"
    given = {
        "compression=hvd.Compression.fp16": packer.fp16,
        f"backward_passes_per_step={choice.accumulate}": choice.accumulate > 1,
    }
    lines: list[Line] = [
        choice.title,
        ("HOROVOD_FUSION_THRESHOLD", packer.threshold),
        ("HOROVOD_CYCLE_TIME", cycle),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", int(any("/" in r.algorithm for r in strategy.ranges))),
        ("HOROVOD_HIERARCHICAL_ALLGATHER", 0),
        *(f"In Python: hvd.DistributedOptimizer(..., {words})" for words in holding(given)),
    ]
    return {"horovod.env": environment(lines)}


def thresholds(workload: Workload) -> list[tuple[str, int]]:
    """No fusion, and the thresholds that are tried."""
    sizes = bucket_sizes(workload, within=True)
    return [("+fusion=0", 0), *((f"+fusion={size}", size) for size in sizes)]


def like_fusion(choice: Choice) -> list[str]:
    """Fusion of about as many bytes as the choice's packer puts together, and the default."""
    match choice.resolved.packer:
        case Fusion(size) | DdpBuckets(size) | BytesPerPack(size) if size:
            text = f"{size >> 20}MiB" if not size % (1 << 20) else f"{size}"
            return [f"+fusion={text}", "+fusion"]
    return ["+fusion"]


HOROVOD = Framework(
    "horovod",
    "Horovod",
    _files,
    _refusals,
    lambda choice: like_nccl(choice, like_fusion(choice)),
    default=lambda _: "nccl+fusion",
    published=2018,
    packings=thresholds,
    half=True,
    in_half={"": "compression=hvd.Compression.fp16"},
    accumulation="backward_passes_per_step={}",
    cycles=True,
    asked=("horovodrun of Horovod 0.28.1, 2026-12-01",),
)
