"""Settings of programs that train on meshes: Megatron-LM, NeMo, torchtitan and DeepSpeed.

Names are those of Megatron-LM's `megatron/training/arguments.py`, of its guides to experts and CUDA
graphs (`megatron/core/transformer/moe/README.md`, `docs/user-guide/features/cuda_graph.md`), NeMo's
Megatron-Bridge (`docs/parallelisms.md`, `docs/training/moe-optimization.md`), torchtitan's
`torchtitan/config/job_config.py` and DeepSpeed's configuration
(https://www.deepspeed.ai/docs/config-json/).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from simreduce.errors import InputError, did_you_mean
from simreduce.export.writers import arguments, mapping, yaml


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
    split: str
    recompute: str
    fused: bool
    sequence_parallel: bool
    optimizer: str
    overlap: frozenset[str]
    bits: int
    half: str
    reduced: int
    latent: tuple[int, int, int] | None
    head: int
    dropout: bool
    shared: int
    dense: int
    learned: bool
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
    capacity: float = 0.0
    pad: bool = False
    merged: bool = False
    limited: tuple[int, int] = (1, 1)
    graphs: frozenset[str] = frozenset()
    last: int = 0
    sums: str = "nccl"

    @property
    def splits_sequences(self) -> bool:
        """Whether tensor parallel ranks share sequences where they do not share heads."""
        return self.sequence_parallel and self.ways["tp"] > 1

    @property
    def gathers_beside(self) -> bool:
        """Whether parameters are gathered beside compute."""
        return "param_gather" in self.overlap and self.optimizer == "distributed"


def _megatron(c: MeshChoice) -> Mapping[str, str]:
    """Arguments of `pretrain_gpt.py`."""
    return {"megatron.args": arguments(_flags(c), " \\")}


def _flags(c: MeshChoice) -> list[list[object]]:
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
        ("kv-channels", c.head),
        ("position-embedding-type", "learned_absolute" if c.learned else "rope"),
        ("normalization", "LayerNorm" if c.bias else "RMSNorm"),
    ]
    if not c.dropout:
        flags += [("attention-dropout", 0.0), ("hidden-dropout", 0.0)]
    if c.virtual > 1:
        flags.append(("num-virtual-stages-per-pipeline-rank", c.virtual))
    if c.groups != c.heads:
        flags += [("group-query-attention", None), ("num-query-groups", c.groups)]
    if c.experts:
        flags += [
            ("num-experts", c.experts),
            ("moe-router-topk", c.active),
            ("moe-ffn-hidden-size", c.expert),
            ("moe-token-dispatcher-type", "flex" if c.merged else "alltoall"),
            ("moe-grouped-gemm", None),
            ("moe-permute-fusion", None),
            ("expert-model-parallel-size", c.ways["ep"]),
            ("expert-tensor-parallel-size", c.expert_tensor),
        ]
        more = {
            "moe-shared-expert-intermediate-size": c.shared,
            "moe-layer-freq": f"([0]*{c.dense}+[1]*{c.blocks - c.dense})" if c.dense else "",
            "moe-router-num-groups": c.limited[1] if c.limited[1] > 1 else 0,
            "moe-router-group-topk": c.limited[0] if c.limited[1] > 1 else 0,
            "moe-expert-capacity-factor": c.capacity,
            "moe-flex-dispatcher-backend": "deepep" if c.merged else "",
        }
        flags += [(name, value) for name, value in more.items() if value]
    if c.latent:
        query, key, rotary = c.latent
        flags += [
            ("multi-latent-attention", None),
            ("q-lora-rank", query),
            ("kv-lora-rank", key),
            ("qk-head-dim", c.head),
            ("qk-pos-emb-head-dim", rotary),
            ("v-head-dim", c.head),
        ]
    if c.graphs:
        flags += [
            ("cuda-graph-impl", "transformer_engine"),
            ("cuda-graph-modules", " ".join(_GRAPHED[name] for name in sorted(c.graphs))),
        ]
    if c.recompute == "full":
        flags += [
            ("recompute-granularity", "full"),
            ("recompute-method", "uniform"),
            ("recompute-num-layers", 1),
        ]
    wanted = {
        "sequence-parallel": c.splits_sequences,
        "use-distributed-optimizer": c.optimizer == "distributed",
        "overlap-grad-reduce": "grad_reduce" in c.overlap,
        "grad-reduce-in-bf16": c.reduced == 2 and c.half == "bf16",
        "overlap-param-gather": c.gathers_beside,
        "tp-comm-overlap": "tp" in c.overlap and c.splits_sequences,
        "no-overlap-p2p-communication": c.schedule == "interleaved" and "p2p" not in c.overlap,
        "squared-relu": not c.gated and not c.bias,
        "recompute-activations": c.recompute == "selective",
        "use-flash-attn": c.fused,
        "swiglu": c.gated,
        "disable-bias-linear": not c.bias,
        "untie-embeddings-and-output-weights": not c.tied,
        "overlap-moe-expert-parallel-comm": "ep" in c.overlap and c.ways["ep"] > 1,
        "moe-pad-expert-input-to-capacity": c.pad,
        "account-for-embedding-in-pipeline-split": c.split == "ends",
        "account-for-loss-in-pipeline-split": c.split == "ends",
        "use-tp-pp-dp-mapping": c.order == _PIPELINES_FIRST,
        c.half: True,
    }
    flags += [(name, None) for name, on in wanted.items() if on]
    if c.split == "last":
        flags.append(("decoder-last-pipeline-num-layers", str(c.last)))
    if c.bits == 8:
        flags.append(("fp8-format", "hybrid"))
    return [[f"--{name}", *([] if value is None else str(value).split())] for name, value in flags]


def _nemo(c: MeshChoice) -> Mapping[str, str]:
    """Fields of a recipe of Megatron-Bridge, as YAML."""
    model: dict[str, object] = {
        "tensor_model_parallel_size": c.ways["tp"],
        "pipeline_model_parallel_size": c.ways["pp"],
        "virtual_pipeline_model_parallel_size": c.virtual if c.virtual > 1 else None,
        "num_layers_in_last_pipeline_stage": c.last if c.split == "last" else None,
        "context_parallel_size": c.ways["cp"],
        "expert_model_parallel_size": c.ways["ep"],
        "expert_tensor_parallel_size": c.expert_tensor,
        "sequence_parallel": c.splits_sequences,
        "seq_length": c.sequence,
        "recompute_granularity": None if c.recompute == "none" else c.recompute,
    }
    if c.experts:
        model |= {
            "moe_token_dispatcher_type": "flex" if c.merged else "alltoall",
            "moe_flex_dispatcher_backend": "deepep" if c.merged else None,
            "moe_expert_capacity_factor": c.capacity or None,
            "moe_pad_expert_input_to_capacity": c.pad,
        }
    if c.recompute == "full":
        model |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    tables: dict[str, dict[str, object]] = {
        "model": model,
        "train": {"micro_batch_size": c.micro_batch, "global_batch_size": c.global_batch},
        "ddp": {
            "use_distributed_optimizer": c.optimizer == "distributed",
            "overlap_grad_reduce": "grad_reduce" in c.overlap,
            "overlap_param_gather": c.gathers_beside,
        },
    }
    return {"nemo.yaml": yaml([], mapping(tables))}


_GRAPHED = {"attention": "attn", "router": "moe_router moe_preprocess"}
_DEFAULT_ORDER = "tp-cp-ep-dp-pp"
_PIPELINES_FIRST = "tp-cp-ep-pp-dp"
"""The order of Megatron-LM's `--use-tp-pp-dp-mapping`."""
_NEWER = frozenset(
    (
        "use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather",
        "context-parallel-size", "no-overlap-p2p-communication", "grad-reduce-in-bf16",
    )
)  # fmt: skip
"""Arguments of Megatron-LM that its fork for DeepSpeed lacks."""
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
    shared, replicas = c.optimizer != "replicated", c.ways["dp"]
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
            "pipeline_parallel_schedule": _TITAN[c.schedule],
            "pipeline_parallel_microbatch_size": c.micro_batch,
            "pipeline_parallel_layers_per_stage": c.blocks // (c.ways["pp"] * c.virtual),
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
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
        c.half: {"enabled": True},
        "zero_optimization": {"stage": stage, "overlap_comm": "grad_reduce" in c.overlap},
    }
    # Megatron-DeepSpeed has the arguments of the Megatron-LM that it was forked from.
    own = [flag for flag in _flags(c) if str(flag[0]).removeprefix("--") not in _NEWER]
    own += [["--deepspeed"], ["--deepspeed_config", "ds_config.json"], ["--zero-stage", stage]]
    return {
        "ds_config.json": json.dumps(config, indent=2) + "\n",
        "megatron.args": arguments(own, " \\"),
    }


