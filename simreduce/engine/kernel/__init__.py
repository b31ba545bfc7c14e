"""The kernel: a DAG of timed transfers, advanced to a horizon. One source, interpreted or compiled.

It is a pure function of arrays: no objects, no clock, no IO. Interpreted, it is given lists
(quicker to index than arrays); compiled by numba (`store`), the addresses of arrays. It uses
only what both understand: no negative index, and no length of a column. The tables are in `tables`,
rates are shared in `sharing`, and what is due when is kept in a `Heap`.

Time semantics
--------------
1. An op is *ready* when all its predecessors are done: operands, control predecessors and the op
   before it on its stream. An INPUT also waits for its release time.
2. A ready op waits for its *lanes*, queues that serve one op at a time in order of readiness. It
   starts when it is first in the queue of each of its lanes and all of them are free.
3. It holds its lanes while it pays its *overhead*.
4. Then its *latency* passes. An op that does not hold its lanes frees them first.
5. Then it waits for its *pipes*, if it has any: lanes that it takes only now. Of the ops that wait
   for a pipe, the one that was ready first (1.) comes first, whichever arrived first.
6. Then its bytes move as a *fluid flow* over resources, each used with a weight, at the max-min
   fair rate, which the flow's own cap also limits, or at less where a flow that is held slows
   others (`congestion`). Rates change only when a flow starts or ends or a capacity changes. A flow
   is anchored (its remaining bytes are computed) only when its own rate changes.
7. It is done when its last byte has moved. Lanes and pipes that it still holds are free then.
   Without bytes it is done after its latency, or when it has its pipes.

Ties. Time goes from instant to instant. Everything due within 4 ulp of the earliest due time
happens at that instant, lowest op id first. At one instant, first everything that needs no lane
happens; then free lanes are given to waiting ops in the order (time of readiness, op id); and so on
until nothing is left to happen at that instant. Only then are rates computed. Ops of an earlier
submission have smaller ids.

Tolerance. Above 0, a flow that would end within that part of its op's own time, at the rate that it
has, leaves its resources at the instant that happens already. Its op is done when it would be.
"""

from __future__ import annotations

from simreduce.computing.arrays import ULP
from simreduce.engine.kernel.flows import close_flow, due_of, open_flow
from simreduce.engine.kernel.sharing import share
from simreduce.engine.kernel.tables import (
    AT_PIPE,
    DIRTY_COUNT,
    DONE,
    FLOW,
    FREE,
    FREE_SLOT,
    INFINITY,
    LATENCY,
    NONE,
    OVERHEAD,
    PATIENCE,
    PIPE,
    QUEUED,
    RESOURCES,
    SLOTS,
    SUBMISSIONS,
    TAIL,
    USED,
    WAITING,
    WORK,
    Array,
    Ops,
    Queues,
    State,
    list_until,
    put,
    take_until,
)


def before(op: int, other: int, ready: Array, timed: bool) -> bool:
    """Whether `op` comes first: by id, or by (time of readiness, id) if `timed`."""
    earlier: bool = ready[op] < ready[other]
    return earlier if timed and ready[op] != ready[other] else op < other


def sort(ops: Array, count: int, spare: Array, ready: Array, timed: bool) -> None:
    """Sort the first `count` of `ops` by merging neighbouring runs: what is in order already costs
    nothing.
    """
    runs = 2
    while runs > 1:
        runs, left = 0, 0
        while left < count:
            middle = left + 1
            while middle < count and not before(ops[middle], ops[middle - 1], ready, timed):
                middle += 1
            runs += 1
            if middle == count:
                break
            right = middle + 1
            while right < count and not before(ops[right], ops[right - 1], ready, timed):
                right += 1
            for i in range(left, middle):
                spare[i] = ops[i]
            a, b, to = left, middle, left
            while a < middle:
                if b < right and before(ops[b], spare[a], ready, timed):
                    ops[to] = ops[b]
                    b += 1
                else:
                    ops[to] = spare[a]
                    a += 1
                to += 1
            left = right


