"""JAX: XLA's flags.

An all-reduce is combined with others while they stay within
`--xla_gpu_all_reduce_combine_threshold_bytes` and are at most 256; likewise all-gather and
reduce-scatter (xla/debug_options_flags.cc; jaxlib 0.10 takes the flags).
"""

from __future__ import annotations

from simreduce import dtypes
from simreduce.export.framework import (
    REPLICATED,
    Choice,
    Framework,
    holding,
    like_nccl,
    not_by_nccl,
    not_reducing,
)
from simreduce.export.frameworks.horovod import like_fusion, thresholds
from simreduce.export.writers import environment
from simreduce.planners.packing import Fusion
from simreduce.planners.packing.arrangement import NoPacking

_THRESHOLD = 30 << 20
"""`xla_gpu_all_reduce_combine_threshold_bytes`, unless it is set."""

_MOST_COMBINED = 256
_METHODS = ("fsdp", "zero3")


def _refusals(choice: Choice) -> list[str]:
    strategy, packer = choice.resolved, choice.resolved.packer
    arranged = choice.arrange(packer)
    found = {
        f"JAX shards as its program says; {choice.method} is no flag of XLA": (
            choice.method not in (REPLICATED, *_METHODS)
        ),
        "XLA combines all-reduces of all sizes alike": len(strategy.ranges) > 1,
        f"XLA combines up to a threshold; it has no +{strategy.packing}": (
            not isinstance(packer, Fusion | NoPacking) and _one_pack(choice) is None
        ),
        f"XLA combines at most {_MOST_COMBINED} tensors": (
            arranged and any(len(group) > _MOST_COMBINED for group in arranged.groups)
        ),
        "XLA casts nothing; gradients in half precision are the program's": (
            isinstance(packer, Fusion) and packer.fp16
        ),
    }
    return [*not_reducing(choice), *not_by_nccl(choice), *holding(found)]


def _files(choice: Choice) -> dict[str, str]:
    packer, shards = choice.resolved.packer, choice.shards
    if choice.method == REPLICATED:
        threshold = packer.threshold if isinstance(packer, Fusion) else _one_pack(choice) or 0
        sizes = {"all_reduce": threshold}
    else:
        given = (shards.param_dtype, shards.reduce_dtype) if shards else (None, None)
        gathered = choice.width if given[0] is None else dtypes.SIZES[given[0]]
        reduced = gathered if given[1] is None else dtypes.SIZES[given[1]]
        sizes = {"all_reduce": choice.unit * reduced, "all_gather": choice.unit * gathered,
                 "reduce_scatter": choice.unit * reduced}  # fmt: skip
    flags = {f"xla_gpu_{name}_combine_threshold_bytes": size for name, size in sizes.items()}
    words = [f"--{name}={value}" for name, value in flags.items()]
    words.append("--xla_gpu_enable_latency_hiding_scheduler=true")
    return {"xla.env": environment([choice.title, ("XLA_FLAGS", " ".join(words))])}


def _one_pack(choice: Choice) -> int | None:
    """A threshold within which all gradients are, if the strategy makes one pack of them."""
    arranged = choice.arrange(choice.resolved.packer)
    plain = arranged is not None and arranged.wire is None and arranged.pieces == 1
    return choice.workload.nbytes if plain and arranged and len(arranged.groups) == 1 else None


JAX = Framework(
    "jax",
    "JAX",
    _files,
    _refusals,
    lambda choice: like_nccl(choice, [*like_fusion(choice), ""]),
    default=lambda _: f"nccl+fusion={_THRESHOLD}",
    packings=thresholds,
    settled=True,
    in_half={"": "astype(jnp.{dtype}) before the sum"},
    named=_METHODS,
    coarser=1,
    asked=("JAX 0.10.2, 2026-11-30",),
)
