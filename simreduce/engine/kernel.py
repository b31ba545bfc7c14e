"""The kernel: a DAG of timed transfers, advanced to a horizon. One source, interpreted or compiled.

It is a pure function of arrays: no objects, no clock, no IO. Interpreted, it is given lists (quicker to index than
arrays); compiled by numba (`compiled`), arrays. It uses only what both understand. The tables are in `tables`, rates
are shared in `sharing`, and what is due when is kept in a `calendar`.

Time semantics
--------------
1. An op is *ready* when all its predecessors are done: operands, control predecessors and the op before it on its
   stream; an INPUT also waits for its release time.
2. A ready op waits for its *lanes*, queues that serve one op at a time in order of readiness. It starts when it is
   first in the queue of each of its lanes and all of them are free.
3. Holding its lanes it pays its *overhead*.
4. Then its *latency* passes; an op that does not hold its lanes frees them first.
5. Then its bytes move as a *fluid flow* over resources, each used with a weight, at the max-min fair rate, which is
   also limited by the flow's own cap. Rates change only when a flow starts or ends or a capacity changes, and a flow
   is anchored (its remaining bytes are computed) only when its own rate changes.
6. It is done when its last byte has moved; lanes it still holds are free then. Without bytes it is done after its
   latency.

Ties. Time goes from instant to instant. Everything due within 4 ulp of the earliest due time happens at that
instant, lowest op id first. At one instant, first everything that needs no lane happens; then free lanes are given
to waiting ops in the order (time of readiness, op id); and so on until nothing is left to happen at that instant.
Only then are rates computed. Ops of an earlier submission have smaller ids.
"""

from __future__ import annotations

from simreduce.engine.calendar import NONE, put, take_until
from simreduce.engine.sharing import close_flow, due_of, open_flow, share
from simreduce.engine.tables import (
    DIRTY_COUNT,
    DONE,
    ENTRIES,
    FLOW,
    FREE_ENTRY,
    FREE_SLOT,
    INFINITY,
    LATENCY,
    OVERHEAD,
    QUEUED,
    RELEASED,
    SHIFT,
    SLOTS,
    UNMOVED,
    WAITING,
    Ops,
    State,
)

_ULP = 2.220446049250313e-16


def advance(ops: Ops, state: State, now: float, horizon: float) -> tuple[bool, float]:
    """Run every instant at or before `now` and every one before `horizon`, but stop after a submission completes.

    Returns (whether a submission completed, the time of that instant) or (False, the time of the next instant, which
    is inf when nothing is due). The result does not depend on how a run is cut into calls.
    """
    taken, turn = [NONE], [NONE]
    candidates = [(0.0, NONE)]
    while True:
        time = next_due(state)
        if state.scalar[DIRTY_COUNT] > 0 and time > now + 4.0 * _ULP * abs(now):
            share(now, state)  # a capacity has changed; what ends at this very instant still ends
            continue
        if time == INFINITY or (time > now and time >= horizon):
            return False, time
        state.clock[0] = time
        take_due(time + 4.0 * _ULP * abs(time), taken, turn, state)
        completed = happen(turn, candidates, time, ops, state)
        share(time, state)
        if completed:
            return True, time


def next_due(state: State) -> float:
    """The time of the next instant; inf if there is none."""
    time = INFINITY
    if state.calendar.size[0] > 0:
        time = state.calendar.key[0]
    released = state.scalar[RELEASED]
    if released < len(state.release_time) and state.release_time[released] < time:
        time = state.release_time[released]
    return time