def join_queues(op: int, first: int, end: int, lanes: Array, ready: Array, queues: Queues) -> None:
    """Put `op` in the queues of the lanes from `first` on, by (time of readiness, op id)."""
    for i in range(first, end):
        lane = lanes[i]
        entry = queues.entries[FREE]
        if entry == NONE:
            entry = queues.entries[USED]
            queues.entries[USED] = entry + 1
        else:
            queues.entries[FREE] = queues.entry_next[entry]
        place = queues.lane_tail[lane]
        while place != NONE and before(op, queues.entry_op[place], ready, True):
            place = queues.entry_prev[place]
        after = queues.lane_head[lane] if place == NONE else queues.entry_next[place]
        queues.entry_op[entry] = op
        queues.entry_prev[entry] = place
        queues.entry_next[entry] = after
        if place == NONE:
            queues.lane_head[lane] = entry
        else:
            queues.entry_next[place] = entry
        if after == NONE:
            queues.lane_tail[lane] = entry
        else:
            queues.entry_prev[after] = entry


def may_take(op: int, first: int, end: int, lanes: Array, queues: Queues) -> bool:
    """Whether `op` is first in the queue of each of these lanes and all are free."""
    for i in range(first, end):
        lane = lanes[i]
        head = queues.lane_head[lane]
        if queues.lane_busy[lane] or head == NONE or queues.entry_op[head] != op:
            return False
    return True


def take_lanes(since: float, first: int, end: int, lanes: Array, queues: Queues) -> int:
    """Leave the queues, joined at `since`, and hold the lanes. Returns who freed one last and is to
    blame for a wait, or NONE.
    """
    freed, blame = since, NONE
    for i in range(first, end):
        lane = lanes[i]
        entry = queues.lane_head[lane]
        after = queues.entry_next[entry]
        queues.lane_head[lane] = after
        if after == NONE:
            queues.lane_tail[lane] = NONE
        else:
            queues.entry_prev[after] = NONE
        queues.entry_next[entry] = queues.entries[FREE]
        queues.entries[FREE] = entry
        queues.lane_busy[lane] = True
        if queues.lane_last[lane] != NONE and queues.lane_freed[lane] > freed:
            freed = queues.lane_freed[lane]
            blame = queues.lane_last[lane]
    return blame


def free_lanes(
    op: int,
    first: int,
    end: int,
    now: float,
    lanes: Array,
    queues: Queues,
    candidates: Array,
    count: int,
) -> int:
    """Let the next in each queue come: it may be able to go on. Returns how many of `candidates`
    there are now.
    """
    for i in range(first, end):
        lane = lanes[i]
        queues.lane_busy[lane] = False
        queues.lane_last[lane] = op
        queues.lane_freed[lane] = now
    for i in range(first, end):
        head = queues.lane_head[lanes[i]]
        if head != NONE:
            candidates[count] = queues.entry_op[head]
            count += 1
    return count


def advance(ops: Ops, state: State, now: float, horizon: float) -> tuple[bool, float]:
    """Run every instant at or before `now` and every one before `horizon`, but stop after a
    submission completes.

    Returns (whether a submission completed, the time of that instant) or (False, the time of the
    next instant, which is inf when nothing is due). The result does not depend on how a run is cut
    into calls. It also returns, before the next instant, when its `PATIENCE` is at an end.
    """
    while True:
        time = next_due(state)
        if state.flows.scalar[DIRTY_COUNT] > 0 and time > now + 4.0 * ULP * abs(now):
            share(
                now, state.flows
            )  # a capacity has changed; what ends at this very instant still ends
            continue
        if time == INFINITY or (time > now and time >= horizon):
            return False, time
        if state.flows.scalar[WORK] >= state.flows.scalar[PATIENCE]:
            return False, time
        state.clock[0] = time
        due = take_due(time, time + 4.0 * ULP * abs(time), ops, state)
        state.flows.scalar[WORK] += due
        completed = happen(due, time, ops, state)
        share(time, state.flows)
        if completed:
            return True, time


def next_due(state: State) -> float:
    """The time of the next instant; inf if there is none."""
    time: float = state.release_time[state.released[0]]
    if state.flows.calendar.size[0] > 0:
        time = min(time, state.flows.calendar.key[0])
    return time


