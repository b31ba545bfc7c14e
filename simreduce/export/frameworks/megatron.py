"""Megatron-LM, its recipes in NeMo, and DeepSpeed.

Megatron-LM: arguments of `pretrain_gpt.py`.

Names are those of `megatron/training/arguments.py`, and of its guides to experts and CUDA graphs
(`megatron/core/transformer/moe/README.md`, `docs/user-guide/features/cuda_graph.md`).

NeMo: fields of a recipe of Megatron-Bridge, as YAML.

Names are those of `docs/parallelisms.md` and `docs/training/moe-optimization.md`.

DeepSpeed: its JSON; on meshes, the arguments of Megatron-DeepSpeed too.

Sizes of buckets count elements (deepspeed/runtime/zero/config.py; 0.18;
https://www.deepspeed.ai/docs/config-json/).
"""

from __future__ import annotations

import json

from simreduce import dtypes
from simreduce.export.framework import (
    ORDER,
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
from simreduce.export.writers import arguments, environment, mapping, yaml
from simreduce.planners.packing import BytesPerPack

SPLITS = ("even", "ends", "last")
_GRAPHED = {"attention": "attn", "router": "moe_router moe_preprocess"}
_PIPELINES_FIRST = "tp-cp-ep-pp-dp"
"""The order of Megatron-LM's `--use-tp-pp-dp-mapping`."""


def splits_sequences(job: MeshedJob) -> bool:
    """Whether tensor parallel ranks share sequences where they do not share heads."""
    return job.sequence_parallel and job.mesh.tp > 1


def gathers_beside(job: MeshedJob) -> bool:
    """Whether parameters are gathered beside compute."""
    return "param_gather" in job.overlap and job.optimizer == "distributed"


def interleaves(job: MeshedJob) -> bool:
    """Whether ranks of a pipeline have several stages each."""
    return job.virtual > 1 and job.mesh.pp > 1


def flags(job: MeshedJob) -> list[list[object]]:
    """Each argument with its values."""
    mesh, shape = job.mesh, job.shape
    grouped, full = shape.groups != shape.heads, job.recompute == "full"
    graphs = " ".join(_GRAPHED[name] for name in sorted(job.graphs))
    dropout = None if shape.dropout else 0.0
    found: dict[str, object] = {
        "tensor-model-parallel-size": mesh.tp,
        "pipeline-model-parallel-size": mesh.pp,
        "context-parallel-size": mesh.cp,
        "micro-batch-size": job.micro_batch,
        "global-batch-size": job.global_batch,
        "seq-length": job.sequence,
        "max-position-embeddings": job.sequence,
        "num-layers": shape.blocks,
        "hidden-size": shape.width,
        "num-attention-heads": shape.heads,
        "ffn-hidden-size": shape.inner or shape.expert,
        "kv-channels": shape.head,
        "position-embedding-type": "learned_absolute" if shape.positions else "rope",
        "normalization": "LayerNorm" if shape.bias else "RMSNorm",
        "attention-dropout": dropout,
        "hidden-dropout": dropout,
        "num-virtual-stages-per-pipeline-rank": job.virtual if interleaves(job) else None,
        "group-query-attention": grouped,
        "num-query-groups": shape.groups if grouped else None,
        **(_expert_flags(job) if shape.experts else {}),
        **(_latent_flags(shape.head, *shape.latent) if shape.latent else {}),
        "cuda-graph-impl": "transformer_engine" if graphs else None,
        "cuda-graph-modules": graphs or None,
        "recompute-granularity": "full" if full else None,
        "recompute-method": "uniform" if full else None,
        "recompute-num-layers": 1 if full else None,
        "sequence-parallel": splits_sequences(job),
        "use-distributed-optimizer": job.optimizer == "distributed",
        "overlap-grad-reduce": "grad_reduce" in job.overlap,
        "grad-reduce-in-bf16": job.reduced == 2 and job.half == "bf16",
        "overlap-param-gather": gathers_beside(job),
        "tp-comm-overlap": "tp" in job.overlap and splits_sequences(job),
        "no-overlap-p2p-communication": interleaves(job) and "p2p" not in job.overlap,
        "squared-relu": not shape.gated and not shape.bias,
        "recompute-activations": job.recompute == "selective",
        "use-flash-attn": job.attention == "fused",
        "swiglu": shape.gated,
        "disable-bias-linear": not shape.bias,
        "untie-embeddings-and-output-weights": not shape.tied,
        "overlap-moe-expert-parallel-comm": "ep" in job.overlap and mesh.ep > 1,
        "moe-pad-expert-input-to-capacity": job.pad,
        "account-for-embedding-in-pipeline-split": job.splitting == "ends",
        "account-for-loss-in-pipeline-split": job.splitting == "ends",
        "use-tp-pp-dp-mapping": mesh.order == _PIPELINES_FIRST,
        job.half: True,
        "decoder-last-pipeline-num-layers": job.split[-1] if job.splitting == "last" else None,
        "fp8-format": "hybrid" if job.bits == 8 else None,
    }
    return [
        [f"--{name}", *([] if value is True else str(value).split())]
        for name, value in found.items()
        if value is not None and value is not False
    ]


def _expert_flags(job: MeshedJob) -> dict[str, object]:
    """The arguments of a mixture of experts."""
    shape, deepep = job.shape, job.dispatch == "deepep"
    groups, active = shape.limited[1], shape.limited[0]
    return {
        "num-experts": shape.experts,
        "moe-router-topk": shape.active,
        "moe-ffn-hidden-size": shape.expert,
        "moe-token-dispatcher-type": "flex" if deepep else "alltoall",
        "moe-grouped-gemm": True,
        "moe-permute-fusion": True,
        "expert-model-parallel-size": job.mesh.ep,
        "expert-tensor-parallel-size": job.mesh.expert_tensor,
        "moe-shared-expert-intermediate-size": shape.shared * shape.expert or None,
        "moe-layer-freq": f"([0]*{shape.dense}+[1]*{shape.blocks - shape.dense})"
        if shape.dense
        else None,
        "moe-router-num-groups": groups if groups > 1 else None,
        "moe-router-group-topk": active if groups > 1 else None,
        "moe-expert-capacity-factor": job.capacity or None,
        "moe-flex-dispatcher-backend": "deepep" if deepep else None,
    }


def _latent_flags(head: int, query: int, key: int, rotary: int) -> dict[str, object]:
    """The arguments of multi-head latent attention."""
    return {
        "multi-latent-attention": True,
        "q-lora-rank": query,
        "kv-lora-rank": key,
        "qk-head-dim": head,
        "qk-pos-emb-head-dim": rotary,
        "v-head-dim": head,
    }


def _by_op(title: str) -> str:
    return f"{title} has no recomputation op by op"


def limits(title: str, job: MeshedJob) -> dict[str, bool]:
    """What Megatron Core lacks, for those that are made of it."""
    return {
        f"{title} takes a multiple of pp micro batches where stages are interleaved": (
            job.schedule == "interleaved" and bool(job.micros % job.mesh.pp)
        ),
        f"{title} interleaves two ranks of a pipeline only where it overlaps their sends (p2p)": (
            job.schedule == "interleaved" and job.mesh.pp == 2 and "p2p" not in job.overlap
        ),
        "settings of FSDP of Megatron Core are not written": job.optimizer == "fsdp",
        _by_op(title): job.recompute == "op",
        f"{title} overlaps gathers of parameters only where it overlaps reductions": (
            "param_gather" in job.overlap and "grad_reduce" not in job.overlap
        ),
        f"{title} overlaps sends between stages only where they are interleaved": (
            job.mesh.pp > 1 and "p2p" in job.overlap and job.schedule == "1f1b"
        ),
        f"{title} takes experts with tensor parallel ranks only with sequence_parallel": (
            bool(job.shape.experts) and job.mesh.tp > 1 and not job.sequence_parallel
        ),
    }


def _environment(job: MeshedJob, file: str = "megatron.env") -> dict[str, str]:
    """The variable without which Megatron-LM, and what is made of it, start no tensor or context
    parallel ranks on GPUs before Blackwell; it is written for all.
    """
    if job.mesh.tp == job.mesh.cp == 1:
        return {}
    return {file: environment([("CUDA_DEVICE_MAX_CONNECTIONS", 1)])}


MEGATRON = Framework(
    "megatron",
    "Megatron-LM",
    mesh=MeshProgram(
        "Megatron-LM",
        lambda job: {"megatron.args": arguments(flags(job), " \\"), **_environment(job)},
        limits,
        orders=(ORDER, _PIPELINES_FIRST),
        splits=SPLITS,
    ),
    in_half={"": "--grad-reduce-in-{half}"},
    asked=("Megatron-LM core_v0.19.0, 2026-12-01",),
)


def _files(job: MeshedJob) -> dict[str, str]:
    experts: dict[str, object] = {
        "expert_model_parallel_size": job.mesh.ep,
        "expert_tensor_parallel_size": job.mesh.expert_tensor,
        "moe_token_dispatcher_type": "flex" if job.dispatch == "deepep" else "alltoall",
        "moe_flex_dispatcher_backend": "deepep" if job.dispatch == "deepep" else None,
        "moe_expert_capacity_factor": job.capacity or None,
        "moe_pad_expert_input_to_capacity": job.pad,
    }
    full = {"recompute_method": "uniform", "recompute_num_layers": 1}
    tables: dict[str, dict[str, object]] = {
        "model": {
            "tensor_model_parallel_size": job.mesh.tp,
            "pipeline_model_parallel_size": job.mesh.pp,
            "virtual_pipeline_model_parallel_size": job.virtual if interleaves(job) else None,
            "num_layers_in_last_pipeline_stage": job.split[-1] if job.splitting == "last" else None,
            "context_parallel_size": job.mesh.cp,
            "sequence_parallel": splits_sequences(job),
            "seq_length": job.sequence,
            "recompute_granularity": None if job.recompute == "none" else job.recompute,
            **(experts if job.shape.experts else {}),
            **(full if job.recompute == "full" else {}),
        },
        "train": {"micro_batch_size": job.micro_batch, "global_batch_size": job.global_batch},
        "ddp": {
            "use_distributed_optimizer": job.optimizer == "distributed",
            "overlap_grad_reduce": "grad_reduce" in job.overlap,
            "overlap_param_gather": gathers_beside(job),
        },
    }
    return {"nemo.yaml": yaml([], mapping(tables)), **_environment(job, "nemo.env")}


NEMO = Framework(
    "nemo",
    "NeMo",
    mesh=MeshProgram(
        "NeMo",
        _files,
        lambda title, job: limits(title, job) | unwritten(title, job, dispatch=False),
        splits=SPLITS,
    ),
    asked=("NeMo's Megatron-Bridge 0.3.1, 2026-12-01",),
)


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
    packs = f"without ZeRO, DeepSpeed packs {_ELEMENTS} elements at a time"
    found = {
        "DeepSpeed reduces every bucket alike, whatever the sizes of its gradients": (
            len(choice.resolved.ranges) > 1
        ),
        f"DeepSpeed's ZeRO has no {choice.method}; it has zero1, zero2 and zero3": (
            choice.method not in (REPLICATED, *_STAGES)
        ),
        f'{packs}, in the model\'s order; with method = "zero2" it takes a size': (
            choice.method == REPLICATED
            and not choice.packs_alike(BytesPerPack(_ELEMENTS * choice.width))
        ),
    }
    return [*not_reducing(choice), *not_by_nccl(choice), *holding(found)]


def _deepspeed_files(choice: Choice) -> dict[str, str]:
    """The JSON of `--deepspeed_config`."""
    stage, unit = _STAGES.get(choice.method, 0), choice.unit or choice.workload.elements
    gather = {"allgather_partitions": True, "allgather_bucket_size": unit}
    zero = {
        "reduce_scatter": True, "reduce_bucket_size": unit, **(gather if stage < 3 else {}),
        "overlap_comm": choice.shards is None or choice.shards.overlap,
        "contiguous_gradients": True,
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
        **_environment(job),
    }


def _mesh_limits(title: str, job: MeshedJob) -> dict[str, bool]:
    lacks = bool(job.shape.experts) or job.mesh.cp > 1
    return unwritten(title, job) | {
        f"{title} has no experts and no context parallel ranks": lacks,
        _by_op(title): job.recompute == "op",
        f"settings of hybrid shards (dp_replicate) are not written for {title}": (
            job.mesh.copies > 1
        ),
    }


DEEPSPEED = Framework(
    "deepspeed",
    "DeepSpeed",
    _deepspeed_files,
    _refusals,
    lambda choice: like_nccl(choice, ["+bucket=0" if choice.method == REPLICATED else ""]),
    MeshProgram("Megatron-DeepSpeed", _mesh_files, _mesh_limits, schedules=("1f1b",)),
    default=lambda choice: f"nccl+bucket={_ELEMENTS * choice.width}",
    in_half={"": '"communication_data_type": "{half}"'},
    accumulation="gradient_accumulation_steps={}",
    packings=lambda _: [],
    methods=(REPLICATED, *_STAGES),
    unit=_ELEMENTS,
    coarser=1,
    asked=("DeepSpeed 0.19.8, 2026-12-01",),
)
