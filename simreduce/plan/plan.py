"""The plan: columns over ops, in program order.

Every op makes one value. A value lives on one device, is never overwritten, and is one contiguous
interval `[lo, hi)` of a flat address space counted in elements: all gradients of the step laid end
to end. An op that takes a value of a wider interval reads the part it needs (a view).

Padding is an INPUT of zeros (contributor `ZEROS`). It is labelled with the addresses just past the
tensor it pads; as values are never overwritten, that label clashes with nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import AnyInts, Ints, blocks
from simreduce.plan.contract import Contract
from simreduce.units import plural

ZEROS = -1
"""The contributor of an INPUT that holds zeros (padding)."""

IN_PLACE = 1
"""The `arg` of a CONCAT whose operands lie in one buffer already: it costs nothing."""

NO_STREAM = -1
"""The stream of an op that the algorithm does not serialise."""

_HASHED = 1 << 15
"""Numbers that are hashed at once, so that they stay in the processor's cache."""

_SIZES = np.array(dtypes.SIZES, dtype=np.int64)


class Kind(IntEnum):
    """The kinds of ops; the comment of each gives its operands."""

    INPUT = 0  # none: a gradient, or part of one, exists on the device; `arg` is its contributor
    SLICE = 1  # one, same device: narrow to a sub-interval
    CONCAT = 2  # one or more, same device: join adjacent intervals; free if `arg` is IN_PLACE
    COPY = 3  # one, on another device; in a folded plan, on the machine that is `arg` machines on
    ADD = 4  # one or more, same device: n-ary sum over one interval
    SCALE = 5  # one, same device: divide by `arg`
    CAST = 6  # one, same device: change the dtype
    OUTPUT = 7  # one, same device: a result