def take_due(time: float, late: float, ops: Ops, state: State) -> int:
    """Fill `turn` with the ops whose phase ends, or that are released, until `late`, lowest id
    first; how many.
    """
    flows, turn = state.flows, state.turn
    resources = flows.scalar[RESOURCES]
    count, nearly = 0, False
    found = take_until(flows.calendar, late, state.taken)
    while True:
        for i in range(found):
            item = state.taken[i]
            if item < resources or state.phase[state.slot_op[item - resources]] == FLOW:
                count = take_flows(item, time, late, count, ops, state)
            elif not nearly:
                turn[count] = state.slot_op[item - resources]
                count += 1
        if nearly or state.tolerance[0] == 0.0:
            break
        nearly = True
        found = list_nearly_due(time, count, ops, state)
    at = state.released[0]
    while state.release_time[at] <= late:
        op = state.release_op[at]
        at += 1
        if state.slot[op] == 1:  # it waits for nothing else
            turn[count] = op
            count += 1
        else:
            state.slot[op] -= 1
    state.released[0] = at
    sort(turn, count, state.spare, state.ready, False)
    return count


def take_flows(item: int, time: float, late: float, count: int, ops: Ops, state: State) -> int:
    """Add to the first `count` of `turn` those whose flows end by `late`: flows of the group of a
    resource, or of the crowd of a flow at its own cap; how many there are now.
    """
    flows, turn, part = state.flows, state.turn, state.tolerance[0]
    resources = flows.scalar[RESOURCES]
    begin, end = 0, 1
    if item < resources:
        begin = flows.on_start[item]
        end = begin + flows.on_count[item]
    for at in range(begin, end):
        if item >= resources:
            slot = item - resources
        else:
            crowd = flows.on_crowd[at]
            if flows.bottleneck[crowd] != item:
                continue
            slot = flows.head[crowd]
        while slot != NONE:
            op, due = state.slot_op[slot], due_of(slot, flows)
            if due > late and (
                part == 0.0 or due - time > part * (time - begun_at(op, ops, state))
            ):
                break
            turn[count] = op
            count += 1
            slot = flows.after[slot]
    return count


def list_nearly_due(time: float, count: int, ops: Ops, state: State) -> int:
    """Fill `taken` with what is due soon enough that a flow may leave early, now that the first
    `count` ops of `turn` end; how much that is.
    """
    part = state.tolerance[0]
    for i in range(count):
        op = state.turn[i]
        if state.phase[op] == FLOW:
            state.tolerance[1] = max(state.tolerance[1], time - begun_at(op, ops, state))
    # What takes longer than anything before it does not end as early as it may.
    return list_until(state.flows.calendar, time + part * state.tolerance[1], state.taken)


def begun_at(op: int, ops: Ops, state: State) -> float:
    """When the op was given its pipes, or its lanes, or was ready if it has none."""
    call = ops.call[op]
    began: float = state.ready[op]
    if ops.pipe_start[call] < ops.lane_start[call + 1]:
        began = state.begun[op]
    elif ops.lane_start[call] < ops.pipe_start[call]:
        began = state.start[op]
    return began


def wait_until(due: float, op: int, state: State) -> None:
    """Let `op` come up again at `due`."""
    put(state.flows.calendar, state.flows.scalar[RESOURCES] + slot_for(op, state), due)


def slot_for(op: int, state: State) -> int:
    """The slot that `op` holds from its first phase to its end."""
    slot: int = state.slot[op]
    if slot == NONE:
        flows = state.flows
        slot = flows.scalar[FREE_SLOT]
        if slot == NONE:
            slot = flows.scalar[SLOTS]
            flows.scalar[SLOTS] = slot + 1
            flows.calendar.at[flows.scalar[RESOURCES] + slot] = NONE
        else:
            flows.scalar[FREE_SLOT] = state.next_slot[slot]
        state.slot[op] = slot
        state.slot_op[slot] = op
    return slot


def free_slot(op: int, state: State) -> None:
    """Let another op have the slot of `op`."""
    slot = state.slot[op]
    if slot != NONE:
        state.next_slot[slot] = state.flows.scalar[FREE_SLOT]
        state.flows.scalar[FREE_SLOT] = slot
        state.slot[op] = NONE


def submission_of(op: int, start: Array, end: int) -> int:
    """The number of the submission that `op` belongs to; there are `end`."""
    number = 0
    while end - number > 1:
        middle = (number + end) >> 1
        if start[middle] <= op:
            number = middle
        else:
            end = middle
    return number


