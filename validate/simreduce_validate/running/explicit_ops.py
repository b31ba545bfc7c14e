"""Rewrites plans for CPU devices of one process so that every op of TensorFlow is one of the plan.

The executor runs ops for work that is free on paper. A view is a `Slice`. A value in several pieces
is joined before it is read as one. Each piece of a result is kept by itself. A copy that must wait
has an op beside its source that waits. In one process these costs matter, so the plan states them,
and the same plan runs and is simulated. Views and waits become SLICEs, joins become CONCATs, and an
op that another device waits for sends an empty COPY.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.plan import Kind, Plan, PlanBuilder, Value
from simreduce.plan.plan import IN_PLACE, Executor
from simreduce_validate.running.processes import waits


def make_ops_explicit(plan: Plan) -> Plan:
    """`plan` without views, streams and CONCATs in place.

    Every op then reads all of its operands, and copies wait for nothing else.
    """
    return _Rewrite(plan).done()


class _Rewrite:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.b = PlanBuilder(plan.devices)
        self.made: list[tuple[Value, ...]] = []
        """By op of `plan`, what it has made, end to end: several values if CONCATs in place made
        it.
        """
        self.views: dict[tuple[int, int, int], Value] = {}
        self.nothing: dict[int, Value] = {}
        self.sent: set[tuple[int, int]] = set()

    def done(self) -> Plan:
        plan = self.plan
        for op, before in waits(plan):
            self.b.executor = Executor(plan.executor[op])
            self.made.append(self._op(op, Kind(plan.kind[op]), before))
        return self.b.finish(plan.contract)

    def _op(self, op: int, kind: Kind, before: Sequence[int]) -> tuple[Value, ...]:
        plan, b, read = self.plan, self.b, self.plan.operands_of(op)
        device, lo, hi = int(plan.device[op]), int(plan.lo[op]), int(plan.hi[op])
        before = [wait for wait in before if wait not in read]
        if kind == Kind.COPY:
            value = self._view(read[0], lo, hi)
            after = self._after(before, value.device)
            if after or (value.op, device) in self.sent:  # a value is sent once to a device
                value = self._hold_back(value, after)
            self.sent.add((value.op, device))
            return (b.again(plan, op, [value]),)
        after = self._after(before, device)
        if kind == Kind.OUTPUT:
            values = self.made[read[0]]
            if (values[0].lo, values[-1].hi) != (lo, hi):
                values = (self._view(read[0], lo, hi),)
            for value in (self._hold_back(value, after) for value in values) if after else values:
                b.output(value)
            return values
        if kind == Kind.CONCAT and plan.arg[op] == IN_PLACE:
            values = tuple(value for operand in read for value in self.made[operand])
            return tuple(self._hold_back(value, after) for value in values) if after else values
        whole = kind in (Kind.SLICE, Kind.CONCAT)
        operands = [
            self._view(v, *((int(plan.lo[v]), int(plan.hi[v])) if whole else (lo, hi)))
            for v in read
        ]
        return (b.again(plan, op, operands, after),)

    def _after(self, before: Sequence[int], device: int) -> list[int]:
        """The ops on `device` that signal that the ops `before` are done."""
        found: dict[int, None] = {}
        for value in (value for wait in before for value in self.made[wait]):
            found[value.op if value.device == device else self._signal(value, device)] = None
        return list(found)

    def _signal(self, value: Value, device: int) -> int:
        """An op that signals another device that `value` is there: a COPY of an empty SLICE."""
        if value.op not in self.nothing:
            self.nothing[value.op] = self.b.slice(value, value.lo, value.lo)
        return self.b.copy(self.nothing[value.op], device).op

    def _hold_back(self, value: Value, after: Sequence[int]) -> Value:
        """The same value by an op of its own, once the ops `after` are done."""
        return self.b.slice(value, value.lo, value.hi, after=after)

    def _view(self, op: int, lo: int, hi: int) -> Value:
        """Elements [lo, hi) of what an op of `plan` has made, as one value."""
        pieces = self.made[op]
        key = (op, lo, hi)
        if key not in self.views:
            read = [v for v in pieces if v.lo < hi and v.hi > lo] if lo < hi else []
            read = read or [next(v for v in pieces if v.lo <= lo <= v.hi)]  # of nothing
            self.views[key] = self.b.concat(
                [self._cut(v, max(v.lo, lo), min(v.hi, hi)) for v in read]
            )
        return self.views[key]

    def _cut(self, value: Value, lo: int, hi: int) -> Value:
        if (value.lo, value.hi) == (lo, hi):
            return value
        key = (-1 - value.op, lo, hi)
        if key not in self.views:
            self.views[key] = self.b.slice(value, lo, hi)
        return self.views[key]
