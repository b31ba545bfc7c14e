"""Ops in program order: the columns of a plan while it is built, up to a limit of memory.

The channels of NCCL's ops: one number whose fields are read and written here alone.

| bits | field | of |
|---|---|---|
| 0 to 5 | which of NCCL's channels | sends and launches |
| 6 to 11 | how many channels of NCCL it represents, less one | sends and launches |
| 12 to 15 | `LAST`, `JOINED`, `FOLLOWING`, `PEER` | sends |
| 12 | `SWITCHED` | launches of kernels |
| 13 | `BEGINS` | launches of kernels without channels |
| 14 | `ENGINE` | launches and copies of kernels without channels |
| 15 | `ONE_WAY` | copies of kernels without channels |
| 0 and 1, 2 and 3 | barriers, and those that release | launches of kernels without channels |
| 16 and 17 | how often the threads of a block are halved | sends |
| 18 | `UNALIGNED` | sends |

A launch is an INPUT and a send a COPY, so the kind of an op says whose flags its channel has. One
number takes four bytes of an op where columns of their own would take seven.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from simreduce import units
from simreduce.computing.arrays import AnyInts, Ints
from simreduce.errors import InputError, InternalError, PlanError, PlanTooLarge
from simreduce.plan.plan import NO_STREAM, Executor, Kind
from simreduce.plan.values import Value, Values

BYTES = 200
"""Bytes that an op takes while its plan is built, lowered, simulated and proved.

Rings take 90, direct exchanges 150, halving-doubling on a fat tree 180.
"""

MEMORY = "SIMREDUCE_MEMORY"
"""The variable by which a process knows how much memory a plan may take."""
_UNKNOWN = 16 << 30
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def most_ops() -> int:
    """The ops of the largest plan that fits into the memory."""
    return memory() // BYTES


def memory() -> int:
    """Bytes that a plan may take: SIMREDUCE_MEMORY, or what was free when it was first read."""
    text = os.environ.get(MEMORY)
    if text is None:
        return free_memory()
    try:
        return units.cli_size(text)
    except ValueError as error:
        raise InputError(f"{MEMORY}: {error}") from None


@cache
def free_memory() -> int:
    """Bytes that were free when this was first asked."""
    try:
        found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    except OSError:  # not Linux
        found = None
    least = int(found[1]) << 10 if found else _UNKNOWN
    for name in _CGROUPS:
        try:
            limit = Path(name).read_text("ascii").strip()
        except OSError:
            continue
        least = min(least, int(limit)) if limit.isdecimal() else least
    return least


def too_large(ops: int, about: str = "at least") -> PlanTooLarge:
    """The error for a plan of `ops` ops; the message says `about` before its figures."""
    return PlanTooLarge(
        f"the plan would have {about} {ops:,} ops and take {about} {_show(ops * BYTES)} of "
        f"memory, more than the {_show(memory())} there are; try fewer GPUs, fewer tensors or "
        f"larger chunks, or set {MEMORY}, such as {MEMORY}=32G"
    )


def _show(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 10**8 else f"{nbytes:,} bytes"


_FAR = 1 << 24
"""A column grows far ahead until it holds this many numbers."""

Numbers: TypeAlias = "int | AnyInts"
"""One number for all ops of a block, or one for each."""


class GrowingColumn:
    """A column of a plan. While all its numbers are equal it keeps only one: most plans have one
    dtype, one executor and no controls.
    """

    __slots__ = ("array", "dtype", "only", "size")

    def __init__(self, dtype: type[np.signedinteger[Any]]) -> None:
        self.dtype = dtype
        self.only: int | None = None
        self.array: AnyInts = np.empty(0, dtype=dtype)
        self.size = 0

    def extend(self, count: int, numbers: Numbers) -> None:
        """Append `count` numbers; a single number counts for all."""
        if count == 0:
            return
        end = self.size + count
        if self.size == 0 or self.only is not None:
            one = _one(numbers)
            if one is not None and (self.size == 0 or one == self.only):
                self.only, self.size = one, end
                return
        if end > len(self.array):
            self._make_room(end)
        self.array[self.size : end] = numbers
        self.size, self.only = end, None

    def _make_room(self, end: int) -> None:
        # Far too large: memory that is never touched costs nothing, and to grow often costs more
        # than to fill.
        have = len(self.array)
        room = max(end, 64, min(have * 16, _FAR), have * 4)
        grown = np.empty(room, dtype=self.dtype)
        grown[: self.size] = self.array[: self.size] if self.only is None else self.only
        self.array = grown

    def widen(self, dtype: type[np.signedinteger[Any]]) -> None:
        """Keep numbers of another dtype from now on."""
        self.dtype = dtype
        wider = np.empty(len(self.array), dtype=dtype)
        wider[: self.size] = self.array[: self.size]
        self.array = wider

    def current(self) -> AnyInts:
        """The numbers so far."""
        return self.part(0, self.size)

    def part(self, begin: int, end: int) -> AnyInts:
        """The numbers from place `begin` to before `end`."""
        if self.only is not None:
            return np.broadcast_to(np.array(self.only, dtype=self.dtype), end - begin)
        return self.array[begin:end]

    def filled(self) -> AnyInts:
        """The array, which must not grow any more. It takes no memory if all numbers are equal."""
        if self.only is None:
            self.array.resize(self.size, refcheck=False)
        return self.current()

    def starts(self) -> AnyInts:
        """Return where rows of these lengths begin, and where the last ends."""
        if self.only == 0:
            return np.broadcast_to(np.array(0, dtype=np.int32), self.size + 1)
        start = np.zeros(self.size + 1, dtype=np.int32)
        np.cumsum(self.filled(), out=start[1:])
        return start


def _one(numbers: Numbers) -> int | None:
    """The number that all of them equal, if there is one."""
    if not isinstance(numbers, np.ndarray):
        return numbers
    first = numbers[0]
    return int(first) if numbers[-1] == first and (numbers == first).all() else None


_HI = 3
"""The place of an interval's end among the numbers of an op."""

