"""The same reduction several times in one step, as tf_cnn_benchmarks' all_reduce_benchmark
runs it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simreduce.computing.arrays import Ints, row_starts
from simreduce.errors import whole
from simreduce.plan.builder import PlanBuilder
from simreduce.plan.contract import Contract
from simreduce.plan.plan import Kind, Plan
from simreduce.plan.side_by_side import side_by_side


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
        np.flatnonzero(plan.kind == Kind.INPUT),
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
    for device in np.unique(plan.device[plan.kind == Kind.INPUT]):
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
