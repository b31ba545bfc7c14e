"""Horovod: its environment.

Names: docs/tensor-fusion.rst, docs/autotune.rst; 0.28. `HOROVOD_FUSION_THRESHOLD` is in bytes,
`HOROVOD_CYCLE_TIME` in milliseconds.
"""

from __future__ import annotations

from simreduce.export.bucket_sizes import bucket_sizes
from simreduce.export.choice import Choice, like_nccl, not_by_nccl, not_gradients
from simreduce.export.framework import Framework
from simreduce.export.writers import Line, environment
from simreduce.planners.packing import BytesPerPack, DdpBuckets, Fusion, NoPacking
from simreduce.workload import Workload


def _refusals(choice: Choice) -> list[str]:
    strategy = choice.resolved
    found = not_gradients(choice, "Horovod")
    algorithms = {r.algorithm for r in strategy.ranges}
    if algorithms != {"nccl/pscpu"}:
        found += not_by_nccl(choice)
    if len(strategy.ranges) > 1:
        found.append("Horovod reduces every buffer alike, whatever the sizes of its gradients")
    if not isinstance(strategy.packer, Fusion | NoPacking):
        found.append(f"Horovod fuses up to a threshold; it has no +{strategy.packing}")
    return found


def _files(choice: Choice) -> dict[str, str]:
    strategy = choice.resolved
    threshold = strategy.packer.threshold if isinstance(strategy.packer, Fusion) else 0
    hierarchical = int(any("/" in r.algorithm for r in strategy.ranges))
    lines: list[Line] = [choice.title, ("HOROVOD_FUSION_THRESHOLD", threshold)]
    if choice.cycle is not None:
        lines.append(("HOROVOD_CYCLE_TIME", f"{choice.cycle * 1e3:g}"))
    lines.append(("HOROVOD_HIERARCHICAL_ALLREDUCE", hierarchical))
    lines.append(("HOROVOD_HIERARCHICAL_ALLGATHER", 0))
    if isinstance(strategy.packer, Fusion) and strategy.packer.fp16:
        lines.append("In Python: hvd.DistributedOptimizer(..., compression=hvd.Compression.fp16)")
    if choice.accumulate > 1:
        words = f"backward_passes_per_step={choice.accumulate}"
        lines.append(f"In Python: hvd.DistributedOptimizer(..., {words})")
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
    cycles=True,
)
