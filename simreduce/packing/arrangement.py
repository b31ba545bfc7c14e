"""What a packer decides, and the ops that carry it out on every device."""

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

    `groups` holds every gradient's index once; flattened, it is the order in the address space. A group of several
    is concatenated into one vector; the vector is cut into `pieces` tensors of floor(size / pieces) elements, the
    last with the remainder, after a cast to the dtype `wire` if there is one.

    With `align` (bytes), producers write straight into a buffer in which every gradient starts at a multiple of it:
    a group is one tensor without any op, pads included.
    """

    groups: tuple[tuple[int, ...], ...]
    pieces: int = 1
    wire: int | None = None
    align: int = 0


class Packer(Protocol):
    """What `compile_plan` asks of a packer."""

    def arrange(self, gradients: Sequence[Gradient]) -> Arrangement:
        """The arrangement of these gradients, in their order; StrategyError if they cannot be packed so."""


class Field(NamedTuple):
    """A gradient's place in the address space: elements [lo, hi), and where the next one may start."""

    lo: int
    hi: int
    dtype: int
    end: int


def place(arrangement: Arrangement, gradients: Sequence[Gradient], base: int) -> list[list[Field]]:
    """The fields of every group, laid end to end from address `base`."""
    fields: list[list[Field]] = []
    for group in arrangement.groups:
        if len({gradients[i].dtype for i in group}) > 1:
            raise StrategyError(
                "the gradients of a pack are concatenated, which needs one dtype for all of them"
            )
        fields.append([])
        for i in group:
            gradient = gradients[i]
            step = max(arrangement.align // dtypes.SIZES[gradient.dtype], 1)
            end = base + -(-gradient.elements // step) * step
            fields[-1].append(Field(base, base + gradient.elements, gradient.dtype, end))
            base = end
    return fields


def pack(
    b: PlanBuilder, device: int, arrangement: Arrangement, fields: Sequence[Sequence[Field]]
) -> list[Value]:
    """The tensors to reduce, made on `device` from its own gradients."""
    tensors: list[Value] = []
    for group in fields:
        if arrangement.align:
            tensors.append(b.input(device, group[0].lo, group[-1].end, group[0].dtype))
            continue
        whole = b.concat([b.input(device, f.lo, f.hi, f.dtype) for f in group])
        if arrangement.wire is not None and arrangement.wire != whole.dtype:
            whole = b.cast(whole, arrangement.wire)
        size, count = whole.hi - whole.lo, arrangement.pieces
        tensors += b.split(whole, [size // count] * (count - 1) + [size - size // count * (count - 1)])
    return tensors


def unpack(
    b: PlanBuilder,
    arrangement: Arrangement,
    results: Sequence[Sequence[Value]],
    fields: Sequence[Sequence[Field]],
) -> list[list[Value]]:
    """Per gradient, in address order, the values that hold its result on one device.

    `results[i]` are the values that together hold reduced tensor i. A gradient that travelled alone keeps the pieces
    that its algorithm left it in.
    """
    gradients: list[list[Value]] = []
    for k, group in enumerate(fields):
        mine = results[k * arrangement.pieces : (k + 1) * arrangement.pieces]
        parts = [value for tensor in mine for value in tensor]
        if arrangement.align:
            gradients += [_views(parts, f) for f in group]
            continue
        if len(group) > 1 or arrangement.pieces > 1:
            parts = [b.concat(parts)]
        if parts[0].dtype != group[0].dtype:
            parts = [b.cast(part, group[0].dtype) for part in parts]
        gradients += (
            [[v] for v in b.split(parts[0], [f.hi - f.lo for f in group])] if len(group) > 1 else [parts]
        )
    return gradients


def _views(parts: Sequence[Value], f: Field) -> list[Value]:
    """The parts of a buffer that hold one field, as views."""
    cut = [v._replace(lo=max(v.lo, f.lo), hi=min(v.hi, f.hi)) for v in parts]
    return [v for v in cut if v.lo < v.hi]
