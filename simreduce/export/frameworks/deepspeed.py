"""DeepSpeed: its JSON; on meshes, the arguments of Megatron-DeepSpeed too.

Sizes of buckets count elements (deepspeed/runtime/zero/config.py; 0.18;
https://www.deepspeed.ai/docs/config-json/).
"""

from __future__ import annotations

import json

from simreduce import dtypes
from simreduce.export.framework import (
    REPLICATED,
    Choice,
    Framework,
    MeshedJob,
    MeshProgram,
    holding,
    like_nccl,
    not_by_nccl,
    not_reducing,
    unwritten,
)
from simreduce.export.frameworks.megatron import flags
from simreduce.export.writers import arguments
from simreduce.planners.packing import BytesPerPack

_ELEMENTS = 500_000_000
"""`reduce_bucket_size` and `allgather_bucket_size` unless they are set, and what goes into one
buffer without ZeRO (`MEMORY_OPT_ALLREDUCE_SIZE`).
"""

_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
_NEWER = frozenset(
    (
        "use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather",
        "context-parallel-size", "no-overlap-p2p-communication", "grad-reduce-in-bf16",
    )
)  # fmt: skip
"""Arguments of Megatron-LM that its fork for DeepSpeed lacks."""


def _refusals(choice: Choice) -> list[str]:
    fits = choice.workload.elements <= _ELEMENTS
    packs = f"without ZeRO, DeepSpeed packs {_ELEMENTS} elements at a time"
    found = {
        "DeepSpeed reduces every bucket alike, whatever the sizes of its gradients": (
            len(choice.resolved.ranges) > 1
        ),
        f"DeepSpeed's ZeRO has no {choice.method}; it has zero1, zero2 and zero3": (
            choice.method not in (REPLICATED, *_STAGES)
        ),
        f'{packs}, in the model\'s order; with method = "zero2" it takes a size': (
            choice.method == REPLICATED and not (fits and choice.packs_alike(BytesPerPack(0)))
        ),
    }
    return [*not_reducing(choice), *not_by_nccl(choice), *holding(found)]


def _files(choice: Choice) -> dict[str, str]:
    """The JSON of `--deepspeed_config`."""
    stage, unit = _STAGES.get(choice.method, 0), choice.unit or choice.workload.elements
    gather = {"allgather_partitions": True, "allgather_bucket_size": unit}
    zero = {
        "reduce_scatter": True, "reduce_bucket_size": unit, **(gather if stage < 3 else {}),
        "overlap_comm": True, "contiguous_gradients": True,
        **({"stage3_prefetch_bucket_size": unit} if stage == 3 else {}),
    }  # fmt: skip
    given = choice.shards.param_dtype if choice.shards else None
    name = dtypes.NAMES[choice.workload.gradients[0].dtype if given is None else given]
    kind = {"float16": "fp16", "bfloat16": "bf16"}.get(name)
    document = {
        **({"train_micro_batch_size_per_gpu": choice.batch} if choice.batch else {}),
        "gradient_accumulation_steps": choice.accumulate,
        "zero_optimization": {"stage": stage, **(zero if stage else {})},
        **({kind: {"enabled": True}} if kind else {}),
    }
    return {"ds_config.json": json.dumps(document, indent=2) + "\n"}


def _mesh_files(job: MeshedJob) -> dict[str, str]:
    """The JSON; stages and tensor parallel ranks are arguments of the program."""
    stage = {"replicated": 0, "distributed": 1, "fsdp": 3}[job.optimizer]
    config = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": job.micro_batch,
        "gradient_accumulation_steps": job.micros,
        job.half: {"enabled": True},
        "zero_optimization": {"stage": stage, "overlap_comm": "grad_reduce" in job.overlap},
    }
    # Megatron-DeepSpeed has the arguments of the Megatron-LM that it was forked from.
    own = [flag for flag in flags(job) if str(flag[0]).removeprefix("--") not in _NEWER]
    own += [["--deepspeed"], ["--deepspeed_config", "ds_config.json"], ["--zero-stage", stage]]
    return {
        "ds_config.json": json.dumps(config, indent=2) + "\n",
        "megatron.args": arguments(own, " \\"),
    }


def _mesh_limits(title: str, job: MeshedJob) -> dict[str, bool]:
    lacks = bool(job.shape.experts) or job.mesh.cp > 1
    return unwritten(title, job) | {f"{title} has no experts and no context parallel ranks": lacks}


DEEPSPEED = Framework(
    "deepspeed",
    "DeepSpeed",
    _files,
    _refusals,
    lambda choice: like_nccl(choice, ["+bucket=0" if choice.method == REPLICATED else ""]),
    MeshProgram("Megatron-DeepSpeed", _mesh_files, _mesh_limits, schedules=("1f1b",)),
    default=lambda choice: f"nccl+bucket={_ELEMENTS * choice.width}",
    packings=lambda _: [],
    methods=(REPLICATED, *_STAGES),
    unit=_ELEMENTS,
    coarser=1,
)
