"""Rates where a flow that is held slows others on its way. Part of the kernel.

A flow's *fair* rate is its max-min fair rate (`sharing`). Some links *fill*, those between
switches. A flow's *offer* is the most that its source would send: its equal share of every resource
before the first link that fills, or its fair rate if that is more, and no more than its own cap.
The last link on its way that limits its fair rate *holds* a flow, if that is after a link that
fills, and its offer is more. A link that carries nothing holds nobody: what is for it is lost.

Tree. What holds a flow stops the links that it has passed: no other flow there has more of its own
offer than the flow that is held has of its, as hosts take turns at a queue that is always full. So
a link that is full anyhow is shared by levels until it is stopped, and from then on by offers. A
flow that has less than its fair rate then stops the links before in the same way, and so on. Flows
that the same link holds do not stop each other: they have what is fair there. What one link holds
stops others as if nothing else held any, and a flow has the least that all leave it.

Lossy. A flow that is held leaves its source with its offer, others with their fair rates. If more
comes to a link than it carries, that is shared fairly among what comes, and the rest is dropped; of
what a link holds no more goes on than its fair rate. What comes to links depends on what comes to
others, along chains of flows; it is found anew `REACH` times at most, after which little changes.

Rates are these for a part of the time, fair ones for the rest: the mean of two ways to share. No
flow has more than its fair rate in either, so no resource is too narrow. Without a flow that is
held, rates are the fair ones. None of this depends on the order of flows.

At every instant, what holds flows is found anew where rates have changed, and what that leaves to
others everywhere: a flow also slows those that share nothing with what limits it.
"""

from __future__ import annotations

from simreduce.engine.kernel.flows import await_first, note_fresh
from simreduce.engine.kernel.tables import (
    FRESH,
    HELD,
    INFINITY,
    NEARLY,
    NONE,
    RESOURCES,
    SAME,
    SLOWED,
    STALE,
    WORK,
    Flows,
)


def fill_up(resource: int, count: int, weight: float, flows: Flows) -> float:
    """The level at which `resource` is full if the first `count` of `room_rate`, of `weight` in
    all, may have no more elsewhere; inf if it never is. `width` is then the weight of those that
    could have more.
    """
    rates, weights = flows.room_rate, flows.room_weight
    level: float = flows.capacity[resource] / weight
    # Flows that are held back further elsewhere leave the rest to the others. Their sum is kept in
    # two floats, so that it does not depend on their order.
    taken, rest, highest = 0.0, 0.0, 0.0
    while True:
        kept, weight, nearest = 0, 0.0, INFINITY
        for i in range(count):
            rate = rates[i]
            if rate <= level:
                part = weights[i] * rate
                total = taken + part
                back = total - taken
                rest += (taken - (total - back)) + (part - back)
                taken = total
                highest = max(highest, rate)
            else:
                rates[kept] = rate
                weights[kept] = weights[i]
                weight += weights[i]
                kept += 1
                nearest = min(nearest, rate)
        flows.width[resource] = weight
        if kept == 0:
            return INFINITY
        if kept == count:
            break
        count = kept
        # The sum as it is rounded, in whatever order; what that leaves out is taken off by itself.
        total = taken + rest
        level = max((flows.capacity[resource] - total) - ((taken - total) + rest), 0.0) / weight
    if level <= highest * SAME:
        return highest
    if nearest <= level * SAME:
        return nearest
    return level


TREE, LOSSY = 1.0, 2.0
"""Rules, in the first entry of `congestion`."""
REACH = 16
"""How often what comes to links is found anew."""
END = 1 << 30
"""A hop after the last."""


def congest(now: float, flows: Flows) -> None:
    """Give every flow its rate, once the fair ones are known."""
    fresh = find_fresh(flows)
    count = hold(fresh, flows)
    if flows.congestion[0] == TREE:
        back_up(count, flows)
    else:
        drop(count, flows)
    for i in range(count):
        flows.queue[flows.stops[i]] = NONE
    for i in range(fresh):
        give(flows.fresh[i], now, flows)
    for i in range(flows.scalar[SLOWED]):
        give(flows.slowed[i], now, flows)


def give(crowd: int, now: float, flows: Flows) -> None:
    """Give the flows of `crowd` their rate."""
    group, rate = flows.scalar[RESOURCES] + crowd, flows.rate[crowd]
    if flows.flying[crowd] == 0:
        return
    if flows.least[crowd] < rate:
        rate -= flows.congestion[1] * (rate - flows.least[crowd])
    if rate == flows.level[group]:
        return
    if flows.members[group] > 0:
        if now > flows.anchor[group]:
            flows.served[group] += flows.level[group] * (now - flows.anchor[group])
            flows.anchor[group] = now
        flows.level[group] = rate
        await_first(crowd, flows)
    else:
        flows.level[group] = rate


