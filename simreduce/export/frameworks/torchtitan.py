"""torchtitan: a job's TOML, by the names of `torchtitan/config/job_config.py`."""

from __future__ import annotations

from typing import Any

from simreduce.export.framework import Framework, MeshedJob, MeshProgram, unwritten
from simreduce.files.formats import toml_text

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
}


def _files(job: MeshedJob) -> dict[str, str]:
    shared, replicas, pp = job.optimizer != "replicated", job.mesh.dp, job.mesh.pp
    pipeline = {
        "pipeline_parallel_schedule": _SCHEDULES.get(job.schedule),
        "pipeline_parallel_microbatch_size": job.micro_batch,
        "pipeline_parallel_layers_per_stage": job.shape.blocks // (pp * job.virtual),
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }
    tables: dict[str, dict[str, Any]] = {
        "training": {
            "local_batch_size": job.micro_batch * (job.micros if pp > 1 else 1),
            "global_batch_size": job.global_batch,
            "seq_len": job.sequence,
        },
        "parallelism": {
            "data_parallel_replicate_degree": 1 if shared else replicas,
            "data_parallel_shard_degree": replicas if shared else 1,
            "tensor_parallel_degree": job.mesh.tp,
            "context_parallel_degree": job.mesh.cp,
            "expert_parallel_degree": job.mesh.ep,
            "pipeline_parallel_degree": pp,
            **(pipeline if pp > 1 else {}),
        },
        "activation_checkpoint": {"mode": job.recompute},
    }
    return {"torchtitan.toml": toml_text(tables).lstrip()}


def _limits(title: str, job: MeshedJob) -> dict[str, bool]:
    every = f"{title} takes every token: leave capacity_factor out"
    return {every: bool(job.capacity)} | unwritten(title, job)


TORCHTITAN = Framework(
    "torchtitan",
    "torchtitan",
    mesh=MeshProgram("torchtitan", _files, _limits, schedules=tuple(_SCHEDULES)),
)
