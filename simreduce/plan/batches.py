"""Many tensors or groups planned at once, in the program order of one after another.

What a planner does with one tensor it does with a thousand in the same calls, if each of them has
devices of its own. Then only the program order is missing, which a stable sort by group gives.

What a planner does with a tensor depends on its size and dtype, not on where in the address space
it is. So every further tensor of one size and dtype repeats the ops of the first at other
addresses. Array arithmetic appends these ops, for many tensors at once. The plan is the same, op by
op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, ranges, row_starts
from simreduce.plan.builder import PlanBuilder
from simreduce.plan.intervals import OpInterval
from simreduce.plan.plan import NO_STREAM
from simreduce.plan.values import Value, Values, ValueTable


class _Names(Sequence[str]):
    """The names of the devices of all groups."""

    def __init__(self, names: Sequence[str], groups: int) -> None:
        self.names, self.groups = names, groups

    def __len__(self) -> int:
        return len(self.names) * self.groups

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.names[index % len(self.names)]


class SeparateBuilder(PlanBuilder):
    """A builder whose ops `settle` appends to `b`, group 0's first.

    Group g has every device of `b`, as number g * len(b.devices) + device. Within a group the ops
    keep their order. Nothing else may be appended to `b` in between.
    """

    def __init__(self, b: PlanBuilder, groups: int) -> None:
        super().__init__((), b.machines)
        self.devices = _Names(b.devices, groups)
        self.executor = b.executor
        self._b, self._place = b, np.zeros(0, dtype=np.int64)
        self._first = self._before = len(b)

    def lift(self, values: Values, group: Ints) -> Values:
        """The values as their groups know them; `group` broadcasts with them."""
        return values.on(values.device % len(self._b.devices) + group * len(self._b.devices))

    def settle(self) -> None:
        """Append the ops to `b`, in which `settled` then finds them."""
        self._flush()
        columns = {name: column.current() for name, column in self._columns.items()}
        count = len(self._b.devices)
        group, device = np.divmod(columns["device"], count)
        order = np.argsort(group, kind="stable")
        self._place = np.empty(len(order), dtype=np.int64)
        self._place[order] = np.arange(self._first, self._first + len(order))
        channel, there = np.divmod(columns["stream"], len(self.devices))
        stream = channel * count + there % count
        columns["device"] = device
        columns["stream"] = np.where(columns["stream"] == NO_STREAM, NO_STREAM, stream)
        rows = {
            name: self._rows_in_order(columns[f"{name}_count"], columns.pop(f"{name}s"), order)
            for name in ("operand", "control")
        }
        ordered = [column[order] for column in columns.values()]
        self._b.append(ordered, operands=rows["operand"], controls=rows["control"])

    def _rows_in_order(self, count: AnyInts, used: AnyInts, order: Ints) -> Ints:
        """Return what ops use, row by row in another order, as the ops' numbers in `b`."""
        if not len(used):
            return used.astype(np.int64)
        start = row_starts(count)[:-1]
        return self._numbers(used.astype(np.int64)[ranges(start[order], count[order])])

    def _numbers(self, op: Ints) -> Ints:
        """Numbers in `b` of ops of this builder, or of `b`."""
        if not len(self._place):
            return op
        here = op >= self._first
        return np.where(here, self._place[np.where(here, op - self._first, 0)], op)

    def settled(self, values: Values) -> Values:
        """Values of this builder, or of `b`, as `b` knows them."""
        device = values.device % len(self._b.devices)
        return Values(self._numbers(values.op), device, values.lo, values.hi, values.dtype)


@dataclass(frozen=True, eq=False)
class _Kind:
    """The first of some tensors that are alike, with its ops in `b` and its results.

    The ops use the ops of its own values and of the results before.
    """

    b: PlanBuilder
    given: Values
    interval: OpInterval
    made: Values

    @cached_property
    def op(self) -> Ints | None:
        """The ops of the results as `OpInterval.relative` gives them; None if the ops cannot be
        repeated.
        """
        op, before = self.interval.relative(self.made.op), len(self.interval.used) - len(self.given)
        if op is None or (op < -len(self.given)).any() or before not in {0, len(op)}:
            return None
        return op if self.b.is_closed(self.interval) else None

    @cached_property
    def same(self) -> bytes:
        """Which of the results are of one op."""
        return _first_of_op(self.made.op).tobytes()