_FEW = 48
"""Blocks with fewer ops, operands and controls in all are appended op by op."""

_ROWS = 1 << 16
"""Ops appended one by one are flushed to the columns at this number."""

_NARROW = np.iinfo(np.int32).max
"""The highest address of columns of 32 bits, which get 64 once there is a higher one."""

COLUMNS: Mapping[str, type[np.signedinteger[Any]]] = MappingProxyType(
    {
        "kind": np.int8,
        "device": np.int32,
        "lo": np.int32,
        "hi": np.int32,
        "dtype": np.int8,
        "arg": np.int32,
        "stream": np.int32,
        "executor": np.int8,
        "operand_count": np.int32,
        "control_count": np.int32,
        "operands": np.int32,
        "controls": np.int32,
    }
)

_NONE: Ints = np.zeros(0, dtype=np.int64)


class OpList:
    """Appends ops in program order: one by one to rows, or as blocks to columns.

    `executor` is stamped on the ops that follow; planners may set it.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices: Sequence[str] = tuple(devices)
        self.executor = Executor.TF
        self._columns = {name: GrowingColumn(dtype) for name, dtype in COLUMNS.items()}
        self._before = 0  # ops in the columns
        self._finished = False
        self._most = most_ops()
        # Ops appended one by one since then; their numbers of operands and controls come last in a
        # row.
        self._rows: list[tuple[int, int, int, int, int, int, int, int, int, int]] = []
        self._operands: list[int] = []
        self._controls: list[int] = []

    def __len__(self) -> int:
        return self._before + len(self._rows)

    def _append(
        self,
        kind: Kind,
        device: int,
        lo: int,
        hi: int,
        dtype: int,
        operands: tuple[int, ...],
        *,
        arg: int = 0,
        stream: int = NO_STREAM,
        after: Sequence[int] = (),
    ) -> Value:
        if hi < lo:
            raise PlanError(
                f"{kind.name} on {self.devices[device]}: the interval [{lo}, {hi}) is reversed"
            )
        op = self._before + len(self._rows)
        if len(self._rows) >= _ROWS:
            if op >= self._most:
                raise too_large(op)
            self._flush()
        self._rows.append(
            (kind, device, lo, hi, dtype, arg, stream, self.executor, len(operands), len(after))
        )
        self._operands += operands
        self._controls += after
        return Value(op, device, lo, hi, dtype)

    def _extend(
        self,
        kind: Kind,
        made: Values,
        operands: Sequence[Ints] | Ints = (),
        *,
        arg: Numbers = 0,
        stream: Numbers = NO_STREAM,
        after: Sequence[int] | Ints = (),
        count: Numbers = 1,
    ) -> Values:
        """One op per entry of `made`, whose devices and intervals are given.

        Entry i reads entry i of each of the `operands`; as an array, it has them along a last axis.
        It waits for all `after`; of an array, for the next count[i] (or `count`) of its entries.
        """
        if (made.hi < made.lo).any():
            raise PlanError(f"{kind.name}: an interval is reversed")
        shape, size, first = made.lo.shape, made.lo.size, len(self)
        if first + size > self._most:
            raise too_large(first + size)
        read, reads = _flatten(operands, shape)
        if isinstance(after, np.ndarray):
            controls = after.reshape(-1)
        else:
            count, controls = (
                len(after),
                np.tile(np.array(after, dtype=np.int64), size) if after else _NONE,
            )
        numbers = (
            kind,
            made.device,
            made.lo,
            made.hi,
            made.dtype,
            arg,
            stream,
            self.executor,
            reads,
            count,
        )
        if size + len(read) + len(controls) <= _FEW:
            self._write_few(size, *numbers, operands=read, controls=controls)
        else:
            self._flush()
            self._write(size, *numbers, operands=read, controls=controls)
        return made.with_ops(np.arange(first, first + size).reshape(shape))

    def _flush(self) -> None:
        """Append what was appended one by one to the columns."""
        if self._rows:
            columns = np.array(self._rows, dtype=np.int64).T
            operands, controls = (
                np.array(flat, dtype=np.int64) for flat in (self._operands, self._controls)
            )
            self._write(len(self._rows), *columns, operands=operands, controls=controls)
            self._rows, self._operands, self._controls = [], [], []

    def _write_few(self, size: int, *numbers: Numbers, operands: Ints, controls: Ints) -> None:
        """`_write`, for so few ops that it takes less time to append them one by one."""
        if self._finished:
            raise InternalError("the plan is finished")
        columns = [
            n.reshape(-1).tolist() if isinstance(n, np.ndarray) else (n,) * size for n in numbers
        ]
        self._rows += zip(*columns, strict=True)
        self._operands += operands.tolist()
        self._controls += controls.tolist()
        if len(self._rows) >= _ROWS:
            self._flush()

    def _write(self, size: int, *numbers: Numbers, operands: Ints, controls: Ints) -> None:
        """Append `size` ops, whose numbers are in the order of `COLUMNS`."""
        if self._finished:
            raise InternalError("the plan is finished")
        high = numbers[_HI]
        if self._columns["hi"].dtype is np.int32 and np.max(high, initial=0) > _NARROW:
            self._columns["lo"].widen(np.int64)
            self._columns["hi"].widen(np.int64)
        for column, part in zip(self._columns.values(), numbers, strict=False):
            column.extend(size, part.reshape(-1) if isinstance(part, np.ndarray) else part)
        self._columns["operands"].extend(len(operands), operands)
        self._columns["controls"].extend(len(controls), controls)
        self._before += size

    def append(self, columns: Sequence[AnyInts], *, operands: Ints, controls: Ints) -> None:
        """Append ops given by columns in the order of `COLUMNS`, without operands and controls."""
        self._flush()
        size = len(columns[0])
        if self._before + size > self._most:
            raise too_large(self._before + size)
        self._write(size, *columns, operands=operands, controls=controls)

    def check(self) -> None:
        """PlanError for an op on a device that is not there, or that reads or waits for one that
        does not come before it.
        """
        self._flush()
        columns = {name: column.current() for name, column in self._columns.items()}
        device, count, ops = columns["device"], len(self.devices), np.arange(self._before)
        bad = np.flatnonzero((device < 0) | (device >= count))
        if bad.size:
            kind = Kind(columns["kind"][bad[0]]).name
            raise PlanError(f"{kind} on device {device[bad[0]]}; the devices are 0 to {count - 1}")
        for name in ("operand", "control"):
            used = columns[f"{name}s"]
            late = (used < 0) | (used >= np.repeat(ops, columns[f"{name}_count"]))
            if late.any():
                raise PlanError(f"an op uses op {used[late][0]}, which does not come before it")

    def _finish_columns(self) -> dict[str, Any]:
        """The columns of the plan; the list must not be used afterwards."""
        self._flush()
        self._finished = True
        return {
            name.replace("count", "start"): column.starts()
            if name.endswith("_count")
            else column.filled()
            for name, column in self._columns.items()
        }


def _flatten(operands: Sequence[Ints] | Ints, shape: tuple[int, ...]) -> tuple[Ints, int]:
    """The operands op by op, and how many each op of a block of this shape has."""
    if isinstance(operands, np.ndarray):
        return operands.reshape(-1), operands.shape[-1]
    if len(operands) == 1:
        # Nearly always of this shape, which numpy takes long to find out.
        only = operands[0] if operands[0].shape == shape else np.broadcast_to(operands[0], shape)
        return only.reshape(-1), 1
    read = np.empty((*shape, len(operands)), dtype=np.int64)
    for i, operand in enumerate(operands):
        read[..., i] = operand
    return read.reshape(-1), len(operands)


CHANNELS = 64
"""Channels that NCCL has at most."""

LAST = 1 << 12
"""The receiver does not send it on: the block there copies it to the user's buffer, and its own
next send waits.
"""

JOINED = 1 << 13
"""The send is one of a tree, whose blocks hear from several others or serve them."""

FOLLOWING = 1 << 14
"""The send is of a chunk's parts after the first."""

