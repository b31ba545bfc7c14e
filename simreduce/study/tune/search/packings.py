"""Packings as the calls that they make of a gradient list, and which of them are tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from simreduce.errors import InputError
from simreduce.planners.packing import NoPacking
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.search.call_time import Size
from simreduce.workload import Gradient

MIB = 1 << 20

_RATIO = 2 ** (1 / 4)
"""From one size of buckets to the next that is tried."""

_SMALLEST = 1 << 18
"""Bytes of the smallest buckets that are tried."""


@dataclass(frozen=True, slots=True)
class Packing:
    """A packer by its text, "" for none, and what it makes of the gradients.

    `groups` are gradients by index; each makes calls of `sizes`. `copied` are the bytes that are
    moved to make each group, 0 where gradients are parts of it already. `knob` is the number of
    bytes that the packer was made with, 0 for none.
    """

    text: str
    groups: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[Size, ...], ...]
    copied: tuple[int, ...]
    knob: int = 0

    @property
    def calls(self) -> Iterator[Size]:
        """Every call in order."""
        return (size for group in self.sizes for size in group)


def read_packing(text: str, gradients: Sequence[Gradient], knob: int = 0) -> Packing:
    """The calls of `nccl` with a packer, such as `+ddp=25`.

    InputError if it refuses these gradients.
    """
    packer = parse_strategy(f"nccl{text}").packer
    found = packer.arrange(gradients)
    sizes, copied = [], []
    for group in found.groups:
        elements = sum(gradients[i].elements for i in group)
        first = gradients[group[0]].dtype
        dtype = first if found.wire is None else found.wire
        each = elements // found.pieces
        parts = [each] * (found.pieces - 1) + [elements - each * (found.pieces - 1)]
        sizes.append(tuple(Size(part, dtype) for part in parts))
        moves = not found.align and (len(group) > 1 or found.pieces > 1 or dtype != first)
        copied.append(sum(gradients[i].nbytes for i in group) * moves)
    # Without a packer, reductions start in the order in which gradients get ready.
    order = -1 if isinstance(packer, NoPacking) else 1
    return Packing(text, found.groups[::order], tuple(sizes[::order]), tuple(copied[::order]), knob)


def distinct(texts: Iterable[tuple[str, int]], gradients: Sequence[Gradient]) -> list[Packing]:
    """The packings of these texts and knobs that differ.

    A packing is left out if it makes the same calls of the same gradients and copies as much as one
    before.
    """
    found: dict[object, Packing] = {}
    for text, knob in texts:
        try:
            packing = read_packing(text, gradients, knob)
        except InputError:
            continue
        found.setdefault((packing.groups, packing.sizes, packing.copied), packing)
    return list(found.values())


def bucket_sizes(gradients: Sequence[Gradient]) -> list[int]:
    """Bytes of buckets that are worth trying: four for each doubling, up to all in one."""
    whole = sum(g.nbytes for g in gradients)
    found, size = [], float(min(_SMALLEST, whole))
    while size < whole:
        found.append(_readable(int(size)))
        size *= _RATIO
    return [*dict.fromkeys(found), -(-whole // MIB) * MIB]


def _readable(nbytes: int) -> int:
    """The size to two digits and a half of its unit."""
    unit = max(1 << max(nbytes.bit_length() - 6, 0), 1)
    return nbytes // unit * unit