class Executor(IntEnum):
    """What executes an op, NCCL's channels by protocol; a runtime gives each its queues and costs.

    The kernels are those whose GPUs read and write each other's memory, without channels: `KERNEL`
    with barriers, `KERNEL_LL` with a flag beside every piece of data.
    """

    TF = 0
    NCCL = 1  # Simple
    NCCL_LL = 2
    NCCL_LL128 = 3
    KERNEL = 4
    KERNEL_LL = 5


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan:
    """An immutable DAG of ops, and what it promises. Columns have one entry per op, in program
    order.

    Program order is a topological order: operands and control predecessors have smaller ids.
    `stream` is `channel * len(devices) + device`, or `NO_STREAM`: ops of one stream run one after
    another in program order. Ops of NCCL do not: its streams only name the channel, on which
    bytes move one after another, whichever arrive first. Channels that would do the same are one
    (`merged_channel`). Addresses are 64 bits wide where some need it; a column of one number
    for all ops may be a view of that number.

    A *folded* plan is that of `machines` equal machines which all do the same at the same time, and
    holds the ops of one of them. A COPY from the `arg`-th next machine reads the op that the other
    has made when this one made its operand, so it crosses the way out of one machine and the way
    into another. Nobody can prove such a plan by itself: the proof is of the plan that the
    same strategy compiles to for few machines, each by itself.

    A *chained* plan does the same thing `times` times in a row (`repeat`).
    """

    devices: tuple[str, ...]
    kind: AnyInts
    device: AnyInts
    lo: AnyInts
    hi: AnyInts
    dtype: AnyInts
    arg: AnyInts
    stream: AnyInts
    executor: AnyInts
    operand_start: AnyInts
    operands: AnyInts
    control_start: AnyInts
    controls: AnyInts
    contract: Contract
    machines: int = 1
    times: int = 1

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        size, devices = plural(len(self), "op"), plural(len(self.devices), "device")
        machines = f" on each of {self.machines} machines" if self.machines > 1 else ""
        return f"<Plan of {self.contract.collective}: {size}, {devices}{machines}>"

    @property
    def nbytes(self) -> Ints:
        """Bytes of each op's value."""
        return self.sizes(slice(None))

    def sizes(self, some: slice | AnyInts) -> Ints:
        """Bytes of the values of some ops."""
        size: Ints = np.subtract(self.hi[some], self.lo[some], dtype=np.int64)
        dtype = self.dtype[some]
        size *= _SIZES[dtype[:1] if dtype.strides == (0,) else dtype]
        return size

    @property
    def operand_count(self) -> AnyInts:
        """Number of operands of each op."""
        return np.diff(self.operand_start)

    @property
    def source(self) -> AnyInts:
        """The device of each op's first operand; its own device where it has none."""
        source = self.device.copy()
        for some in blocks(len(self)):
            start = self.operand_start[some.start : some.stop + 1]
            has = start[1:] > start[:-1]
            first = self.operands[start[:-1][has]]
            # a malformed plan must still be describable
            source[some][has] = self.device[np.clip(first, 0, len(self) - 1)]
        return source

    @property
    def ordered_streams(self) -> AnyInts:
        """The stream of every op that waits for the op before it there, `NO_STREAM` for others."""
        if not self.executor.any():
            return self.stream
        return np.where(self.executor == Executor.TF, self.stream, NO_STREAM)

    @property
    def by_channels(self) -> bool:
        """Whether NCCL's channels execute some ops: errors of published times are known of them."""
        return bool(((self.executor > Executor.TF) & (self.executor < Executor.KERNEL)).any())

    @property
    def transfers(self) -> int:
        """How many values move between devices, of all machines."""
        return int(np.count_nonzero(self.kind == Kind.COPY)) * self.machines

    @property
    def column_bytes(self) -> int:
        """Memory held by the columns, without the contract."""
        arrays = (getattr(self, f.name) for f in fields(self))
        return sum(
            a.itemsize if a.strides == (0,) else a.nbytes
            for a in arrays
            if isinstance(a, np.ndarray)
        )

    @property
    def digest(self) -> str:
        """A short hash of everything in the plan; equal plans have equal digests on every
        machine.
        """
        many = (
            (self.machines, self.times)
            if self.times > 1
            else (self.machines,)
            if self.machines > 1
            else ()
        )
        head = (self.devices, self.contract.collective, *many)
        h = hashlib.sha256(repr(head).encode())
        for f in fields(self):
            column = getattr(self, f.name)
            if isinstance(column, np.ndarray):
                for first in range(0, len(column), _HASHED):
                    h.update(column[first : first + _HASHED].astype("<i8").data)
        return h.hexdigest()[:16]

    def is_away(self, op: int) -> bool:
        """Whether op `op` is a COPY from another machine of a folded plan."""
        return self.machines > 1 and bool(self.kind[op] == Kind.COPY and self.arg[op] > 0)

    def operands_of(self, op: int) -> list[int]:
        """Ids of the values that op `op` reads."""
        return [int(v) for v in self.operands[self.operand_start[op] : self.operand_start[op + 1]]]

    def describe(self, op: int) -> str:
        """`op 12 COPY gpu0 -> gpu1 [0, 64)`, for messages."""
        kind = Kind(int(self.kind[op])).name
        target = self.devices[self.device[op]]
        source = f"{self.devices[int(self.source[op])]}{' of another machine' * self.is_away(op)}"
        where = f"{source} -> {target}" if kind == "COPY" else target
        return f"op {op} {kind} {where} [{self.lo[op]}, {self.hi[op]})"

    def copies(self) -> list[tuple[str, str, int]]:
        """(source, destination, elements) of every COPY, in program order: what a tracer
        would see.
        """
        ids = np.flatnonzero(self.kind == Kind.COPY)
        source, target = self.source[ids], self.device[ids]
        count = (self.hi - self.lo)[ids]
        name = self.devices
        return [(name[s], name[t], int(n)) for s, t, n in zip(source, target, count, strict=True)]
