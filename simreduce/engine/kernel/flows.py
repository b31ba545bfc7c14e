"""Flows come to their resources and go. Part of the kernel (see `advance` and `sharing`)."""

from __future__ import annotations

from simreduce.engine.kernel.calendar import NONE, remove
from simreduce.engine.kernel.tables import (
    DIRTY_COUNT,
    INFINITY,
    MOVED_COUNT,
    RESOURCES,
    SHIFT,
    UNMOVED,
    Flows,
    Ops,
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


def due_of(slot: int, flows: Flows) -> float:
    """When the flow in `slot` is done if its rate stays."""
    group = flows.bottleneck[slot]
    level = flows.level[group]
    left = flows.goal[slot] - flows.served[group]
    return flows.anchor[group] + max(left, 0.0) / level if level > 0.0 else INFINITY


def open_flow(slot: int, amount: float, call: int, now: float, ops: Ops, flows: Flows) -> None:
    """Let the bytes of the op in `slot` compete; its rate is computed when the instant is over."""
    level, first_use, shift = flows.level, flows.first_use, flows.scalar[SHIFT]
    group = flows.scalar[RESOURCES] + slot
    level[group] = ops.cap[call]
    flows.served[group] = 0.0
    flows.anchor[group] = now
    flows.members[group] = 0
    begin, end = ops.use_start[call], ops.use_start[call + 1]
    bottleneck = group
    for i in range(begin, end):
        if level[ops.uses[i]] < level[bottleneck]:
            bottleneck = ops.uses[i]
    rate = level[bottleneck]
    how = MUST if rate == INFINITY else MAY
    use = slot << shift
    for i in range(begin, end):
        resource, weight = ops.uses[i], ops.weight[i]
        head = first_use[resource]
        flows.use_resource[use] = resource
        flows.use_weight[use] = weight
        flows.use_next[use] = head
        flows.use_prev[use] = NONE
        if head != NONE:
            flows.use_prev[head] = use
        first_use[resource] = use
        if how == MAY:
            flows.load[resource] += weight * rate
            if resource == bottleneck:
                flows.own[resource] += weight
        if flows.is_dirty[resource] < how:
            mark_dirty(resource, flows, how)
        use += 1
    flows.use_count[slot] = end - begin
    flows.bottleneck[slot] = bottleneck
    flows.rate[slot] = rate
    flows.goal[slot] = amount
    note_move(slot, NONE, flows)


def close_flow(slot: int, now: float, flows: Flows) -> None:
    """Take the flow in `slot` off its resources."""
    rate, bottleneck, begin = flows.rate[slot], flows.bottleneck[slot], slot << flows.scalar[SHIFT]
    for use in range(begin, begin + flows.use_count[slot]):
        resource = flows.use_resource[use]
        after, before = flows.use_next[use], flows.use_prev[use]
        if before == NONE:
            flows.first_use[resource] = after
        else:
            flows.use_next[before] = after
        if after != NONE:
            flows.use_prev[after] = before
        if flows.first_use[resource] == NONE:
            flows.load[resource] = 0.0
            flows.own[resource] = 0.0
            flows.level[resource] = INFINITY
        else:
            flows.load[resource] -= flows.use_weight[use] * rate
            if resource == bottleneck:
                flows.own[resource] -= flows.use_weight[use]
        if flows.is_dirty[resource] == 0:
            mark_dirty(resource, flows, MAY)
    leave(bottleneck, now, flows)
    if bottleneck >= flows.scalar[RESOURCES]:
        remove(flows.calendar, bottleneck)


def leave(group: int, now: float, flows: Flows) -> None:
    """One flow less in `group`; when it was the last, the count begins anew."""
    flows.members[group] -= 1
    if flows.members[group] == 0:
        flows.served[group] = 0.0
        flows.anchor[group] = now


def note_move(slot: int, before: int, flows: Flows) -> None:
    """Remember which bottleneck the flow in `slot` had when sharing began."""
    if flows.moved_from[slot] == UNMOVED:
        flows.moved_from[slot] = before
        flows.moved[flows.scalar[MOVED_COUNT]] = slot
        flows.scalar[MOVED_COUNT] += 1