def find_fresh(flows: Flows) -> int:
    """Add to the crowds in `fresh`, whose fair rates have changed, those that others have slowed
    and those that something else may hold now; return how many that are.
    """
    for i in range(flows.scalar[SLOWED]):
        crowd = flows.slowed[i]
        flows.least[crowd] = INFINITY
        note_fresh(crowd, flows)
    flows.scalar[SLOWED] = 0
    for i in range(flows.scalar[STALE]):
        resource = flows.stale[i]
        flows.is_stale[resource] = 0
        if weigh(resource, flows):
            begin = flows.on_start[resource]
            for at in range(begin, begin + flows.on_count[resource]):
                crowd = flows.on_crowd[at]
                if flows.first[crowd] != NONE:
                    note_fresh(crowd, flows)
    flows.scalar[STALE] = 0
    fresh: int = flows.scalar[FRESH]
    flows.scalar[FRESH] = 0
    return fresh


def hold(fresh: int, flows: Flows) -> int:
    """Line up the crowds that are held at what holds them, in `queue`; list that in `stops`, and
    return how many that are. What holds the first so many of `fresh` is found anew.
    """
    held, count = 0, 0
    for i in range(flows.scalar[HELD]):
        crowd = flows.holding[i]
        if flows.flying[crowd] > 0 and flows.limit[crowd] > NONE:
            flows.holding[held] = crowd
            held += 1
    for i in range(fresh):
        crowd = flows.fresh[i]
        flows.limit[crowd] = NONE
        if flows.flying[crowd] > 0 and flows.first[crowd] != NONE and find_end(crowd, flows):
            flows.holding[held] = crowd
            held += 1
    flows.scalar[HELD] = held
    flows.scalar[WORK] += fresh + held // 4
    for i in range(held):
        crowd = flows.holding[i]
        resource = flows.limit[crowd]
        if flows.queue[resource] == NONE:
            flows.stops[count] = resource
            count += 1
        flows.behind[crowd] = flows.queue[resource]
        flows.queue[resource] = crowd
    return count


def find_end(crowd: int, flows: Flows) -> bool:
    """Find what limits the flows of `crowd`, and what leaves their sources; return whether they are
    held.
    """
    first, fair, offer = flows.first[crowd], flows.rate[crowd], flows.most[crowd]
    last, by = NONE, NONE
    for use in range(flows.begin[crowd], flows.end[crowd]):
        resource, hop = flows.uses[use], flows.hop[use]
        if hop < first:  # what is no link (memory, cores) comes before all
            offer = min(offer, flows.equal[resource])
        if hop >= last and 0.0 < flows.top[resource] <= fair * SAME:
            last, by = hop, resource
    stuck: bool = last > first and fair * SAME < offer < INFINITY
    if not stuck and (flows.congestion[0] == LOSSY or not fair < offer < INFINITY):
        offer = fair
    flows.limit[crowd], flows.limit_hop[crowd], flows.offer[crowd] = by, last, offer
    if flows.congestion[0] == TREE and offer > 0.0:
        part = fair / offer
        for use in range(flows.begin[crowd], flows.end[crowd]):
            resource = flows.uses[use]
            if flows.fills[resource]:
                flows.most_sent[resource] = max(flows.most_sent[resource], part)
    return stuck


def weigh(resource: int, flows: Flows) -> bool:
    """Find the equal share of a flow on `resource`, and if that is full the rate of the fastest;
    return whether other flows may be held now, or offer more or less.
    """
    weight, load, top, begin = 0.0, 0.0, 0.0, flows.on_start[resource]
    for at in range(begin, begin + flows.on_count[resource]):
        crowd = flows.on_crowd[at]
        each = flows.on_weight[at] * flows.flying[crowd]
        weight += each
        load += each * flows.rate[crowd]
        top = max(top, flows.rate[crowd])
    equal = flows.capacity[resource] / weight if weight > 0.0 else INFINITY
    if load < flows.capacity[resource] * NEARLY:
        top = 0.0
    # An offer is shared only before the first link that fills.
    changed: bool = top != flows.top[resource] or (
        equal != flows.equal[resource] and not flows.fills[resource]
    )
    flows.equal[resource], flows.top[resource] = equal, top
    return changed


