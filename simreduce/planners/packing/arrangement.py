"""Arrangements, which packers return, and the ops that pack and unpack them on every device.

Ops that are the same on every rank are planned once. Readers of the values of packers' options say
an accepted value in every fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from simreduce import dtypes, units
from simreduce.computing.arrays import Bools, Ints
from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value, ValueTable
from simreduce.plan.builder import OpInterval
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


@dataclass(frozen=True, slots=True)
class NoPacking:
    """Gradients as they are."""

    def arrange(self, gradients: Sequence[Gradient], *, faithful: bool = False) -> Arrangement:
        """One group per gradient."""
        return Arrangement(tuple((i,) for i in range(len(gradients))))


Fields = Sequence[Sequence[GradientSpan]]


def pack_all(b: PlanBuilder, ranks: int, arrangement: Arrangement, fields: Fields) -> ValueTable:
    """The tensors to reduce, made on every rank from its own gradients."""
    dtypes = {field.dtype for group in fields for field in group}
    if not arrangement.is_bare or len(dtypes) != 1:
        given = ValueTable.empty(ranks)
        return on_each(b, given, lambda rank, _: pack(b, rank, arrangement, fields))
    lo, hi = (np.array([each[i] for (each,) in fields], dtype=np.int64) for i in (0, 1))
    device = np.repeat(np.arange(ranks)[:, None], len(fields), axis=1)
    return ValueTable.stacked(b.inputs(device, lo, hi, *dtypes).swapaxes(0, 1))


def unpack_all(
    b: PlanBuilder, arrangement: Arrangement, results: ValueTable, fields: Fields
) -> ValueTable:
    """Per gradient in address order, its result on every rank; row i of `results` is tensor i."""
    if arrangement.is_bare:
        size = np.array([each.hi - each.lo for (each,) in fields], dtype=np.int64)
        dtype = np.array([each.dtype for (each,) in fields], dtype=np.int64)
        if (results.hi - results.lo == size[:, None]).all() and (results.dtype == dtype).all():
            return results
    return on_each(b, results, lambda _, own: unpack(b, arrangement, own, fields))


def on_each(
    b: PlanBuilder, given: ValueTable, make: Callable[[int, Sequence[Value]], list[Value]]
) -> ValueTable:
    """Return a table whose column r is what `make(r, column r)` makes.

    All ops of `make` are on rank r. Ranks that are given the same intervals do the same.
    """
    begin, ranks = b.mark(), given.shape[1]
    first = ValueTable.of_columns([make(0, given.column(0))])
    interval = OpInterval(begin, b.mark(), given.op[:, 0])
    op, closed = interval.relative(first.op[:, 0]), b.is_closed(interval)
    alike = _compare(given) if op is not None and closed else np.zeros(ranks, dtype=np.bool_)
    made, rank = [first], 1
    while rank < ranks:
        last = rank + int(np.argmin(np.append(alike[rank:], np.False_)))
        if op is not None and last > rank:
            some = np.arange(rank, last)
            made.append(_copies(first, op, given.op[:, some], len(b), len(interval), some))
            which = np.zeros(len(some), dtype=np.int64)
            b.repeat([interval], which, given.op[:, some].T, devices=some)
        else:
            last = rank + 1
            made.append(ValueTable.of_columns([make(rank, given.column(rank))]))
        rank = last
    return ValueTable.concatenate(made, axis=1)


def _compare(given: ValueTable) -> Bools:
    """Return which ranks are given values like the first rank's.

    Their intervals are the same, and values that share an op on the first rank share one here.
    """
    _, first, which = np.unique(given.op[:, 0], return_index=True, return_inverse=True)
    same = given.op == given.op[first[which]]
    for each in (given.lo, given.hi):
        same &= each == each[:, :1]
    return np.asarray(same.all(axis=0))


def _copies(
    first: ValueTable, op: Ints, given: Ints, moved: int, size: int, ranks: Ints
) -> ValueTable:
    """Return the values of ranks whose ops are copies of the first rank's.

    Each rank has `size` ops; the first copy starts at op `moved`. `op` gives the first rank's ops
    as `OpInterval.relative` does.
    """
    own = op[:, None] + moved + size * np.arange(len(ranks))
    old = np.flatnonzero(op < 0)
    own[old] = given[-1 - op[old]]
    device, lo, hi = (np.broadcast_to(each, own.shape) for each in (ranks, first.lo, first.hi))
    return ValueTable(own, device, lo, hi, first.dtype)


FP16, BF16 = "fp16", "bf16"
"""The words for 16 bits on the wire."""

FLOAT16, BFLOAT16 = dtypes.code("float16"), dtypes.code("bfloat16")
_FLOATS = tuple(dtypes.code(name) for name in ("float32", "float16", "float64", "bfloat16"))

_DIGITS = 18
"""Digits of the largest number read; Python refuses thousands of them with an error of its own."""


def required(key: str, text: str | None, example: str) -> str:
    """Returns the text after `key=`; raises StrategyError without one."""
    if not text:
        raise StrategyError(f"{key}: needs a value, for example {key}={example}")
    return text


def whole(
    key: str, text: str | None, least: int, what: str, example: str, most: int | None = None
) -> int:
    """A whole number from `least`, to `most` if given; `what` names it in messages."""
    text = required(key, text, example)
    number = int(text) if text.isdecimal() and len(text) <= _DIGITS else least - 1
    if number < least or (most is not None and number > most):
        span = f"from {least}" if most is None else f"from {least} to {most}"
        raise StrategyError(
            f"{key}: {text!r}: {what} is a whole number {span}, for example {key}={example}"
        )
    return number


def nbytes(key: str, text: str | None, least: int, example: str) -> int:
    """A size of at least `least` bytes in the spelling of the command line: `25M`, `25MiB`,
    `26214400`.
    """
    text = required(key, text, example)
    try:
        size = units.cli_size(text)
    except ValueError as error:
        raise StrategyError(f"{key}: {error}") from None
    except OverflowError:
        raise StrategyError(
            f"{key}: {text!r} is too large for a size, as in {key}={example}"
        ) from None
    if size < least:
        raise StrategyError(
            f"{key}: {text!r}: the size must be {least} bytes or more, as in {key}={example}"
        )
    return size


def half(key: str, text: str | None, example: str) -> tuple[str | None, bool]:
    """The value before `,fp16`, and whether that is there; without a value, None."""
    if text is None:
        return None, False
    number, comma, word = text.partition(",")
    if comma and word != FP16:
        raise StrategyError(
            f"{key}: unknown {word!r} after {number}; only fp16 is known, "
            f"as in {key}={example},fp16"
        )
    return number, bool(comma)


def wire_of(
    key: str, gradients: Sequence[Gradient], *, fp16: bool, bf16: bool = False
) -> int | None:
    """The dtype on the wire: one of 16 bits if asked for, which only floating-point gradients
    take.
    """
    if not (fp16 or bf16):
        return None
    if other := sorted({g.dtype for g in gradients} - set(_FLOATS)):
        raise StrategyError(
            f"{key}: {FP16 if fp16 else BF16} is for floating-point gradients, not for "
            f"{dtypes.NAMES[other[0]]}; leave it out"
        )
    return FLOAT16 if fp16 else BFLOAT16
