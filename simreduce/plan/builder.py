"""Verbs for planners. A planner names values and devices; the builder appends ops.

b = PlanBuilder(("gpu0", "gpu1"))
x = b.input(0, 0, 8), b.input(1, 0, 8)
total = b.add([x[0], b.copy(x[1], 0)])
for value in (total, b.copy(total, 1)):
    b.output(value)
plan = b.finish(Contract.all_reduce([0, 1], [(0, 8, 0)]))

Verbs in the plural (`copies`, `adds`, `joins`, ...) append one op per element of the arrays of a
`Values`, in C order: what a planner of thousands of ranks does in one call, where the singular
verbs would take one call an op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.plan.intervals import IntervalList
from simreduce.plan.ops import Numbers
from simreduce.plan.plan import IN_PLACE, NO_STREAM, ZEROS, Contract, Executor, Kind, Plan, waits
from simreduce.plan.values import Value, Values


class PlanBuilder(IntervalList):
    """The verbs of planners; each appends ops.

    With `machines`, as many equal machines do what is appended (see `Plan`).
    """

    def __init__(self, devices: Sequence[str], machines: int = 1) -> None:
        super().__init__(devices)
        self.machines = machines
        self._copied: dict[tuple[int, int, int, int], Value] = {}

    def stream(self, device: int, channel: int = 0) -> int:
        """The stream of `channel` on `device`: ops given it run one after another in
        program order.
        """
        return channel * len(self.devices) + device

    def input(
        self,
        device: int,
        lo: int,
        hi: int,
        dtype: int = 0,
        *,
        contributor: int | None = None,
        after: Sequence[int] = (),
    ) -> Value:
        """Part of a gradient that exists on `device`, not before the ops `after` are done.

        The contributor is the device's rank unless given.
        """
        arg = device if contributor is None else contributor
        return self._append(Kind.INPUT, device, lo, hi, dtype, (), arg=arg, after=after)

    def zeros(self, device: int, lo: int, hi: int, dtype: int = 0) -> Value:
        """Zero padding for the addresses [lo, hi)."""
        return self.input(device, lo, hi, dtype, contributor=ZEROS)

    def barrier(self, device: int, after: Sequence[int], stream: int = NO_STREAM) -> int:
        """An empty INPUT that exists once all the ops `after` are done; its id, for the `after` of
        others.
        """
        return self._append(
            Kind.INPUT, device, 0, 0, 0, (), arg=ZEROS, after=after, stream=stream
        ).op

    def slice(self, value: Value, lo: int, hi: int, *, after: Sequence[int] = ()) -> Value:
        """Narrow `value` to [lo, hi) by an op of its own (a view in an operand needs none), after
        the ops `after`.
        """
        return self._append(Kind.SLICE, value.device, lo, hi, value.dtype, (value.op,), after=after)

    def split(self, value: Value, sizes: Iterable[int], *, lone: bool = False) -> list[Value]:
        """Cut `value` from its start into pieces of the given sizes; one piece that is all of it is
        no op unless `lone`.
        """
        sizes, pieces, lo = list(sizes), [], value.lo
        for size in sizes:
            # Every piece of an empty value is a value of its own, or copies of them would be taken
            # for one.
            whole = size == value.hi - value.lo and (size > 0 or len(sizes) == 1)
            pieces.append(value if whole and not lone else self.slice(value, lo, lo + size))
            lo += size
        return pieces

    def concat(
        self, values: Sequence[Value], *, in_place: bool = False, lone: bool = False
    ) -> Value:
        """Join adjacent intervals on one device; a single value is returned as it is unless `lone`.

        `in_place`: they lie in one buffer already, so that no runtime spends anything on it.
        """
        if len(values) == 1 and not lone:
            return values[0]
        first, last = values[0], values[-1]
        operands = tuple(v.op for v in values)
        arg = IN_PLACE if in_place else 0
        return self._append(
            Kind.CONCAT, first.device, first.lo, last.hi, first.dtype, operands, arg=arg
        )

    def hold(self, value: Value, after: Sequence[int]) -> Value:
        """The same value, but not before the ops `after` are done; costs nothing."""
        return self._append(Kind.CONCAT, *value[1:], (value.op,), arg=IN_PLACE, after=after)

    def copy(
        self,
        value: Value,
        device: int,
        lo: int | None = None,
        hi: int | None = None,
        *,
        stream: int = NO_STREAM,
        after: Sequence[int] = (),
    ) -> Value:
        """Move `value` (or its part [lo, hi)) to `device`.

        A copy to where it is already is the value (or a view of it) itself, and a second copy to
        one device is the first: the runtimes send a value once per destination.
        """
        lo = value.lo if lo is None else lo
        hi = value.hi if hi is None else hi
        if device == value.device:
            return value._replace(lo=lo, hi=hi)
        key = (value.op, lo, hi, device)
        if key not in self._copied:
            self._copied[key] = self._append(
                Kind.COPY, device, lo, hi, value.dtype, (value.op,), stream=stream, after=after
            )
        return self._copied[key]

    def add(self, values: Sequence[Value], *, stream: int = NO_STREAM) -> Value:
        """The n-ary sum, on the device where all `values` are, over the interval they have in
        common.
        """
        _, device, lo, hi, dtype = values[0]
        # quicker than max() and min() of generators, and this is where planners spend their time
        for v in values:
            lo, hi = (v.lo if v.lo > lo else lo), (v.hi if v.hi < hi else hi)  # noqa: FURB136
        return self._append(
            Kind.ADD, device, lo, hi, dtype, tuple([v.op for v in values]), stream=stream
        )

    def add_on(self, device: int, values: Sequence[Value]) -> Value:
        """The n-ary sum of `values` on `device`, all brought there; a lone value stays what and
        where it is.

        (TensorFlow's `add_n` of one tensor is that tensor.)
        """
        return (
            values[0]
            if len(values) == 1
            else self.add([self.copy(value, device) for value in values])
        )

    def scale(self, value: Value, divisor: int) -> Value:
        """Divide by a count."""
        return self._append(Kind.SCALE, *value[1:], (value.op,), arg=divisor)

    def cast(self, value: Value, dtype: int) -> Value:
        """The same elements in another dtype."""
        return self._append(Kind.CAST, value.device, value.lo, value.hi, dtype, (value.op,))

    def output(self, value: Value) -> Value:
        """Declare `value` a result on its device."""
        return self._append(Kind.OUTPUT, *value[1:], (value.op,))

    def again(
        self, plan: Plan, op: int, operands: Sequence[Value], after: Sequence[int] = ()
    ) -> Value:
        """Op `op` of `plan` once more, on these operands, after the ops `after` and on no stream.
        The executor is the builder's.
        """
        kind, device = Kind(plan.kind[op]), int(plan.device[op])
        lo, hi, dtype, arg = (int(c[op]) for c in (plan.lo, plan.hi, plan.dtype, plan.arg))
        return self._append(
            kind, device, lo, hi, dtype, tuple(v.op for v in operands), arg=arg, after=after
        )

    def walk(
        self,
        value: Value,
        path: Iterable[int],
        own: Callable[[int], Value] | None = None,
    ) -> list[Value]:
        """Carry `value` from device to device; with `own`, add each device's own value on arrival.

        Returns what each device of `path` ends up with.
        """
        seen = []
        for device in path:
            arrived = self.copy(value, device)
            value = self.add([arrived, own(device)]) if own else arrived
            seen.append(value)
        return seen

    # The same in the plural.

    def streams(self, devices: Ints, channel: Numbers = 0) -> Ints:
        """The streams of `channel` on `devices`."""
        return channel * len(self.devices) + devices

    def inputs(self, device: Ints, lo: Numbers, hi: Numbers, dtype: int = 0) -> Values:
        """Parts of gradients that exist on the devices; the contributor is the device's rank."""
        return self._extend(
            Kind.INPUT, Values(device, device, *_intervals(device, lo, hi), dtype), arg=device
        )

    def paddings(self, device: Ints, lo: Ints, hi: Ints, dtype: int = 0) -> Values:
        """Zeros for the addresses [lo, hi) on the devices."""
        return self._extend(Kind.INPUT, Values(device, device, lo, hi, dtype), arg=ZEROS)

    def copies(
        self,
        values: Values,
        device: Ints,
        *,
        stream: Numbers = NO_STREAM,
        after: Sequence[int] | Ints = (),
        away: Numbers = 0,
    ) -> Values:
        """Move every value to the device of the same place in `device`, after the ops `after`: all
        of them or, of an array, the one at the same place. In a folded plan they are fetched from
        the machine that is `away` (which is broadcast) on.

        Unlike `copy`, each makes an op: a planner must not send a value to where it is, nor to one
        device twice.
        """
        lo, hi = values.lo, values.hi
        if not device.shape == lo.shape == hi.shape:
            device, lo, hi = np.broadcast_arrays(device, lo, hi)
        moved = Values(values.op, device, lo, hi, values.dtype)
        if isinstance(away, np.ndarray):
            away = np.broadcast_to(away, moved.shape)
        return self._extend(Kind.COPY, moved, [values.op], arg=away, stream=stream, after=after)

    def barriers(self, device: Ints, count: Ints, after: Ints) -> Ints:
        """By device: an empty INPUT that exists once the next count[i] of the ops `after` are done.
        The ids, for `after`.
        """
        nothing = np.zeros_like(device)
        made = Values(device, device, nothing, nothing)
        return self._extend(Kind.INPUT, made, arg=ZEROS, after=after, count=count).op

    def adds(self, terms: Sequence[Values], *, stream: Numbers = NO_STREAM) -> Values:
        """Elementwise n-ary sums: entry i adds entry i of every term, over the interval they have
        in common.
        """
        first = terms[0]
        lo = reduce(np.maximum, [t.lo for t in terms])
        hi = reduce(np.minimum, [t.hi for t in terms])
        result = Values(first.op, first.device, lo, hi, first.dtype)
        return self._extend(Kind.ADD, result, [t.op for t in terms], stream=stream)

    def slices(self, values: Values) -> Values:
        """Every value by an op of its own: what `joins` needs of views."""
        return self._extend(Kind.SLICE, values, [values.op])

    def joins(self, values: Values, *, in_place: bool = True) -> Values:
        """Join the adjacent intervals along the last axis, which with `in_place` lie in one buffer
        already (a CONCAT in place, free).

        An axis of one entry is only dropped.
        """
        first, last = values[..., 0], values[..., -1]
        if values.shape[-1] == 1:
            return first
        whole = Values(first.op, first.device, first.lo, last.hi, values.dtype)
        return self._extend(Kind.CONCAT, whole, values.op, arg=IN_PLACE if in_place else 0)

    def scales(self, values: Values, divisor: int) -> Values:
        """Divide every value by a count."""
        return self._extend(Kind.SCALE, values, [values.op], arg=divisor)

    def outputs(self, values: Values) -> Values:
        """Declare every value a result on its device."""
        return self._extend(Kind.OUTPUT, values, [values.op])

    def finish(self, contract: Contract) -> Plan:
        """The plan, with its promise. The builder must not be used afterwards."""
        columns = self._finish_columns()
        devices = tuple(self.devices)
        return Plan(devices=devices, **columns, contract=contract, machines=self.machines)


def _intervals(like: Ints, lo: Numbers, hi: Numbers) -> tuple[Ints, Ints]:
    return (
        np.broadcast_to(np.asarray(lo, dtype=np.int64), like.shape),
        np.broadcast_to(np.asarray(hi, dtype=np.int64), like.shape),
    )


def across_processes(plan: Plan, process: Sequence[int]) -> Plan:
    """`plan`, whose devices are in the processes `process`. It has no streams; with one process, it
    is `plan` itself.

    A process sees what its own devices do, and what it is sent. So an op that must wait for another
    process's op, without reading its value, needs a message from there, which costs what messages
    cost: a COPY of nothing.

    Copies that wait for copies are an exception: streams, and the steps of algorithms whose ranks
    have one port each way. No sender sees when its own copies have arrived, nor what else arrives
    there. To wait for messages about it would cost more than what it gains, as these may queue
    behind what is sent the same way. So copies of one process are launched in the order that the
    plan says, and do not wait for one another's end: what goes to one process then arrives in that
    order, and what else meets at a port shares it.
    """
    if len(set(process)) <= 1:
        return plan
    return _Rewriter(plan, process).rewrite()


class _Rewriter:
    def __init__(self, plan: Plan, process: Sequence[int]) -> None:
        self.plan, self.process = plan, process
        self.b = PlanBuilder(plan.devices)
        self.made: list[Value] = []
        self.launched: dict[
            int, int
        ] = {}  # by copy to another process, what is done when it is launched

    def rewrite(self) -> Plan:
        for op, before in waits(self.plan):
            self._add(op, before)
        return self.b.finish(self.plan.contract)

    def _add(self, op: int, before: Sequence[int]) -> None:
        """One op, after the ops `before`."""
        plan, b = self.plan, self.b
        operands = [self.made[v] for v in plan.operands_of(op)]
        copies = plan.kind[op] == Kind.COPY
        here = operands[0].device if copies else int(plan.device[op])
        seen = dict.fromkeys(self._signal(wait, here, copies=copies) for wait in before)
        read = [value.op for value in operands]
        after = [op for op in seen if op is not None and op not in read]
        b.executor = Executor(plan.executor[op])
        if copies and self.process[here] != self.process[plan.device[op]]:
            if after:
                operands, after = [b.hold(operands[0], after)], []
            self.launched[op] = operands[0].op
        self.made.append(b.again(plan, op, operands, after))

    def _signal(self, wait: int, device: int, *, copies: bool) -> int | None:
        """The op that shows the process of `device` that the op `wait` is done or launched.

        None if the process need not know.
        """
        value, mine = self.made[wait], self.process[device]
        if self.process[value.device] == mine:
            return value.op
        if copies and self.plan.kind[wait] == Kind.COPY:
            source = self.plan.device[self.plan.operands_of(wait)[0]]
            return self.launched[wait] if self.process[source] == mine else None
        return self.b.copy(value, device, value.lo, value.lo).op
