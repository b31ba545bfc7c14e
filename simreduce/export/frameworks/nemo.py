"""NeMo: fields of a recipe of Megatron-Bridge, as YAML.

Names are those of `docs/parallelisms.md` and `docs/training/moe-optimization.md`.
"""

from __future__ import annotations

from simreduce.export.framework import Framework
from simreduce.export.frameworks.megatron import SPLITS, gathers_beside, limits, splits_sequences
from simreduce.export.mesh_settings import MeshedJob, MeshProgram, unwritten
from simreduce.export.writers import mapping, yaml


def _files(job: MeshedJob) -> dict[str, str]:
    experts: dict[str, object] = {
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
            "virtual_pipeline_model_parallel_size": job.virtual if job.virtual > 1 else None,
            "num_layers_in_last_pipeline_stage": job.split[-1] if job.splitting == "last" else None,
            "context_parallel_size": job.mesh.cp,
            "expert_model_parallel_size": job.mesh.ep,
            "expert_tensor_parallel_size": job.mesh.expert_tensor,
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
    return {"nemo.yaml": yaml([], mapping(tables))}


NEMO = Framework(
    "nemo",
    "NeMo",
    mesh=MeshProgram(
        "NeMo",
        _files,
        lambda title, job: limits(title, job) | unwritten(title, job, dispatch=False),
        splits=SPLITS,
    ),
)
