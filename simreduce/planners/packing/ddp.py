"""The buckets of PyTorch's DistributedDataParallel (reducer.cpp,
`compute_bucket_assignment_by_size`).

Gradients are filled in as they become ready, which is about the reverse of their order in the
model (`ready`); this is the assignment that DDP uses from its second iteration on. Every dtype has
buckets of its own. A gradient is put in first and the bucket closes once it has reached its cap, so
buckets overshoot. With `bucket_cap_mb` unset the cap is 25 MiB, but 1 MiB for the first bucket,
which makes the first all-reduce start early; set, it is the cap of all (distributed.py; in older
releases the first bucket kept 1 MiB). Other first caps are for code that sets
`torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`.

DDP copies every gradient into its bucket and back, also one that has a bucket of its own
(`mark_variable_ready_dense`, `finalize_bucket_dense`). With `gradient_as_bucket_view` gradients are
parts of their bucket, so nothing is copied. The communication hooks `fp16_compress_hook` and
`bf16_compress_hook` send buckets in 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.errors import StrategyError
from simreduce.files.formats import Faults
from simreduce.planners.packing.arrangement import Arrangement
from simreduce.planners.packing.options import BF16, FP16, required, wire_of
from simreduce.planners.packing.ready import ready_order
from simreduce.workload import Gradient

MIB = 2**20

_WORDS = ("view", FP16, BF16)
_CAPS = 2
"""Caps that may be given: of all buckets, and of the first."""


@dataclass(frozen=True, slots=True)
class DdpBuckets:
    """Buckets of `cap` bytes or a little more, of each dtype the first of `first_cap`. With `view`
    gradients are parts of their bucket; with `fp16` or `bf16` buckets travel in 16 bits.
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
