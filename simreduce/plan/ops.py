"""Ops in program order: the columns of a plan while it is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints
from simreduce.errors import InternalError, PlanError
from simreduce.plan.columns import GrowingColumn, Numbers
from simreduce.plan.limits import most_ops, too_large
from simreduce.plan.plan import NO_STREAM, Executor, Kind
from simreduce.plan.values import Value, Values

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
