"""Exports of each target, a plain one and a harder one, and what they mean.

What is meant comes from the choice that was exported, not from its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from simreduce import dtypes
from simreduce.engine.setup import Setup
from simreduce.export import export
from simreduce.export.framework import Choice
from simreduce.planners.layouts import layout
from simreduce.planners.packing import DdpBuckets, Fusion, ready_order
from simreduce.planners.strategy import parse_strategy
from simreduce.study.ranking import Question, choice_of
from simreduce.training.sharded import Sharding
from simreduce.workload import Gradient, Workload
from simreduce.workload.loader import load_workload

_RACKS = "abci-vx4,fabric=fat_tree,radix=4,nics=2"
"""Nodes with names, below two switches."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The files of a case, what they mean by the names of its script, and what that is given."""

    files: Mapping[str, str]
    meant: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """An export for a target that a program reads."""

    program: str
    target: str
    name: str
    make: Callable[[], Exported]


@cache
def _setup(machine: str) -> Setup:
    return Setup(machine)


def _choice(machine: str, workload: str | Workload, strategy: str, **more: Any) -> Choice:
    given = load_workload(workload) if isinstance(workload, str) else workload
    return Choice(_setup(machine), given, parse_strategy(strategy), **more)


def _ddp(choice: Choice) -> Exported:
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
    return Exported(export("pytorch", choice), meant, given)


_OWN, _BLOCKS = (64, 7), ((300, 20), (300, 20), (300, 20))


def _fsdp(shards: Sharding, method: str, units: list[int], kind: str, unit: int) -> Exported:
    sizes = [*_OWN, *(size for block in _BLOCKS for size in block)]
    workload = Workload("blocks", tuple(Gradient(str(i), size) for i, size in enumerate(sizes)))
    choice = _choice("switch:2", workload, "nccl", method=method, shards=shards, unit=unit)
    codes = {"param_dtype": shards.param_dtype, "reduce_dtype": shards.reduce_dtype}
    meant = {
        "units": units,
        "sharding_strategy": kind,
        "backward_prefetch": f"BACKWARD_{shards.backward_prefetch.upper()}",
        "forward_prefetch": bool(shards.forward_prefetch),
        "limit_all_gathers": bool(shards.limit_all_gathers),
        **{key: "None" if code is None else f"torch.{dtypes.NAMES[code]}"
           for key, code in codes.items()},
    }  # fmt: skip
    return Exported(export("pytorch", choice), meant, {"own": _OWN, "blocks": _BLOCKS})


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


def _launched(target: str, order: tuple[int, ...], **more: Any) -> Exported:
    choice = _nodes(target, order)
    ranks = _ranks(choice)
    return Exported(export(target, choice), {"ranks": ranks, **more})


def _torchrun(*order: int) -> Exported:
    hosts = _nodes("torchrun", order).hosts
    return _launched("torchrun", order, master=str(hosts[0]), world_size=4 * len(order))


def _mpi(target: str, *order: int, elsewhere: str = "") -> Exported:
    if target == "mpich":
        return _launched(target, order)
    ranks = elsewhere or _ranks(_nodes(target, order))
    return _launched(target, order, **{"ranks if run on the last host": ranks})


def _xla(choice: Choice, **thresholds: int) -> Exported:
    meant = {f"xla_gpu_{name}_combine_threshold_bytes": size for name, size in thresholds.items()}
    packer = choice.resolved.packer
    if isinstance(packer, Fusion):
        meant["xla_gpu_all_reduce_combine_threshold_bytes"] = packer.threshold
    more = {"xla_gpu_enable_latency_hiding_scheduler": True, "an unknown flag": "aborts"}
    return Exported(export("jax", choice), {**meant, **more})


_DECODER = "transformer:layers=4,hidden=64,heads=8,vocab=512,seq=32"
_BF16 = dtypes.NAMES.index("bfloat16")

_ORDERS = {"two nodes": (0, 1), "three nodes in another order": (2, 0, 3)}

_ALL = (
    Case(
        "pytorch", "pytorch", "DDP",
        lambda: _ddp(_choice("dgx1v", "resnet50", "nccl+ddp=40,view")),
    ),
    Case(
        "pytorch", "pytorch", "DDP in half precision, in two passes",
        lambda: _ddp(
            _choice("dgx-a100x2", "googlenet", "nccl+ddp=2,0.25,fp16", accumulate=2)
        ),
    ),
    Case(
        "pytorch", "pytorch", "FSDP",
        lambda: _fsdp(Sharding(), "fsdp", [sum(_OWN), 320, 320, 320], "FULL_SHARD", 320),
    ),
    Case(
        "pytorch", "pytorch", "FSDP with units of a size, in half precision",
        lambda: _fsdp(
            Sharding(units=1024, param_dtype=_BF16, reduce_dtype=_BF16, backward_prefetch="post",
                     limit_all_gathers=0, forward_prefetch=1),
            "zero2", [sum(_OWN), 320, 320, 320], "SHARD_GRAD_OP", 300,
        ),
    ),
    *(Case("pytorch", "torchrun", name, partial(_torchrun, *o)) for name, o in _ORDERS.items()),
    *(
        Case(program, target, name, partial(_mpi, target, *order, elsewhere=elsewhere))
        for program, target, elsewhere in (
            ("openmpi", "openmpi", ""), ("openmpi4", "openmpi", "stops"), ("mpich", "mpich", ""),
        )
        for name, order in _ORDERS.items()
    ),
    Case("jax", "jax", "fusion", lambda: _xla(_choice("dgx1v", "resnet50", "nccl+fusion=64M"))),
    Case(
        "jax", "jax", "sharded in half precision",
        lambda: _xla(
            _choice("dgx-h100x2", _DECODER, "nccl", method="fsdp", unit=50_000,
                    shards=Sharding(param_dtype=_BF16, reduce_dtype=0)),
            all_reduce=200_000, all_gather=100_000, reduce_scatter=200_000,
        ),
    ),
)  # fmt: skip


def cases_of(program: str) -> Iterator[Case]:
    """The cases of a program."""
    return (case for case in _ALL if case.program == program)
