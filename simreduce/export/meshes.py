"""Settings of programs that train on meshes: Megatron-LM, NeMo, torchtitan and DeepSpeed.

Names are those of Megatron-LM's `megatron/training/arguments.py`, NeMo's Megatron-Bridge
(`docs/parallelisms.md`), torchtitan's `torchtitan/config/job_config.py` and DeepSpeed's
configuration (https://www.deepspeed.ai/docs/config-json/).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simreduce.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class MeshChoice:
    """A mesh and a model in plain figures, as `training.mesh` names them."""

    ways: Mapping[str, int]
    expert_tensor: int
    order: str
    micro_batch: int
    micros: int
    global_batch: int
    sequence: int
    schedule: str
    virtual: int
    uneven: bool
    recompute: str
    fused: bool
    sequence_parallel: bool
    optimizer: str
    overlap: frozenset[str]
    bits: int
    blocks: int
    width: int
    heads: int
    groups: int
    inner: int
    words: int
    gated: bool
    bias: bool
    tied: bool
    experts: int
    active: int
    expert: int


def _megatron(c: MeshChoice) -> Mapping[str, str]:
    """Arguments of `pretrain_gpt.py`."""
    flags: list[tuple[str, object]] = [
        ("tensor-model-parallel-size", c.ways["tp"]),
        ("pipeline-model-parallel-size", c.ways["pp"]),
        ("context-parallel-size", c.ways["cp"]),
        ("micro-batch-size", c.micro_batch),
        ("global-batch-size", c.global_batch),
        ("seq-length", c.sequence),
        ("max-position-embeddings", c.sequence),
        ("num-layers", c.blocks),
        ("hidden-size", c.width),
        ("num-attention-heads", c.heads),
        ("ffn-hidden-size", c.inner or c.expert),
    ]
    if c.virtual > 1:
        flags.append(("num-virtual-stages-per-pipeline-rank", c.virtual))
    if c.groups != c.heads:
        flags += [("group-query-attention", None), ("num-query-groups", c.groups)]
    if c.experts:
        flags += [
            ("num-experts", c.experts),
            ("moe-router-topk", c.active),
            ("moe-ffn-hidden-size", c.expert),
            ("expert-model-parallel-size", c.ways["ep"]),
            ("expert-tensor-parallel-size", c.expert_tensor),
        ]
    if c.recompute == "full":
        flags += [
            ("recompute-granularity", "full"),
            ("recompute-method", "uniform"),
            ("recompute-num-layers", 1),
        ]
    wanted = {
        "sequence-parallel": c.sequence_parallel and c.ways["tp"] > 1,
        "use-distributed-optimizer": c.optimizer == "distributed",
        "overlap-grad-reduce": "grad_reduce" in c.overlap,
        "overlap-param-gather": "param_gather" in c.overlap and c.optimizer == "distributed",
        "tp-comm-overlap": "tp" in c.overlap and c.ways["tp"] > 1,
        "recompute-activations": c.recompute == "selective",
        "use-flash-attn": c.fused,
        "swiglu": c.gated,
        "disable-bias-linear": not c.bias,
        "untie-embeddings-and-output-weights": not c.tied,
        "account-for-embedding-in-pipeline-split": c.uneven,
        "account-for-loss-in-pipeline-split": c.uneven,
        "use-tp-pp-dp-mapping": c.order == "tp-cp-ep-pp-dp",
        "bf16": True,
    }
    flags += [(name, None) for name, on in wanted.items() if on]
    if c.bits == 8:
        flags.append(("fp8-format", "hybrid"))
    lines = [f"--{name}" if value is None else f"--{name} {value}" for name, value in flags]
    return {"megatron.args": " \\\n".join(lines) + "\n"}


def _nemo(c: MeshChoice) -> Mapping[str, str]:
    """Fields of a recipe of Megatron-Bridge, as YAML."""
    model: dict[str, object] = {
        "tensor_model_parallel_size": c.ways["tp"],
        "pipeline_model_parallel_size": c.ways["pp"],
        "virtual_pipeline_model_parallel_size": c.virtual if c.virtual > 1 else "null",
        "context_parallel_size": c.ways["cp"],
        "expert_model_parallel_size": c.ways["ep"],
        "expert_tensor_parallel_size": c.expert_tensor,
        "sequence_parallel": str(c.sequence_parallel and c.ways["tp"] > 1).lower(),
        "seq_length": c.sequence,
        "recompute_granularity": "null" if c.recompute == "none" else c.recompute,
    }
    if c.recompute == "full":
        model |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    tables: dict[str, dict[str, object]] = {
        "model": model,
        "train": {"micro_batch_size": c.micro_batch, "global_batch_size": c.global_batch},
        "ddp": {
            "use_distributed_optimizer": str(c.optimizer == "distributed").lower(),
            "overlap_grad_reduce": str("grad_reduce" in c.overlap).lower(),
            "overlap_param_gather": str(
                "param_gather" in c.overlap and c.optimizer == "distributed"
            ).lower(),
        },
    }
    lines = [
        line
        for name, table in tables.items()
        for line in (f"{name}:", *(f"  {key}: {value}" for key, value in table.items()))
    ]
    return {"nemo.yaml": "\n".join(lines) + "\n"}


_TITAN = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
}


def _torchtitan(c: MeshChoice) -> Mapping[str, str]:
    """A job's TOML."""
    shared = c.optimizer != "replicated"
    replicas = c.ways["dp"]
    tables: dict[str, dict[str, Any]] = {
        "training": {
            "local_batch_size": c.micro_batch * (c.micros if c.ways["pp"] > 1 else 1),
            "global_batch_size": c.global_batch,
            "seq_len": c.sequence,
        },
        "parallelism": {
            "data_parallel_replicate_degree": 1 if shared else replicas,
            "data_parallel_shard_degree": replicas if shared else 1,
            "tensor_parallel_degree": c.ways["tp"],
            "context_parallel_degree": c.ways["cp"],
            "expert_parallel_degree": c.ways["ep"],
            "pipeline_parallel_degree": c.ways["pp"],
        },
        "activation_checkpoint": {"mode": c.recompute},
    }
    if c.ways["pp"] > 1:
        tables["parallelism"] |= {
            "pipeline_parallel_schedule": _TITAN.get(c.schedule, "PipelineScheduleMulti"),
            "pipeline_parallel_microbatch_size": c.micro_batch,
        }
    lines = [
        line
        for name, table in tables.items()
        for line in (f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items()), "")
    ]
    return {"torchtitan.toml": "\n".join(lines)}


