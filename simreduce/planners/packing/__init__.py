"""Packers combine gradients before the reduction; `PACKERS` is the registry.

A packer is a frozen value with one verb, `arrange(gradients) -> Arrangement`. `pack` and `unpack`
add the ops of any arrangement to a plan.

The buffers that fill as gradients become ready: DDP's buckets and Horovod's fusion.

The packers of TensorFlow and of tf_cnn_benchmarks.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simreduce import dtypes, units
from simreduce.errors import StrategyError
from simreduce.files.formats.syntax import Faults
from simreduce.planners.packing.arrangement import (
    BF16,
    FLOAT16,
    FP16,
    Arrangement,
    Packer,
    half,
    nbytes,
    required,
    whole,
    wire_of,
)
from simreduce.units import MIB
from simreduce.workload import Gradient

_WEIGHT = re.compile(r"(.*)[./](?:weights?|kernel|gamma|scale)")
_BIAS = re.compile(r"(.*)[./](?:bias(?:es)?|beta)")
_CONVOLUTION = re.compile(
    r"(?:conv[^./]*(?:[./]\d+)*|(?:^|[./])features\.\d+|patch[^./]*(?:[./]\w*proj\w*)?)$",
    re.IGNORECASE,
)
"""Names of convolutions: what is deeper in a `features.7.block` may be linear."""


def ready_order(gradients: Sequence[Gradient]) -> list[int]:
    """Indices of gradients, first ready first: the last of the list first, but the weight of a
    convolution or of a norm before its bias, as DDP's log of PyTorch 2.13 shows.

    Names tell which those are (`conv1.weight`, `features.0.bias`, `bn/gamma`); a norm's two are
    equally large.
    """
    order = list(reversed(range(len(gradients))))
    for place in range(len(order) - 1):
        bias, weight = order[place], order[place + 1]
        if _is_weight_first(gradients[weight], gradients[bias]):
            order[place : place + 2] = [weight, bias]
    return order


def _is_weight_first(weight: Gradient, bias: Gradient) -> bool:
    whose, of = _WEIGHT.fullmatch(weight.name), _BIAS.fullmatch(bias.name)
    if not whose or not of or not re.match(rf"{re.escape(of[1])}(?:[./]|$)", whose[1]):
        return False
    return weight.elements == bias.elements or bool(_CONVOLUTION.search(whose[1]))


_WORDS = ("view", FP16, BF16)
_CAPS = 2
"""Caps that may be given: of all buckets, and of the first."""


@dataclass(frozen=True, slots=True)
class DdpBuckets:
    """Buckets of `cap` bytes or a little more, of each dtype the first of `first_cap`. With `view`
    gradients are parts of their bucket; with `fp16` or `bf16` buckets travel in 16 bits.

    They are PyTorch's (reducer.cpp, `compute_bucket_assignment_by_size`). Gradients are filled in
    as they become ready, which is about the reverse of their order in the model (`ready_order`);
    this is the assignment that DDP uses from its second iteration on. A gradient is put in first
    and the bucket closes once it has reached its cap, so buckets overshoot. With `bucket_cap_mb`
    unset the cap is 25 MiB, but 1 MiB for the first bucket, which makes the first all-reduce start
    early; set, it is the cap of all (distributed.py; in older releases the first bucket kept 1
    MiB). Other first caps are for code that sets `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`.

    DDP copies every gradient into its bucket and back, also one that has a bucket of its own
    (`mark_variable_ready_dense`, `finalize_bucket_dense`). With `gradient_as_bucket_view` gradients
    are parts of their bucket, so nothing is copied. The communication hooks `fp16_compress_hook`
    and `bf16_compress_hook` send buckets in 16 bits.
    """

    cap: int = 25 * MIB
    first_cap: int = 1 * MIB
    view: bool = False
    fp16: bool = False
    bf16: bool = False

    @staticmethod
    def parse(text: str | None) -> DdpBuckets:
        """Parse `+ddp`, or the `MIB[,FIRST][,view][,fp16|bf16]` in `+ddp=50`."""
        if text is None:
            return DdpBuckets()
        caps: list[int] = []
        words, faults = set[str](), Faults()
        for part in required("ddp", text, "25").split(","):
            if part in _WORDS and caps and part not in words:
                words.add(part)
            elif len(caps) < _CAPS and not words:
                caps.append(faults.attempt("", _cap, part) or 0)
            else:
                faults.add(
                    "", f"ddp: {part!r}: after the caps come view, fp16 or bf16, as in ddp=25,fp16"
                )
        if len(words) > 1:
            first, last = sorted(words)
            why = (
                "copies every bucket, so it cannot be a view" if last == "view" else "is one dtype"
            )
            faults.add("", f"ddp: {first} {why}; give one of {first} and {last}")
        faults.raise_any(StrategyError)
        return DdpBuckets(caps[0], caps[-1], "view" in words, FP16 in words, BF16 in words)

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """The buckets in the order in which they close; those that never fill come last, in the
        order they began.
        """
        closed: list[tuple[int, ...]] = []
        filling: dict[int, list[int]] = {}
        held: dict[int, int] = {}
        caps: dict[int, int] = {}
        for i in ready_order(gradients):
            dtype = gradients[i].dtype
            filling.setdefault(dtype, []).append(i)
            held[dtype] = held.get(dtype, 0) + gradients[i].nbytes
            if held[dtype] >= caps.get(dtype, self.first_cap):
                closed.append(tuple(filling.pop(dtype)))
                held[dtype], caps[dtype] = 0, self.cap
        groups = (*closed, *map(tuple, filling.values()))
        return Arrangement(
            groups,
            wire=wire_of("ddp", gradients, fp16=self.fp16, bf16=self.bf16),
            align=int(self.view),
            buffers=not self.view,
        )


def _cap(text: str) -> int:
    """Bytes of a cap in MiB."""
    try:
        cap = float(text) * MIB
    except ValueError:
        cap = math.nan
    if not 1 <= cap < math.inf:
        raise StrategyError(
            f"ddp: {text!r}: bucket_cap_mb is a number of MiB above 0, for example ddp=25; ddp "
            "alone is unset"
        )
    return int(cap)


DEFAULT_THRESHOLD = 128 * 2**20
"""`HOROVOD_FUSION_THRESHOLD` in bytes; long 64 MiB."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """Buffers of up to `threshold` bytes; with 0 nothing is fused. With `fp16`, as by
    `Compression.fp16`, gradients are half as large when they are fused.

    It is Horovod's (horovod/common/controller.cc, `FuseResponses`). Gradients are taken as they
    become ready, the last of the list first. A buffer takes the next ones of its dtype while their
    sum stays within the threshold; one that would overflow it starts the next buffer, and one
    larger than the threshold travels alone. Gradients of other dtypes are passed over, to be fused
    later, as long as they and the buffer together stay within the threshold.

    Left out: Horovod fuses what became ready within one cycle (`HOROVOD_CYCLE_TIME`), here all
    gradients did; it counts 16-byte multiples on GPUs and rounds the threshold up to a multiple of
    512 bytes per local rank.
    """

    threshold: int = DEFAULT_THRESHOLD
    fp16: bool = False

    @staticmethod
    def parse(text: str | None) -> Fusion:
        """Parse `+fusion`, or the `BYTES[,fp16]` in `+fusion=64M`."""
        number, fp16 = half("fusion", text, "128M")
        if number is None:
            return Fusion()
        return Fusion(nbytes("fusion", number, 0, "128M"), fp16)

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """The buffers in the order in which they are sent."""
        wire = wire_of("fusion", gradients, fp16=self.fp16)
        sizes = [g.nbytes if wire is None else g.elements * dtypes.SIZES[wire] for g in gradients]
        waiting = deque(reversed(range(len(gradients))))
        buffers: list[tuple[int, ...]] = []
        while waiting:
            buffer = [waiting.popleft()]
            first = gradients[buffer[0]]
            held, passed = sizes[buffer[0]], 0
            skipped: list[int] = []
            while waiting:
                size = sizes[waiting[0]]
                same = gradients[waiting[0]].dtype == first.dtype
                if same and held + size <= self.threshold:
                    buffer.append(waiting.popleft())
                    held += size
                    continue
                passed += size
                if held + passed > self.threshold:
                    break
                skipped.append(waiting.popleft())
            waiting.extendleft(reversed(skipped))
            buffers.append(tuple(buffer))
        return Arrangement(tuple(buffers), wire=wire)


MOST_PACKS = 4096
"""A pack is an op on every device; thousands of them only cost time."""


@dataclass(frozen=True, slots=True)
class ConcatAndSplit:
    """k packs of floor(total / k) elements, the last with the remainder.

    `ConcatAndSplitPacker` (TensorFlow 1.12 cross_tower_ops.py, `num_packs` ever since): one vector,
    cut in k packs. Nothing can move before every gradient of the device exists, and no gradient is
    back before all packs are.
    """

    packs: int

    @staticmethod
    def parse(text: str | None) -> ConcatAndSplit:
        """Parse the K in `+packs=K`."""
        return ConcatAndSplit(whole("packs", text, 1, "the number of packs", "8", MOST_PACKS))

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """One group of everything, in `packs` pieces."""
        return Arrangement((tuple(range(len(gradients))),), pieces=self.packs)


DEFAULT_GROUP = 10
"""`--agg_small_grads_max_group`."""

OVERSHOOT = 2
"""Members that an upstream pack takes beyond its `max_group`."""

_FLOAT32 = dtypes.code("float32")


def extract_ranges(
    indices: Sequence[int], limit: int = 32
) -> tuple[list[tuple[int, int]], list[int]]:
    """Runs (first, last) of two or more consecutive `indices`, which ascend, and the indices in no
    run.

    A run takes the next index while last - first <= limit, so it holds up to limit + 2 of them.

    >>> extract_ranges([1, 3, 4, 6, 7, 8, 9])
    ([(3, 4), (6, 9)], [1])
    """
    runs: list[tuple[int, int]] = []
    for i in indices:
        first, last = runs[-1] if runs else (i, i)
        if runs and i == last + 1 and last - first <= limit:
            runs[-1] = first, i
        else:
            runs.append((i, i))
    return [run for run in runs if run[0] < run[1]], [
        first for first, last in runs if first == last
    ]


@dataclass(frozen=True, slots=True)
class SmallTensors:
    """Packs of up to `max_group` neighbours of at most `max_bytes` (inclusive) each.

    `pack_small_tensors` and `extract_ranges` (tf_cnn_benchmarks allreduce.py, TensorFlow 1.12
    cross_tower_utils.py). Neighbours in the gradient list that are float32 and small travel as one
    tensor; all others travel alone. Upstream's limit on the members of a pack is off by two: a pack
    takes up to `max_group + 2`. Here it is the limit, unless `faithful` reproduces upstream.
    """

    max_bytes: int
    max_group: int = DEFAULT_GROUP

    @staticmethod
    def parse(text: str | None) -> SmallTensors:
        """Parse the `BYTES[,GROUP]` in `+small=64K,10`."""
        size, comma, group = required("small", text, "64K,10").partition(",")
        faults, group = Faults(), group if comma else str(DEFAULT_GROUP)
        most = faults.attempt("", nbytes, "small", size, 1, "64K,10")
        members = faults.attempt(
            "", whole, "small", group or "no number", 1, "the most members of a pack", "64K,10"
        )
        faults.raise_any(StrategyError)
        return SmallTensors(most or 1, members or 1)

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """The packs in their order, then all other gradients in theirs."""
        small = [
            i for i, g in enumerate(gradients) if g.dtype == _FLOAT32 and g.nbytes <= self.max_bytes
        ]
        runs, _ = extract_ranges(small, self.max_group if faithful else self.max_group - OVERSHOOT)
        packs = [tuple(range(first, last + 1)) for first, last in runs]
        packed = {i for pack in packs for i in pack}
        return Arrangement((*packs, *((i,) for i in range(len(gradients)) if i not in packed)))


@dataclass(frozen=True, slots=True)
class GradientRepacking:
    """k packs (0: the gradients themselves), in float16 while they travel if `fp16`.

    `gradient_repacking` with `compact_gradient_transfer` (tf_cnn_benchmarks batch_allreduce.py,
    `_TensorPacker`): concatenate all gradients, cast the vector to float16 if they travel
    compacted, cut it in k. Afterwards everything is undone in reverse, so results have the dtype of
    their gradients. Without concatenation (k = 0) each gradient is cast on its own. Upstream
    compacts by default, but only a float16 run (`--use_fp16`) of float32 variables.
    """

    packs: int
    fp16: bool = False

    @staticmethod
    def parse(text: str | None) -> GradientRepacking:
        """Parse the `K[,fp16]` in `+repack=K,fp16`."""
        number, comma, option = required("repack", text, "8,fp16").partition(",")
        if comma and option != FP16:
            raise StrategyError(
                f"repack: unknown {option!r} after the number of packs; only fp16 is known"
            )
        packs = whole("repack", number, 0, "the number of packs", "8")
        if not packs and not comma:
            raise StrategyError(
                "repack=0 does nothing; give a number of packs (repack=8) or compaction "
                "(repack=0,fp16), or leave it out"
            )
        return GradientRepacking(packs, bool(comma))

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """One group of everything, or one per gradient if there is nothing but the cast."""
        if self.packs and any(g.dtype == FLOAT16 for g in gradients):
            raise StrategyError(
                "repack: tf_cnn_benchmarks does not repack float16 variables; use packs=K, "
                "or gradients of another dtype"
            )
        wire = wire_of("repack", gradients, fp16=self.fp16)
        if not self.packs:
            return Arrangement(tuple((i,) for i in range(len(gradients))), wire=wire)
        return Arrangement((tuple(range(len(gradients))),), pieces=self.packs, wire=wire)


def group_by_size(sizes: Sequence[int], bytes_per_pack: int) -> list[list[int]]:
    """Packs of consecutive positions in `sizes`, which are bytes; a pack is full when it exceeds
    `bytes_per_pack`.

    0 is one pack of everything.

    >>> group_by_size([40, 40, 40, 40], 79)
    [[0, 1], [2, 3]]
    """
    packs: list[list[int]] = []
    held = 0
    for i, size in enumerate(sizes):
        if not packs or (bytes_per_pack and held > bytes_per_pack):
            packs.append([])
            held = 0
        packs[-1].append(i)
        held += size
    return packs


@dataclass(frozen=True, slots=True)
class BytesPerPack:
    """Packs of a little more than `size` bytes, in reverse list order; 0 is one pack. With `fp16`
    they travel in half precision.

    `bytes_per_pack` of TensorFlow 2's `CommunicationOptions` (cross_device_utils.py,
    `group_by_size`). The gradient list is reversed, as the last layer's gradients exist first, and
    filled into packs in that order. A pack is closed once it exceeds the size: few large packs
    rather than many small ones. TensorFlow does so inside `tf.function`; in eager mode it ignores
    the option.
    """

    size: int
    fp16: bool = False

    @staticmethod
    def parse(text: str | None) -> BytesPerPack:
        """Parse the `BYTES[,fp16]` in `+bucket=25M`."""
        number, fp16 = half("bucket", text, "25M")
        return BytesPerPack(nbytes("bucket", number, 0, "25M"), fp16)

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """The packs from the last gradient to the first. Dtypes are not kept apart."""
        last = len(gradients) - 1
        packs = group_by_size([g.nbytes for g in reversed(gradients)], self.size)
        groups = tuple(tuple(last - i for i in pack) for pack in packs)
        return Arrangement(groups, wire=wire_of("bucket", gradients, fp16=self.fp16))


ALIGN = 64
"""Bytes; every field of the buffer starts at a multiple."""


@dataclass(frozen=True, slots=True)
class ScopedAllocator:
    """One collective for each `scope` consecutive gradients of one dtype.

    `allreduce_merge_scope` and the scoped-allocator rewrite (TensorFlow
    scoped_allocator_optimizer.cc). The k gradients share a name scope, and the rewrite replaces the
    collectives of a scope by one over a common buffer. Producers write straight into it, every
    gradient at a 64-byte boundary: nothing is copied to pack or to unpack. A scope with a single
    collective is left as it is.
    """

    scope: int

    @staticmethod
    def parse(text: str | None) -> ScopedAllocator:
        """Parse the K in `+merge=K`; 0 and less mean 1, as for `--allreduce_merge_scope`."""
        number = required("merge", text, "32")
        size = whole(
            "merge", number.removeprefix("-"), 0, "the number of gradients per scope", "32"
        )
        return ScopedAllocator(1 if number.startswith("-") else max(size, 1))

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """A scope of several dtypes is not merged. Upstream's rewrite fails on it as a whole and
        merges nothing.
        """
        indices = range(len(gradients))
        scopes = [tuple(indices[i : i + self.scope]) for i in range(0, len(gradients), self.scope)]
        mixed = {scope for scope in scopes if len({gradients[i].dtype for i in scope}) > 1}
        if mixed and faithful:
            mixed = set(scopes)
        groups = [
            part
            for scope in scopes
            for part in (((i,) for i in scope) if scope in mixed else [scope])
        ]
        return Arrangement(tuple(groups), align=ALIGN)


_RATIO = 2 ** (1 / 4)
"""From one number of buckets that are joined to the next."""


def why_too_fine(packer: Packer, finest: int) -> str:
    """Why a packer may not be tried on buckets that are known down to `finest` bytes; "" if it may.

    With 0, all may.

    A record has the sizes of buckets, not of the gradients in them. So its buckets can be joined
    and not divided: a packing can be tried if its own buckets are sums of recorded ones.
    """
    known = f"the record has buckets of {units.exact_size(finest)}, and not the gradients in them"
    if isinstance(packer, DdpBuckets):
        if packer.cap < finest:
            return f"bucket_cap_mb {packer.cap / MIB:g} makes smaller buckets: {known}"
        if finest and packer.first_cap not in (MIB, packer.cap):
            return f"a first bucket of {packer.first_cap / MIB:g} MiB cannot be made: {known}"
    size = finest
    if isinstance(packer, Fusion):
        size = packer.threshold
    elif isinstance(packer, BytesPerPack):
        size = packer.size or finest  # 0 puts everything in one pack
    return f"buffers of {units.exact_size(size)} are smaller: {known}" if size < finest else ""


def joined_sizes(sizes: Sequence[int], finest: int, *, within: bool = False) -> list[int]:
    """Bytes of buckets that join one, two, ... of recorded ones with these sizes, up to all.

    They are those of the smallest that joins as many, or with `within` a size that none exceeds.
    The first and the last bucket are no measure: the first may have a cap of its own, and the last
    is what was left over.
    """
    inner = sizes[1:-1] if len(sizes) > 2 else sizes
    found, count = [finest], _RATIO
    while round(count) < len(inner):
        n, count = round(count), count * _RATIO
        if n > 1 or within:
            sums = [sum(inner[i : i + n]) for i in range(len(inner) - n + 1)]
            found.append(max(sums) + MIB - 1 if within else min(sums))
    found.append(sum(sizes) + MIB - 1)
    whole = [size // MIB * MIB or size for size in found]
    return list(dict.fromkeys(size for size in whole if size >= finest))


PACKERS: Mapping[str, Callable[[str | None], Packer]] = {
    "packs": ConcatAndSplit.parse,
    "small": SmallTensors.parse,
    "repack": GradientRepacking.parse,
    "bucket": BytesPerPack.parse,
    "merge": ScopedAllocator.parse,
    "ddp": DdpBuckets.parse,
    "fusion": Fusion.parse,
}
"""Parsers of packers by the key that users type after `+`.

Each takes the text after `=`, or None if there is no `=`.
"""

SUMMARIES: Mapping[str, str] = {
    "packs": "all gradients as one vector, cut into so many parts",
    "small": "small gradients together: up to so many bytes each, and so many of them",
    "repack": "all gradients as one vector, cut into so many parts, as tf_cnn_benchmarks does it",
    "bucket": "gradients one after the other, in buckets of so many bytes",
    "merge": "so many gradients one after the other in one buffer of TensorFlow's",
    "ddp": "the buckets of PyTorch's DDP, of so many MiB, or of its default",
    "fusion": "Horovod's buffers, of so many bytes, or of its default",
}
"""Short descriptions of the packers, by key."""

LISTS: Mapping[str, int] = {"small": 1, "repack": 1, "ddp": 3, "fusion": 1, "bucket": 1}
"""Packers whose value may have commas in it, and how many."""