def back_up(count: int, flows: Flows) -> None:
    """Find what is left of all flows where links are stopped by the first `count` of `stops`."""
    for i in range(count):
        cause = flows.stops[i]
        waiting, touched, crowd = 0, 0, flows.queue[cause]
        while crowd != NONE:
            part = flows.rate[crowd] / flows.offer[crowd]
            hop = flows.limit_hop[crowd]
            waiting, touched = stop_before(hop, crowd, part, waiting, touched, flows)
            crowd = flows.behind[crowd]
        while waiting > 0:
            waiting -= 1
            link = flows.front[waiting]
            part, start = flows.passes[link], flows.on_start[link]
            flows.lower[link] = INFINITY
            if part >= flows.most_sent[link]:
                continue
            most = 0.0
            flows.scalar[WORK] += flows.on_count[link]
            for place in range(start, start + flows.on_count[link]):
                crowd, hop = flows.on_crowd[place], flows.hop[flows.on_use[place]]
                rate = flows.offer[crowd] * part
                if flows.offer[crowd] > 0.0:
                    most = max(most, flows.rate[crowd] / flows.offer[crowd])
                if flows.limit[crowd] != cause and rate * SAME < flows.rate[crowd]:
                    slow(crowd, rate, flows)
                    waiting, touched = stop_before(hop, crowd, part, waiting, touched, flows)
            flows.most_sent[link] = most
        for at in range(touched):
            flows.passes[flows.touched[at]] = INFINITY


def slow(crowd: int, rate: float, flows: Flows) -> None:
    """Leave each flow of `crowd` no more than that rate."""
    if rate < flows.least[crowd] == INFINITY:
        flows.slowed[flows.scalar[SLOWED]] = crowd
        flows.scalar[SLOWED] += 1
    flows.least[crowd] = min(flows.least[crowd], rate)


def stop_before(
    hop: int, crowd: int, part: float, waiting: int, touched: int, flows: Flows
) -> tuple[int, int]:
    """Let the links of `crowd` before `hop` pass no more than `part` of offers. Where that is less
    than before, they come after the first `waiting` of `front`. How many there are, and in
    `touched`.
    """
    for use in range(flows.begin[crowd], flows.end[crowd]):
        link, at = flows.uses[use], flows.hop[use]
        if at != NONE and at < hop and flows.fills[link] and part < flows.passes[link]:
            if flows.passes[link] == INFINITY:
                flows.touched[touched] = link
                touched += 1
            flows.passes[link] = part
            if flows.lower[link] == INFINITY:
                flows.lower[link] = 0.0  # it is listed
                flows.front[waiting] = link
                waiting += 1
    return waiting, touched


def drop(count: int, flows: Flows) -> None:
    """Find what is left of all flows where those that the first `count` of `stops` hold are sent
    all the same.
    """
    touched, turn = 0, 0
    for i in range(count):
        crowd = flows.queue[flows.stops[i]]
        while crowd != NONE:
            hop = flows.limit_hop[crowd]
            for use in range(flows.begin[crowd], flows.end[crowd]):
                link, at = flows.uses[use], flows.hop[use]
                if at != NONE and at < hop and flows.fills[link] and flows.lower[link] == INFINITY:
                    flows.lower[link] = 0.0  # it is listed
                    flows.touched[touched] = link
                    touched += 1
            crowd = flows.behind[crowd]
    changed = touched > 0
    while changed and turn < REACH:
        turn, changed = turn + 1, False
        for i in range(touched):
            link = flows.touched[i]
            start, many = flows.on_start[link], flows.on_count[link]
            flows.scalar[WORK] += many
            weight = 0.0
            for at in range(many):
                crowd, use = flows.on_crowd[start + at], flows.on_use[start + at]
                flows.room_rate[at] = comes_to(flows.hop[use], crowd, flows)
                flows.room_weight[at] = flows.on_weight[start + at] * flows.flying[crowd]
                weight += flows.room_weight[at]
            flows.lower[link] = fill_up(link, many, weight, flows)
        for i in range(touched):
            link = flows.touched[i]
            if flows.lower[link] != flows.passes[link]:
                flows.passes[link] = flows.lower[link]
                changed = True
    for i in range(touched):
        link = flows.touched[i]
        start = flows.on_start[link]
        for place in range(start, start + flows.on_count[link]):
            crowd = flows.on_crowd[place]
            if flows.least[crowd] == INFINITY:
                slow(crowd, comes_to(END, crowd, flows), flows)
    for i in range(touched):
        flows.passes[flows.touched[i]] = flows.lower[flows.touched[i]] = INFINITY


def comes_to(hop: int, crowd: int, flows: Flows) -> float:
    """What comes of each flow of `crowd` to its links of that hop, if all links before pass what
    they pass; what those hold is no more than its fair rate.
    """
    rate: float = flows.offer[crowd]
    for use in range(flows.begin[crowd], flows.end[crowd]):
        link, at = flows.uses[use], flows.hop[use]
        if at != NONE and at <= hop:
            if link == flows.limit[crowd]:
                rate = min(rate, flows.rate[crowd])
            if at < hop:
                rate = min(rate, flows.passes[link])
    return rate
