"""Max-min fair rates, kept up to date as flows come and go. Part of the kernel (see `kernel`).

A resource is *full* at a level: the rate of those of its flows that nothing else holds back further. Given the levels
of all others, the level of a resource follows from its flows alone,

    sum over flows of weight * min(level, what the flow may have elsewhere) = capacity,

or is inf where that sum cannot reach the capacity. A flow's rate is the least level among its resources, or its own
cap. Levels that satisfy all these equations give rates such that every flow is at its cap or has a full resource on
which no flow is faster, its *bottleneck*. That is the definition of max-min fairness, and there is exactly one such
allocation (Bertsekas and Gallager, Data Networks, 6.5.2).

So after a change only resources whose equation is broken need work. They are mended least level first. The equation
of a level x reads nothing above x; when the least broken one, old or new level k, has its turn, every level below k
is therefore right for good, and if its new level is k, so is it. If it is higher, the resource has that new level for
now: those that come before it have still to be mended, and may break it again. A resource is raised at most once
before the next level becomes final, since levels that are too low only make others look higher; so this ends. Flows
whose rate stays, and resources that are not full, are left alone however large the system is.

Levels closer than `SAME` are one level, the one found first: the rates of equal flows must not differ by rounding.

Flows with one bottleneck form a *group*. They have one rate, so the group counts what each of them has been served,
and a flow keeps the count at which it is done. A group's count is brought up to date only when its level changes, and
then it is due anew when the first of its flows is; nothing is done per flow. A flow at its own cap is a group.
"""

from __future__ import annotations

from simreduce.engine.calendar import NONE, Heap, put, remove
from simreduce.engine.tables import DIRTY_COUNT, INFINITY, MOVED_COUNT, SHIFT, UNMOVED, Ops, State

SAME = 1.0 + 1e-12
NEARLY = 1.0 - 1e-9
"""A resource that is loaded less is not full, whatever has been rounded in adding up its load."""

RIGHT, MUST, MAY = 3, 2, 1
"""Values of is_dirty: the level is right; it must be found anew; it may be kept if the load is small."""


def mark_dirty(resource: int, state: State, how: int = MUST) -> None:
    """Remember that the flows on `resource` must be shared anew."""
    if state.is_dirty[resource] == 0:
        state.dirty[state.scalar[DIRTY_COUNT]] = resource
        state.scalar[DIRTY_COUNT] += 1
    state.is_dirty[resource] = max(state.is_dirty[resource], how)


def served_at(group: int, now: float, state: State) -> float:
    """Bytes that each flow of `group` has been served."""
    served: float = state.served[group]
    if now > state.anchor[group]:
        served += state.level[group] * (now - state.anchor[group])
    return served


def due_of(slot: int, state: State) -> float:
    """When the flow in `slot` is done if its rate stays."""
    group = state.bottleneck[slot]
    level = state.level[group]
    left = state.goal[slot] - state.served[group]
    return state.anchor[group] + max(left, 0.0) / level if level > 0.0 else INFINITY


def open_flow(slot: int, amount: float, call: int, now: float, ops: Ops, state: State) -> None:
    """Let the bytes of the op in `slot` compete; its rate is computed when the instant is over."""
    level, first_use, shift = state.level, state.first_use, state.scalar[SHIFT]
    group = len(state.capacity) + slot
    level[group] = ops.cap[call]
    state.served[group] = 0.0
    state.anchor[group] = now
    state.members[group] = 0
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
        state.use_resource[use] = resource
        state.use_weight[use] = weight
        state.use_next[use] = head
        state.use_prev[use] = NONE
        if head != NONE:
            state.use_prev[head] = use
        first_use[resource] = use
        if how == MAY:
            state.load[resource] += weight * rate
            if resource == bottleneck:
                state.own[resource] += weight
        if state.is_dirty[resource] < how:
            mark_dirty(resource, state, how)
        use += 1
    state.use_count[slot] = end - begin
    state.bottleneck[slot] = bottleneck
    state.rate[slot] = rate
    state.goal[slot] = amount
    note_move(slot, NONE, state)


def close_flow(slot: int, now: float, state: State) -> None:
    """Take the flow in `slot` off its resources."""
    rate, bottleneck, begin = state.rate[slot], state.bottleneck[slot], slot << state.scalar[SHIFT]
    for use in range(begin, begin + state.use_count[slot]):
        resource = state.use_resource[use]
        after, before = state.use_next[use], state.use_prev[use]
        if before == NONE:
            state.first_use[resource] = after
        else:
            state.use_next[before] = after
        if after != NONE:
            state.use_prev[after] = before
        if state.first_use[resource] == NONE:
            state.load[resource] = 0.0
            state.own[resource] = 0.0
            state.level[resource] = INFINITY
        else:
            state.load[resource] -= state.use_weight[use] * rate
            if resource == bottleneck:
                state.own[resource] -= state.use_weight[use]
        if state.is_dirty[resource] == 0:
            mark_dirty(resource, state, MAY)
    leave(bottleneck, now, state)
    if bottleneck >= len(state.capacity):
        remove(state.calendar, bottleneck)


