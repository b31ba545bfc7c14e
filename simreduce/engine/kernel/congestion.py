"""Rates where a flow that is held slows others on its way. Part of the kernel (see `advance`).

A flow's *fair* rate is its max-min fair rate, and its *offer* the most that its source would send:
its equal share of every resource before the first link that *fills*, or its fair rate if that is
more, and no more than its own cap. A flow whose fair rate is less than its offer is *held* at the
resource that limits it; it has passed the links of earlier hops of its way.

Tree. A link that fills *passes* the least part, fair rate over offer, of the flows that are held
further on, or stopped further on by another link. A flow gets no more than its offer times the
least part of the links on its way, but those that are so for the very resource that holds it: who
waits for one resource shares that.

Lossy. What comes to a link that fills is the offers of the flows that are held further on, and the
fair rates of the others. If that is more than it carries, the same part of each goes on.

Rates are these for a part of the time, fair ones for the rest: the mean of two ways to share, and
no resource is too narrow for either. Without a flow that is held, they are the fair ones.

All is found anew at every instant: a flow also slows those that share nothing with what limits it.
"""

from __future__ import annotations

from simreduce.engine.kernel.calendar import NONE
from simreduce.engine.kernel.flows import await_first
from simreduce.engine.kernel.groups import settle
from simreduce.engine.kernel.tables import CROWDS, INFINITY, RESOURCES, SAME, WORK, Flows

TREE, LOSSY = 1.0, 2.0
"""Rules, in the first entry of `congestion`."""
RISING = -2
"""In `held`: nothing limits the crowd yet."""


def congest(now: float, flows: Flows) -> None:
    """Give every flow its rate."""
    fill(flows)
    find_offers(flows)
    if flows.congestion[0] == TREE:
        back_up(flows)
    else:
        drop(flows)
    resources, part = flows.scalar[RESOURCES], flows.congestion[1]
    for crowd in range(flows.scalar[CROWDS]):
        if flows.flying[crowd] == 0:
            continue
        group = resources + crowd
        rate = flows.fair[crowd] - part * (flows.fair[crowd] - slowed(crowd, flows))
        if rate == flows.level[group]:
            continue
        if flows.members[group] > 0 and now > flows.anchor[group]:
            flows.served[group] += flows.level[group] * (now - flows.anchor[group])
            flows.anchor[group] = now
        flows.level[group] = rate
        flows.rate[crowd] = rate
        if flows.members[group] > 0:
            await_first(crowd, flows)
    settle(now, flows)


def fill(flows: Flows) -> None:
    """Find the fair rates: all rise together until a resource is full or a cap is reached."""
    crowds, left = flows.scalar[CROWDS], 0
    for crowd in range(crowds):
        if flows.flying[crowd] > 0:
            left += 1
            flows.held[crowd] = RISING
            for use in range(flows.begin[crowd], flows.end[crowd]):
                resource = flows.uses[use]
                flows.room[resource] = flows.capacity[resource]
                flows.whole[resource] = 0.0
                flows.rising[resource] = 0.0
                flows.passes[resource] = 1.0
                flows.cause[resource] = NONE
    for crowd in range(crowds):
        for use in range(flows.begin[crowd], flows.end[crowd] if flows.flying[crowd] > 0 else 0):
            resource, weight = flows.uses[use], flows.weight[use] * flows.flying[crowd]
            flows.whole[resource] += weight
            flows.rising[resource] += weight
    while left > 0:
        level = INFINITY
        for crowd in range(crowds):
            if flows.flying[crowd] > 0 and flows.held[crowd] == RISING:
                level = min(level, flows.most[crowd])
                for use in range(flows.begin[crowd], flows.end[crowd]):
                    level = min(level, level_of(flows.uses[use], flows))
        # Levels are compared before any flow is taken off, so that the order does not matter.
        for crowd in range(crowds):
            if flows.flying[crowd] > 0 and flows.held[crowd] == RISING:
                flows.fair[crowd] = -1.0
                if flows.most[crowd] <= level * SAME:
                    flows.held[crowd] = NONE
                for use in range(flows.begin[crowd], flows.end[crowd]):
                    if level_of(flows.uses[use], flows) <= level * SAME:  # the last on the way
                        flows.held[crowd] = flows.uses[use]
                flows.scalar[WORK] += 1
        for crowd in range(crowds):
            if flows.flying[crowd] > 0 and flows.held[crowd] != RISING and flows.fair[crowd] < 0.0:
                flows.fair[crowd] = level
                left -= 1
                for use in range(flows.begin[crowd], flows.end[crowd]):
                    resource, weight = flows.uses[use], flows.weight[use] * flows.flying[crowd]
                    flows.room[resource] -= weight * level
                    flows.rising[resource] -= weight


