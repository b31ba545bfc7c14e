"""Plans made of plans: several as one, one several times, or one taken apart.

Many tensors or groups planned at once, in the program order of one after another.

What a planner does with one tensor it does with a thousand in the same calls, if each of them has
devices of its own. Then only the program order is missing, which a stable sort by group gives.

What a planner does with a tensor depends on its size and dtype, not on where in the address space
it is. So every further tensor of one size and dtype repeats the ops of the first at other
addresses. Array arithmetic appends these ops, for many tensors at once. The plan is the same, op by
op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from simreduce.computing.arrays import AnyInts, Ints, ranges, row_starts
from simreduce.errors import whole
from simreduce.plan.builder import OpInterval, PlanBuilder
from simreduce.plan.plan import NO_STREAM, Contract, Homes, Kind, Plan, select_ops
from simreduce.plan.values import Value, Values, ValueTable


class _Names(Sequence[str]):
    """The names of the devices of all groups."""

    def __init__(self, names: Sequence[str], groups: int) -> None:
        self.names, self.groups = names, groups

    def __len__(self) -> int:
        return len(self.names) * self.groups

    def __getitem__(self, index: Any) -> Any:
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


def side_by_side(plans: Sequence[Plan], devices: Sequence[str]) -> Plan:
    """Return one plan of all `plans` on `devices`, which include all their devices.

    The plans follow each other in program order, and no op waits for an op of another plan.
    Addresses follow each other likewise. Contributors keep their numbers, and their homes within
    the addresses of their plan. The collective is the first plan's.
    """
    index = {name: i for i, name in enumerate(devices)}
    moved = [_on(plan, [index[name] for name in plan.devices], len(devices)) for plan in plans]
    tops = [max(int(p.hi.max(initial=0)), int(p.contract.hi.max(initial=0))) for p in moved]
    room = row_starts(np.array(tops))[:-1]
    base = row_starts(np.array([len(p) for p in moved]))[:-1]

    def join(name: str, by: Ints | None = None) -> AnyInts:
        columns = [getattr(p, name) for p in moved]
        if by is not None:
            columns = [(c + k).astype(c.dtype) for c, k in zip(columns, by, strict=True)]
        return np.concatenate(columns)

    def starts(name: str) -> AnyInts:
        counts = np.concatenate([np.diff(getattr(p, name)) for p in moved])
        return row_starts(counts).astype(np.int32)

    return Plan(
        devices=tuple(devices),
        kind=join("kind"),
        device=join("device"),
        lo=np.concatenate(
            [np.add(p.lo, k, dtype=np.int64) for p, k in zip(moved, room, strict=True)]
        ),
        hi=np.concatenate(
            [np.add(p.hi, k, dtype=np.int64) for p, k in zip(moved, room, strict=True)]
        ),
        dtype=join("dtype"),
        arg=join("arg"),
        stream=join("stream"),
        executor=join("executor"),
        operand_start=starts("operand_start"),
        operands=join("operands", base),
        control_start=starts("control_start"),
        controls=join("controls", base),
        contract=_join_contracts([p.contract for p in moved], room, tops),
    )


def _on(plan: Plan, place: Sequence[int], devices: int) -> Plan:
    """`plan` with device d renumbered as place[d] of `devices`, streams too."""
    to = np.array(place, dtype=np.int32)
    channel, owner = np.divmod(plan.stream, max(len(plan.devices), 1))
    stream = np.where(plan.stream < 0, plan.stream, channel * devices + to[owner]).astype(
        plan.stream.dtype
    )
    homes = tuple(
        Homes(lo, {k: int(to[home]) for k, home in device.items()})
        for lo, device in plan.contract.homes
    )
    contract = replace(plan.contract, device=to[plan.contract.device], homes=homes)
    return replace(plan, device=to[plan.device], stream=stream, contract=contract)


def _join_contracts(contracts: Sequence[Contract], room: Ints, tops: Sequence[int]) -> Contract:
    """All promises. The addresses of plan i begin at `room[i]`, and there are `tops[i]` of them."""
    first = row_starts(np.array([len(c.sets) for c in contracts]))[:-1].astype(np.int32)
    pairs = list(zip(contracts, room, strict=True))
    return Contract(
        collective=contracts[0].collective,
        device=np.concatenate([c.device for c in contracts]),
        lo=np.concatenate([np.add(c.lo, k, dtype=np.int64) for c, k in pairs]),
        hi=np.concatenate([np.add(c.hi, k, dtype=np.int64) for c, k in pairs]),
        dtype=np.concatenate([c.dtype for c in contracts]),
        members=np.concatenate([c.members + k for c, k in zip(contracts, first, strict=True)]),
        divisor=np.concatenate([c.divisor for c in contracts]),
        sets=tuple(s for c in contracts for s in c.sets),
        homes=_join_homes(contracts, room, tops),
    )


def _join_homes(
    contracts: Sequence[Contract], room: Ints, tops: Sequence[int]
) -> tuple[Homes, ...]:
    """The homes of every contract, within the addresses of its plan only."""
    homes: list[Homes] = []
    for contract, base, top in zip(contracts, room.tolist(), tops, strict=True):
        for lo, device in (Homes(0, {}), *contract.homes):
            if lo >= top:
                continue
            if homes and homes[-1].lo == base + lo:
                homes.pop()
            if device != (homes[-1].device if homes else {}):
                homes.append(Homes(base + lo, device))
    return tuple(homes)


def results_last(plan: Plan, key: Sequence[int]) -> Plan:
    """`plan` with its OUTPUTs at the end, in ascending `key` (one per OUTPUT, in program order;
    ties keep it).
    """
    is_output = plan.kind == Kind.OUTPUT
    outputs = np.flatnonzero(is_output)[np.argsort(np.asarray(key, dtype=np.int64), kind="stable")]
    return select_ops(plan, np.concatenate([np.flatnonzero(~is_output), outputs]))


def repeat(plan: Plan, times: int) -> Plan:
    """`times` copies of `plan`, chained: on every device, an iteration starts when all results of
    the one before it are there. There is no barrier across devices.

    Each iteration reduces its own gradients (addresses of its own), so the contract is proved for
    all of them.
    """
    times = whole(times, "times", 1)
    gates = _gates(plan)
    joined = side_by_side([plan, *[gates, plan] * (times - 1)], plan.devices)
    joined = replace(joined, times=times * plan.times)
    waiters, waited = [], []
    outputs, inputs = (
        np.flatnonzero(plan.kind == Kind.OUTPUT),
        plan.inputs,
    )
    for k in range(1, times):
        before = (k - 1) * (len(plan) + len(gates))
        gate = before + len(plan)
        for i, device in enumerate(gates.device):
            ends = outputs[plan.device[outputs] == device] + before
            starts = inputs[plan.device[inputs] == device] + gate + len(gates)
            waiters += [np.full(len(ends), gate + i), starts]
            waited += [ends, np.full(len(starts), gate + i)]
    if not waiters:
        return joined
    return _with_controls(joined, np.concatenate(waiters), np.concatenate(waited))


def _gates(plan: Plan) -> Plan:
    """An empty INPUT on every device that has inputs, for an iteration to wait on."""
    b = PlanBuilder(plan.devices)
    for device in np.unique(plan.device[plan.inputs]):
        b.barrier(int(device), ())
    return b.finish(Contract.of(plan.contract.collective, ()))


def _with_controls(plan: Plan, waiters: Ints, waited: Ints) -> Plan:
    """`plan` in which, besides, waiters[i] waits for waited[i]."""
    waiters = np.concatenate(
        [np.repeat(np.arange(len(plan)), np.diff(plan.control_start)), waiters]
    )
    waited = np.concatenate([plan.controls, waited])
    order = np.argsort(waiters, kind="stable")
    start = row_starts(np.bincount(waiters, minlength=len(plan)))
    return replace(
        plan,
        control_start=start.astype(plan.control_start.dtype),
        controls=waited[order].astype(plan.controls.dtype),
    )


def split_independent(plan: Plan, *, loose: bool = False) -> list[Plan]:
    """Plans that together hold every op of `plan`. None reads an op of another; in the
    order of their first ops. They keep devices and addresses, and promise nothing: what is proved
    is the whole.

    No part waits for another, either, unless it is `loose`: then parts are what reads of each
    other, and where one has to wait for another (NCCL's collectives for the one before, a variable
    for its update) is left to whoever runs them. A variable that several parts read is in each of
    them.

    Streams join nothing: an order that an algorithm keeps among the tensors of one call is lost
    between parts.
    """
    n = len(plan)
    reader, read = np.repeat(np.arange(n), plan.operand_count), plan.operands
    waiter, awaited = np.repeat(np.arange(n), np.diff(plan.control_start)), plan.controls
    waits = (plan.kind == Kind.INPUT) & (np.diff(plan.control_start) > 0)
    is_read = np.zeros(n, dtype=np.bool_)
    is_read[read] = True
    shared = waits & is_read & loose  # variables after their update
    joins = (
        ~shared[read],
        (waits & ~is_read)[awaited] | (not loose),
    )  # a barrier belongs to those that wait for it
    user = np.concatenate([reader[joins[0]], waiter[joins[1]]])
    used = np.concatenate([read[joins[0]], awaited[joins[1]]])
    count, label = _components(n, user, used)
    again = np.unique(
        np.stack([label[reader[~joins[0]]], read[~joins[0]].astype(np.int64)]), axis=1
    )
    alone = np.flatnonzero(~shared)
    member, op = np.concatenate([label[alone], again[0]]), np.concatenate([alone, again[1]])
    order = np.lexsort((op, member))
    inside = (label[waiter] == label[awaited]) & ~shared[waiter]
    kept = np.bincount(waiter[inside], minlength=n)
    return list(_cut(plan, member[order], op[order], count, row_starts(kept), awaited[inside]))


def _components(n: int, one: Ints, other: AnyInts) -> tuple[int, Ints]:
    """The number of components of so many ops, of which each of `one` is joined with the same of
    `other`; and by op the place of its component, in the order of their first ops.

    Not scipy's: it takes as long, and 0.2 s of CPU to load.
    """
    first, known = np.arange(n), np.arange(n)
    while len(one):
        np.minimum.at(first, np.maximum(one, other), np.minimum(one, other))
        while (nearer := first[first]).tobytes() != first.tobytes():
            first = nearer
        ends = np.stack([first[one], first[other]])
        one, other = ends[:, ends[0] != ends[1]]
    firsts = first == known
    return int(firsts.sum()), (np.cumsum(firsts) - 1)[first]


def _cut(
    plan: Plan, member: Ints, op: Ints, count: int, waits: Ints, awaited: AnyInts
) -> Iterator[Plan]:
    """The parts; row i says that op[i] is in part member[i], and rows are in ascending order. What
    each op waits for is row op of `awaited`.
    """
    n = len(plan)
    first = row_starts(np.bincount(member, minlength=count))
    place = member * n + op

    def rows(start: AnyInts, items: AnyInts) -> tuple[Ints, Ints]:
        """Of every row: where its entries begin, and their places in the part."""
        size = np.diff(start)[op]
        found = np.searchsorted(
            place, np.repeat(member, size) * n + items[ranges(start[:-1][op], size)]
        )
        return row_starts(size), found - np.repeat(first[member], size)

    operand_start, operands = rows(plan.operand_start, plan.operands)
    control_start, controls = rows(waits, awaited)
    contract = Contract.of(plan.contract.collective, [])
    parts = [
        slice(a, b) for a, b in zip(first[:-1].tolist(), first[1:].tolist(), strict=True) if a < b
    ]
    for part in sorted(parts, key=lambda each: int(op[each.start])):
        mine = op[part]
        edges = slice(part.start, part.stop + 1)
        reads, waits = operand_start[edges], control_start[edges]
        yield Plan(
            devices=plan.devices,
            kind=plan.kind[mine],
            device=plan.device[mine],
            lo=plan.lo[mine],
            hi=plan.hi[mine],
            dtype=plan.dtype[mine],
            arg=plan.arg[mine],
            stream=plan.stream[mine],
            executor=plan.executor[mine],
            operand_start=(reads - reads[0]).astype(np.int32),
            operands=operands[reads[0] : reads[-1]].astype(np.int32),
            control_start=(waits - waits[0]).astype(np.int32),
            controls=controls[waits[0] : waits[-1]].astype(np.int32),
            contract=contract,
            machines=plan.machines,
            times=plan.times,
        )
