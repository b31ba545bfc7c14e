"""torchtitan: arguments of `torchtitan.train`, or the TOML that releases up to 0.2 take.

Names are those of `torchtitan/config/configs.py` (0.3.0; main of 2026-08-21, commit b5bcd76c) and
of `torchtitan/config/job_config.py` (0.2.2). The module and the configuration of the model stand
before these arguments; what to recompute is a subcommand of their parser and stands last.

What a version refuses is in `torchtitan/trainer.py` (CUDA graphs), `torchtitan/distributed/`
`parallel_dims.py` (experts) and, of 0.2, `torchtitan/models/llama3/infra/parallelize.py` (DDP).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from simreduce.export.framework import Framework, MeshedJob, MeshProgram, unwritten
from simreduce.export.writers import arguments
from simreduce.files.formats.syntax import toml_text

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
}

OP = "op"
Tables = dict[str, dict[str, object]]
"""Settings by section and name."""


def _sequences(job: MeshedJob) -> Tables:
    """Batches in sequences, as releases up to 0.3 count them."""
    staged = job.mesh.pp > 1
    training: dict[str, object] = {
        "local_batch_size": job.micro_batch * (job.micros if staged else 1),
        "global_batch_size": job.global_batch,
        "seq_len": job.sequence,
    }
    micro: dict[str, object] = {"pipeline_parallel_microbatch_size": job.micro_batch}
    return {"training": training, "parallelism": micro if staged else {}}


def _tokens(job: MeshedJob) -> Tables:
    """Batches in tokens, as main counts them since August 2026."""
    training: dict[str, object] = {
        "num_tokens_per_microbatch_per_dp_rank": job.micro_batch * job.sequence,
        "num_tokens_per_train_step": job.global_batch * job.sequence,
        "max_context_length": job.sequence,
    }
    micro: dict[str, object] = {"num_pp_microbatches": job.micros}
    return {"training": training, "parallelism": micro if job.mesh.pp > 1 else {}}


def _parallelism(job: MeshedJob) -> dict[str, object]:
    """The mesh. Stages have as many blocks each: no block stands for an embedding or the loss."""
    shared, replicas, pp = job.optimizer != "replicated", job.mesh.dp, job.mesh.pp
    pipeline = {
        "pipeline_parallel_schedule": _SCHEDULES.get(job.schedule),
        "pipeline_parallel_layers_per_stage": job.shape.blocks // (pp * job.virtual),
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }
    reshard = "always" if job.optimizer == "fsdp" else "never"
    return {
        "data_parallel_replicate_degree": job.mesh.copies if shared else replicas,
        "data_parallel_shard_degree": replicas // job.mesh.copies if shared else 1,
        **({"fsdp_reshard_after_forward": reshard} if shared else {}),
        "tensor_parallel_degree": job.mesh.tp,
        "context_parallel_degree": job.mesh.cp,
        "expert_parallel_degree": job.mesh.ep,
        "pipeline_parallel_degree": pp,
        **(pipeline if pp > 1 else {}),
    }


def _arguments(batches: Callable[[MeshedJob], Tables], job: MeshedJob) -> dict[str, str]:
    """The arguments. CUDA graphs, which are on by default, have no stages and no experts of their
    own ranks.
    """
    found = batches(job)
    eager = job.mesh.pp > 1 or job.mesh.ep > 1
    whole = job.mesh.tp > 1 and not job.sequence_parallel
    tables: Tables = {
        "training": found["training"] | ({"disable_cuda_graphs": True} if eager else {}),
        "parallelism": _parallelism(job)
        | found["parallelism"]
        | ({"no-enable-sequence-parallel": True} if whole else {}),
    }
    mode = "selective" if job.recompute == OP else job.recompute
    rows: list[list[object]] = [*_rows(tables), [f"activation-checkpoint:{mode}"]]
    return {"torchtitan.args": arguments(rows, " \\")}


def _rows(tables: Mapping[str, Mapping[str, object]]) -> Iterator[list[object]]:
    for section, table in tables.items():
        for name, value in table.items():
            yield [f"--{section}.{name}", *([] if value is True else [value])]


def _toml(job: MeshedJob) -> dict[str, str]:
    """The job's file, whose place is in `--job.config_file`."""
    found, ep = _sequences(job), job.mesh.ep
    experts = {"expert_tensor_parallel_degree": job.mesh.expert_tensor} if ep > 1 else {}
    tables = {
        "training": found["training"],
        "parallelism": _parallelism(job) | experts | found["parallelism"],
        "activation_checkpoint": (
            {"mode": "selective", "selective_ac_option": OP}
            if job.recompute == OP
            else {"mode": job.recompute}
        ),
    }
    return {"torchtitan.toml": toml_text(tables).lstrip()}


def _limits(title: str, job: MeshedJob) -> dict[str, bool]:
    mesh, experts = job.mesh, bool(job.shape.experts)
    return {
        f"{title} takes every token: leave capacity_factor out": bool(job.capacity),
        f"{title}'s selective recomputation keeps attention, and this makes it again": (
            job.recompute == "selective"
        ),
        f"{title} splits experts among all tensor parallel ranks unless they have ranks of their "
        "own (ep)": experts and mesh.ep == 1 and mesh.expert_tensor != mesh.tp,
    } | unwritten(title, job)


def _whole_experts(title: str, job: MeshedJob) -> dict[str, bool]:
    split = job.mesh.ep > 1 and job.mesh.expert_tensor > 1
    return _limits(title, job) | {f"{title} splits no expert beside ep: use etp=1": split}


def _older(title: str, job: MeshedJob) -> dict[str, bool]:
    mesh = job.mesh
    return _limits(title, job) | {
        f"{title} 0.2 has tensor parallel ranks share sequences": (
            mesh.tp > 1 and not job.sequence_parallel
        ),
        f"{title} 0.2 replicates only without other axes; it shards": (
            job.optimizer == "replicated" and mesh.dp > 1 and mesh.cp == 1 and mesh.tp * mesh.pp > 1
        ),
        f"{title} 0.2 has experts of one or of all tensor parallel ranks": (
            mesh.ep > 1 and mesh.expert_tensor not in (1, mesh.tp)
        ),
    }


_program = partial(MeshProgram, "torchtitan", schedules=tuple(_SCHEDULES))

TORCHTITAN = Framework(
    "torchtitan",
    "torchtitan",
    mesh=_program(partial(_arguments, _sequences), _whole_experts),
    version="torchtitan=0.3",
    asked=("torchtitan 0.3.0, 2026-12-01", "torchtitan 0.2.2, 2026-12-01"),
    others=(
        Framework("torchtitan=0.2", "torchtitan", mesh=_program(_toml, _older)),
        Framework(
            "torchtitan=main",
            "torchtitan",
            mesh=_program(partial(_arguments, _tokens), _whole_experts),
        ),
    ),
)
