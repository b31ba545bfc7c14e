"""A plan on devices of several processes: what only orders ops is said as it is carried out there.

A process sees what its own devices do, and what it is sent. So an op that must wait for another process's op, without reading
its value, needs a message from there, which costs what messages cost: a COPY of nothing. And what one process
sends to another goes one after another anyway: of two copies on one stream between the same two, the second is launched
after the first, and does not wait for its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.plan.builder import PlanBuilder
from simreduce.plan.plan import NO_STREAM, Executor, Kind, Plan
from simreduce.plan.values import Value


def across_processes(plan: Plan, process: Sequence[int]) -> Plan:
    """`plan`, whose devices are in the processes `process`. It has no streams; with one process, it is `plan` itself."""
    if len(set(process)) <= 1:
        return plan
    return _Rewriting(plan, process).done()


class _Rewriting:
    def __init__(self, plan: Plan, process: Sequence[int]) -> None:
        self.plan, self.process = plan, process
        self.b = PlanBuilder(plan.devices)
        self.made: list[Value] = []
        self.launched: dict[int, int] = {}  # by copy to another process, what is done when it is launched

    def done(self) -> Plan:
        plan = self.plan
        before: dict[int, int] = {}  # by stream, its last op
        for op, stream in enumerate(plan.stream.tolist()):
            waits = plan.controls[plan.control_start[op] : plan.control_start[op + 1]].tolist()
            launch = None
            if stream != NO_STREAM:
                if stream in before and self._one_channel(before[stream], op):
                    launch = before[stream]
                elif stream in before:
                    waits.append(before[stream])
                before[stream] = op
            self._add(op, list(dict.fromkeys(waits)), launch)
        return self.b.finish(plan.contract)

    def _one_channel(self, first: int, second: int) -> bool:
        """Whether both are copies from one process to another, the same two."""
        return first in self.launched and self._ends(first) == self._ends(second)

    def _ends(self, op: int) -> tuple[int, int]:
        plan = self.plan
        source = plan.device[plan.operands_of(op)[0]] if plan.kind[op] == Kind.COPY else plan.device[op]
        return self.process[source], self.process[plan.device[op]]

    def _add(self, op: int, waits: Sequence[int], launch: int | None) -> None:
        """One op, after the ops `waits`, and not launched before the copy `launch`."""
        plan, b = self.plan, self.b
        kind, operands = Kind(plan.kind[op]), [self.made[v] for v in plan.operands_of(op)]
        b.executor = Executor(plan.executor[op])
        here = operands[0].device if kind == Kind.COPY else int(plan.device[op])
        after = [self._seen(self.made[w], here) for w in waits if self.made[w] not in operands]
        if launch is not None:
            after.append(self.launched[launch])
        crosses = kind == Kind.COPY and len(set(self._ends(op))) > 1
        if crosses:
            if after:
                operands, after = [b.hold(operands[0], tuple(dict.fromkeys(after)))], []
            self.launched[op] = operands[0].op
        self.made.append(b.again(plan, op, operands, tuple(dict.fromkeys(after))))

    def _seen(self, value: Value, device: int) -> int:
        """An op in the process of `device` that is done when `value` is there."""
        if self.process[value.device] == self.process[device]:
            return value.op
        return self.b.copy(value, device, value.lo, value.lo).op
