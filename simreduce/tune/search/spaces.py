"""What each target can be told: its default, and the settings that are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simreduce import dtypes
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.packing.options import FP16
from simreduce.scenario import Scenario
from simreduce.tune.search.packings import MIB, Packing, bucket_sizes, distinct
from simreduce.workload import Gradient

TIME, STEP = OBJECTIVES = ("time", "step")

_DEEPSPEED = 500_000_000
"""DeepSpeed's `reduce_bucket_size`, in elements."""

_JAX = 30 * MIB
"""`xla_gpu_all_reduce_combine_threshold_bytes`."""

Packers = Callable[[Sequence[Gradient]], list[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class Target:
    """A system that runs NCCL. `packers` are the texts that say its packing, each with the bytes of
    a bucket; `default` is the one it has unless told.
    """

    name: str
    default: Callable[[Sequence[Gradient]], str]
    packers: Packers
    half: Packers = lambda _: []


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:g}"


def _ddp(gradients: Sequence[Gradient]) -> list[tuple[str, int]]:
    """Caps; first caps beside the cap that DDP has unset, as PyTorch knows them only then."""
    sizes = bucket_sizes(gradients)
    found = [(f"+ddp={_mib(size)}{word}", size) for word in (",view", "") for size in sizes]
    firsts = [size for size in sizes if size < 25 * MIB]
    found += [(f"+ddp=25,{_mib(first)}{w}", 25 * MIB) for w in (",view", "") for first in firsts]
    return [*found, ("+ddp=25,1,view", 25 * MIB)]


def _half(packers: Packers) -> Packers:
    """The same in half precision; views cannot be."""
    return lambda gradients: [
        (f"{text},{FP16}", size) for text, size in packers(gradients) if "view" not in text
    ]


def _sized(key: str) -> Packers:
    return lambda gradients: [(f"+{key}={size}", size) for size in bucket_sizes(gradients)]


def _threshold(gradients: Sequence[Gradient]) -> list[tuple[str, int]]:
    return [("+fusion=0", 0), *_sized("fusion")(gradients)]


def _deepspeed(gradients: Sequence[Gradient]) -> str:
    return f"+bucket={_DEEPSPEED * dtypes.SIZES[gradients[0].dtype]}"


_PACKS = (1, 2, 3, 4, 6, 8, 12, 16)


def _anything(gradients: Sequence[Gradient]) -> list[tuple[str, int]]:
    """All packings of all targets, and numbers of packs."""
    found = [("", 0), *((f"+packs={count}", 0) for count in _PACKS)]
    return [*found, *_ddp(gradients), *_threshold(gradients)]


BY_NCCL: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("nccl", lambda _: "", lambda _: [("", 0)]),
        Target("pytorch", lambda _: "+ddp", _ddp, _half(_ddp)),
        Target("horovod", lambda _: "+fusion", _threshold, _half(_threshold)),
        Target("deepspeed", _deepspeed, lambda _: []),
        Target("jax", lambda _: f"+fusion={_JAX}", _threshold),
        Target("any", lambda _: "", _anything, _half(_anything)),
    )
}
"""The targets whose reductions NCCL runs."""

BY_PLANS = ("tensorflow", "tf_cnn_benchmarks", "any")
"""The targets whose whole plans are searched, by all algorithms that the target knows."""

TARGETS = (
    "nccl",
    "pytorch",
    "horovod",
    "deepspeed",
    "jax",
    "tensorflow",
    "tf_cnn_benchmarks",
    "any",
)


@dataclass(frozen=True, slots=True)
class NcclSpace:
    """The packings that a target can be told, its `default` first."""

    packings: tuple[Packing, ...]

    @property
    def default(self) -> Packing:
        """The packing of a target that is told nothing."""
        return self.packings[0]


def nccl_space(target: str, scenario: Scenario, *, half: bool) -> NcclSpace:
    """The space of a target of `BY_NCCL`. For NCCL itself, packings are those of the scenario's own
    strategies: it cannot be told another.
    """
    chosen, gradients = BY_NCCL[target], scenario.workload.gradients
    texts = [(chosen.default(gradients), 0)]
    if target == "nccl":
        own = [s for s in scenario.strategies or () if s.reduced_by_nccl]
        texts = [("" if s.packing == "none" else f"+{s.packing}", 0) for s in own] or texts
    elif target != "deepspeed":  # it has one size of buckets without ZeRO
        texts += chosen.packers(gradients)
        texts += chosen.half(gradients) if half else []
    packings = tuple(distinct(texts, gradients))
    if not packings:
        raise InputError(f"{target}: none of its packings takes these gradients")
    return NcclSpace(packings)


def check_target(name: str) -> str:
    """The name of a target; InputError names the nearest."""
    if name not in TARGETS:
        near = did_you_mean(name, TARGETS) or f"; one of {', '.join(TARGETS)}"
        raise InputError(f"--target: unknown {quote(name)}{near}")
    return name
