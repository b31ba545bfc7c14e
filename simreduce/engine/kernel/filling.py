"""What flows have of one resource that rises for all until it is full. Part of the kernel (see
`sharing`).
"""

from __future__ import annotations

from simreduce.engine.kernel.tables import INFINITY, SAME, Flows


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
