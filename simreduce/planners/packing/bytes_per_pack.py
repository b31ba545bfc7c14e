"""`bytes_per_pack` of TensorFlow 2's `CommunicationOptions` (cross_device_utils.py,
`group_by_size`).

The gradient list is reversed, as the last layer's gradients exist first, and filled into packs in
that order. A pack is closed once it exceeds the size: few large packs rather than many
small ones. TensorFlow does so inside `tf.function`; in eager mode it ignores the option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.planners.packing.arrangement import Arrangement
from simreduce.planners.packing.options import half, nbytes, wire_of
from simreduce.workload import Gradient


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