def leave(group: int, now: float, state: State) -> None:
    """One flow less in `group`; when it was the last, the count begins anew."""
    state.members[group] -= 1
    if state.members[group] == 0:
        state.served[group] = 0.0
        state.anchor[group] = now


def note_move(slot: int, before: int, state: State) -> None:
    """Remember which bottleneck the flow in `slot` had when sharing began."""
    if state.moved_from[slot] == UNMOVED:
        state.moved_from[slot] = before
        state.moved[state.scalar[MOVED_COUNT]] = slot
        state.scalar[MOVED_COUNT] += 1


def elsewhere(slot: int, resource: int, state: State) -> int:
    """The group that holds the flow back most, but for `resource`."""
    least = len(state.capacity) + slot
    begin = slot << state.scalar[SHIFT]
    for use in range(begin, begin + state.use_count[slot]):
        other = state.use_resource[use]
        if other != resource and state.level[other] < state.level[least]:
            least = other
    return least


def full_at(resource: int, state: State) -> float:
    """The level at which `resource` is full, given what its flows may have elsewhere; inf if it never is."""
    shift, rates, weights = state.scalar[SHIFT], state.room_rate, state.room_weight
    count, weight = 0, 0.0
    use = state.first_use[resource]
    while use != NONE:
        slot = use >> shift
        rate = state.rate[slot]
        if state.bottleneck[slot] == resource:
            rate = state.level[elsewhere(slot, resource, state)]
        rates[count] = rate
        weights[count] = state.use_weight[use]
        weight += weights[count]
        count += 1
        use = state.use_next[use]
    if count == 0:
        return INFINITY
    level: float = state.capacity[resource] / weight
    # Flows that are held back further elsewhere leave the rest to the others. Their sum is kept in two floats, so
    # that it does not depend on their order.
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
        if kept == 0:
            return INFINITY
        if kept == count:
            break
        count = kept
        level = max((state.capacity[resource] - taken) - rest, 0.0) / weight
    if level <= highest * SAME:
        return highest
    if nearest <= level * SAME:
        return nearest
    return level


def same(a: float, b: float) -> bool:
    """Whether two levels differ by no more than rounding."""
    return a <= b * SAME and b <= a * SAME


def touch(resource: int, change: float, least: float, unbound: bool, state: State) -> None:
    """A flow on `resource` is faster by `change`, now or before at rate `least`: its level may be wrong. A flow that is
    `unbound` counts for nothing until a resource that has not been full holds it back.

    It need not be looked at before the turn of the lowest level that it could have now: a resource takes its excess
    from the flows whose bottleneck it is, and perhaps from more.
    """
    state.known[resource] = NONE
    state.load[resource] += change
    level, excess = state.level[resource], state.load[resource] - state.capacity[resource]
    if level == INFINITY:
        at = state.solver.at[resource]
        if at != NONE:
            if least < state.solver.key[at]:
                put(state.solver, resource, least)
        elif state.load[resource] > state.capacity[resource] * NEARLY or unbound:
            put(state.solver, resource, least)
    else:
        if excess > 0.0:
            own = state.own[resource]
            level = max(level - excess / own, least) if own > 0.0 else least
        put(state.solver, resource, level)


def change_level(resource: int, level: float, state: State) -> None:
    """Give `resource` another level, and its flows their rates and bottlenecks."""
    shift, before = state.scalar[SHIFT], state.level[resource]
    if state.was[resource] == NONE:
        state.was[resource] = before
        mark_dirty(resource, state)
    state.level[resource] = level
    use = state.first_use[resource]
    while use != NONE:
        slot = use >> shift
        use = state.use_next[use]
        old, bottleneck, to = state.rate[slot], state.bottleneck[slot], resource
        rate = level
        if bottleneck == resource:
            if level > before:
                other = elsewhere(slot, resource, state)
                if state.level[other] < level:
                    to, rate = other, state.level[other]
        elif level >= old:
            if bottleneck < len(state.known):
                state.known[bottleneck] = NONE  # it may count on what the flow could have here
            continue
        if rate == old and to == bottleneck:
            continue
        gain = rate - old if old < INFINITY else rate
        if rate == INFINITY:
            gain = -old
        state.rate[slot] = rate
        begin = slot << shift
        for each in range(begin, begin + state.use_count[slot]):
            other = state.use_resource[each]
            if to != bottleneck:
                if other == bottleneck:
                    state.own[other] -= state.use_weight[each]
                if other == to:
                    state.own[other] += state.use_weight[each]
            if other == resource:
                state.load[other] += state.use_weight[each] * gain
            elif rate != old:
                touch(other, state.use_weight[each] * gain, min(rate, old), rate == INFINITY, state)
        if to != bottleneck:
            note_move(slot, bottleneck, state)
            state.bottleneck[slot] = to
    state.known[resource] = level