def level_of(resource: int, flows: Flows) -> float:
    """What each flow that still rises could have at `resource`."""
    rising: float = flows.rising[resource]
    return max(flows.room[resource], 0.0) / rising if rising > 0.0 else INFINITY


def find_offers(flows: Flows) -> None:
    """Find what the source of every flow would send."""
    for crowd in range(flows.scalar[CROWDS]):
        if flows.flying[crowd] == 0:
            continue
        first, offer = NONE, flows.most[crowd]
        for use in range(flows.begin[crowd], flows.end[crowd]):
            if flows.fills[flows.uses[use]] and (first == NONE or flows.hop[use] < first):
                first = flows.hop[use]
        for use in range(flows.begin[crowd], flows.end[crowd]):
            resource = flows.uses[use]
            if flows.hop[use] < first:  # what is on no way comes before all
                offer = min(offer, flows.capacity[resource] / flows.whole[resource])
        if first == NONE or offer == INFINITY:
            offer = flows.fair[crowd]
        flows.offer[crowd] = max(offer, flows.fair[crowd])


def back_up(flows: Flows) -> None:
    """Find what part of what is offered to it each link passes, where held flows stop links."""
    changed = True
    while changed:
        changed = False
        for crowd in range(flows.scalar[CROWDS]):
            if flows.flying[crowd] == 0:
                continue
            held, fair, offer = flows.held[crowd], flows.fair[crowd], flows.offer[crowd]
            # The least part of a later hop, and of this hop, from the end of the way.
            later, later_cause, here, here_cause, hop = 1.0, NONE, 1.0, NONE, NONE
            for back in range(flows.end[crowd] - flows.begin[crowd]):
                use = flows.end[crowd] - 1 - back
                resource = flows.uses[use]
                if flows.hop[use] == NONE:
                    continue
                if flows.hop[use] != hop:
                    if here < later:
                        later, later_cause = here, here_cause
                    here, hop = 1.0, flows.hop[use]
                if flows.fills[resource] and later < flows.passes[resource]:
                    flows.passes[resource], flows.cause[resource] = later, later_cause
                    changed = True
                part, cause = flows.passes[resource], flows.cause[resource]
                if resource == held:
                    part, cause = fair / offer if offer > 0.0 else 1.0, held
                elif cause == held or offer * part >= fair:
                    part = 1.0
                if part < here:
                    here, here_cause = part, cause


def drop(flows: Flows) -> None:
    """Find what part of what comes each link passes, where held flows are sent all the same."""
    for resource in range(flows.scalar[RESOURCES]):
        count, begin = flows.on_count[resource], flows.on_start[resource]
        if not flows.fills[resource] or count == 0:
            continue
        comes, lost = 0.0, False
        for at in range(begin, begin + count):
            crowd = flows.on_crowd[at]
            rate = flows.fair[crowd]
            if is_held_after(flows.on_use[at], crowd, flows):
                rate, lost = flows.offer[crowd], True
            comes += flows.on_weight[at] * flows.flying[crowd] * rate
        if lost and comes > flows.capacity[resource]:
            flows.passes[resource] = flows.capacity[resource] / comes


def is_held_after(use: int, crowd: int, flows: Flows) -> bool:
    """Whether the flows of `crowd` are held further on than where they make `use` of a link."""
    held, hop = flows.held[crowd], flows.hop[use]
    if held == NONE or not flows.fair[crowd] < flows.offer[crowd]:
        return False
    for other in range(flows.begin[crowd], flows.end[crowd]):
        if flows.uses[other] == held and flows.hop[other] > hop:
            return True
    return False


def slowed(crowd: int, flows: Flows) -> float:
    """What each flow of `crowd` gets while links pass no more than their part."""
    rate: float = flows.fair[crowd]
    for use in range(flows.begin[crowd], flows.end[crowd]):
        resource = flows.uses[use]
        part = flows.passes[resource]
        if part == 1.0 or (
            flows.congestion[0] == TREE and flows.cause[resource] == flows.held[crowd]
        ):
            continue
        comes = flows.offer[crowd]
        if flows.congestion[0] == LOSSY and not is_held_after(use, crowd, flows):
            comes = flows.fair[crowd]
        rate = min(rate, comes * part)
    return rate
