"""Horovod's tensor fusion (horovod/common/controller.cc, `FuseResponses`).

Gradients are taken as they become ready, the last of the list first. A buffer takes the next ones
of its dtype while their sum stays within the threshold; one that would overflow it starts the next
buffer, and one larger than the threshold travels alone. Gradients of other dtypes are passed over,
to be fused later, as long as they and the buffer together stay within the threshold.

Left out: Horovod fuses what became ready within one cycle (`HOROVOD_CYCLE_TIME`), here all
gradients did; it counts 16-byte multiples on GPUs and rounds the threshold up to a multiple of 512
bytes per local rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from simreduce import dtypes
from simreduce.planners.packing.arrangement import Arrangement
from simreduce.planners.packing.options import half, nbytes, wire_of
from simreduce.workload import Gradient

DEFAULT_THRESHOLD = 128 * 2**20
"""`HOROVOD_FUSION_THRESHOLD` in bytes; long 64 MiB."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """Buffers of up to `threshold` bytes; with 0 nothing is fused. With `fp16`, as by
    `Compression.fp16`, gradients are half as large when they are fused.
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