def find_broken(state: State) -> None:
    """Queue the dirty resources whose level is wrong."""
    for i in range(state.scalar[DIRTY_COUNT]):
        resource = state.dirty[i]
        how, level, use = state.is_dirty[resource], state.level[resource], state.first_use[resource]
        state.known[resource] = NONE
        if use == NONE or how == RIGHT:
            continue
        if level == INFINITY:
            if how == MAY:
                if state.load[resource] < state.capacity[resource] * NEARLY:
                    continue
            elif state.use_next[use] == NONE and alone(use >> state.scalar[SHIFT], state):
                continue
        full = full_at(resource, state)
        if not same(full, level):
            state.known[resource] = full
            put(state.solver, resource, min(full, level))


def alone(slot: int, state: State) -> bool:
    """Whether the new flow in `slot` meets no other; it is given its rate then."""
    begin = slot << state.scalar[SHIFT]
    end = begin + state.use_count[slot]
    bottleneck = len(state.capacity) + slot
    rate = state.level[bottleneck]
    if state.rate[slot] < INFINITY:
        return False
    for use in range(begin, end):
        resource = state.use_resource[use]
        if state.first_use[resource] != use or state.use_next[use] != NONE:
            return False
        most = state.capacity[resource] / state.use_weight[use]
        if most < rate:
            bottleneck, rate = resource, most
    for use in range(begin, end):
        resource = state.use_resource[use]
        state.is_dirty[resource] = RIGHT
        state.load[resource] = state.use_weight[use] * rate
        if resource == bottleneck:
            state.own[resource] = state.use_weight[use]
    state.level[bottleneck] = rate
    state.bottleneck[slot] = bottleneck
    state.rate[slot] = rate
    return True


def share(now: float, state: State) -> None:
    """Mend the levels of the dirty resources, and of those whose levels break on the way."""
    if state.scalar[DIRTY_COUNT] == 0:
        return
    find_broken(state)
    solver, final = state.solver, -1.0
    while solver.size[0] > 0:
        resource = solver.item[0]
        remove(solver, resource)
        full, level = state.known[resource], state.level[resource]
        if full == NONE:
            full = full_at(resource, state)
            if same(full, level):
                continue
            state.known[resource] = full
        turn = min(full, level)
        if solver.size[0] > 0 and solver.key[0] < turn:
            put(solver, resource, turn)
            continue
        if full < level:
            if same(full, final):
                full = final
            final = full
        change_level(resource, full, state)
    settle(now, state)


def settle(now: float, state: State) -> None:
    """Count what groups with a new level have served, take flows to their new groups, and find what is due when."""
    resources, members, was = len(state.capacity), state.members, state.was
    for i in range(state.scalar[DIRTY_COUNT]):
        resource = state.dirty[i]
        before = was[resource]
        if before != NONE:
            was[resource] = NONE
            if before != state.level[resource] and members[resource] > 0:
                if now > state.anchor[resource]:
                    state.served[resource] += before * (now - state.anchor[resource])
                state.anchor[resource] = now
    count, left = state.scalar[MOVED_COUNT], 0
    for i in range(count):
        slot = state.moved[i]
        before = state.moved_from[slot]
        if before != NONE and before != state.bottleneck[slot]:
            state.goal[slot] = max(state.goal[slot] - served_at(before, now, state), 0.0)
            left += 1
    if left > 0:  # when all is counted
        for i in range(count):
            slot = state.moved[i]
            before = state.moved_from[slot]
            if before != NONE and before != state.bottleneck[slot]:
                leave(before, now, state)
                if before < resources:
                    mark_dirty(before, state)
                else:
                    remove(state.calendar, before)
    for i in range(count):
        slot = state.moved[i]
        before, group = state.moved_from[slot], state.bottleneck[slot]
        state.moved_from[slot] = UNMOVED
        if before != group:
            if members[group] == 0:
                state.served[group] = 0.0
                state.anchor[group] = now
            else:
                state.goal[slot] += served_at(group, now, state)
            members[group] += 1
            if group >= resources:
                appoint(group, due_of(slot, state), state.calendar)
            elif state.is_dirty[group] == 0:
                mark_dirty(group, state)
    state.scalar[MOVED_COUNT] = 0
    for i in range(state.scalar[DIRTY_COUNT]):
        resource = state.dirty[i]
        state.is_dirty[resource] = 0
        if state.members[resource] > 0:
            appoint(resource, first_due(resource, state), state.calendar)
        elif state.calendar.at[resource] != NONE:
            remove(state.calendar, resource)
    state.scalar[DIRTY_COUNT] = 0


def appoint(group: int, due: float, calendar: Heap) -> None:
    """Let `group` come up when it is due."""
    if due == INFINITY:
        remove(calendar, group)
    else:
        put(calendar, group, due)


def first_due(resource: int, state: State) -> float:
    """When the first flow of the group of `resource` is done."""
    if state.level[resource] == 0.0:
        return INFINITY
    shift, goal = state.scalar[SHIFT], INFINITY
    use = state.first_use[resource]
    while use != NONE:
        slot = use >> shift
        if state.bottleneck[slot] == resource:
            goal = min(goal, state.goal[slot])
        use = state.use_next[use]
    due: float = state.anchor[resource] + max(goal - state.served[resource], 0.0) / state.level[resource]
    return due