def take_due(late: float, taken: list[int], turn: list[int], state: State) -> None:
    """Fill `turn` with the ops whose phase ends, or that are released, until `late`, lowest id first.

    `taken` is room for the items of the calendar.
    """
    resources, shift = len(state.capacity), state.scalar[SHIFT]
    turn.clear()
    taken.clear()
    take_until(state.calendar, late, taken)
    for i in range(len(taken)):
        item = taken[i]
        if item >= resources:
            turn.append(state.slot_op[item - resources])
            continue
        use = state.first_use[item]  # a group of flows
        while use != NONE:
            slot = use >> shift
            if state.bottleneck[slot] == item and due_of(slot, state) <= late:
                turn.append(state.slot_op[slot])
            use = state.use_next[use]
    at = state.scalar[RELEASED]
    while at < len(state.release_time) and state.release_time[at] <= late:
        turn.append(state.release_op[at])
        at += 1
    state.scalar[RELEASED] = at
    for i in range(1, len(turn)):
        if turn[i] < turn[i - 1]:
            turn.sort()
            break


def wait_until(due: float, op: int, state: State) -> None:
    """Let `op` come up again at `due`."""
    put(state.calendar, len(state.capacity) + slot_for(op, state), due)


def slot_for(op: int, state: State) -> int:
    """The slot that `op` holds from its first phase to its end."""
    slot = state.slot[op]
    if slot == NONE:
        slot = state.scalar[FREE_SLOT]
        if slot == NONE:
            slot = state.scalar[SLOTS]
            state.scalar[SLOTS] = slot + 1
            state.calendar.at[len(state.capacity) + slot] = NONE
            state.moved_from[slot] = UNMOVED
        else:
            state.scalar[FREE_SLOT] = state.next_slot[slot]
        state.slot[op] = slot
        state.slot_op[slot] = op
    return slot


def free_slot(op: int, state: State) -> None:
    """Let another op have the slot of `op`."""
    slot = state.slot[op]
    if slot != NONE:
        state.next_slot[slot] = state.scalar[FREE_SLOT]
        state.scalar[FREE_SLOT] = slot
        state.slot[op] = NONE


def join_queues(op: int, call: int, ops: Ops, state: State) -> None:
    """Put `op` in the queue of each of its lanes, by (time of readiness, op id)."""
    state.phase[op] = QUEUED
    for i in range(ops.lane_start[call], ops.lane_start[call + 1]):
        lane = ops.lanes[i]
        entry = state.scalar[FREE_ENTRY]
        if entry == NONE:
            entry = state.scalar[ENTRIES]
            state.scalar[ENTRIES] = entry + 1
        else:
            state.scalar[FREE_ENTRY] = state.entry_next[entry]
        before = state.lane_tail[lane]
        while before != NONE:
            other = state.entry_op[before]
            if state.ready[other] < state.ready[op] or other < op:
                break
            before = state.entry_prev[before]
        after = state.lane_head[lane] if before == NONE else state.entry_next[before]
        state.entry_op[entry] = op
        state.entry_prev[entry] = before
        state.entry_next[entry] = after
        if before == NONE:
            state.lane_head[lane] = entry
        else:
            state.entry_next[before] = entry
        if after == NONE:
            state.lane_tail[lane] = entry
        else:
            state.entry_prev[after] = entry


def may_start(op: int, ops: Ops, state: State) -> bool:
    """Whether `op` is first in the queue of each of its lanes and all are free."""
    call = ops.call[op]
    for i in range(ops.lane_start[call], ops.lane_start[call + 1]):
        lane = ops.lanes[i]
        head = state.lane_head[lane]
        if state.lane_busy[lane] or head == NONE or state.entry_op[head] != op:
            return False
    return True


def take_lanes(op: int, now: float, ops: Ops, state: State) -> None:
    """Leave the queues and hold the lanes. Whoever freed one last is to blame for a wait."""
    freed, call = state.ready[op], ops.call[op]
    for i in range(ops.lane_start[call], ops.lane_start[call + 1]):
        lane = ops.lanes[i]
        entry = state.lane_head[lane]
        after = state.entry_next[entry]
        state.lane_head[lane] = after
        if after == NONE:
            state.lane_tail[lane] = NONE
        else:
            state.entry_prev[after] = NONE
        state.entry_next[entry] = state.scalar[FREE_ENTRY]
        state.scalar[FREE_ENTRY] = entry
        state.lane_busy[lane] = True
        if state.lane_last[lane] != NONE and state.lane_freed[lane] > freed:
            freed = state.lane_freed[lane]
            state.blame[op] = state.lane_last[lane]
    state.start[op] = now


