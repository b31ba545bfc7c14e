"""The tables that the kernel runs on: what ops are, and what has become of them.

A column is a list when the kernel is interpreted (quicker to index) and a numpy array when it is
compiled. An op in flight holds a *slot*, and slots are used again, so that what is touched at every
instant stays small and together. Columns over slots are as long as there could be slots; of an
array, only what is touched takes memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

NONE = -1

Array = Any  # a list when interpreted, a numpy array when compiled


class Heap(NamedTuple):
    """`key[i]` and `item[i]` for i < size[0]; `at[item]` is where an item is, or NONE.

    The least key is first, and the key of any item may change. Only keys are compared. Items with
    equal keys therefore go in and come out without moving one another, however many they are.
    """

    key: Array
    item: Array
    at: Array
    size: Array


def put(heap: Heap, item: int, key: float) -> None:
    """Give `item` a key, whether or not it has one."""
    keys, items, at = heap.key, heap.item, heap.at
    i = at[item]
    if i == NONE:
        i = heap.size[0]
        heap.size[0] = i + 1
    elif keys[i] < key:
        sink(heap, i, item, key)
        return
    while i > 0:
        parent = (i - 1) >> 1
        if keys[parent] <= key:
            break
        keys[i] = keys[parent]
        items[i] = items[parent]
        at[items[i]] = i
        i = parent
    keys[i] = key
    items[i] = item
    at[item] = i


def sink(heap: Heap, i: int, item: int, key: float) -> None:
    """Place `item` at `i` or as far below it as its key says."""
    keys, items, at = heap.key, heap.item, heap.at
    size = heap.size[0]
    child = 2 * i + 1
    while child < size:
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[i] = keys[child]
        items[i] = items[child]
        at[items[i]] = i
        i = child
        child = 2 * i + 1
    keys[i] = key
    items[i] = item
    at[item] = i


def remove(heap: Heap, item: int) -> None:
    """Take `item` out, if it is there."""
    i = heap.at[item]
    if i == NONE:
        return
    heap.at[item] = NONE
    last = heap.size[0] - 1
    heap.size[0] = last
    if i < last:
        other, key = heap.item[last], heap.key[last]
        if i > 0 and key < heap.key[(i - 1) >> 1]:
            heap.at[other] = i  # to rise from there
            heap.item[i] = other
            heap.key[i] = key
            put(heap, other, key)
        else:
            sink(heap, i, other, key)


def list_until(heap: Heap, late: float, taken: Array) -> int:
    """Write every item whose key is `late` or less to `taken`; how many they are."""
    keys, size = heap.key, heap.size[0]
    if size == 0 or keys[0] > late:
        return 0
    taken[0] = 0  # places first, in the order of levels
    count, i = 1, 0
    while i < count:
        child = 2 * taken[i] + 1
        i += 1
        if child < size and keys[child] <= late:
            taken[count] = child
            count += 1
        if child + 1 < size and keys[child + 1] <= late:
            taken[count] = child + 1
            count += 1
    for i in range(count):
        taken[i] = heap.item[taken[i]]
    return count


def take_until(heap: Heap, late: float, taken: Array) -> int:
    """Take out every item whose key is `late` or less, write them to `taken`, and return how many
    they are.
    """
    keys, items, at = heap.key, heap.item, heap.at
    size, count = heap.size[0], list_until(heap, late, taken)
    if count == 0:
        return 0
    if 4 * count < size:
        for _ in range(count):  # the least are on top
            size -= 1
            heap.size[0] = size
            if size > 0:
                sink(heap, 0, items[size], keys[size])
        for i in range(count):
            at[taken[i]] = NONE
        return count
    for i in range(count):
        at[taken[i]] = NONE
    kept = 0
    if count < size:
        for i in range(size):
            if keys[i] > late:
                keys[kept] = keys[i]
                items[kept] = items[i]
                at[items[kept]] = kept
                kept += 1
    heap.size[0] = kept
    for i in range((kept >> 1) - 1, -1, -1):
        sink(heap, i, items[i], keys[i])
    return count


INFINITY = float("inf")
SAME = 1.0 + 1e-12
"""Levels whose ratio is no more are one: rounding may tell them apart."""

# Phases of an op.
WAITING, QUEUED, OVERHEAD, LATENCY, AT_PIPE, PIPE, FLOW, TAIL, DONE = 0, 1, 2, 3, 4, 5, 6, 7, 8

# Indices into Flows.scalar.
SLOTS, FREE_SLOT, DIRTY_COUNT, MOVED_COUNT, OPENED_COUNT, RESOURCES, SUBMISSIONS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
)
WORK, PATIENCE = 7, 8  # ops due and crowds looked at so far, and how many may be
CROWDS, FREE_CROWD = 9, 10
STALE, HELD, SLOWED, FRESH = 11, 12, 13, 14
SCALARS = 15

# Indices into Queues.entries.
USED, FREE = 0, 1

NEARLY = 1.0 - 1e-9
"""A resource that is loaded less is not full, whatever has been rounded in adding up its load."""

UNKNOWN = -2
"""In Flows.limit: what holds a crowd may have changed."""
UNMOVED = -2
"""In Flows.moved_from: the crowd has the bottleneck that it had."""


class Ops(NamedTuple):
    """What the ops are: columns over ops, over the *calls* that ops are instances of, or CSR rows.
    Never written.

    Ops of one call have the same costs, lanes and resources; a large plan has few calls.
    """

    call: Array
    amount: Array  # bytes to move; 0: no flow
    successor_start: Array
    successors: Array
    submission_start: Array  # the first op of each submission, then the number of ops
    # by call
    overhead: Array  # s
    latency: Array  # s
    holds: Array  # whether lanes are kept during latency and flow
    cap: Array  # bytes/s, inf: none
    lane_start: Array
    pipe_start: Array  # where the pipes begin, after the other lanes of a call
    lanes: Array
    free: Array  # neither costs nor lanes nor resources


class Queues(NamedTuple):
    """The queue of each lane, a doubly linked list of entries."""

    lane_head: Array
    lane_tail: Array
    lane_busy: Array
    lane_last: Array  # the op that freed the lane last, or NONE
    lane_freed: Array  # s, when that was
    entry_op: Array
    entry_next: Array  # also the entries that are free: a linked list
    entry_prev: Array
    entries: Array  # how many have been in use, and the first that is free


class Flows(NamedTuple):
    """Who shares what, and what is due when; see `sharing`. The flows of one call, a *crowd*, share
    as one.
    """

    calendar: Heap  # what is due: R groups of flows, by resource, then slots
    # by resource
    capacity: Array  # bytes/s
    load: Array  # bytes/s that its flows take
    own: Array  # weights of the flows whose bottleneck it is
    soonest: Array  # bytes, the least goal of those flows, or NONE if it is not known
    on_start: Array  # where its crowds begin in `on_crowd`
    on_count: Array
    dirty: Array  # resources whose flows must be shared anew, each once
    is_dirty: Array
    known: Array  # the level at which it is full as things stand, or NONE
    was: Array  # its level when sharing began, or NONE
    width: Array  # weights of the flows that could go as fast as its key in `solver`, or less
    solver: Heap  # resources whose level may be wrong
    # by group: a resource and the crowds whose bottleneck it is, then crowds at their own cap
    level: Array  # bytes/s, the rate of every flow in the group; inf if the resource is not full
    served: Array  # bytes that each flow of the group has moved since it is in use
    anchor: Array  # s, when `served` was counted last
    members: Array  # crowds
    # by call
    use_start: Array
    crowd_of: Array  # the crowd of its flows, or NONE if it has none
    # by crowd, the flows of one call; numbers are used again, so that columns stay small
    begin: Array  # where its uses begin and end
    end: Array
    flying: Array  # flows
    bottleneck: Array  # the group of its flows
    most: Array  # bytes/s that each of them may have at its own cap
    rate: Array  # bytes/s of each of them; with congestion their fair rate
    head: Array  # the slots of its flows, a doubly linked list in the order of their goals
    tail: Array
    next_crowd: Array  # the crowds that are free: a linked list
    moved: Array  # crowds whose bottleneck has changed since sharing began
    moved_from: Array  # by crowd: the bottleneck before, or UNMOVED
    # by slot
    crowd: Array  # what the flow belongs to
    goal: Array  # the flow is done when its group has served that much
    after: Array
    before: Array
    opened: Array  # slots of flows that have joined a crowd, but are not in its list yet
    # by use of a call
    uses: Array  # resources
    weight: Array  # capacity a flow takes per byte of its rate
    place: Array  # its index in `on_crowd`, while the call has flows
    # where `congestion` is not isolated; empty columns elsewhere
    congestion: Array  # one of its rules, and the part of the time that it holds
    fills: Array  # by resource: whether flows that are held further on fill it
    equal: Array  # by resource: bytes/s that each flow of weight 1 has if all have the same
    top: Array  # by resource: the rate of its fastest flow if it is full, else 0
    most_sent: Array  # by resource: the largest part of its offer that a flow there has, or more
    through: Array  # by resource: whether a flow there has passed links that fill, ever
    stale: Array  # resources whose flows, or their fair rates, have changed
    is_stale: Array
    queue: Array  # by resource: the first crowd that it holds, or NONE
    passes: Array  # by resource: what flows have there at most, in parts of offers or bytes/s
    lower: Array  # by resource: the same, as it will be next
    front: Array  # resources to look at
    touched: Array  # links where flows have not all
    first: Array  # by crowd: the hop of the first link that fills, or NONE
    limit: Array  # by crowd: what limits its fair rate, the last link if one does, or NONE; UNKNOWN
    # if it is fresh
    limit_hop: Array  # by crowd: where on its way that is
    offer: Array  # by crowd: bytes/s that leave the source of each flow; where links drop, the fair
    # rate of flows that are not held
    least: Array  # by crowd: bytes/s that others leave each flow, inf if all
    fresh: Array  # crowds whose rates may change
    holding: Array  # crowds that their `limit` holds, or did
    slowed: Array  # crowds that others leave less than all
    behind: Array  # by crowd: the next that the same link holds, or NONE
    stops: Array  # resources that hold crowds
    hop: Array  # by use of a call: which links come after others on the way, from 0; NONE: none
    # by use of a crowd, resource by resource
    on_crowd: Array
    on_use: Array
    on_weight: Array
    # room for the crowds of one resource
    room_rate: Array
    room_weight: Array

    scalar: Array  # see the indices above


class State(NamedTuple):
    """What has happened so far; written by the kernel. What a function does not need it is not
    given: each column of a table is an argument of its own for numba.
    """

    # by op
    phase: Array
    # of an op in flight, or NONE; before it is ready, how many ops and releases it waits for
    slot: Array
    ready: Array  # s
    # s, when the lanes were given; only of ops that have lanes, the others start when ready
    start: Array
    # s, when the pipes were given, and before that when it began to wait for them; only of ops that
    # have pipes
    begun: Array
    finish: Array  # s
    blame: Array  # the op whose end this op's start waited for last, or NONE
    pipe_blame: Array  # the op that had the pipe which this op waited for last, or NONE

    release_time: Array  # s, ascending, and inf at the end
    release_op: Array
    released: Array  # one entry: how many of them have happened
    pending: Array  # ops that are not done, by submission

    queues: Queues
    flows: Flows
    slot_op: Array
    next_slot: Array  # the slots that are free: a linked list

    # room for what happens at one instant
    turn: Array  # ops, each at most once at a time
    candidates: Array  # ops that may get their lanes
    taken: Array  # items of the calendar
    spare: Array

    clock: Array  # s, one entry: the last instant that has happened
    # by what part of its own time a flow may leave early, and the longest time (s) of one that
    # moved bytes, of which only a `part` above 0 takes note
    tolerance: Array


_KINDS: dict[type, str] = {
    np.float64: "amount overhead latency cap weight ready start begun finish release_time"
    " lane_freed capacity load own known was width soonest level served anchor rate goal on_weight"
    " room_rate room_weight congestion equal top most_sent passes lower most offer least"
    " clock tolerance key",
    np.int8: "phase is_dirty is_stale fills through",
    np.bool_: "holds free lane_busy",
    np.int64: "scalar entries released size",
}
DTYPE: dict[str, type] = {name: kind for kind, names in _KINDS.items() for name in names.split()}
"""Of the columns that are not int32."""


def as_arrays(table: Any) -> Any:
    """The same table with numpy columns of the types that the compiled kernel expects."""
    columns = {}
    for name, column in table._asdict().items():
        nested = isinstance(column, (Heap, Queues, Flows))
        columns[name] = (
            as_arrays(column) if nested else np.asarray(column, dtype=DTYPE.get(name, np.int32))
        )
    return type(table)(**columns)