PEER = 1 << 15
"""A user has posted the send, to a peer with a connection of its own."""

SWITCHED = 1 << 12
"""The launched kernels have switches sum."""

BEGINS = 1 << 13
"""The kernel begins here: the launch of one that has no channels."""

ENGINE = 1 << 14
"""Copy engines move the bytes, not kernels. The channel represents as many others as GPUs take
part, or as share an engine.
"""

ONE_WAY = 1 << 15
"""The switch sums or multicasts, and does not do both: what passes it has two hops, not four."""

_BARRIER = 1
_RELEASE = 4
_MOST_SYNCS = 4

_HALVING = 1 << 16

UNALIGNED = 1 << 18
"""The send is of ranks' parts that do not begin at multiples of 16 bytes, which threads move at
once.
"""

Channels = TypeVar("Channels", int, AnyInts)


def merged_channel(number: int, blocks: int) -> int:
    """The channel that represents `blocks` channels of NCCL that do the same.

    The channel of a launch of kernels represents all channels of the kernels.
    """
    return number + CHANNELS * (blocks - 1)


def halve_threads(channel: int, times: int) -> int:
    """The channel of a send whose blocks have half of the threads, `times` (0 to 3) over; of one to
    a switch that sums, half of what they have for each of eight heads.
    """
    return channel + _HALVING * times


def count_blocks(channel: Channels) -> Channels:
    """How many channels of NCCL a channel represents, each a block of threads."""
    return channel % LAST // CHANNELS + 1


def count_halvings(channel: Channels) -> Channels:
    """How often the threads of a send's blocks are halved."""
    return channel // _HALVING % 4


def sync_channel(barriers: int, releases: int, flags: int = 0) -> int:
    """The channel of a launch of a kernel without channels, or of a point on its way where its GPUs
    wait for each other: so many barriers (0 to 3), of which `releases` release what was written.
    """
    return _BARRIER * barriers + _RELEASE * releases + flags


def count_barriers(channel: Channels) -> Channels:
    """How many barriers such a launch has, those that release among them."""
    return channel // _BARRIER % _MOST_SYNCS


def count_releases(channel: Channels) -> Channels:
    """How many of them release what was written."""
    return channel // _RELEASE % _MOST_SYNCS
