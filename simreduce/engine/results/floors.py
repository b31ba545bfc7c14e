"""Lower bounds of a plan's prediction, with all that its runtime costs.

They are its critical path, and its load on every resource and lane.
"""

from __future__ import annotations

import numpy as np

from simreduce.computing.arrays import Floats, blocks, ranges
from simreduce.computing.compiling.loops import sweep, worth_compiling
from simreduce.engine.kernel.tables import Array
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.lowering.resources import Resources


def alone(lowered: Lowered, resources: Resources) -> tuple[Floats, Floats]:
    """Seconds each op takes when nothing competes with it, and how many of them its bytes take."""
    rate = _rate_alone(lowered, resources)[lowered.call]
    transfer = np.divide(lowered.amount, rate, out=np.zeros(len(rate)), where=lowered.amount > 0)
    cost = lowered.calls.overhead + lowered.calls.latency
    return transfer + cost[lowered.call], transfer


def _rate_alone(lowered: Lowered, resources: Resources) -> Floats:
    """Bytes/s of each call when nothing competes with it."""
    calls = lowered.calls
    rate = calls.cap.copy()
    using = np.flatnonzero(np.diff(calls.use_start))
    if len(using):
        share = resources.rates[calls.uses] / calls.weight
        rate[using] = np.minimum(rate[using], np.minimum.reduceat(share, calls.use_start[using]))
    return rate


def critical_path(lowered: Lowered, resources: Resources) -> float:
    """Seconds of the longest chain of ops that wait for each other, when nothing competes with
    them.
    """
    calls, finish = lowered.calls, np.zeros(len(lowered.call))
    rate, cost = _rate_alone(lowered, resources), calls.overhead + calls.latency
    reads = lowered.call, lowered.amount, rate, cost, lowered.successor_start, lowered.successors
    sweep(longest, reads, [finish], compiled=worth_compiling(longest, len(finish)))
    return float(finish.max(initial=0.0))


def longest_chain(lowered: Lowered) -> int:
    """The number of flows in the longest chain of ops that wait for each other."""
    finish, moves = np.zeros(len(lowered.call)), np.diff(lowered.calls.use_start) > 0
    nothing, rate = np.zeros_like(finish), np.ones(len(moves))
    reads = (
        lowered.call, nothing, rate, moves.astype(np.float64), lowered.successor_start,
        lowered.successors,
    )  # fmt: skip
    sweep(longest, reads, [finish], compiled=worth_compiling(longest, len(finish)))
    return int(finish.max(initial=0.0))


def longest(
    call: Array,
    amount: Array,
    rate: Array,
    cost: Array,
    start: Array,
    successors: Array,
    finish: Array,
) -> None:
    """Fill `finish`, zero at first, with when each op is done if none but its predecessors delay
    it. Program order has them first.
    """
    for op in range(len(finish)):
        mine = call[op]
        transfer = amount[op] / rate[mine] if amount[op] > 0.0 else 0.0
        end = finish[op] + (transfer + cost[mine])
        finish[op] = end
        for at in range(start[op], start[op + 1]):
            finish[successors[at]] = max(finish[successors[at]], end)


def resource_seconds(lowered: Lowered, resources: Resources) -> Floats:
    """Seconds each resource needs for its bytes at full rate."""
    calls = lowered.calls
    moved = np.zeros(len(calls.cap))
    for some in blocks(len(lowered.call)):
        # Sums of whole numbers, or of equal ones: the same in any order.
        moved += np.bincount(lowered.call[some], lowered.amount[some], minlength=len(moved))
    load = np.bincount(
        calls.uses,
        np.repeat(moved, np.diff(calls.use_start)) * calls.weight,
        minlength=len(resources.capacity),
    )
    if resources.home is not None:
        load[: len(resources.home)] = load[np.array(resources.home)]
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = load / resources.rates
    return np.where(load > 0, seconds, 0.0)


def lane_seconds(lowered: Lowered, duration: Floats, transfer: Floats) -> Floats:
    """Seconds each lane is held when its ops, while they hold it, take `duration` after they got
    it, and pipes when bytes take `transfer`.
    """
    calls, number = lowered.calls, len(lowered.lane_names)
    if not len(calls.lanes):
        return np.zeros(number)
    counts, is_pipe = np.diff(calls.lane_start), calls.is_pipe
    every, total = np.arange(number), np.zeros(number, dtype=np.float64)
    for some in blocks(len(lowered.call)):
        call = lowered.call[some]
        held = np.where(calls.holds[call], duration[some], calls.overhead[call])
        count = counts[call]
        rows = ranges(calls.lane_start[call], count)
        busy = np.where(is_pipe[rows], np.repeat(transfer[some], count), np.repeat(held, count))
        # After the total so far, so that seconds are added in the order of the ops.
        lanes = np.concatenate([every, calls.lanes[rows]])
        total = np.bincount(lanes, np.concatenate([total, busy]), minlength=number).astype(float)
    return total