class Alike:
    """Plans the rows of `given` in order. `plan` gets a row's place and, if `chained`, the results
    of the row before; rows like an earlier one are appended many at once.
    """

    def __init__(
        self,
        b: PlanBuilder,
        given: ValueTable,
        plan: Callable[[int, Sequence[Value]], Sequence[Value]],
        *,
        chained: bool = False,
    ) -> None:
        self._b, self._given, self._plan, self._chained = b, given, plan, chained
        self._made: list[ValueTable] = []
        self._waiting: list[_Kind] = []  # the tensors that are next, by what they are like

    def plan_all(self, turns: int) -> Sequence[Values]:
        """The results of all rows. Row i has the turn i mod `turns`, as rows alike have."""
        kinds: dict[tuple[bytes, bytes], _Kind] = {}
        same = b""
        for i, likeness in enumerate(_likeness(self._given, turns)):
            kind = kinds.get((likeness, same))
            if kind is None or kind.op is None:
                kind = kinds[likeness, same] = self._plan_one(i)
            else:
                if self._waiting and len(self._waiting[-1].made) != len(kind.made):
                    self._append_waiting(i)
                self._waiting.append(kind)
            same = kind.same if self._chained else b""
        self._append_waiting(len(self._given))
        if len({table.shape[1] for table in self._made}) == 1:
            return ValueTable.concatenate(self._made)
        return [row for table in self._made for row in table]

    def _plan_one(self, i: int) -> _Kind:
        """Plan tensor i by itself."""
        self._append_waiting(i)
        given, before = self._given[i], self._before()
        begin, made = self._b.mark(), Values.of(self._plan(i, before or ()))
        used = np.concatenate([given.op, before.op]) if before else given.op
        self._made.append(ValueTable.of([made]))
        return _Kind(self._b, given, OpInterval(begin, self._b.mark(), used), made)

    def _before(self) -> Values | None:
        return self._made[-1][-1] if self._chained and self._made else None

    def _append_waiting(self, end: int) -> None:
        """Append the ops of the tensors that wait, which end before tensor `end`."""
        if not self._waiting:
            return
        given, before = self._given[end - len(self._waiting) : end], self._before()
        kinds = list(dict.fromkeys(self._waiting))
        number = {kind: i for i, kind in enumerate(kinds)}
        which = np.array([number[kind] for kind in self._waiting])
        size = np.array([len(kind.interval) for kind in kinds])[which]
        first = len(self._b) + np.cumsum(size) - size
        op = np.stack([kind.op for kind in kinds if kind.op is not None])[which]
        row, place = np.nonzero(op < 0)
        old = given.op[row, -1 - op[row, place]]
        op += first[:, None]
        op[row, place] = old
        shift = given.lo[:, 0] - np.array([kind.given.lo[0] for kind in kinds])[which]
        made = ValueTable.of([kind.made for kind in kinds])[which].moved(op, shift[:, None])
        used = given.op
        if before:
            used = np.concatenate([used, np.concatenate([before.op[None], op[:-1]])], axis=1)
        self._b.repeat([kind.interval for kind in kinds], which, used, shift=shift)
        self._made.append(made)
        self._waiting = []


def _likeness(given: ValueTable, turns: int) -> list[bytes]:
    """By tensor, what tensors must have in common to be alike, besides the results before."""
    lo, op = given.lo[:, :1], np.sort(given.op, axis=1)
    turn = np.arange(len(given))[:, None] % turns
    columns = [given.lo - lo, given.hi - lo, given.device, given.dtype[:, None], turn]
    if (op[:, 1:] == op[:, :-1]).any():
        columns.append(np.stack([_first_of_op(each) for each in given.op]))
    return [row.tobytes() for row in np.concatenate(columns, axis=1)]


def _first_of_op(op: Ints) -> Ints:
    """By value, the first place of its op."""
    _, first, place = np.unique(op, return_index=True, return_inverse=True)
    return first[place]
