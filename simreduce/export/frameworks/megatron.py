"""Megatron-LM: arguments of `pretrain_gpt.py`.

Names are those of `megatron/training/arguments.py`, and of its guides to experts and CUDA graphs
(`megatron/core/transformer/moe/README.md`, `docs/user-guide/features/cuda_graph.md`).
"""

from __future__ import annotations

from simreduce.export.framework import Framework
from simreduce.export.mesh_settings import ORDER, MeshedJob, MeshProgram
from simreduce.export.writers import arguments

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


def flags(job: MeshedJob) -> list[list[object]]:
    """Each argument with its values."""
    mesh, shape = job.mesh, job.shape
    found: list[tuple[str, object]] = [
        ("tensor-model-parallel-size", mesh.tp),
        ("pipeline-model-parallel-size", mesh.pp),
        ("context-parallel-size", mesh.cp),
        ("micro-batch-size", job.micro_batch),
        ("global-batch-size", job.global_batch),
        ("seq-length", job.sequence),
        ("max-position-embeddings", job.sequence),
        ("num-layers", shape.blocks),
        ("hidden-size", shape.width),
        ("num-attention-heads", shape.heads),
        ("ffn-hidden-size", shape.inner or shape.expert),
        ("kv-channels", shape.head),
        ("position-embedding-type", "learned_absolute" if shape.positions else "rope"),
        ("normalization", "LayerNorm" if shape.bias else "RMSNorm"),
    ]
    if not shape.dropout:
        found += [("attention-dropout", 0.0), ("hidden-dropout", 0.0)]
    if job.virtual > 1:
        found.append(("num-virtual-stages-per-pipeline-rank", job.virtual))
    if shape.groups != shape.heads:
        found += [("group-query-attention", None), ("num-query-groups", shape.groups)]
    if shape.experts:
        found += [
            ("num-experts", shape.experts),
            ("moe-router-topk", shape.active),
            ("moe-ffn-hidden-size", shape.expert),
            ("moe-token-dispatcher-type", "flex" if job.dispatch == "deepep" else "alltoall"),
            ("moe-grouped-gemm", None),
            ("moe-permute-fusion", None),
            ("expert-model-parallel-size", mesh.ep),
            ("expert-tensor-parallel-size", mesh.expert_tensor),
        ]
        more = {
            "moe-shared-expert-intermediate-size": shape.shared * shape.expert,
            "moe-layer-freq": f"([0]*{shape.dense}+[1]*{shape.blocks - shape.dense})"
            if shape.dense
            else "",
            "moe-router-num-groups": shape.limited[1] if shape.limited[1] > 1 else 0,
            "moe-router-group-topk": shape.limited[0] if shape.limited[1] > 1 else 0,
            "moe-expert-capacity-factor": job.capacity,
            "moe-flex-dispatcher-backend": "deepep" if job.dispatch == "deepep" else "",
        }
        found += [(name, value) for name, value in more.items() if value]
    if shape.latent:
        query, key, rotary = shape.latent
        found += [
            ("multi-latent-attention", None),
            ("q-lora-rank", query),
            ("kv-lora-rank", key),
            ("qk-head-dim", shape.head),
            ("qk-pos-emb-head-dim", rotary),
            ("v-head-dim", shape.head),
        ]
    if job.graphs:
        found += [
            ("cuda-graph-impl", "transformer_engine"),
            ("cuda-graph-modules", " ".join(_GRAPHED[name] for name in sorted(job.graphs))),
        ]
    if job.recompute == "full":
        found += [
            ("recompute-granularity", "full"),
            ("recompute-method", "uniform"),
            ("recompute-num-layers", 1),
        ]
    wanted = {
        "sequence-parallel": splits_sequences(job),
        "use-distributed-optimizer": job.optimizer == "distributed",
        "overlap-grad-reduce": "grad_reduce" in job.overlap,
        "grad-reduce-in-bf16": job.reduced == 2 and job.half == "bf16",
        "overlap-param-gather": gathers_beside(job),
        "tp-comm-overlap": "tp" in job.overlap and splits_sequences(job),
        "no-overlap-p2p-communication": job.schedule == "interleaved" and "p2p" not in job.overlap,
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
    }
    found += [(name, None) for name, on in wanted.items() if on]
    if job.splitting == "last":
        found.append(("decoder-last-pipeline-num-layers", str(job.split[-1])))
    if job.bits == 8:
        found.append(("fp8-format", "hybrid"))
    return [[f"--{name}", *([] if value is None else str(value).split())] for name, value in found]


def limits(title: str, job: MeshedJob) -> dict[str, bool]:
    """What Megatron Core lacks, for those that are made of it."""
    return {
        f"{title} takes a multiple of pp micro batches where stages are interleaved": (
            job.schedule == "interleaved" and bool(job.micros % job.mesh.pp)
        ),
        "settings of FSDP of Megatron Core are not written": job.optimizer == "fsdp",
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


MEGATRON = Framework(
    "megatron",
    "Megatron-LM",
    mesh=MeshProgram(
        "Megatron-LM",
        lambda job: {"megatron.args": arguments(flags(job), " \\")},
        limits,
        orders=(ORDER, _PIPELINES_FIRST),
        splits=SPLITS,
    ),
)