def grant_lanes(waiting: int, time: float, ops: Ops, state: State) -> int:
    """Give free lanes to the first `waiting` of `candidates` that may take theirs, in order of
    readiness. Fills `turn` with those that go on at this instant, and returns how many they are.
    """
    queues, candidates, turn, due = state.queues, state.candidates, state.turn, 0
    sort(candidates, waiting, state.spare, state.ready, True)
    for c in range(waiting):
        op = candidates[c]
        call, phase = ops.call[op], state.phase[op]
        lanes, pipes, rest = ops.lane_start[call], ops.pipe_start[call], ops.lane_start[call + 1]
        if phase == QUEUED and may_take(op, lanes, pipes, ops.lanes, queues):
            blame = take_lanes(state.ready[op], lanes, pipes, ops.lanes, queues)
            if blame != NONE:
                state.blame[op] = blame
            state.start[op] = time
            state.phase[op] = OVERHEAD
            if ops.overhead[call] > 0.0:
                wait_until(time + ops.overhead[call], op, state)
            else:
                turn[due] = op
                due += 1
        elif phase == AT_PIPE and may_take(op, pipes, rest, ops.lanes, queues):
            state.pipe_blame[op] = take_lanes(state.begun[op], pipes, rest, ops.lanes, queues)
            state.begun[op] = time
            state.phase[op] = PIPE
            turn[due] = op
            due += 1
    return due


def happen(due: int, time: float, ops: Ops, state: State) -> bool:
    """Do everything that happens at one instant, starting with the first `due` ops of `turn`, whose
    phase ends. Returns whether a submission completed.
    """
    # One long loop: what an op goes through in one instant costs no call.
    completed = False
    number, first, end = NONE, 0, 0
    queues, turn, candidates, waiting = state.queues, state.turn, state.candidates, 0
    while True:
        at = 0
        while at < due:
            op = turn[at]
            at += 1
            call, phase = ops.call[op], state.phase[op]
            lanes, pipes, rest = (
                ops.lane_start[call],
                ops.pipe_start[call],
                ops.lane_start[call + 1],
            )
            if phase == WAITING:  # released, or its last predecessor is done
                state.slot[op] = NONE
                state.ready[op] = time
                if lanes < pipes:
                    state.phase[op] = QUEUED
                    join_queues(op, lanes, pipes, ops.lanes, state.ready, queues)
                    candidates[waiting] = op
                    waiting += 1
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
                        waiting = free_lanes(
                            op, lanes, pipes, time, ops.lanes, queues, candidates, waiting
                        )
                    state.phase[op] = LATENCY
                    if ops.latency[call] > 0.0:
                        wait_until(time + ops.latency[call], op, state)
                        continue
                    phase = LATENCY
                if phase == LATENCY and pipes < rest:
                    state.phase[op] = AT_PIPE
                    state.begun[op] = time
                    join_queues(op, pipes, rest, ops.lanes, state.ready, queues)
                    candidates[waiting] = op
                    waiting += 1
                    continue
                if phase < FLOW and ops.amount[op] > 0.0:
                    state.phase[op] = FLOW
                    open_flow(
                        slot_for(op, state), call, ops.amount[op], ops.cap[call], time, state.flows
                    )
                    continue
                if phase == FLOW:
                    until = time
                    if state.tolerance[0] > 0.0:
                        until = due_of(state.slot[op], state.flows)
                    close_flow(state.slot[op], call, time, state.flows)
                    if until > time + 4.0 * ULP * abs(time):
                        state.phase[op] = TAIL
                        wait_until(until, op, state)
                        continue
                free_slot(op, state)
                held = lanes if ops.holds[call] else pipes
                waiting = free_lanes(op, held, rest, time, ops.lanes, queues, candidates, waiting)
            state.phase[op] = DONE
            state.finish[op] = time
            if op < first or op >= end:
                number = submission_of(op, ops.submission_start, state.flows.scalar[SUBMISSIONS])
                first, end = ops.submission_start[number], ops.submission_start[number + 1]
            state.pending[number] -= 1
            if state.pending[number] == 0:
                completed = True
            for s in range(ops.successor_start[op], ops.successor_start[op + 1]):
                successor = ops.successors[s]
                if state.slot[successor] == 1:
                    state.blame[successor] = op
                    turn[due] = successor
                    due += 1
                else:
                    state.slot[successor] -= 1
        if waiting == 0:
            return completed
        due, waiting = grant_lanes(waiting, time, ops, state), 0
