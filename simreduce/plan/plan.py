"""The plan: columns over ops, in program order, with a contract.

The contract says what a plan promises for each (device, interval): whose contributions are summed
and what divides them.

Every op makes one value. A value lives on one device, is never overwritten, and is one contiguous
interval `[lo, hi)` of a flat address space counted in elements: all gradients of the step laid end
to end. An op that takes a value of a wider interval reads the part it needs (a view).

Padding is an INPUT of zeros (contributor `ZEROS`). It is labelled with the addresses just past the
tensor it pads; as values are never overwritten, that label clashes with nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import AnyInts, Ints, ranges, row_starts
from simreduce.computing.loops import sweep, worth_compiling
from simreduce.units import plural


class Promise(NamedTuple):
    """`device` ends with elements [lo, hi) of `dtype` that hold the sum over `members`, divided by
    `divisor`.
    """

    device: int
    lo: int
    hi: int
    dtype: int
    members: frozenset[int]
    divisor: int = 1


class Homes(NamedTuple):
    """The device of each contributor, for addresses from `lo` up to the next `Homes`."""

    lo: int
    device: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """Rows of promises. Row i: device[i] ends with elements [lo[i], hi[i]) of dtype[i] that hold
    the sum over the contributors sets[members[i]], divided by divisor[i].

    `homes`, ascending, says on which device a contributor's INPUTs must be. A contributor that it
    does not name at an address may have that address on one device only.
    """

    collective: str
    device: AnyInts
    lo: AnyInts
    hi: AnyInts
    dtype: AnyInts
    members: AnyInts
    divisor: AnyInts
    sets: tuple[frozenset[int], ...]
    homes: tuple[Homes, ...] = ()

    def __len__(self) -> int:
        return len(self.device)

    @staticmethod
    def all_reduce(
        ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]], divisor: int = 1
    ) -> Contract:
        """Every rank ends with the sum over all ranks of every (lo, hi, dtype), divided by
        `divisor`.
        """
        device, rows = _each(ranks, intervals)
        return _contract("all_reduce", ranks, device, rows, divisor=divisor)

    @staticmethod
    def reduce(
        ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]], root: int, divisor: int = 1
    ) -> Contract:
        """The device `root` ends with the sum over all ranks of every (lo, hi, dtype)."""
        device, rows = _each([root], intervals)
        return _contract("reduce", ranks, device, rows, divisor=divisor)

    @staticmethod
    def reduce_scatter(
        ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]], divisor: int = 1
    ) -> Contract:
        """Rank i of n ends with the sum of part i of every (lo, hi, dtype): from lo + size i/n to
        lo + size (i+1)/n.
        """
        rows, device = _parts(intervals, len(ranks)), np.tile(ranks, len(intervals))
        return _contract("reduce_scatter", ranks, device, rows, divisor=divisor)

    @staticmethod
    def all_gather(ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]]) -> Contract:
        """Every rank ends with every (lo, hi, dtype).

        Rank i of n gives part i of it as `reduce_scatter` cuts it.
        """
        rows = _parts(intervals, len(ranks))
        return _contract(
            "all_gather",
            ranks,
            np.repeat(ranks, len(rows)),
            np.tile(rows, (len(ranks), 1)),
            np.tile(np.arange(len(ranks)), len(intervals) * len(ranks)),
        )

    @staticmethod
    def all_to_all(ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]]) -> Contract:
        """Rank j ends with part j of every row.

        Every (lo, hi, dtype) is n equal rows, and rank i gives row i.
        """
        n = len(ranks)
        rows = _parts(
            [(lo, hi, t) for a, b, t in intervals for lo, hi, t in _parts([(a, b, t)], n).tolist()],
            n,
        )
        # Row by row of the table: (interval, giver, taker).
        return _contract("all_to_all", ranks, np.tile(ranks, n * len(intervals)), rows,
                         np.tile(np.repeat(np.arange(n), n), len(intervals)))  # fmt: skip

    @staticmethod
    def send_receive(ranks: Sequence[int], intervals: Sequence[tuple[int, int, int]]) -> Contract:
        """Rank i gives row i to rank i + 1, and the last rank to the first.

        Every (lo, hi, dtype) is n equal rows.
        """
        rows, n = _parts(intervals, len(ranks)), len(ranks)
        device = np.tile(np.roll(ranks, -1), len(intervals))
        return _contract("send_receive", ranks, device, rows, np.tile(np.arange(n), len(intervals)))

    @staticmethod
    def of(collective: str, promises: Iterable[Promise]) -> Contract:
        """Any collective, row by row."""
        rows = list(promises)
        sets = tuple(dict.fromkeys(row.members for row in rows))
        position = {members: i for i, members in enumerate(sets)}
        return Contract(
            collective=collective,
            device=np.array([row.device for row in rows], dtype=np.int32),
            lo=np.array([row.lo for row in rows], dtype=np.int64),
            hi=np.array([row.hi for row in rows], dtype=np.int64),
            dtype=np.array([row.dtype for row in rows], dtype=np.int8),
            members=np.array([position[row.members] for row in rows], dtype=np.int32),
            divisor=np.array([row.divisor for row in rows], dtype=np.int32),
            sets=sets,
        )

    @staticmethod
    def broadcast(
        devices: Sequence[int], intervals: Sequence[tuple[int, int, int]], source: int
    ) -> Contract:
        """Every device ends with every (lo, hi, dtype) as the contributor `source` gave it."""
        only = frozenset([source])
        promises = [Promise(d, *interval, only) for d in devices for interval in intervals]
        return replace(Contract.of("broadcast", promises), homes=(Homes(0, {source: source}),))


def _each(
    devices: Sequence[int], intervals: Sequence[tuple[int, int, int]]
) -> tuple[AnyInts, Ints]:
    """Devices, and rows of (lo, hi, dtype): every interval on every device, device by device."""
    table = np.array(intervals, dtype=np.int64).reshape(-1, 3)
    return np.repeat(devices, len(table)), np.tile(table, (len(devices), 1))


def _parts(intervals: Sequence[tuple[int, int, int]], n: int) -> Ints:
    """Rows of (lo, hi, dtype): every interval in n parts of nearly equal size, in order."""
    lo, hi, dtype = np.array(intervals, dtype=np.int64).reshape(-1, 3).T
    # size * i // n, which might be more than 64 bits hold on the way
    each, more = np.divmod((hi - lo)[:, None], n)
    edges = lo[:, None] + each * np.arange(n + 1) + more * np.arange(n + 1) // n
    return np.stack([edges[:, :-1], edges[:, 1:], np.repeat(dtype[:, None], n, 1)], -1).reshape(
        -1, 3
    )


def _contract(
    collective: str, ranks: Sequence[int], device: AnyInts, rows: Ints,
    giver: AnyInts | None = None, divisor: int = 1,
) -> Contract:  # fmt: skip
    """Row i: `device[i]` has what `ranks[giver[i]]` gave, or without givers the sum of all ranks.
    Every rank's contributions are at home on the rank.
    """
    members = np.zeros(len(rows)) if giver is None else giver
    apart = [ranks] if giver is None else [[rank] for rank in ranks]
    return Contract(
        collective=collective,
        device=device.astype(np.int32),
        lo=np.ascontiguousarray(rows[:, 0]),
        hi=np.ascontiguousarray(rows[:, 1]),
        dtype=rows[:, 2].astype(np.int8),
        members=members.astype(np.int32),
        divisor=np.full(len(rows), divisor, dtype=np.int32),
        sets=tuple(frozenset(each) for each in apart),
        homes=(Homes(0, {rank: rank for rank in ranks}),),
    )


ZEROS = -1
"""The contributor of an INPUT that holds zeros (padding)."""

IN_PLACE = 1
"""The `arg` of a CONCAT whose operands lie in one buffer already: it costs nothing."""

NO_STREAM = -1
"""The stream of an op that the algorithm does not serialise."""

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


_INPUT = int(Kind.INPUT)  # to compare an array with the member itself takes four times as long


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
    def inputs(self) -> Ints:
        """The ids of the INPUTs."""
        return np.flatnonzero(self.kind == _INPUT)

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
        source, has = self.device.copy(), self.operand_count > 0
        first = self.operands[self.operand_start[:-1][has]]
        # a malformed plan must still be describable
        source[has] = self.device[np.clip(first, 0, len(self) - 1)]
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
                h.update(column.astype("<i8").data)
        return h.hexdigest()[:16]

    def operands_of(self, op: int) -> list[int]:
        """Ids of the values that op `op` reads."""
        return [int(v) for v in self.operands[self.operand_start[op] : self.operand_start[op + 1]]]

    def describe(self, op: int) -> str:
        """`op 12 COPY gpu0 -> gpu1 [0, 64)`, for messages."""
        kind = Kind(int(self.kind[op])).name
        target = self.devices[self.device[op]]
        away = self.machines > 1 and kind == "COPY" and self.arg[op] > 0
        source = f"{self.devices[int(self.source[op])]}{' of another machine' * bool(away)}"
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


NO_IDS: AnyInts = np.zeros(0, dtype=np.int32)


def part_for(plan: Plan, ops: AnyInts) -> Plan:
    """`ops` and all that they wait for, directly or not, in the same order and on the same streams.
    It promises nothing.
    """
    needed = np.zeros(len(plan), dtype=np.int8)
    needed[ops] = 1
    reads = (
        plan.operand_start,
        plan.operands,
        plan.control_start if len(plan.controls) else NO_IDS,
        plan.controls,
    )
    sweep(
        mark_needed,
        [np.asarray(column, dtype=np.int32) for column in reads],
        [needed],
        compiled=worth_compiling(mark_needed, len(plan)),
    )
    return replace(
        select_ops(plan, np.flatnonzero(needed)), contract=Contract.of(plan.contract.collective, ())
    )


def select_ops(plan: Plan, ops: AnyInts) -> Plan:
    """`ops` in the order given, which wait for each other as in `plan`, and promise the same."""
    place = np.full(len(plan), -1, dtype=np.int32)
    place[ops] = np.arange(len(ops), dtype=np.int32)

    def rows(start: AnyInts, items: AnyInts) -> tuple[AnyInts, AnyInts]:
        count = np.diff(start)[ops]
        found = place[items[ranges(start[:-1][ops], count)]]
        there = found >= 0  # controls may be against program order
        return row_starts(there)[row_starts(count)].astype(start.dtype), found[there]

    operand_start, operands = rows(plan.operand_start, plan.operands)
    control_start, controls = rows(plan.control_start, plan.controls)
    columns = ("kind", "device", "lo", "hi", "dtype", "arg", "stream", "executor")
    return replace(
        plan,
        **{name: getattr(plan, name)[ops] for name in columns},
        operand_start=operand_start,
        operands=operands,
        control_start=control_start,
        controls=controls,
    )


def mark_needed(
    operand_start: Any, operands: Any, control_start: Any, controls: Any, needed: Any
) -> None:
    """Mark with 1 all that marked ops read or wait for. numba may compile it. `control_start` is
    empty if no op has any.
    """
    for back in range(len(needed)):
        op = len(needed) - 1 - back
        if needed[op] == 1:
            for at in range(operand_start[op], operand_start[op + 1]):
                needed[operands[at]] = 1
            if len(control_start) > 0:
                for at in range(control_start[op], control_start[op + 1]):
                    needed[controls[at]] = 1
