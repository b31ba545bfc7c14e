"""Flows come to their resources and go. Part of the kernel (see `advance` and `sharing`)."""

from __future__ import annotations

from simreduce.engine.kernel.calendar import NONE, put, remove
from simreduce.engine.kernel.tables import (
    DIRTY_COUNT,
    INFINITY,
    MOVED_COUNT,
    OPENED_COUNT,
    RESOURCES,
    UNMOVED,
    Flows,
)

RIGHT, MUST, MAY = 3, 2, 1
"""Values of is_dirty: the level is right; it must be found anew; it may be kept if the load is
small.
"""


def mark_dirty(resource: int, flows: Flows, how: int = MUST) -> None:
    """Remember that the flows on `resource` must be shared anew."""
    if flows.is_dirty[resource] == 0:
        flows.dirty[flows.scalar[DIRTY_COUNT]] = resource
        flows.scalar[DIRTY_COUNT] += 1
    flows.is_dirty[resource] = max(flows.is_dirty[resource], how)


def served_at(group: int, now: float, flows: Flows) -> float:
    """Bytes that each flow of `group` has been served."""
    served: float = flows.served[group]
    if now > flows.anchor[group]:
        served += flows.level[group] * (now - flows.anchor[group])
    return served


def due_of(slot: int, call: int, flows: Flows) -> float:
    """When the flow of `call` in `slot` is done if its rate stays."""
    group = flows.bottleneck[call]
    level = flows.level[group]
    left = flows.goal[slot] - flows.served[group]
    return flows.anchor[group] + max(left, 0.0) / level if level > 0.0 else INFINITY


def open_flow(slot: int, call: int, amount: float, cap: float, now: float, flows: Flows) -> None:
    """Let the bytes of the op in `slot` compete; its rate is computed when the instant is over."""
    begin, end, level = flows.use_start[call], flows.use_start[call + 1], flows.level
    if flows.flying[call] == 0:
        bottleneck = flows.scalar[RESOURCES] + call
        level[bottleneck] = cap
        if cap < INFINITY:
            flows.served[bottleneck] = 0.0
            flows.anchor[bottleneck] = now
            flows.members[bottleneck] = 0
        flows.head[call] = NONE
        for use in range(begin, end):
            resource = flows.uses[use]
            if level[resource] < level[bottleneck]:
                bottleneck = resource
            place = flows.on_start[resource] + flows.on_count[resource]
            flows.on_count[resource] += 1
            flows.on_call[place] = call
            flows.on_use[place] = use
            flows.on_weight[place] = flows.weight[use]
            flows.place[use] = place
        flows.bottleneck[call] = bottleneck
        flows.rate[call] = level[bottleneck]
        note_move(call, NONE, flows)
    flows.flying[call] += 1
    flows.goal[slot] = amount
    flows.opened[flows.scalar[OPENED_COUNT]] = slot
    flows.opened_call[flows.scalar[OPENED_COUNT]] = call
    flows.scalar[OPENED_COUNT] += 1
    rate, bottleneck = flows.rate[call], flows.bottleneck[call]
    how = MUST if rate == INFINITY else MAY
    for use in range(begin, end):
        resource, weight = flows.uses[use], flows.weight[use]
        if how == MAY:
            flows.load[resource] += weight * rate
            if resource == bottleneck:
                flows.own[resource] += weight
        if flows.is_dirty[resource] < how:
            mark_dirty(resource, flows, how)


def close_flow(slot: int, call: int, now: float, flows: Flows) -> None:
    """Take the flow of `call` in `slot` off its resources."""
    rate, bottleneck, first = flows.rate[call], flows.bottleneck[call], flows.head[call] == slot
    flows.flying[call] -= 1
    before, after = flows.before[slot], flows.after[slot]
    if before == NONE:
        flows.head[call] = after
    else:
        flows.after[before] = after
    if after == NONE:
        flows.tail[call] = before
    else:
        flows.before[after] = before
    for use in range(flows.use_start[call], flows.use_start[call + 1]):
        resource = flows.uses[use]
        if flows.flying[call] == 0:
            last = flows.on_start[resource] + flows.on_count[resource] - 1
            at, moved = flows.place[use], flows.on_use[last]
            flows.on_call[at] = flows.on_call[last]
            flows.on_use[at] = moved
            flows.on_weight[at] = flows.on_weight[last]
            flows.place[moved] = at
            flows.on_count[resource] -= 1
        if flows.on_count[resource] == 0:
            flows.load[resource] = 0.0
            flows.own[resource] = 0.0
            flows.level[resource] = INFINITY
        else:
            flows.load[resource] -= flows.weight[use] * rate
            if resource == bottleneck:
                flows.own[resource] -= flows.weight[use]
        if flows.is_dirty[resource] == 0:
            mark_dirty(resource, flows, MAY)
    if bottleneck < flows.scalar[RESOURCES]:
        if first:
            flows.soonest[bottleneck] = NONE
    elif first:
        remove(flows.calendar, flows.scalar[RESOURCES] + slot)
        await_first(call, flows)
    if flows.flying[call] == 0:
        leave(bottleneck, now, flows)


def await_first(call: int, flows: Flows) -> None:
    """Let the first flow of `call`, which is at its own cap, come up when it is done."""
    slot = flows.head[call]
    if slot != NONE:
        due = due_of(slot, call, flows)
        if due < INFINITY:
            put(flows.calendar, flows.scalar[RESOURCES] + slot, due)
        else:
            remove(flows.calendar, flows.scalar[RESOURCES] + slot)


def link(slot: int, call: int, flows: Flows) -> None:
    """Put the flow in `slot` among those of `call`, if any, in the order of their goals."""
    before, after = NONE if flows.head[call] == NONE else flows.tail[call], NONE
    while before != NONE and flows.goal[before] > flows.goal[slot]:
        after = before
        before = flows.before[before]
    flows.before[slot] = before
    flows.after[slot] = after
    if before == NONE:
        flows.head[call] = slot
    else:
        flows.after[before] = slot
    if after == NONE:
        flows.tail[call] = slot
    else:
        flows.before[after] = slot


def leave(group: int, now: float, flows: Flows) -> None:
    """One call less in `group`; when it was the last, the count begins anew."""
    flows.members[group] -= 1
    if flows.members[group] == 0:
        flows.served[group] = 0.0
        flows.anchor[group] = now


def note_move(call: int, before: int, flows: Flows) -> None:
    """Remember which bottleneck `call` had when sharing began."""
    if flows.moved_from[call] == UNMOVED:
        flows.moved_from[call] = before
        flows.moved[flows.scalar[MOVED_COUNT]] = call
        flows.scalar[MOVED_COUNT] += 1
