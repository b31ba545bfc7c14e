"""The queues of lanes. Part of the kernel (see `advance`)."""

from __future__ import annotations

from simreduce.engine.kernel.calendar import NONE
from simreduce.engine.kernel.tables import FREE, USED, Array, Queues


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