def _deepspeed(c: MeshChoice) -> Mapping[str, str]:
    """DeepSpeed's JSON; stages and tensor parallel ranks are arguments of the program."""
    stage = {"replicated": 0, "distributed": 1, "fsdp": 3}[c.optimizer]
    config = {
        "train_batch_size": c.global_batch,
        "train_micro_batch_size_per_gpu": c.micro_batch,
        "gradient_accumulation_steps": c.micros,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "overlap_comm": "grad_reduce" in c.overlap},
    }
    own = _megatron(c)  # Megatron-DeepSpeed has Megatron-LM's arguments
    return {"ds_config.json": json.dumps(config, indent=2) + "\n", **own}


TARGETS: Mapping[str, tuple[str, Callable[[MeshChoice], Mapping[str, str]]]] = {
    "megatron": ("Megatron-LM", _megatron),
    "nemo": ("NeMo", _nemo),
    "torchtitan": ("torchtitan", _torchtitan),
    "deepspeed": ("Megatron-DeepSpeed", _deepspeed),
}


def why_no_mesh(target: str, choice: MeshChoice) -> list[str]:
    """Why a program cannot run a mesh; nothing if it can."""
    if target not in TARGETS:
        near = did_you_mean(target, TARGETS) or f"; known are {', '.join(TARGETS)}"
        return [f"no target {target!r} for meshes{near}"]
    found, schedule = [], choice.schedule
    title = TARGETS[target][0]
    usual = ("1f1b", "interleaved")
    own = {"deepspeed": usual[:1], "torchtitan": tuple(_TITAN)}
    if choice.ways["pp"] > 1 and schedule not in own.get(target, usual):
        found.append(
            f"{title} has no schedule {schedule}; it has {', '.join(own.get(target, usual))}"
        )
    if target == "torchtitan" and choice.uneven:
        found.append("torchtitan splits layers by module_fqns_per_model_part, which is not written")
    return found


def mesh_files(target: str, choice: MeshChoice) -> Mapping[str, str]:
    """The files of a mesh by name. InputError with the reasons why there are none."""
    if problems := why_no_mesh(target, choice):
        raise InputError(problems)
    return TARGETS[target][1](choice)
