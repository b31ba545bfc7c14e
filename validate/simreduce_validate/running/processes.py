"""What ops of a plan wait for, and plans on several processes, which see what they are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simreduce.plan import Executor, Kind, Plan, PlanBuilder, Value
from simreduce.plan.plan import NO_STREAM


def waits(plan: Plan) -> Iterator[tuple[int, list[int]]]:
    """Each op with the ops that it waits for besides those that it reads; the last op before it in
    its stream is the last of them.
    """
    before: dict[int, int] = {}  # by stream, its last op
    for op, stream in enumerate(plan.ordered_streams.tolist()):
        found: list[int] = plan.controls[
            plan.control_start[op] : plan.control_start[op + 1]
        ].tolist()
        if stream != NO_STREAM:
            found += [before[stream]] if stream in before else []
            before[stream] = op
        yield op, found


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
    return plan if len(set(process)) <= 1 else _Rewriter(plan, process).rewrite()


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
