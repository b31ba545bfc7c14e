"""The buffers that fill as gradients become ready: DDP's buckets and Horovod's fusion."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from simreduce import dtypes
from simreduce.errors import StrategyError
from simreduce.files.formats import Faults
from simreduce.planners.packing.arrangement import (
    BF16,
    FP16,
    Arrangement,
    half,
    nbytes,
    required,
    wire_of,
)
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


MIB = 2**20

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
