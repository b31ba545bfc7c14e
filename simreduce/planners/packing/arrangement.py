"""Arrangements, which packers return, and the ops that pack and unpack them on every device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from simreduce import dtypes
from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value
from simreduce.workload import Gradient


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which gradients travel together.

    `groups` holds every gradient's index once; flattened, it is the order in the address space. A
    group of several is concatenated into one vector; the vector is cut into `pieces` tensors of
    floor(size / pieces) elements, the last with the remainder, after a cast to the dtype `wire` if
    there is one.

    With `align` (bytes), producers write straight into a buffer in which every gradient starts at a
    multiple of it: a group of several is one tensor without any op, pads included. With `buffers`
    also a gradient alone is copied into a buffer and back, as several are.
    """

    groups: tuple[tuple[int, ...], ...]
    pieces: int = 1
    wire: int | None = None
    align: int = 0
    buffers: bool = False

    @property
    def is_bare(self) -> bool:
        """Whether every gradient is a tensor as it is, in the order of the list or another."""
        alone = self.pieces == 1 and self.wire is None and not (self.align or self.buffers)
        return alone and all(len(group) == 1 for group in self.groups)


class Packer(Protocol):
    """The interface of packers."""

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """Arrange the gradients, given in list order.

        `faithful` asks for upstream's quirks instead of what a user intends. Raises StrategyError
        if the gradients cannot be packed so.
        """


class GradientSpan(NamedTuple):
    """A gradient's place in the address space: elements [lo, hi); the next may start at `end`."""

    lo: int
    hi: int
    dtype: int
    end: int


def place(
    arrangement: Arrangement, gradients: Sequence[Gradient], base: int
) -> list[list[GradientSpan]]:
    """The fields of every group, laid end to end from address `base`."""
    fields: list[list[GradientSpan]] = []
    for group in arrangement.groups:
        kinds = sorted({gradients[i].dtype for i in group})
        if len(kinds) > 1:
            names = " and ".join(dtypes.NAMES[dtype] for dtype in kinds)
            raise StrategyError(
                f"a pack of {names} cannot be concatenated, which needs one dtype; "
                "small, ddp and fusion keep dtypes apart"
            )
        step = max(arrangement.align // dtypes.SIZES[kinds[0]], 1) if len(group) > 1 else 1
        fields.append([])
        for i in group:
            gradient = gradients[i]
            end = base + -(-gradient.elements // step) * step
            fields[-1].append(GradientSpan(base, base + gradient.elements, gradient.dtype, end))
            base = end
    return fields


def pack(
    b: PlanBuilder, device: int, arrangement: Arrangement, fields: Sequence[Sequence[GradientSpan]]
) -> list[Value]:
    """The tensors to reduce, made on `device` from its own gradients."""
    tensors: list[Value] = []
    for group in fields:
        if arrangement.align:
            tensors.append(b.input(device, group[0].lo, group[-1].end, group[0].dtype))
            continue
        own = [b.input(device, f.lo, f.hi, f.dtype) for f in group]
        whole = b.concat(own, lone=arrangement.buffers)
        if arrangement.wire is not None and arrangement.wire != whole.dtype:
            whole = b.cast(whole, arrangement.wire)
        size, count = whole.hi - whole.lo, arrangement.pieces
        tensors += b.split(
            whole, [size // count] * (count - 1) + [size - size // count * (count - 1)]
        )
    return tensors


def unpack(
    b: PlanBuilder,
    arrangement: Arrangement,
    results: Sequence[Value],
    fields: Sequence[Sequence[GradientSpan]],
) -> list[Value]:
    """Per gradient in address order, its result on one device; `results[i]` is tensor i."""
    gradients: list[Value] = []
    for k, group in enumerate(fields):
        whole = b.concat(results[k * arrangement.pieces : (k + 1) * arrangement.pieces])
        if whole.dtype != group[0].dtype:
            whole = b.cast(whole, group[0].dtype)
        if arrangement.align:
            gradients += [whole._replace(lo=f.lo, hi=f.hi) for f in group]  # views
        else:
            gradients += b.split(whole, [f.hi - f.lo for f in group], lone=arrangement.buffers)
    return gradients
