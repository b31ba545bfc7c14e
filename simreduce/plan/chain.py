"""The same reduction several times in one step, as tf_cnn_benchmarks' all_reduce_benchmark runs it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simreduce.plan.plan import NO_STREAM, ZEROS, Kind, Plan
from simreduce.plan.ragged import ranges


def repeat(plan: Plan, times: int) -> Plan:
    """`times` copies of `plan`, chained: on every device, an iteration starts when all results of the one before
    it are there. There is no barrier across devices.

    Each iteration reduces its own gradients (addresses of its own), so the contract is proved for all of them.
    """
    if times < 1:
        raise ValueError(f"a plan can be repeated 1 time or more, not {times}")
    steps = [plan]
    for _ in range(1, times):
        steps.append(_after(steps[-1], plan))
    return _join(steps, int(plan.hi.max(initial=0)))


def _after(before: Plan, plan: Plan) -> Plan:
    """`plan` with one empty INPUT per device in front, which waits for that device's results of `before` and
    which every other INPUT of the device waits for. Controls into `before` are negative: they count back.
    """
    results = np.flatnonzero(before.kind == Kind.OUTPUT)
    gates = np.unique(plan.device[plan.kind == Kind.INPUT])
    shift = len(gates)
    gate_controls = [results[before.device[results] == d] - len(before) for d in gates]
    gate_of = np.full(len(plan.devices), -1, dtype=np.int64)
    gate_of[gates] = np.arange(shift)

    is_input = plan.kind == Kind.INPUT
    count = np.diff(plan.control_start) + is_input
    start = np.concatenate([[0], np.cumsum([len(c) for c in gate_controls])])
    controls = np.zeros(int(count.sum()), dtype=np.int64)
    op_start = np.concatenate([[0], np.cumsum(count)])
    controls[ranges(op_start[:-1], np.diff(plan.control_start))] = plan.controls + shift
    controls[op_start[1:][is_input] - 1] = gate_of[plan.device[is_input]]

    def front(column: np.ndarray, value: int | np.ndarray) -> np.ndarray:
        return np.concatenate([np.broadcast_to(np.asarray(value, dtype=column.dtype), (shift,)), column])

    return replace(
        plan,
        kind=front(plan.kind, Kind.INPUT),
        device=front(plan.device, gates),
        lo=front(plan.lo, 0),
        hi=front(plan.hi, 0),
        dtype=front(plan.dtype, 0),
        arg=front(plan.arg, ZEROS),
        stream=front(plan.stream, NO_STREAM),
        executor=front(plan.executor, 0),
        operand_start=front(plan.operand_start, 0),
        operands=plan.operands + shift,
        control_start=np.concatenate([start, start[-1] + op_start[1:]]),
        controls=np.concatenate([*gate_controls, controls]),
    )


def _join(steps: list[Plan], size: int) -> Plan:
    base = np.concatenate([[0], np.cumsum([len(s) for s in steps])])

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(s, name) for s in steps])

    def moved(name: str, by: np.ndarray | list[int]) -> np.ndarray:
        first = getattr(steps[0], name)
        return np.concatenate([getattr(s, name) + b for s, b in zip(steps, by, strict=True)]).astype(
            first.dtype
        )

    def starts(name: str) -> np.ndarray:
        counts = np.concatenate([np.diff(getattr(s, name)) for s in steps])
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    first, times = steps[0], len(steps)
    room = [size * k for k in range(times)]
    c = first.contract

    def tiled(column: np.ndarray) -> np.ndarray:
        return np.tile(column, times)

    offset = np.repeat(np.array(room, dtype=np.int64), len(c))
    contract = replace(
        c, device=tiled(c.device), lo=tiled(c.lo) + offset, hi=tiled(c.hi) + offset,
        dtype=tiled(c.dtype), members=tiled(c.members), divisor=tiled(c.divisor),
    )  # fmt: skip
    return replace(
        first,
        kind=column("kind"),
        device=column("device"),
        dtype=column("dtype"),
        arg=column("arg"),
        stream=column("stream"),
        executor=column("executor"),
        lo=moved("lo", room),
        hi=moved("hi", room),
        operand_start=starts("operand_start"),
        operands=moved("operands", base[:-1].tolist()),
        control_start=starts("control_start"),
        controls=moved("controls", base[:-1].tolist()),
        contract=contract,
    )