def free_lanes(
    op: int, call: int, now: float, candidates: list[tuple[float, int]], ops: Ops, state: State
) -> None:
    """Let the next in each queue come: it may be able to start."""
    for i in range(ops.lane_start[call], ops.lane_start[call + 1]):
        lane = ops.lanes[i]
        state.lane_busy[lane] = False
        state.lane_last[lane] = op
        state.lane_freed[lane] = now
    for i in range(ops.lane_start[call], ops.lane_start[call + 1]):
        head = state.lane_head[ops.lanes[i]]
        if head != NONE:
            other = state.entry_op[head]
            candidates.append((state.ready[other], other))


def submission_of(op: int, ops: Ops) -> int:
    """The number of the submission that `op` belongs to."""
    number = 0
    while ops.submission_start[number + 1] <= op:
        number += 1
    return number


def happen(turn: list[int], candidates: list[tuple[float, int]], time: float, ops: Ops, state: State) -> bool:
    """Everything that happens at one instant, begun by the ops of `turn` whose phase ends.

    Returns whether a submission completed.
    """
    completed = False
    number, first, end = NONE, 0, 0
    candidates.clear()
    at = 0
    while True:
        while at < len(turn):
            op = turn[at]
            at += 1
            call, phase = ops.call[op], state.phase[op]
            if phase == WAITING:  # released, or its last predecessor is done
                state.waits[op] -= 1
                if state.waits[op] > 0:
                    continue
                state.ready[op] = time
                if ops.lane_start[call] < ops.lane_start[call + 1]:
                    join_queues(op, call, ops, state)
                    candidates.append((time, op))
                    continue
                phase = QUEUED
            if not ops.free[call]:
                if phase == QUEUED:
                    state.phase[op] = OVERHEAD
                    if ops.overhead[call] > 0.0:
                        wait_until(time + ops.overhead[call], op, state)
                        continue
                    phase = OVERHEAD
                if phase == OVERHEAD:
                    if not ops.holds[call]:
                        free_lanes(op, call, time, candidates, ops, state)
                    state.phase[op] = LATENCY
                    if ops.latency[call] > 0.0:
                        wait_until(time + ops.latency[call], op, state)
                        continue
                    phase = LATENCY
                if phase == LATENCY and ops.amount[op] > 0.0:
                    state.phase[op] = FLOW
                    open_flow(slot_for(op, state), ops.amount[op], call, time, ops, state)
                    continue
                if phase == FLOW:
                    close_flow(state.slot[op], time, state)
                free_slot(op, state)
                if ops.holds[call]:
                    free_lanes(op, call, time, candidates, ops, state)
            state.phase[op] = DONE
            state.finish[op] = time
            if op < first or op >= end:
                number = submission_of(op, ops)
                first, end = ops.submission_start[number], ops.submission_start[number + 1]
            state.pending[number] -= 1
            if state.pending[number] == 0:
                completed = True
            for s in range(ops.successor_start[op], ops.successor_start[op + 1]):
                successor = ops.successors[s]
                if state.waits[successor] == 1:
                    state.blame[successor] = op
                    turn.append(successor)
                else:
                    state.waits[successor] -= 1
        if len(candidates) == 0:
            return completed
        candidates.sort()
        for c in range(len(candidates)):
            op = candidates[c][1]
            if state.phase[op] == QUEUED and may_start(op, ops, state):
                take_lanes(op, time, ops, state)
                state.phase[op] = OVERHEAD
                call = ops.call[op]
                if ops.overhead[call] > 0.0:
                    wait_until(time + ops.overhead[call], op, state)
                else:
                    turn.append(op)
        candidates.clear()
