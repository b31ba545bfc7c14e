"""Max-min fair rates, kept up to date as flows come and go. Part of the kernel.

A resource is *full* at a level: the rate of those of its flows that nothing else holds back
further. Given the levels of all others, the level of a resource follows from its flows alone,

    sum over flows of weight * min(level, what the flow may have elsewhere) = capacity,

or is inf where that sum cannot reach the capacity. A flow's rate is the least level among its
resources, or its own cap. Levels that satisfy all these equations give rates such that every flow
is at its cap or has a full resource on which no flow is faster, its *bottleneck*. That is the
definition of max-min fairness, and there is exactly one such allocation (Bertsekas and Gallager,
Data Networks, 6.5.2).

So after a change only resources whose equation is broken need work. They are mended least level
first. The equation of a level x reads nothing above x; when the least broken one, old or new level
k, has its turn, every level below k is therefore right for good, and if its new level is k, so is
it. If it is higher, the resource has that new level for now: those that come before it have still
to be mended, and may break it again. A resource is raised at most once before the next level
becomes final, since levels that are too low only make others look higher; so this ends. Flows whose
rate stays, and resources that are not full, are left alone however large the system is.

Where a resource will be full is known until a level changes that its equation reads. Rates do not
tell all such changes: a flow that two resources hold back at one level keeps its rate when one of
them is raised, and yet could now have more but for the other.

Levels closer than `SAME` are one level, the one found first: the rates of equal flows must not
differ by rounding.

The flows of one call, a *crowd*, use the same resources, so they have one rate: what is said of a
flow here holds for all flows of its crowd at once, and a crowd weighs as much as they do.

Flows with one bottleneck form a *group*. They have one rate, so the group counts what each of them
has been served, and a flow keeps the count at which it is done. A group's count is brought up to
date only when its level changes, and then it is due anew when the first of its flows is; nothing is
done per flow. A flow at its own cap is a group.
"""

from __future__ import annotations

from simreduce.engine.kernel.congestion import congest, fill_up
from simreduce.engine.kernel.flows import (
    MAY,
    RIGHT,
    group_of,
    mark_dirty,
    note_fresh,
    note_move,
    note_stale,
    settle,
)
from simreduce.engine.kernel.tables import (
    DIRTY_COUNT,
    INFINITY,
    NEARLY,
    NONE,
    RESOURCES,
    SAME,
    WORK,
    Flows,
    put,
    remove,
)


def elsewhere(crowd: int, resource: int, flows: Flows) -> tuple[int, float]:
    """The group that holds the flows of `crowd` back most, but for `resource`, and their rate."""
    least: int = flows.scalar[RESOURCES] + crowd
    rate: float = flows.most[crowd]
    for use in range(flows.begin[crowd], flows.end[crowd]):
        other = flows.uses[use]
        if other != resource and flows.level[other] < rate:
            least, rate = other, flows.level[other]
    return least, rate


def full_at(resource: int, flows: Flows) -> float:
    """The level at which `resource` is full, given what its flows may have elsewhere; inf if it
    never is.
    """
    rates, weights = flows.room_rate, flows.room_weight
    begin, count, weight = flows.on_start[resource], flows.on_count[resource], 0.0
    flows.scalar[WORK] += count
    for i in range(count):
        crowd = flows.on_crowd[begin + i]
        rate = flows.rate[crowd]
        if flows.bottleneck[crowd] == resource:
            _, rate = elsewhere(crowd, resource, flows)
        rates[i] = rate
        weights[i] = flows.on_weight[begin + i] * flows.flying[crowd]
        weight += weights[i]
    if count == 0:
        return INFINITY
    level = fill_up(resource, count, weight, flows)
    if level == INFINITY:
        flows.width[resource] = flows.own[resource]
    return level


def same(a: float, b: float) -> bool:
    """Whether two levels differ by no more than rounding."""
    return a <= b * SAME and b <= a * SAME


def touch(resource: int, weight: float, old: float, rate: float, flows: Flows) -> None:
    """Queue `resource`, or pull its key down: a flow on it has another rate.

    It need not be looked at before the turn of the lowest level that it could have now. With flows
    of weight `width` able to go as fast as the resource's key, a faster flow pulls it down no
    further than to where they give up what that flow takes; a slower one only lifts it.
    """
    solver, level = flows.solver, flows.level[resource]
    at = solver.at[resource]
    if at != NONE:
        key, width = solver.key[at], flows.width[resource]
        least = (width * key + weight * old) / (width + weight)
        if width > 0.0 and rate < INFINITY:
            least = max(least, key - weight * (rate - old) / width)
        put(solver, resource, min(max(least, old), key))
    elif level == INFINITY:
        flows.width[resource] = 0.0
        put(solver, resource, min(rate, old))
    else:
        excess, own = flows.load[resource] - flows.capacity[resource], flows.own[resource]
        flows.width[resource] = own
        if excess > 0.0:
            level = max(level - excess / own, min(rate, old)) if own > 0.0 else min(rate, old)
        put(solver, resource, level)


