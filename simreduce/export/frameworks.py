"""Horovod's environment, DeepSpeed's JSON and XLA's flags for JAX.

Horovod (docs/tensor-fusion.rst, docs/autotune.rst; 0.28): `HOROVOD_FUSION_THRESHOLD` in bytes,
`HOROVOD_CYCLE_TIME` in milliseconds, `HOROVOD_HIERARCHICAL_ALLREDUCE` and `..._ALLGATHER`.
DeepSpeed (deepspeed/runtime/zero/config.py; 0.18): sizes of buckets count elements. XLA
(xla/debug_options_flags.cc; jaxlib 0.10 takes the flags): an all-reduce is combined with others
while they stay within `--xla_gpu_all_reduce_combine_threshold_bytes` and are at most 256; likewise
all-gather and reduce-scatter.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from simreduce import dtypes
from simreduce.export.choice import (
    REPLICATED,
    Choice,
    like_nccl,
    not_by_nccl,
    not_gradients,
    size_text,
)
from simreduce.export.writers import Line, environment
from simreduce.planners.packing import BytesPerPack, DdpBuckets, Fusion, NoPacking

_MOST_COMBINED = 256
_FALLBACK = 500_000_000
"""Elements that DeepSpeed without ZeRO puts into one buffer (`MEMORY_OPT_ALLREDUCE_SIZE`)."""

_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}


def horovod_refusals(choice: Choice) -> list[str]:
    """Why Horovod has no setting for a choice."""
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


def horovod_nearest(choice: Choice) -> list[str]:
    """Strategies that Horovod has settings for, the nearest first."""
    return like_nccl(choice, _fusions(choice))


def horovod(choice: Choice) -> dict[str, str]:
    """The environment."""
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


def deepspeed_refusals(choice: Choice) -> list[str]:
    """Why DeepSpeed has no setting for a choice."""
    strategy = choice.resolved
    found = [*_not_reducing(choice), *not_by_nccl(choice)]
    if len(strategy.ranges) > 1:
        found.append("DeepSpeed reduces every bucket alike, whatever the sizes of its gradients")
    if choice.method not in (REPLICATED, *_STAGES):
        found.append(f"DeepSpeed's ZeRO has no {choice.method}; it has zero1, zero2 and zero3")
    if choice.method == REPLICATED and not _is_one_buffer(choice):
        words = f"without ZeRO, DeepSpeed packs {_FALLBACK} elements at a time"
        found.append(f'{words}, in the model\'s order; with method = "zero2" it takes a size')
    return found


def deepspeed_nearest(choice: Choice) -> list[str]:
    """Strategies that DeepSpeed has settings for, the nearest first."""
    return like_nccl(choice, ["+bucket=0" if choice.method == REPLICATED else ""])


def deepspeed(choice: Choice) -> dict[str, str]:
    """The JSON of `--deepspeed_config`."""
    stage = _STAGES.get(choice.method, 0)
    document: dict[str, Any] = {
        **({"train_micro_batch_size_per_gpu": choice.batch} if choice.batch else {}),
        "gradient_accumulation_steps": choice.accumulate,
        "zero_optimization": {"stage": stage},
    }
    if stage:
        zero = document["zero_optimization"]
        unit = choice.unit or choice.workload.elements
        zero |= {"reduce_scatter": True, "reduce_bucket_size": unit,
                 "allgather_partitions": True, "allgather_bucket_size": unit,
                 "overlap_comm": True, "contiguous_gradients": True}  # fmt: skip
        if stage == 3:
            for key in ("allgather_partitions", "allgather_bucket_size"):
                del zero[key]
            zero["stage3_prefetch_bucket_size"] = unit
    kind = _precision(choice)
    if kind:
        document[kind] = {"enabled": True}
    return {"ds_config.json": json.dumps(document, indent=2) + "\n"}


def jax_refusals(choice: Choice) -> list[str]:
    """Why XLA has no setting for a choice."""
    strategy = choice.resolved
    found = [*_not_reducing(choice), *not_by_nccl(choice)]
    if choice.method not in (REPLICATED, "fsdp", "zero3"):
        found.append(f"JAX shards as its program says; {choice.method} is no flag of XLA")
    if len(strategy.ranges) > 1:
        found.append("XLA combines all-reduces of all sizes alike")
    if not isinstance(strategy.packer, Fusion | NoPacking) and _one_pack(choice) is None:
        found.append(f"XLA combines up to a threshold; it has no +{strategy.packing}")
    arranged = choice.arrange(strategy.packer)
    if arranged and any(len(group) > _MOST_COMBINED for group in arranged.groups):
        found.append(f"XLA combines at most {_MOST_COMBINED} tensors")
    if isinstance(strategy.packer, Fusion) and strategy.packer.fp16:
        found.append("XLA casts nothing; gradients in half precision are the program's")
    return found


def jax_nearest(choice: Choice) -> list[str]:
    """Strategies that XLA has flags for, the nearest first."""
    return like_nccl(choice, [*_fusions(choice), ""])


def jax(choice: Choice) -> dict[str, str]:
    """XLA_FLAGS."""
    packer, shards = choice.resolved.packer, choice.shards
    if choice.method == REPLICATED:
        threshold = packer.threshold if isinstance(packer, Fusion) else _one_pack(choice) or 0
        sizes = {"all_reduce": threshold}
    else:
        given = shards.param_dtype if shards else None
        gathered = choice.width if given is None else dtypes.SIZES[given]
        given = shards.reduce_dtype if shards else None
        reduced = gathered if given is None else dtypes.SIZES[given]
        sizes = {"all_reduce": choice.unit * reduced, "all_gather": choice.unit * gathered,
                 "reduce_scatter": choice.unit * reduced}  # fmt: skip
    flags = {f"xla_gpu_{name}_combine_threshold_bytes": size for name, size in sizes.items()}
    words = [f"--{name}={value}" for name, value in flags.items()]
    words.append("--xla_gpu_enable_latency_hiding_scheduler=true")
    return {"xla.env": environment([choice.title, ("XLA_FLAGS", " ".join(words))])}


def _not_reducing(choice: Choice) -> list[str]:
    """That a collective is no reduction of gradients."""
    return not_gradients(replace(choice, method=REPLICATED), "a training step")


def _one_pack(choice: Choice) -> int | None:
    """A threshold within which all gradients are, if the strategy makes one pack of them."""
    arranged = choice.arrange(choice.resolved.packer)
    plain = arranged is not None and arranged.wire is None and arranged.pieces == 1
    return choice.workload.nbytes if plain and arranged and len(arranged.groups) == 1 else None


def _fusions(choice: Choice) -> list[str]:
    """Fusion of about as many bytes as the choice's packer puts together, and the default."""
    match choice.resolved.packer:
        case Fusion(size) | DdpBuckets(size) | BytesPerPack(size) if size:
            return [f"+fusion={size_text(size)}", "+fusion"]
    return ["+fusion"]


def _is_one_buffer(choice: Choice) -> bool:
    """Whether all gradients travel at once, as they do in DeepSpeed without ZeRO if they fit."""
    return choice.workload.elements <= _FALLBACK and choice.packs_alike(BytesPerPack(0))


def _precision(choice: Choice) -> str:
    """`fp16` or `bf16`, where parameters or gradients have such a dtype."""
    given = choice.shards.param_dtype if choice.shards else None
    name = dtypes.NAMES[choice.workload.gradients[0].dtype if given is None else given]
    return {"float16": "fp16", "bfloat16": "bf16"}.get(name, "")
