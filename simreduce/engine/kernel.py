"""The kernel: a DAG of timed transfers, advanced to a horizon. One source, interpreted or compiled.

It is a pure function of arrays: no objects, no clock, no IO. Interpreted, it is given lists (quicker to index than
arrays); compiled by numba, arrays. It uses only what both understand.

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

import heapq
from typing import Any, NamedTuple

# Phases of an op.
WAITING, QUEUED, OVERHEAD, LATENCY, FLOW, DONE = 0, 1, 2, 3, 4, 5

NONE = -1
INFINITY = float("inf")
_ULP = 2.220446049250313e-16
_SAME = 1.0 + 1e-12
"""Levels this close saturate together: the rates of equal flows must not differ by rounding."""

# Indices into State.scalar.
ACTIVE_COUNT, DIRTY_COUNT = 0, 1

Array = Any  # a list when interpreted, a numpy array when compiled


class Ops(NamedTuple):
    """What the ops are. One entry per op, or CSR rows; never written by the kernel."""

    overhead: Array  # s
    latency: Array  # s
    holds: Array  # whether lanes are kept during latency and flow
    amount: Array  # bytes to move; 0: no flow
    cap: Array  # bytes/s, inf: none
    submission: Array
    successor_start: Array
    successors: Array
    lane_start: Array
    lanes: Array
    use_start: Array
    uses: Array  # resources
    weight: Array  # capacity a flow takes per byte of its rate
    user: Array  # the op of each use
    waiter: Array  # the op of each lane entry


class State(NamedTuple):
    """What has happened so far; written by the kernel."""

    phase: Array
    waits: Array  # predecessors that are not done
    due: Array  # s, when the current phase ends
    ready: Array  # s
    start: Array  # s, when the lanes were given
    finish: Array  # s
    blame: Array  # the op whose end this op's start waited for last, or NONE
    left: Array  # bytes of the flow at its anchor
    rate: Array  # bytes/s
    anchor: Array  # s
    active: Array  # ops with a due time, in any order
    active_at: Array  # index in `active`, or NONE
    capacity: Array  # bytes/s, by resource
    use_next: Array  # the flows on each resource: a doubly linked list of uses
    use_prev: Array
    use_head: Array  # by resource
    dirty: Array  # resources whose flows must be shared anew, each once
    is_dirty: Array
    lane_next: Array  # the queue of each lane: a doubly linked list of lane entries
    lane_prev: Array
    lane_head: Array  # by lane
    lane_tail: Array
    lane_busy: Array
    lane_last: Array  # the op that freed the lane last, or NONE
    lane_freed: Array  # s, when that was
    pending: Array  # ops that are not done, by submission
    scalar: Array  # see the indices above
    clock: Array  # s, one entry: the last instant that has happened


def activate(op: int, due: float, state: State) -> None:
    """Give `op` a due time."""
    state.due[op] = due
    if state.active_at[op] == NONE:
        count = state.scalar[ACTIVE_COUNT]
        state.active[count] = op
        state.active_at[op] = count
        state.scalar[ACTIVE_COUNT] = count + 1


def wait_until(due: float, op: int, state: State, heap: Any) -> None:
    """Let `op` come up again at `due`."""
    activate(op, due, state)
    heapq.heappush(heap, (due, op))


def deactivate(op: int, state: State) -> None:
    """Take `op` off the list of ops with a due time."""
    at = state.active_at[op]
    last = state.scalar[ACTIVE_COUNT] - 1
    other = state.active[last]
    state.active[at] = other
    state.active_at[other] = at
    state.active_at[op] = NONE
    state.scalar[ACTIVE_COUNT] = last


def mark_dirty(resource: int, state: State) -> None:
    """Remember that the flows on `resource` must be shared anew."""
    if not state.is_dirty[resource]:
        state.is_dirty[resource] = True
        state.dirty[state.scalar[DIRTY_COUNT]] = resource
        state.scalar[DIRTY_COUNT] += 1


def open_flow(op: int, now: float, ops: Ops, state: State) -> None:
    """Let the bytes of `op` compete; its rate is computed when the instant is over."""
    state.phase[op] = FLOW
    state.left[op] = ops.amount[op]
    state.anchor[op] = now
    state.rate[op] = -1.0
    activate(op, INFINITY, state)
    for use in range(ops.use_start[op], ops.use_start[op + 1]):
        resource = ops.uses[use]
        head = state.use_head[resource]
        state.use_next[use] = head
        state.use_prev[use] = NONE
        if head != NONE:
            state.use_prev[head] = use
        state.use_head[resource] = use
        mark_dirty(resource, state)


def close_flow(op: int, ops: Ops, state: State) -> None:
    """Take the flow of `op` off its resources."""
    for use in range(ops.use_start[op], ops.use_start[op + 1]):
        resource = ops.uses[use]
        after, before = state.use_next[use], state.use_prev[use]
        if before == NONE:
            state.use_head[resource] = after
        else:
            state.use_next[before] = after
        if after != NONE:
            state.use_prev[after] = before
        mark_dirty(resource, state)


def join_queues(op: int, ops: Ops, state: State) -> None:
    """Put `op` in the queue of each of its lanes, by (time of readiness, op id)."""
    state.phase[op] = QUEUED
    for entry in range(ops.lane_start[op], ops.lane_start[op + 1]):
        lane = ops.lanes[entry]
        before = state.lane_tail[lane]
        while before != NONE:
            other = ops.waiter[before]
            if state.ready[other] < state.ready[op] or other < op:
                break
            before = state.lane_prev[before]
        after = state.lane_head[lane] if before == NONE else state.lane_next[before]
        state.lane_prev[entry] = before
        state.lane_next[entry] = after
        if before == NONE:
            state.lane_head[lane] = entry
        else:
            state.lane_next[before] = entry
        if after == NONE:
            state.lane_tail[lane] = entry
        else:
            state.lane_prev[after] = entry


def may_start(op: int, ops: Ops, state: State) -> bool:
    """Whether `op` is first in the queue of each of its lanes and all are free."""
    for entry in range(ops.lane_start[op], ops.lane_start[op + 1]):
        lane = ops.lanes[entry]
        if state.lane_busy[lane] or state.lane_head[lane] != entry:
            return False
    return True


def take_lanes(op: int, now: float, ops: Ops, state: State) -> None:
    """Leave the queues and hold the lanes. Whoever freed one last is to blame for a wait."""
    freed = state.ready[op]
    for entry in range(ops.lane_start[op], ops.lane_start[op + 1]):
        lane = ops.lanes[entry]
        after = state.lane_next[entry]
        state.lane_head[lane] = after
        if after == NONE:
            state.lane_tail[lane] = NONE
        else:
            state.lane_prev[after] = NONE
        state.lane_busy[lane] = True
        if state.lane_last[lane] != NONE and state.lane_freed[lane] > freed:
            freed = state.lane_freed[lane]
            state.blame[op] = state.lane_last[lane]
    state.start[op] = now


def free_lanes(op: int, now: float, ops: Ops, state: State) -> None:
    """Let the next in each queue come."""
    for entry in range(ops.lane_start[op], ops.lane_start[op + 1]):
        lane = ops.lanes[entry]
        state.lane_busy[lane] = False
        state.lane_last[lane] = op
        state.lane_freed[lane] = now


def share(ops: Ops, state: State, now: float, heap: Any) -> None:
    """New max-min fair rates for every flow that is connected to a dirty resource (progressive filling).

    All flows rise together until a resource is full or a cap is reached; those flows keep that rate, the others rise
    on. A flow whose rate stays what it was is not touched.
    """
    capacity = state.capacity
    flows = [NONE]
    resources = [NONE]
    seen = {NONE: 0}
    found = {NONE: 0}
    for i in range(state.scalar[DIRTY_COUNT]):
        resource = state.dirty[i]
        state.is_dirty[resource] = False
        if resource not in found:
            found[resource] = len(resources)
            resources.append(resource)
    state.scalar[DIRTY_COUNT] = 0
    at = 1
    while at < len(resources):
        use = state.use_head[resources[at]]
        at += 1
        while use != NONE:
            op = ops.user[use]
            if op not in seen:
                seen[op] = len(flows)
                flows.append(op)
                for other in range(ops.use_start[op], ops.use_start[op + 1]):
                    resource = ops.uses[other]
                    if resource not in found:
                        found[resource] = len(resources)
                        resources.append(resource)
            use = state.use_next[use]

    room = [0.0] * len(resources)
    load = [0.0] * len(resources)
    rising = [0] * len(resources)
    for i in range(1, len(resources)):
        room[i] = capacity[resources[i]]
    frozen = [False] * len(flows)
    for k in range(1, len(flows)):
        op = flows[k]
        for use in range(ops.use_start[op], ops.use_start[op + 1]):
            i = found[ops.uses[use]]
            load[i] += ops.weight[use]
            rising[i] += 1

    remaining = len(flows) - 1
    while remaining > 0:
        level = INFINITY
        for i in range(1, len(resources)):
            if rising[i] > 0:
                level = min(level, max(room[i], 0.0) / load[i])
        for k in range(1, len(flows)):
            if not frozen[k]:
                level = min(level, ops.cap[flows[k]])
        # Decide first, freeze then: freezing moves the levels of the other resources by rounding.
        chosen = [NONE]
        for k in range(1, len(flows)):
            if not frozen[k]:
                op = flows[k]
                full = ops.cap[op] <= level
                for use in range(ops.use_start[op], ops.use_start[op + 1]):
                    i = found[ops.uses[use]]
                    if max(room[i], 0.0) / load[i] <= level * _SAME:
                        full = True
                if full:
                    chosen.append(k)
        for c in range(1, len(chosen)):
            k = chosen[c]
            op = flows[k]
            frozen[k] = True
            remaining -= 1
            for use in range(ops.use_start[op], ops.use_start[op + 1]):
                i = found[ops.uses[use]]
                room[i] -= level * ops.weight[use]
                load[i] -= ops.weight[use]
                rising[i] -= 1
            if state.rate[op] != level:
                if state.rate[op] > 0.0:
                    moved = state.rate[op] * (now - state.anchor[op])
                    state.left[op] = max(state.left[op] - moved, 0.0)
                state.anchor[op] = now
                state.rate[op] = level
                due = now + state.left[op] / level if level > 0.0 else INFINITY
                state.due[op] = due
                if due < INFINITY:
                    heapq.heappush(heap, (due, op))


def advance(ops: Ops, state: State, now: float, horizon: float) -> tuple[bool, float]:
    """Run every instant at or before `now` and every one before `horizon`, but stop after a submission completes.

    Returns (whether a submission completed, the time of that instant) or (False, the time of the next instant, which
    is inf when nothing is due). The result does not depend on how a run is cut into calls.
    """
    heap = [(INFINITY, NONE)]
    for i in range(state.scalar[ACTIVE_COUNT]):
        op = state.active[i]
        if state.due[op] < INFINITY:
            heap.append((state.due[op], op))
    heapq.heapify(heap)

    while True:
        while heap[0][1] != NONE and (
            state.active_at[heap[0][1]] == NONE or state.due[heap[0][1]] != heap[0][0]
        ):
            heapq.heappop(heap)  # its due time has changed
        time = heap[0][0]
        if state.scalar[DIRTY_COUNT] > 0 and time > now + 4.0 * _ULP * abs(now):
            share(ops, state, now, heap)  # a capacity has changed; what ends at this very instant still ends
            continue
        if time == INFINITY or (time > now and time >= horizon):
            return False, time
        late = time + 4.0 * _ULP * abs(time)
        turn = [NONE]
        while heap[0][0] <= late and heap[0][1] != NONE:
            due, op = heapq.heappop(heap)
            if state.active_at[op] != NONE and state.due[op] == due:
                deactivate(op, state)
                turn.append(op)
        turn.sort()
        state.clock[0] = time
        completed = happen(turn, time, ops, state, heap)
        share(ops, state, time, heap)
        if completed:
            return True, time


def happen(turn: list[int], time: float, ops: Ops, state: State, heap: Any) -> bool:
    """Everything that happens at one instant, begun by the ops of `turn` (from its second entry) whose phase ends.

    Returns whether a submission completed.
    """
    completed = False
    candidates = [(0.0, NONE)]
    at = 1
    while True:
        while at < len(turn):
            op = turn[at]
            at += 1
            phase = state.phase[op]
            if phase == WAITING:  # released
                state.waits[op] -= 1
                if state.waits[op] > 0:
                    continue
                state.ready[op] = time
                if ops.lane_start[op] < ops.lane_start[op + 1]:
                    join_queues(op, ops, state)
                    candidates.append((time, op))
                    continue
                state.start[op] = time
                phase = QUEUED
            if phase == QUEUED:
                state.phase[op] = OVERHEAD
                if ops.overhead[op] > 0.0:
                    wait_until(time + ops.overhead[op], op, state, heap)
                    continue
                phase = OVERHEAD
            if phase == OVERHEAD:
                if not ops.holds[op]:
                    free_lanes(op, time, ops, state)
                    offer_lanes(op, ops, state, candidates)
                state.phase[op] = LATENCY
                if ops.latency[op] > 0.0:
                    wait_until(time + ops.latency[op], op, state, heap)
                    continue
                phase = LATENCY
            if phase == LATENCY and ops.amount[op] > 0.0:
                open_flow(op, time, ops, state)
                continue
            if phase == FLOW:
                close_flow(op, ops, state)
            state.phase[op] = DONE
            state.finish[op] = time
            if ops.holds[op]:
                free_lanes(op, time, ops, state)
                offer_lanes(op, ops, state, candidates)
            submission = ops.submission[op]
            state.pending[submission] -= 1
            if state.pending[submission] == 0:
                completed = True
            for s in range(ops.successor_start[op], ops.successor_start[op + 1]):
                successor = ops.successors[s]
                if state.waits[successor] == 1:
                    state.blame[successor] = op
                    turn.append(successor)
                else:
                    state.waits[successor] -= 1
        if len(candidates) == 1:
            return completed
        candidates.sort()
        for c in range(len(candidates)):
            op = candidates[c][1]
            if op != NONE and state.phase[op] == QUEUED and may_start(op, ops, state):
                take_lanes(op, time, ops, state)
                state.phase[op] = OVERHEAD
                if ops.overhead[op] > 0.0:
                    wait_until(time + ops.overhead[op], op, state, heap)
                else:
                    turn.append(op)
        candidates = [(0.0, NONE)]


def offer_lanes(op: int, ops: Ops, state: State, candidates: list[tuple[float, int]]) -> None:
    """The first in the queue of each lane that `op` has freed may be able to start."""
    for entry in range(ops.lane_start[op], ops.lane_start[op + 1]):
        head = state.lane_head[ops.lanes[entry]]
        if head != NONE:
            other = ops.waiter[head]
            candidates.append((state.ready[other], other))
