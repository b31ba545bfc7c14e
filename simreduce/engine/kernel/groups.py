"""Groups of flows with one bottleneck: what they have been served, and what is due when. Part of
the kernel (see `sharing`).
"""

from __future__ import annotations

from simreduce.engine.kernel.calendar import NONE, Heap, put, remove
from simreduce.engine.kernel.flows import (
    await_first,
    group_of,
    leave,
    link,
    mark_dirty,
    served_at,
)
from simreduce.engine.kernel.tables import (
    DIRTY_COUNT,
    INFINITY,
    MOVED_COUNT,
    OPENED_COUNT,
    RESOURCES,
    UNMOVED,
    Flows,
)


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