class MeshTarget(NamedTuple):
    """A program that trains on meshes: its name in sentences, and what writes its files."""

    title: str
    files: Callable[[MeshChoice], Mapping[str, str]]


TARGETS: Mapping[str, MeshTarget] = {
    "megatron": MeshTarget("Megatron-LM", _megatron),
    "nemo": MeshTarget("NeMo", _nemo),
    "torchtitan": MeshTarget("torchtitan", _torchtitan),
    "deepspeed": MeshTarget("Megatron-DeepSpeed", _deepspeed),
}


def check_mesh_target(name: str) -> str:
    """The name of a program that trains on meshes; InputError names the nearest."""
    if name not in TARGETS:
        near = did_you_mean(name, TARGETS)
        raise InputError(f"{name}: takes no mesh{near}; {', '.join(TARGETS)} do")
    return name


def why_no_mesh(target: str, choice: MeshChoice) -> list[str]:
    """Why a program cannot run a mesh; nothing if it can."""
    title, c = TARGETS[target].title, choice
    usual, megatron = ("1f1b", "interleaved"), target in ("megatron", "nemo")
    known = {"deepspeed": usual[:1], "torchtitan": tuple(_TITAN)}.get(target, usual)
    orders = [_DEFAULT_ORDER, *([_PIPELINES_FIRST] if target == "megatron" else [])]
    pipelined = c.ways["pp"] > 1
    unwritten = ["cuda_graphs"] if c.graphs and target != "megatron" else []
    unwritten += ["dispatch"] if c.merged and not megatron else []
    reasons = {
        f"{title} has NCCL sum activations, not {c.sums}": c.sums != "nccl",
        f"{title} has no schedule {c.schedule}; it has {', '.join(known)}": (
            pipelined and c.schedule not in known
        ),
        f"{title} does not lie ranks as {c.order}; it takes {' or '.join(orders)}": (
            c.order not in orders
        ),
        f"{title} splits layers evenly, not as listed": (
            c.split not in (("even", "ends", "last") if megatron else ("even",))
        ),
        f"{title} takes a multiple of pp micro batches where stages are interleaved": (
            megatron and c.schedule == "interleaved" and bool(c.micros % c.ways["pp"])
        ),
        "settings of FSDP of Megatron Core are not written": megatron and c.optimizer == "fsdp",
        f"{title} overlaps gathers of parameters only where it overlaps reductions": (
            megatron and "param_gather" in c.overlap and "grad_reduce" not in c.overlap
        ),
        f"{title} overlaps sends between stages only where they are interleaved": (
            megatron and pipelined and "p2p" in c.overlap and c.schedule == "1f1b"
        ),
        f"{title} takes experts with tensor parallel ranks only with sequence_parallel": (
            megatron and bool(c.experts) and c.ways["tp"] > 1 and not c.sequence_parallel
        ),
        f"{title} takes every token: leave capacity_factor out": (
            target == "torchtitan" and bool(c.capacity)
        ),
        f"settings of {' and '.join(unwritten)} are not written for {title}": bool(unwritten),
        f"{title} has no experts and no context parallel ranks": (
            target == "deepspeed" and (bool(c.experts) or c.ways["cp"] > 1)
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


def mesh_files(target: str, choice: MeshChoice) -> Mapping[str, str]:
    """The files of a mesh by name. InputError with the reasons why there are none."""
    if problems := why_no_mesh(target, choice):
        raise InputError(problems)
    return TARGETS[target].files(choice)
