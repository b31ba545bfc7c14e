"""Flows come to their resources and go. Part of the kernel (see `sharing`).

A group of flows has one bottleneck. What it has been served, and what is due when, is kept by
group.
"""

from __future__ import annotations

from simreduce.engine.kernel.tables import (
    CROWDS,
    DIRTY_COUNT,
    FREE_CROWD,
    FRESH,
    INFINITY,
    MOVED_COUNT,
    NONE,
    OPENED_COUNT,
    RESOURCES,
    STALE,
    UNKNOWN,
    UNMOVED,
    Flows,
    Heap,
    put,
    remove,
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
    if flows.congestion[0] > 0.0:
        note_stale(resource, flows)


def note_stale(resource: int, flows: Flows) -> None:
    """Remember that flows on `resource`, or their fair rates, have changed; with congestion."""
    if flows.is_stale[resource] == 0 and flows.through[resource]:
        flows.is_stale[resource] = 1
        flows.stale[flows.scalar[STALE]] = resource
        flows.scalar[STALE] += 1


def note_fresh(crowd: int, flows: Flows) -> None:
    """Remember that the fair rate of `crowd`, or what holds or slows it, may have changed."""
    if flows.limit[crowd] != UNKNOWN:
        flows.limit[crowd] = UNKNOWN
        flows.fresh[flows.scalar[FRESH]] = crowd
        flows.scalar[FRESH] += 1


def served_at(group: int, now: float, flows: Flows) -> float:
    """Bytes that each flow of `group` has been served."""
    served: float = flows.served[group]
    if now > flows.anchor[group]:
        served += flows.level[group] * (now - flows.anchor[group])
    return served


def group_of(crowd: int, flows: Flows) -> int:
    """The group whose count is that of `crowd`: where flows that are held slow others, its own."""
    group: int = flows.bottleneck[crowd]
    return flows.scalar[RESOURCES] + crowd if flows.congestion[0] > 0.0 else group


def due_of(slot: int, flows: Flows) -> float:
    """When the flow in `slot` is done if its rate stays."""
    group = group_of(flows.crowd[slot], flows)
    level = flows.level[group]
    left = flows.goal[slot] - flows.served[group]
    return flows.anchor[group] + max(left, 0.0) / level if level > 0.0 else INFINITY


def open_flow(slot: int, call: int, amount: float, cap: float, now: float, flows: Flows) -> None:
    """Let the bytes of the op in `slot` compete; its rate is computed when the instant is over."""
    crowd = flows.crowd_of[call]
    flows.goal[slot] = amount
    if crowd == NONE:
        crowd = open_crowd(slot, call, cap, now, flows)
    else:
        flows.opened[flows.scalar[OPENED_COUNT]] = slot
        flows.scalar[OPENED_COUNT] += 1
    flows.crowd[slot] = crowd
    flows.flying[crowd] += 1
    rate, bottleneck = flows.rate[crowd], flows.bottleneck[crowd]
    how = MUST if rate == INFINITY else MAY
    for use in range(flows.begin[crowd], flows.end[crowd]):
        resource, weight = flows.uses[use], flows.weight[use]
        if how == MAY:
            flows.load[resource] += weight * rate
            if resource == bottleneck:
                flows.own[resource] += weight
        if flows.is_dirty[resource] < how:
            mark_dirty(resource, flows, how)


def open_crowd(slot: int, call: int, cap: float, now: float, flows: Flows) -> int:
    """A crowd of the one flow in `slot`, at its resources."""
    crowd: int = flows.scalar[FREE_CROWD]
    if crowd == NONE:
        crowd = flows.scalar[CROWDS]
        flows.scalar[CROWDS] = crowd + 1
        flows.moved_from[crowd] = UNMOVED
    else:
        flows.scalar[FREE_CROWD] = flows.next_crowd[crowd]
    flows.crowd_of[call] = crowd
    begin, end, level = flows.use_start[call], flows.use_start[call + 1], flows.level
    flows.begin[crowd] = begin
    flows.end[crowd] = end
    flows.flying[crowd] = 0
    flows.most[crowd] = cap
    if flows.congestion[0] > 0.0:
        flows.first[crowd], flows.least[crowd] = NONE, INFINITY
        note_fresh(crowd, flows)
        for use in range(end - 1, begin - 1, -1):
            if flows.fills[flows.uses[use]]:
                flows.first[crowd] = flows.hop[use]
        if flows.first[crowd] != NONE:
            for use in range(begin, end):
                flows.through[flows.uses[use]] = 1
                note_stale(flows.uses[use], flows)  # though it may be dirty already
    bottleneck = flows.scalar[RESOURCES] + crowd
    level[bottleneck] = cap
    if cap < INFINITY or flows.congestion[0] > 0.0:
        flows.served[bottleneck] = 0.0
        flows.anchor[bottleneck] = now
        flows.members[bottleneck] = 0
    for use in range(begin, end):
        resource = flows.uses[use]
        if level[resource] < level[bottleneck]:
            bottleneck = resource
        place = flows.on_start[resource] + flows.on_count[resource]
        flows.on_count[resource] += 1
        flows.on_crowd[place] = crowd
        flows.on_use[place] = use
        flows.on_weight[place] = flows.weight[use]
        flows.place[use] = place
    flows.bottleneck[crowd] = bottleneck
    flows.rate[crowd] = level[bottleneck]
    flows.head[crowd] = slot
    flows.tail[crowd] = slot
    flows.before[slot] = NONE
    flows.after[slot] = NONE
    note_move(crowd, NONE, flows)
    return crowd


def close_flow(slot: int, call: int, now: float, flows: Flows) -> None:
    """Take the flow of `call` in `slot` off its resources."""
    crowd = flows.crowd[slot]
    rate, bottleneck, first = flows.rate[crowd], flows.bottleneck[crowd], flows.head[crowd] == slot
    flying = flows.flying[crowd] - 1
    flows.flying[crowd] = flying
    for use in range(flows.begin[crowd], flows.end[crowd]):
        resource = flows.uses[use]
        if flying == 0:
            last = flows.on_start[resource] + flows.on_count[resource] - 1
            at = flows.place[use]
            if at != last:
                moved = flows.on_use[last]
                flows.on_crowd[at] = flows.on_crowd[last]
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
    group = group_of(crowd, flows)
    if first and group < flows.scalar[RESOURCES]:
        flows.soonest[group] = NONE
    if flying == 0:
        if group >= flows.scalar[RESOURCES]:
            remove(flows.calendar, flows.scalar[RESOURCES] + slot)
        leave(group, now, flows)
        flows.crowd_of[call] = NONE
        flows.next_crowd[crowd] = flows.scalar[FREE_CROWD]
        flows.scalar[FREE_CROWD] = crowd
        return
    unlink(slot, crowd, flows)
    if first and group >= flows.scalar[RESOURCES]:
        remove(flows.calendar, flows.scalar[RESOURCES] + slot)
        await_first(crowd, flows)


def await_first(crowd: int, flows: Flows) -> None:
    """Let the first flow of `crowd`, which is a group by itself, come up when it is done."""
    slot = flows.head[crowd]
    if slot != NONE:
        due = due_of(slot, flows)
        if due < INFINITY:
            put(flows.calendar, flows.scalar[RESOURCES] + slot, due)
        else:
            remove(flows.calendar, flows.scalar[RESOURCES] + slot)


def link(slot: int, crowd: int, flows: Flows) -> None:
    """Put the flow in `slot` among those of `crowd`, if any, in the order of their goals."""
    before, after = NONE if flows.head[crowd] == NONE else flows.tail[crowd], NONE
    while before != NONE and flows.goal[before] > flows.goal[slot]:
        after = before
        before = flows.before[before]
    flows.before[slot] = before
    flows.after[slot] = after
    if before == NONE:
        flows.head[crowd] = slot
    else:
        flows.after[before] = slot
    if after == NONE:
        flows.tail[crowd] = slot
    else:
        flows.before[after] = slot


def unlink(slot: int, crowd: int, flows: Flows) -> None:
    """Take the flow in `slot` out of the list of `crowd`."""
    before, after = flows.before[slot], flows.after[slot]
    if before == NONE:
        flows.head[crowd] = after
    else:
        flows.after[before] = after
    if after == NONE:
        flows.tail[crowd] = before
    else:
        flows.before[after] = before


def leave(group: int, now: float, flows: Flows) -> None:
    """One crowd less in `group`; when it was the last, the count begins anew."""
    flows.members[group] -= 1
    if flows.members[group] == 0:
        flows.served[group] = 0.0
        flows.anchor[group] = now


def note_move(crowd: int, before: int, flows: Flows) -> None:
    """Remember which bottleneck `crowd` had when sharing began."""
    if flows.moved_from[crowd] == UNMOVED:
        flows.moved_from[crowd] = before
        flows.moved[flows.scalar[MOVED_COUNT]] = crowd
        flows.scalar[MOVED_COUNT] += 1


def settle(now: float, flows: Flows) -> None:
    """Count what groups with a new level have served, take flows to their new groups, and find what
    is due when.
    """
    resources, members, was = flows.scalar[RESOURCES], flows.members, flows.was
    for i in range(flows.scalar[DIRTY_COUNT]):
        resource = flows.dirty[i]
        before = was[resource]
        if before != NONE:
            was[resource] = NONE
            if before != flows.level[resource] and members[resource] > 0:
                if now > flows.anchor[resource]:
                    flows.served[resource] += before * (now - flows.anchor[resource])
                flows.anchor[resource] = now
    if flows.scalar[MOVED_COUNT] > 0:
        regroup(now, flows)
    for i in range(flows.scalar[OPENED_COUNT]):
        slot = flows.opened[i]
        crowd = flows.crowd[slot]
        group = group_of(crowd, flows)
        if now > flows.anchor[group]:
            flows.goal[slot] += served_at(group, now, flows)
        else:
            flows.goal[slot] += flows.served[group]
        if flows.head[crowd] == NONE:  # the only one
            flows.head[crowd] = slot
            flows.tail[crowd] = slot
            flows.before[slot] = NONE
            flows.after[slot] = NONE
        else:
            link(slot, crowd, flows)
        if group < resources:
            if flows.soonest[group] != NONE:
                flows.soonest[group] = min(flows.soonest[group], flows.goal[slot])
            if flows.is_dirty[group] == 0:
                mark_dirty(group, flows)
        elif flows.head[crowd] == slot:
            if flows.after[slot] != NONE:
                remove(flows.calendar, resources + flows.after[slot])
            await_first(crowd, flows)
    flows.scalar[OPENED_COUNT] = 0
    for i in range(flows.scalar[DIRTY_COUNT]):
        resource = flows.dirty[i]
        flows.is_dirty[resource] = 0
        if members[resource] > 0:
            appoint(resource, first_due(resource, flows), flows.calendar)
        elif flows.calendar.at[resource] != NONE:
            remove(flows.calendar, resource)
    flows.scalar[DIRTY_COUNT] = 0


def regroup(now: float, flows: Flows) -> None:
    """Take crowds to their new groups, with the bytes that their flows have still to be served."""
    resources, members = flows.scalar[RESOURCES], flows.members
    count, left = flows.scalar[MOVED_COUNT], 0
    for i in range(count):
        crowd = flows.moved[i]
        before = flows.moved_from[crowd]
        if before != NONE and before != group_of(crowd, flows):
            served = served_at(before, now, flows)
            slot = flows.head[crowd]
            if before < resources and slot != NONE and flows.goal[slot] <= flows.soonest[before]:
                flows.soonest[before] = NONE
            while slot != NONE:
                flows.goal[slot] = max(flows.goal[slot] - served, 0.0)
                slot = flows.after[slot]
            left += 1
    if left > 0:  # when all is counted
        for i in range(count):
            crowd = flows.moved[i]
            before = flows.moved_from[crowd]
            if before != NONE and before != group_of(crowd, flows):
                leave(before, now, flows)
                if before < resources:
                    mark_dirty(before, flows)
                elif flows.head[crowd] != NONE:
                    remove(flows.calendar, resources + flows.head[crowd])
    for i in range(count):
        crowd = flows.moved[i]
        before, group = flows.moved_from[crowd], group_of(crowd, flows)
        flows.moved_from[crowd] = UNMOVED
        if before == group:
            continue
        first = flows.head[crowd]
        soonest = flows.soonest[group] if group < resources else NONE
        if members[group] == 0:
            flows.served[group] = 0.0
            flows.anchor[group] = now
            soonest = INFINITY
        else:
            served, slot = served_at(group, now, flows), first
            while slot != NONE:
                flows.goal[slot] += served
                slot = flows.after[slot]
        members[group] += 1
        if group >= resources:
            await_first(crowd, flows)
            continue
        if soonest != NONE and first != NONE:  # noqa: PLR1714 - no sets in compiled code
            soonest = min(soonest, flows.goal[first])
        flows.soonest[group] = soonest
        if flows.is_dirty[group] == 0:
            mark_dirty(group, flows)
    flows.scalar[MOVED_COUNT] = 0


def appoint(group: int, due: float, calendar: Heap) -> None:
    """Let `group` come up when it is due."""
    if due == INFINITY:
        remove(calendar, group)
    else:
        put(calendar, group, due)


def first_due(resource: int, flows: Flows) -> float:
    """When the first flow of the group of `resource` is done."""
    if flows.level[resource] == 0.0:
        return INFINITY
    goal = flows.soonest[resource]
    if goal == NONE:
        goal, begin = INFINITY, flows.on_start[resource]
        for i in range(begin, begin + flows.on_count[resource]):
            crowd = flows.on_crowd[i]
            if flows.bottleneck[crowd] == resource:
                goal = min(goal, flows.goal[flows.head[crowd]])
        flows.soonest[resource] = goal
    due: float = (
        flows.anchor[resource] + max(goal - flows.served[resource], 0.0) / flows.level[resource]
    )
    return due