def change_level(resource: int, level: float, flows: Flows) -> None:
    """Give `resource` another level, and its flows their rates and bottlenecks."""
    before, congested = flows.level[resource], flows.congestion[0] > 0.0
    if flows.was[resource] == NONE:
        flows.was[resource] = before
        mark_dirty(resource, flows)
    flows.level[resource] = level
    begin = flows.on_start[resource]
    for i in range(begin, begin + flows.on_count[resource]):
        crowd = flows.on_crowd[i]
        old, bottleneck, to = flows.rate[crowd], flows.bottleneck[crowd], resource
        rate = level
        if bottleneck == resource:
            if level > before:
                other, most = elsewhere(crowd, resource, flows)
                if most < level:
                    to, rate = other, most
        elif level >= old:
            if bottleneck < flows.scalar[RESOURCES]:
                flows.known[bottleneck] = NONE  # it may count on what the flow could have here
            continue
        if rate == old and to == bottleneck:
            continue
        flows.rate[crowd] = rate
        gain = rate - old if old < INFINITY else rate
        if rate == INFINITY:  # it takes nothing until something limits it
            gain = -old
        if congested:
            note_fresh(crowd, flows)
        flying = flows.flying[crowd]
        for use in range(flows.begin[crowd], flows.end[crowd]):
            other, weight = flows.uses[use], flows.weight[use] * flying
            if congested and rate != old:
                note_stale(other, flows)
            if to != bottleneck:
                if other == bottleneck:
                    flows.own[other] -= weight
                if other == to:
                    flows.own[other] += weight
                    flows.known[other] = NONE  # the flow, even at its old rate, could have more
            if other == resource:
                flows.load[other] += weight * gain
            elif rate != old:
                flows.known[other] = NONE
                flows.load[other] += weight * gain
                at = flows.solver.at[other]
                if at != NONE:
                    if rate > old and old < flows.solver.key[at]:
                        touch(other, weight, old, rate, flows)
                elif (
                    flows.level[other] < INFINITY
                    or rate == INFINITY
                    or flows.load[other] > flows.capacity[other] * NEARLY
                ):
                    touch(other, weight, old, rate, flows)
        if to != bottleneck:
            note_move(crowd, group_of(crowd, flows), flows)
            flows.bottleneck[crowd] = to
    flows.known[resource] = level


def find_broken(flows: Flows) -> None:
    """Queue the dirty resources whose level is wrong."""
    for i in range(flows.scalar[DIRTY_COUNT]):
        resource = flows.dirty[i]
        how, level, count = (
            flows.is_dirty[resource],
            flows.level[resource],
            flows.on_count[resource],
        )
        flows.known[resource] = NONE
        if count == 0 or how == RIGHT:
            continue
        if level == INFINITY:
            if how == MAY:
                if flows.load[resource] < flows.capacity[resource] * NEARLY:
                    continue
            elif count == 1 and alone(flows.on_crowd[flows.on_start[resource]], flows):
                continue
        full = full_at(resource, flows)
        if not same(full, level):
            flows.known[resource] = full
            put(flows.solver, resource, min(full, level))


def alone(crowd: int, flows: Flows) -> bool:
    """Whether the new flow of `crowd` meets no other; it is given its rate then."""
    begin, end = flows.begin[crowd], flows.end[crowd]
    bottleneck = flows.scalar[RESOURCES] + crowd
    rate = flows.most[crowd]
    if flows.rate[crowd] < INFINITY or flows.flying[crowd] > 1:
        return False
    for use in range(begin, end):
        resource = flows.uses[use]
        if flows.on_count[resource] > 1:
            return False
        most = flows.capacity[resource] / flows.weight[use]
        if most < rate:
            bottleneck, rate = resource, most
    for use in range(begin, end):
        resource = flows.uses[use]
        flows.is_dirty[resource] = RIGHT
        flows.load[resource] = flows.weight[use] * rate
        if resource == bottleneck:
            flows.own[resource] = flows.weight[use]
    flows.level[bottleneck] = rate
    flows.bottleneck[crowd] = bottleneck
    flows.rate[crowd] = rate
    return True


def share(now: float, flows: Flows) -> None:
    """Mend the levels of the dirty resources, and of those whose levels break on the way."""
    if flows.scalar[DIRTY_COUNT] == 0:
        return
    find_broken(flows)
    solver, final = flows.solver, -1.0
    while solver.size[0] > 0:
        resource = solver.item[0]
        remove(solver, resource)
        full, level = flows.known[resource], flows.level[resource]
        if full == NONE:
            full = full_at(resource, flows)
            if same(full, level):
                continue
            flows.known[resource] = full
        turn = min(full, level)
        if solver.size[0] > 0 and solver.key[0] < turn:
            put(solver, resource, turn)
            continue
        if full < level:
            if same(full, final):
                full = final
            final = full
        change_level(resource, full, flows)
    if flows.congestion[0] > 0.0:
        congest(now, flows)
    settle(now, flows)
