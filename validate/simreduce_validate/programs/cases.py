"""Exports of each target, a plain one and a harder one, and what they mean.

What is meant comes from the choice that was exported, not from its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from simreduce import dtypes
from simreduce.engine.setup import Setup
from simreduce.export import export
from simreduce.export.framework import Choice
from simreduce.export.frameworks import FRAMEWORKS, MESH_PROGRAMS
from simreduce.planners.layouts import layout
from simreduce.planners.packing import DdpBuckets, Fusion, ready_order
from simreduce.planners.strategy import parse_strategy
from simreduce.study.ranking import Question, choice_of
from simreduce.training.gpus import Gpu
from simreduce.training.mesh import Mesh, MeshJob, split_evenly
from simreduce.training.sharded import Sharding
from simreduce.workload import Gradient, Workload
from simreduce.workload.decoder import Decoder, read_shape
from simreduce.workload.loader import load_workload

_RACKS = "abci-vx4,fabric=fat_tree,radix=4,nics=2"
"""Nodes with names, below two switches."""


@dataclass(frozen=True, slots=True)
class MeantFiles:
    """The files of a case, what they mean by the names of its script, and what that is given."""

    files: Mapping[str, str]
    meant: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportCase:
    """An export for a target that a program reads."""

    program: str
    target: str
    name: str
    make: Callable[[], MeantFiles]


@cache
def _setup(machine: str) -> Setup:
    return Setup(machine)


def _choice(machine: str, workload: str | Workload, strategy: str, **more: Any) -> Choice:
    given = load_workload(workload) if isinstance(workload, str) else workload
    return Choice(_setup(machine), given, parse_strategy(strategy), **more)


def _ddp(choice: Choice) -> MeantFiles:
    packer, gradients = choice.resolved.packer, choice.workload.gradients
    if not isinstance(packer, DdpBuckets):
        raise TypeError(packer)
    groups = packer.arrange(gradients).groups
    half = "fp16" if packer.fp16 else "bf16" if packer.bf16 else ""
    meant = {
        "buckets": [sum(gradients[i].nbytes for i in group) for group in groups],
        "gradient_as_bucket_view": packer.view,
        "hook": f"{half}_compress_hook" if half else None,
        "all-reduces": len(groups),
    }
    given = {
        "gradients": [each.elements for each in gradients],
        "order": [*reversed(ready_order(gradients))],
    }
    return MeantFiles(export("pytorch", choice), meant, given)


_OWN, _BLOCKS = (64, 7), ((300, 20), (300, 20), (300, 20))


def _fsdp(target: str, shards: Sharding, method: str, unit: int) -> MeantFiles:
    """Units of the root and of each block, by a generation of FSDP."""
    sizes = [*_OWN, *(size for block in _BLOCKS for size in block)]
    workload = Workload("blocks", tuple(Gradient(str(i), size) for i, size in enumerate(sizes)))
    choice = _choice("switch:2", workload, "nccl", method=method, shards=shards, unit=unit)
    codes = {"param_dtype": shards.param_dtype, "reduce_dtype": shards.reduce_dtype}
    own = {
        "backward_prefetch": f"BACKWARD_{shards.backward_prefetch.upper()}",
        "limit_all_gathers": bool(shards.limit_all_gathers),
    }
    meant = {
        "FSDP": 1 if target == "fsdp=1" else 2,
        "units": [sum(_OWN), *map(sum, _BLOCKS)],
        "reshard_after_forward": method != "zero2" and shards.reshard_after_forward,
        "forward_prefetch": bool(shards.forward_prefetch),
        **(own if target == "fsdp=1" else {}),
        **{key: "None" if code is None else f"torch.{dtypes.NAMES[code]}"
           for key, code in codes.items()},
    }  # fmt: skip
    return MeantFiles(export(target, choice), meant, {"own": _OWN, "blocks": _BLOCKS})


def _nodes(target: str, order: tuple[int, ...]) -> Choice:
    """Ranks on nodes in this order."""
    setup = Setup(_RACKS, "nccl")
    setup = setup.but(part=layout(setup.machine).on(order))
    choice = choice_of(Question(parse_strategy("nccl"), load_workload("bytes:1MiB"), setup), None)
    if not choice.hosts:
        raise ValueError(target)
    return choice


def _ranks(choice: Choice) -> list[tuple[str, int]]:
    """The host of each rank, and its number there."""
    pairs = zip(choice.hosts, choice.setup.layout.tasks, strict=True)
    return [(str(host), i) for host, task in pairs for i in range(len(task))]


def _launched(target: str, order: tuple[int, ...], **more: Any) -> MeantFiles:
    choice = _nodes(target, order)
    ranks = _ranks(choice)
    return MeantFiles(export(target, choice), {"ranks": ranks, **more})


def _torchrun(*order: int) -> MeantFiles:
    hosts = _nodes("torchrun", order).hosts
    return _launched("torchrun", order, master=str(hosts[0]), world_size=4 * len(order))


def _mpi(target: str, *order: int, elsewhere: str = "") -> MeantFiles:
    if target == "mpich":
        return _launched(target, order)
    ranks = elsewhere or _ranks(_nodes(target, order))
    return _launched(target, order, **{"ranks if run on the last host": ranks})


def _slurm(*order: int) -> MeantFiles:
    return _launched("slurm", order, switches="taken")


def _kubernetes(*order: int) -> MeantFiles:
    choice = _nodes("kubernetes", order)
    by = ["kubernetes.io/hostname", "In"]
    meant = {"nodes": [*map(str, choice.hosts)], "by": by, "another key": "refused"}
    return MeantFiles(export("kubernetes", choice), meant)


def _deepspeed_mesh(job: MeshJob) -> MeantFiles:
    """The JSON of a mesh, whose stages and tensor parallel ranks are arguments."""
    meant = {
        "zero_config.stage": {"replicated": 0, "distributed": 1}[job.optimizer],
        "zero_config.overlap_comm": "grad_reduce" in job.overlap,
        "train_batch_size": job.micro_batch * job.micros * job.mesh.dp,
        "train_micro_batch_size_per_gpu": job.micro_batch,
        "gradient_accumulation_steps": job.micros,
        "bfloat16_config.enabled": job.half == "bf16",
        "float16_config.enabled": job.half == "fp16",
    }
    given = {"data_parallel": job.mesh.dp, "names": [*meant]}
    return MeantFiles(MESH_PROGRAMS["deepspeed"].export(job), meant, given)


def _tensorflow(machine: str, strategy: str, **meant: object) -> MeantFiles:
    return MeantFiles(export("tensorflow", _choice(machine, "resnet50", strategy)), meant)


def _deepspeed(choice: Choice, **meant: object) -> MeantFiles:
    """A sharded step, with the bucket that its largest unit fills."""
    unit = choice.unit
    zero = {
        "stage": int(choice.method[-1]),
        "reduce_bucket_size": unit,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        **({"prefetch_bucket_size": unit} if choice.method == "zero3"
           else {"allgather_bucket_size": unit, "allgather_partitions": True}),
    }  # fmt: skip
    ranks = choice.setup.layout.n
    found = {
        **{f"zero_config.{name}": value for name, value in zero.items()},
        "train_micro_batch_size_per_gpu": choice.batch,
        "gradient_accumulation_steps": choice.accumulate,
        "train_batch_size": choice.batch * choice.accumulate * ranks,
        **meant,
    }
    given = {"data_parallel": ranks, "names": [*found]}
    return MeantFiles(export("deepspeed", choice), found, given)


def _job(mesh: Mesh, **more: Any) -> MeshJob:
    """A job that trains Llama 2 of 70 billion parameters, or a model that is given."""
    facts: dict[str, Any] = {
        "shape": _LLAMA, "gpu": _GPU, "micro_batch": 1, "micros": 8, "sequence": 4096,
        "schedule": "1f1b", "virtual": 1, "optimizer": "distributed",
    } | more  # fmt: skip
    stages = mesh.pp * facts["virtual"]
    return MeshJob(mesh=mesh, split=split_evenly(facts["shape"].blocks, stages) or (), **facts)


def _megatron(job: MeshJob, **more: object) -> MeantFiles:
    shape, mesh, overlap = job.shape, job.mesh, job.overlap
    meant: dict[str, object] = {
        "tensor_model_parallel_size": mesh.tp,
        "pipeline_model_parallel_size": mesh.pp,
        "context_parallel_size": mesh.cp,
        "expert_model_parallel_size": mesh.ep,
        "data_parallel_size": mesh.dp,
        "virtual_pipeline_model_parallel_size": job.virtual if job.virtual > 1 else None,
        "micro_batch_size": job.micro_batch,
        "global_batch_size": job.micro_batch * job.micros * mesh.dp,
        "seq_length": job.sequence,
        "num_layers": shape.blocks,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "group_query_attention": shape.groups != shape.heads,
        **({"num_query_groups": shape.groups} if shape.groups != shape.heads else {}),
        "kv_channels": shape.head,
        "num_experts": shape.experts or None,
        "swiglu": shape.gated,
        "sequence_parallel": job.sequence_parallel and mesh.tp > 1,
        "use_distributed_optimizer": job.optimizer == "distributed",
        "overlap_grad_reduce": "grad_reduce" in overlap,
        "overlap_param_gather": "param_gather" in overlap,
        "recompute_granularity": None if job.recompute == "none" else job.recompute,
        "params_dtype": {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[job.half],
        "without its variables": "stops" if max(mesh.tp, mesh.cp) > 1 else "runs",
        **more,
    }
    ranks = mesh.tp * mesh.cp * mesh.pp * mesh.dp
    given = {"ranks": ranks, "names": [name for name in meant if " " not in name]}
    return MeantFiles(MESH_PROGRAMS["megatron"].export(job), meant, given)


def _torchtitan(target: str, job: MeshJob) -> MeantFiles:
    mesh, staged = job.mesh, job.mesh.pp > 1
    meant: dict[str, object] = {
        "mesh.tp": mesh.tp, "mesh.cp": mesh.cp, "mesh.pp": mesh.pp, "mesh.ep": mesh.ep,
        "mesh.dp_replicate": 1, "mesh.dp_shard": mesh.dp,
        "training.local_batch_size": job.micro_batch * (job.micros if staged else 1),
        "training.global_batch_size": job.micro_batch * job.micros * mesh.dp,
        "training.seq_len": job.sequence,
    }  # fmt: skip
    if target == "torchtitan":
        meant["recompute"] = {"none": None, "full": "FullAC.Config"}[job.recompute]
        each = [job.shape.blocks // (mesh.pp * job.virtual)] * (mesh.pp * job.virtual)
        pipeline = {"schedule": "ScheduleInterleaved1F1B", "layers": each}
        meant |= pipeline if staged else {}
    else:
        meant["recompute"] = job.recompute
    program = FRAMEWORKS[target].mesh
    if program is None:
        raise ValueError(target)
    return MeantFiles(program.export(job), meant, {"names": [*meant]})


def _vllm(machine: str, kernel: str, stage: str = "") -> MeantFiles:
    """One of its all-reduces, for a tensor of 64 KiB."""
    tensor = Workload("a layer", (Gradient("a layer", 1 << 15, _BF16),))
    algorithm = ["VLLM_CUSTOM_ALLREDUCE_ALGO", stage, "read by its kernels"]
    nccl = {"NCCL_CUMEM_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"}
    meant = {
        "VLLM_ALLREDUCE_USE_SYMM_MEM": kernel == "multimem",
        "VLLM_USE_NCCL_SYMM_MEM": kernel == "symmetric",
        "unknown": [algorithm] if stage else [],
        "of NCCL": nccl if kernel == "symmetric" else {},
    }
    return MeantFiles(export("vllm", _choice(machine, tensor, kernel)), meant)


def _flashinfer(machine: str, kernel: str) -> MeantFiles:
    tensor = Workload("a layer", (Gradient("a layer", 1 << 15, _BF16),))
    meant = {"use_oneshot": kernel == "oneshot", "another argument": "refused"}
    return MeantFiles(export("flashinfer", _choice(machine, tensor, kernel)), meant)


def _nemo(job: MeshJob) -> MeantFiles:
    shape, mesh, overlap = job.shape, job.mesh, job.overlap
    experts = {"num_moe_experts": shape.experts, "moe_ffn_hidden_size": shape.expert}
    model = {
        "num_layers": shape.blocks, "hidden_size": shape.width, "num_attention_heads": shape.heads,
        "num_query_groups": shape.groups, "seq_length": 1024, "pipeline_dtype": None,
        **(experts if shape.experts else {}),
    }  # fmt: skip
    meant: dict[str, object] = {
        "model.tensor_model_parallel_size": mesh.tp,
        "model.pipeline_model_parallel_size": mesh.pp,
        "model.virtual_pipeline_model_parallel_size": job.virtual if job.virtual > 1 else None,
        "model.context_parallel_size": mesh.cp,
        "model.expert_model_parallel_size": mesh.ep,
        "model.sequence_parallel": job.sequence_parallel and mesh.tp > 1,
        "model.seq_length": job.sequence,
        "model.recompute_granularity": None if job.recompute == "none" else job.recompute,
        "train.micro_batch_size": job.micro_batch,
        "train.global_batch_size": job.micro_batch * job.micros * mesh.dp,
        "ddp.use_distributed_optimizer": job.optimizer == "distributed",
        "ddp.overlap_grad_reduce": "grad_reduce" in overlap,
        "ddp.overlap_param_gather": "param_gather" in overlap,
    }
    given = {"model": model, "names": [*meant]}
    refused = {"another key": "refused: ConfigKeyError"}
    return MeantFiles(MESH_PROGRAMS["nemo"].export(job), {**meant, **refused}, given)


def _horovod(choice: Choice, **more: object) -> MeantFiles:
    packer = choice.resolved.packer
    meant: dict[str, object] = {
        "fusion_threshold_mb": packer.threshold >> 20 if isinstance(packer, Fusion) else 0,
        "hierarchical_allreduce": "/" in choice.resolved.spec,
        "hierarchical_allgather": False,
        "sets": "the same",
    }
    return MeantFiles(export("horovod", choice), {**meant, **more})


def _benchmarks(machine: str, strategy: str, manager: str, **meant: object) -> MeantFiles:
    choice = _choice(machine, "resnet50", strategy)
    found = {"num_gpus": len(choice.setup.layout.tasks[0]), "manager": manager, **meant}
    return MeantFiles(export("tf_cnn_benchmarks", choice), found)


def _xla(choice: Choice, **thresholds: int) -> MeantFiles:
    meant = {f"xla_gpu_{name}_combine_threshold_bytes": size for name, size in thresholds.items()}
    packer = choice.resolved.packer
    if isinstance(packer, Fusion):
        meant["xla_gpu_all_reduce_combine_threshold_bytes"] = packer.threshold
    more = {"xla_gpu_enable_latency_hiding_scheduler": True, "an unknown flag": "aborts"}
    return MeantFiles(export("jax", choice), {**meant, **more})


_DECODER = "transformer:layers=4,hidden=64,heads=8,vocab=512,seq=32"
_BF16 = dtypes.NAMES.index("bfloat16")

_LLAMA = Decoder(
    blocks=80, width=8192, heads=64, groups=8, head=128, inner=28672, words=32000, sequence=4096
)
_GPT = read_shape("transformer:layers=24,hidden=2048,heads=16,vocab=51200,seq=2048")
_EXPERTS = replace(
    _LLAMA, experts=8, active=2, expert=14336, inner=0, blocks=32, width=4096, heads=32
)
_GPU = Gpu("a GPU", 312e12, 624e12, 2e12, 108, host=0.0)
_BESIDE = frozenset(("grad_reduce", "param_gather"))

_INTERLEAVED = _job(
    Mesh(tp=4, cp=2, dp=2, pp=4),
    virtual=5,
    schedule="interleaved",
    micros=64,
    sequence_parallel=True,
    overlap=_BESIDE,
)
_MIXTURE = _job(
    Mesh(tp=2, ep=4, dp=8, etp=1), shape=_EXPERTS, sequence_parallel=True, overlap=_BESIDE,
    recompute="full",
)  # fmt: skip

_TITAN = _job(
    Mesh(tp=4, cp=2, dp=2, pp=4), virtual=5, schedule="interleaved", micros=64,
    sequence_parallel=True,
)  # fmt: skip
_TITAN_SHARDS = _job(Mesh(tp=8, dp=16), micro_batch=2, sequence_parallel=True, recompute="full")

_ORDERS = {"two nodes": (0, 1), "three nodes in another order": (2, 0, 3)}

_ALL = (
    ExportCase(
        "pytorch", "pytorch", "DDP",
        lambda: _ddp(_choice("dgx1v", "resnet50", "nccl+ddp=40,view")),
    ),
    ExportCase(
        "pytorch", "pytorch", "DDP in half precision, in two passes",
        lambda: _ddp(
            _choice("dgx-a100x2", "googlenet", "nccl+ddp=2,0.25,fp16", accumulate=2)
        ),
    ),
    ExportCase(
        "pytorch", "pytorch", "FSDP1",
        lambda: _fsdp("fsdp=1", Sharding(), "fsdp", 320),
    ),
    ExportCase(
        "pytorch", "pytorch", "FSDP1 with units of a size, in half precision",
        lambda: _fsdp(
            "fsdp=1",
            Sharding(units=1024, param_dtype=_BF16, reduce_dtype=_BF16, backward_prefetch="post",
                     limit_all_gathers=0, forward_prefetch=1),
            "zero2", 300,
        ),
    ),
    ExportCase(
        "pytorch", "pytorch", "FSDP2",
        lambda: _fsdp("pytorch", Sharding(), "fsdp", 320),
    ),
    ExportCase(
        "pytorch", "pytorch", "FSDP2 that keeps parameters, in half precision",
        lambda: _fsdp(
            "pytorch", Sharding(param_dtype=_BF16, forward_prefetch=2), "zero2", 320,
        ),
    ),
    *(
        ExportCase(program, "torchtitan", name, partial(_torchtitan, target, job))
        for program, target in (("torchtitan", "torchtitan"), ("torchtitan0.2", "torchtitan=0.2"))
        for name, job in (("a pipeline", _TITAN), ("shards and full recomputation", _TITAN_SHARDS))
    ),
    *(
        ExportCase("pytorch", "torchrun", name, partial(_torchrun, *order))
        for name, order in _ORDERS.items()
    ),
    *(
        ExportCase(program, target, name, partial(_mpi, target, *order, elsewhere=elsewhere))
        for program, target, elsewhere in (
            ("openmpi", "openmpi", ""), ("openmpi4", "openmpi", "stops"), ("mpich", "mpich", ""),
        )
        for name, order in _ORDERS.items()
    ),
    ExportCase(
        "deepspeed", "deepspeed", "a pipeline",
        lambda: _deepspeed_mesh(
            _job(Mesh(tp=4, dp=2, pp=4), overlap=frozenset(("grad_reduce",)), half="fp16")
        ),
    ),
    *(
        ExportCase("slurm", "slurm", name, partial(_slurm, *order))
        for name, order in _ORDERS.items()
    ),
    *(
        ExportCase("kubernetes", "kubernetes", name, partial(_kubernetes, *order))
        for name, order in _ORDERS.items()
    ),
    ExportCase(
        "tensorflow", "tensorflow", "one machine",
        lambda: _tensorflow("dgx1v", "nccl+packs=2", **{
            "class": "MirroredStrategy", "ops": "NcclAllReduce", "num_packs": 2,
            "reduce_to_device": None,
        }),
    ),
    ExportCase(
        "tensorflow", "tensorflow", "by the host",
        lambda: _tensorflow("dgx1v", "copy_to_cpu", **{
            "class": "MirroredStrategy", "ops": "ReductionToOneDevice", "num_packs": None,
            "reduce_to_device": "/device:CPU:0",
        }),
    ),
    ExportCase(
        "tensorflow", "tensorflow", "two machines in packs",
        lambda: _tensorflow("dgx-a100x2", "collective+bucket=25M", **{
            "class": "CollectiveAllReduceStrategy", "implementation": "RING",
            "bytes_per_pack": 25 << 20,
        }),
    ),
    ExportCase(
        "deepspeed", "deepspeed", "ZeRO-2",
        lambda: _deepspeed(
            _choice("dgx1v", _DECODER, "nccl", method="zero2", shards=Sharding(), unit=50_000,
                    batch=4),
            **{"bfloat16_config.enabled": False, "float16_config.enabled": False},
        ),
    ),
    ExportCase(
        "deepspeed", "deepspeed", "ZeRO-3 on two machines, in half precision, in three passes",
        lambda: _deepspeed(
            _choice("dgx-h100x2", _DECODER, "nccl", method="zero3", unit=70_001, batch=2,
                    accumulate=3, shards=Sharding(param_dtype=_BF16, reduce_dtype=_BF16)),
            **{"bfloat16_config.enabled": True},
        ),
    ),
    ExportCase(
        "megatron", "megatron", "replicas",
        lambda: _megatron(_job(Mesh(dp=8), shape=_GPT, sequence=2048, optimizer="replicated",
                               half="fp16", recompute="selective")),
    ),
    ExportCase(
        "megatron", "megatron", "an interleaved pipeline",
        lambda: _megatron(_INTERLEAVED, overlap_p2p_comm=False),
    ),
    ExportCase(
        "megatron", "megatron", "experts",
        lambda: _megatron(
            _MIXTURE, expert_tensor_parallel_size=1, moe_router_topk=2, moe_ffn_hidden_size=14336,
            recompute_num_layers=1,
        ),
    ),
    ExportCase("vllm", "vllm", "its own kernel", lambda: _vllm("dgx-h100", "oneshot", "1stage")),
    ExportCase("vllm", "vllm", "PyTorch's symmetric memory", lambda: _vllm("dgx-h100", "multimem")),
    ExportCase("vllm", "vllm", "NCCL's on two machines", lambda: _vllm("dgx-h100x2", "symmetric")),
    ExportCase("flashinfer", "flashinfer", "one shot", lambda: _flashinfer("dgx-h100", "oneshot")),
    ExportCase("flashinfer", "flashinfer", "two shots", lambda: _flashinfer("dgx-a100", "twoshot")),
    ExportCase("nemo", "nemo", "an interleaved pipeline", lambda: _nemo(_INTERLEAVED)),
    ExportCase("nemo", "nemo", "experts", lambda: _nemo(_MIXTURE)),
    ExportCase(
        "horovod", "horovod", "fusion with a cycle",
        lambda: _horovod(
            _choice("dgx1v", "resnet50", "nccl+fusion=64M", cycle=3.5e-3), cycle_time_ms=3.5
        ),
    ),
    ExportCase(
        "horovod", "horovod", "hierarchical on two machines, without fusion",
        lambda: _horovod(_choice("dgx-a100x2", "resnet50", "nccl/pscpu")),
    ),
    ExportCase(
        "tf_cnn_benchmarks", "tf_cnn_benchmarks", "by a spec in packs",
        lambda: _benchmarks(
            "dgx1v", "xring+packs=2", "VariableMgrLocalReplicated", ranges=[("xring", 1, -1)],
            gradient_repacking=2, variable_update="replicated",
        ),
    ),
    ExportCase(
        "tf_cnn_benchmarks", "tf_cnn_benchmarks", "two ranges",
        lambda: _benchmarks(
            "dgx1v", "pscpu:32k:xring", "VariableMgrDistributedAllReduce",
            ranges=[("pscpu", 1, 32 << 10), ("xring", 1, -1)],
            variable_update="distributed_all_reduce",
        ),
    ),
    ExportCase(
        "tf_cnn_benchmarks", "tf_cnn_benchmarks", "hierarchical copies",
        lambda: _benchmarks(
            "dgx1v", "hierarchical_copy", "VariableMgrLocalReplicated", ranges=[],
            hierarchical_copy=True, network_topology="dgx1", gradient_repacking=0,
        ),
    ),
    ExportCase(
        "jax", "jax", "fusion", lambda: _xla(_choice("dgx1v", "resnet50", "nccl+fusion=64M"))
    ),
    ExportCase(
        "jax", "jax", "sharded in half precision",
        lambda: _xla(
            _choice("dgx-h100x2", _DECODER, "nccl", method="fsdp", unit=50_000,
                    shards=Sharding(param_dtype=_BF16, reduce_dtype=0)),
            all_reduce=200_000, all_gather=100_000, reduce_scatter=200_000,
        ),
    ),
)  # fmt: skip


def cases_of(program: str) -> Iterator[ExportCase]:
    """The cases of a program."""
    return (case for case in _ALL if case.program == program)
