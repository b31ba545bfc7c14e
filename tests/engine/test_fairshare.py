"""Max-min fair rates: `sharing.share` on systems worked by hand, and against an exact solver on
random ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from math import inf
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine import kernel
from simreduce.engine.kernel import sharing
from simreduce.engine.kernel.flows import close_flow, due_of, open_flow, served_at
from simreduce.engine.kernel.store import KernelStore
from simreduce.engine.lowering.calls import Calls
from tests.engine.oracle import Demand, max_min
from tests.thorough import examples


class Flow(NamedTuple):
    """The capacity that a flow takes per byte of its rate, by resource, its own limit, and its
    bytes.
    """

    weights: dict[int, float]
    cap: float = inf
    amount: float = 1e9


class System:
    """Resources, and flows that are opened and closed by hand."""

    def __init__(self, capacity: Sequence[float], flows: Sequence[Flow]) -> None:
        n = len(flows)
        starts = np.cumsum([0, *(len(f.weights) for f in flows)])
        nothing, zeros = np.zeros(0, dtype=np.int64), np.zeros(n)
        calls = Calls(
            overhead=zeros,
            work=zeros,
            latency=zeros,
            holds=zeros > 0,
            cap=np.array([f.cap for f in flows]),
            paced=zeros > 0,
            lane_start=np.zeros(n + 1, dtype=np.int64),
            early=np.zeros(n, dtype=np.int64),
            lanes=nothing,
            use_start=starts,
            uses=np.array([r for f in flows for r in f.weights], dtype=np.int64),
            weight=np.array([w for f in flows for w in f.weights.values()]),
        )
        amount = np.array([f.amount for f in flows])
        ids = np.arange(n)
        self.store = KernelStore([float(each) for each in capacity])
        self.store.append(
            calls,
            ids,
            amount,
            np.full(n, kernel.NONE),
            np.zeros(n + 1, dtype=np.int64),
            nothing,
            nothing,
            zeros[:0],
            0,
        )
        self.ops, self.state = self.store.ops, self.store.state
        self.last = [0.0] * n

    def open(self, *flows: int, now: float = 0.0) -> System:
        for flow in flows:
            slot = kernel.slot_for(flow, self.state)
            open_flow(slot, flow, self.ops.amount[flow], self.ops.cap[flow], now, self.state.flows)
        return self

    def close(self, *flows: int, now: float = 0.0) -> System:
        for flow in flows:
            close_flow(self.state.slot[flow], flow, now, self.state.flows)
            kernel.free_slot(flow, self.state)
        return self

    def change(self, resource: int, capacity: float) -> System:
        self.store.set_capacity(resource, capacity)
        return self

    def share(self, now: float = 0.0) -> list[float]:
        """The rates of all flows; those that are closed keep their last."""
        sharing.share(now, self.state.flows)
        for flow, slot in enumerate(self.state.slot):
            if slot != sharing.NONE:
                flows = self.state.flows
                self.last[flow] = flows.rate[flows.crowd[slot]]
        return list(self.last)

    def moved(self, flow: int, now: float) -> float:
        """Bytes that are through."""
        slot, flows = self.state.slot[flow], self.state.flows
        left = flows.goal[slot] - served_at(flows.bottleneck[flows.crowd[slot]], now, flows)
        return self.ops.amount[flow] - left

    def count(self, flow: int) -> tuple[float, float, float]:
        """Bytes that are left, since when that is, and when they are through."""
        slot, flows = self.state.slot[flow], self.state.flows
        group = flows.bottleneck[flows.crowd[slot]]
        left = flows.goal[slot] - flows.served[group]
        return left, flows.anchor[group], due_of(slot, flows)


def rates(capacity: Sequence[float], flows: Sequence[Flow]) -> list[float]:
    return System(capacity, flows).open(*range(len(flows))).share()


def on(*resources: int, cap: float = inf) -> Flow:
    """A flow that takes its rate, once, of each resource."""
    return Flow(dict.fromkeys(resources, 1.0), cap)


def check(capacity: Sequence[float], flows: Sequence[Flow], expect: Sequence[float]) -> None:
    assert expect == rates(capacity, flows)


# Systems worked by hand: the equations, then the rates.


def test_one_flow_gets_the_least_of_its_links():
    """x <= 3, x <= 2, x <= 5: the narrowest link decides."""
    check([3.0, 2.0, 5.0], [on(0, 1, 2)], expect=[2.0])


def test_equal_flows_share_a_link_equally():
    """x + y + z + w = 8 and nothing tells them apart: 2 each."""
    check([8.0], [on(0)] * 4, expect=[2.0] * 4)


def test_a_long_flow_is_held_back_by_its_narrowest_link_and_others_take_the_rest():
    """x + y <= 1, x + z <= 2. Both links are full last at x = y = 1/2; then z rises to 2 - 1/2."""
    check([1.0, 2.0], [on(0, 1), on(0), on(1)], expect=[0.5, 0.5, 1.5])


def test_a_chain_of_bottlenecks_is_filled_from_the_narrowest():
    """a + b + c <= 3 fills at 1. c + d <= 3 leaves d 2. d + e <= 5 leaves e 3."""
    check(
        [3.0, 3.0, 5.0], [on(0), on(0), on(0, 1), on(1, 2), on(2)], expect=[1.0, 1.0, 1.0, 2.0, 3.0]
    )


def test_the_parking_lot():
    """One flow over n links of 1, one more on each: the long one counts on every link once, so all
    get 1/2.
    """
    check([1.0] * 4, [on(0, 1, 2, 3), on(0), on(1), on(2), on(3)], expect=[0.5] * 5)


def test_a_weight_is_capacity_per_byte_not_priority():
    """3x + y <= 12 with x = y: both 3. The heavy flow takes 9 of the 12 to move as much as the
    light one.
    """
    check([12.0], [Flow({0: 3.0}), Flow({0: 1.0})], expect=[3.0, 3.0])


def test_a_flow_may_weigh_differently_on_each_resource():
    """2x <= 4 and x + y <= 10: x = 2 by the first, then y = 8."""
    check([4.0, 10.0], [Flow({0: 2.0, 1: 1.0}), Flow({1: 1.0})], expect=[2.0, 8.0])


def test_a_capped_flow_leaves_its_share_to_others():
    """x <= 2 by its cap, x + y + z <= 10: y = z = 4."""
    check([10.0], [on(0, cap=2.0), on(0), on(0)], expect=[2.0, 4.0, 4.0])


def test_a_cap_above_the_fair_share_changes_nothing():
    """x + y <= 10 fills at 5, below the cap of 6."""
    check([10.0], [on(0, cap=6.0), on(0)], expect=[5.0, 5.0])


def test_a_cap_that_equals_the_fair_share_takes_nothing_from_others():
    """x + y <= 10 and x <= 5 are reached at once."""
    check([10.0], [on(0, cap=5.0), on(0)], expect=[5.0, 5.0])


def test_a_weighted_and_capped_system():
    """x <= 1 by its cap; 3x + 2y + z <= 12 then leaves 2y + z <= 9: y = z = 3; z + w <= 10 leaves w
    7.
    """
    flows = [Flow({0: 3.0}, cap=1.0), Flow({0: 2.0}), Flow({0: 1.0, 1: 1.0}), Flow({1: 1.0})]

    check([12.0, 10.0], flows, expect=[1.0, 3.0, 3.0, 7.0])


def test_a_dead_link_stops_its_flows_and_nobody_else():
    """x <= 0 by the dead link, so y has all of the live one."""
    check([0.0, 6.0], [on(0, 1), on(1)], expect=[0.0, 6.0])


def test_flows_that_meet_nowhere_do_not_limit_each_other():
    """x <= 1, y <= 1000."""
    check([1.0, 1000.0], [on(0), on(1)], expect=[1.0, 1000.0])


def test_levels_that_differ_by_rounding_alone_give_equal_rates():
    """x + y + z <= 0.3 and w <= 0.1 fill together on paper. In floats 0.3 / 3 is less; the rates
    are equal bits.
    """
    assert 0.3 / 3 < 0.1

    check([0.3, 0.1, 5.0], [on(0, 2), on(0, 2), on(0, 2), on(1, 2)], expect=[0.3 / 3] * 4)


def test_levels_that_differ_by_more_than_rounding_are_told_apart():
    """x <= 1 and y <= 1 + 1e-9: near, but not the same."""
    check([1.0, 1.0 + 1e-9, 5.0], [on(0, 2), on(1, 2)], expect=[1.0, 1.0 + 1e-9])


# What opening and closing flows does to those that go on.


def test_a_flow_that_ends_leaves_its_share_to_those_it_met():
    """x + y = 8 at 4 each; when x is gone, y has 8. A flow elsewhere keeps its rate."""
    system = System([8.0, 5.0], [on(0), on(0), on(1)])

    before = system.open(0, 1, 2).share()
    after = system.close(0).share(now=1.0)

    assert (before, after) == ([4.0, 4.0, 5.0], [4.0, 8.0, 5.0])


def test_bytes_are_counted_when_the_rate_changes():
    """100 B at 8 B/s for 2 s leave 84 B; at 4 B/s they end 21 s later."""
    system = System([8.0], [Flow({0: 1.0}, amount=100.0), on(0)])
    system.open(0).share()
    system.open(1, now=2.0).share(now=2.0)

    assert system.count(0) == (84.0, 2.0, 23.0)


def test_a_flow_whose_rate_stays_is_not_touched():
    """The capped flow has 2 of 10, with or without a second; its bytes are still counted from the
    start.
    """
    system = System([10.0], [Flow({0: 1.0}, cap=2.0, amount=100.0), on(0)])
    system.open(0).share()
    system.open(1, now=3.0).share(now=3.0)

    assert system.count(0) == (100.0, 0.0, 50.0)


def test_a_flow_on_a_dead_link_keeps_its_bytes_and_goes_on_when_the_link_is_back():
    """100 B at 10 B/s, dead from 4 s to 9 s: 60 B are left at 9 s and end at 15 s."""
    system = System([10.0], [Flow({0: 1.0}, amount=100.0)])
    system.open(0).share()
    for now, capacity in ((4.0, 0.0), (9.0, 10.0)):
        system.change(0, capacity).share(now)

    assert system.count(0) == (60.0, 9.0, 15.0)


# Random systems.

_ROUND = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 12.0]), st.sampled_from([1.0, 2.0, 3.0])
_ANY = st.floats(1e8, 1e12), st.sampled_from([1.0, 2.0, 3.0, 4.0, 9.0])


@st.composite
def systems(draw: st.DrawFn, rate: st.SearchStrategy, weight: st.SearchStrategy, most: int = 12):
    """(capacities, flows)"""
    capacity = draw(st.lists(rate, min_size=1, max_size=6))
    weights = st.dictionaries(st.integers(0, len(capacity) - 1), weight, min_size=1)
    flow = st.builds(Flow, weights, st.one_of(st.just(inf), rate), st.just(1e9))
    return capacity, draw(st.lists(flow, min_size=1, max_size=most))


either = st.one_of(systems(*_ROUND), systems(*_ANY))
unweighted = st.one_of(systems(_ROUND[0], st.just(1.0)), systems(_ANY[0], st.just(1.0)))


def close_to(expected: Sequence[float], rel: float = 1e-11) -> object:
    return pytest.approx(expected, rel=rel, abs=0)


@given(either)
@settings(max_examples=examples(400))
def test_rates_are_max_min_fair(system):
    """They are those of exact progressive filling, and keep what defines them."""
    capacity, flows = system
    got = rates(capacity, flows)
    taken = loads(capacity, flows, got)

    _check_against_fractions(capacity, flows, got)
    _check_capacity(capacity, taken)
    _check_bottlenecks(capacity, flows, got, taken)


def _check_against_fractions(
    capacity: Sequence[float], flows: Sequence[Flow], got: Sequence[float]
) -> None:
    """The solver that shares everything anew, in fractions, agrees to rounding."""
    exact = max_min(
        dict(enumerate(map(Fraction, capacity))),
        [
            Demand(
                {r: Fraction(w) for r, w in f.weights.items()},
                None if f.cap == inf else Fraction(f.cap),
            )
            for f in flows
        ],
    )

    assert close_to(got) == [float(rate) for rate in exact]


def loads(capacity: Sequence[float], flows: Sequence[Flow], got: Sequence[float]) -> list[float]:
    """What the flows take of each resource."""
    return [
        sum(f.weights.get(r, 0.0) * x for f, x in zip(flows, got, strict=True))
        for r in range(len(capacity))
    ]


def _check_capacity(capacity: Sequence[float], taken: Sequence[float]) -> None:
    """Weighted rates add up to the capacity at most."""
    for load, limit in zip(taken, capacity, strict=True):
        assert load <= limit * (1 + 1e-12)


def _check_bottlenecks(
    capacity: Sequence[float], flows: Sequence[Flow], got: Sequence[float], taken: Sequence[float]
) -> None:
    """A flow is at its cap, or on a full resource where nobody is faster: the definition of max-min
    fairness.
    """
    for flow, rate in zip(flows, got, strict=True):
        bottlenecks = [
            r
            for r in flow.weights
            if taken[r] >= capacity[r] * (1 - 1e-11)
            and rate
            >= max(x for f, x in zip(flows, got, strict=True) if r in f.weights) * (1 - 1e-11)
        ]

        assert bottlenecks or rate == flow.cap


@given(unweighted, st.randoms(use_true_random=False))
@settings(max_examples=examples(200))
def test_the_order_of_copies_changes_no_bit(system, random):
    """Flows of weight 1 get the same bits whatever their ids are."""
    capacity, flows = system
    order = list(range(len(flows)))
    random.shuffle(order)

    check(capacity, [flows[i] for i in order], expect=[rates(capacity, flows)[i] for i in order])


def test_sums_that_round_differently_change_no_bit():
    """What is left of 760 GB/s for the fifth flow are the rates of three others, added up in any
    order.
    """
    capacity = [102175199.0, 274977906945.0, 8000000000.0, 760523480088.8447]
    flows = [on(1), on(1, 3), on(0, 1, 2, 3), on(2, 3), on(3), on(0, 1), on(0, 1, 2)]

    found = {
        rates(capacity, [*others, flows[4]])[-1] for others in permutations(flows[:4] + flows[5:])
    }

    assert len(found) == 1


@given(either, st.randoms(use_true_random=False))
@settings(max_examples=examples(200))
def test_the_order_of_weighted_flows_changes_nothing_but_rounding(system, random):
    """Different weights on one resource are taken off in another order; the sums may round
    differently.
    """
    capacity, flows = system
    order = list(range(len(flows)))
    random.shuffle(order)
    got = rates(capacity, flows)

    assert close_to([got[i] for i in order], rel=1e-13) == rates(
        capacity, [flows[i] for i in order]
    )


@given(either, st.data())
@settings(max_examples=examples(150))
def test_sharing_after_every_change_is_sharing_at_once(system, data):
    """Whatever was opened and closed before, the rates are those of the flows that are open now."""
    capacity, flows = system
    busy = System(capacity, flows)
    running: list[int] = []
    for flow in data.draw(st.lists(st.integers(0, len(flows) - 1), min_size=1, max_size=20)):
        if flow in running:
            running.remove(flow)
            busy.close(flow)
        else:
            running.append(flow)
            busy.open(flow)
        got = busy.share()

        assert close_to([got[i] for i in running]) == rates(capacity, [flows[i] for i in running])


# Long histories of larger systems.


@st.composite
def histories(draw: st.DrawFn):
    """(capacities, flows, steps): per step flows that begin or end, and resources that get another
    capacity.
    """
    rate, weight = draw(st.sampled_from([_ROUND, _ANY]))
    capacity = draw(st.lists(rate, min_size=6, max_size=24))
    resources = st.integers(0, len(capacity) - 1)
    weights = st.dictionaries(resources, weight, min_size=1, max_size=5)
    flow = st.builds(Flow, weights, st.one_of(st.just(inf), rate), st.just(1e15))
    flows = draw(st.lists(flow, min_size=8, max_size=32))
    toggled = st.lists(st.integers(0, len(flows) - 1), max_size=12, unique=True)
    changed = st.dictionaries(resources, rate, max_size=2)
    return capacity, flows, draw(st.lists(st.tuples(toggled, changed), min_size=1, max_size=10))


def test_two_links_that_change_at_one_level_are_mended_one_after_the_other():
    """Found by the test below. One link was cut off, and is opened when a flow begins on another,
    which is cut off too: what the second leaves to the first must be known before the first is
    shared.
    """
    system = System([0.0, 0.0], [Flow({1: 1.0}), Flow({0: 1.0, 1: 1.0}), Flow({0: 1.0})])
    system.open(0, 1).share(0.0)
    system.open(2, now=1.0).change(1, 1.0)

    assert system.share(1.0) == [1.0, 0.0, 0.0]


def test_a_flow_that_two_resources_hold_back_at_one_level_counts_on_both_when_one_is_raised():
    """x + y + z = 3 and y + z = 2 are both full at 1. Without z, y alone cannot fill the second;
    x + y = 3 gives both 3/2.

    Both levels are wrong at once. While the second stands, the first seems to be full at 3 - 1 = 2;
    raising the second leaves y at its old rate of 1, and yet makes that 3/2.
    """
    uses = {0: [0], 1: [1, 0], 2: [1, 0]}
    for order in permutations(uses):
        system = System([3.0, 2.0], [on(*each) for each in uses.values()])

        assert system.open(*order).share() == [1.0, 1.0, 1.0]
        assert system.close(2, now=1.0).share(1.0) == [1.5, 1.5, 1.0]


@st.composite
def tied(draw: st.DrawFn):
    """(capacities, flows, how many of them begin, steps): a few whole levels at which the resources
    are all full once the first flows have begun; then several begin or end at a time.
    """
    count = draw(st.integers(2, 4))
    weight = st.sampled_from(draw(st.sampled_from([[1], [1, 2], [1, 2, 3]])))
    weights = st.dictionaries(st.integers(0, count - 1), weight, min_size=1, max_size=3)
    flows = draw(st.lists(weights.map(Flow), min_size=3, max_size=10))
    begin = draw(st.integers(2, len(flows)))
    most = draw(st.sampled_from([1, 1, 2]))
    capacity = [
        draw(st.integers(1, most)) * sum(flow.weights.get(r, 0) for flow in flows[:begin])
        for r in range(count)
    ]
    step = st.lists(st.integers(0, len(flows) - 1), min_size=1, max_size=4, unique=True)
    return capacity, flows, begin, draw(st.lists(step, min_size=1, max_size=8))


@given(tied())
@settings(max_examples=examples(200))
def test_ties_are_shared_as_exact_progressive_filling_does(history):
    """Rates that rise together until a resource is full do not ask which of two is full first."""
    capacity, flows, begin, steps = history
    system, running = System(capacity, flows), set[int]()
    for toggled in [range(begin), *steps]:
        system.close(*(i for i in toggled if i in running))
        system.open(*(i for i in toggled if i not in running))
        running.symmetric_difference_update(toggled)
        got = system.share()
        exact = max_min(
            dict(enumerate(map(Fraction, capacity))),
            [Demand({r: Fraction(w) for r, w in flows[i].weights.items()}) for i in running],
        )

        assert close_to([float(rate) for rate in exact]) == [got[i] for i in running]


@given(histories())
@settings(max_examples=examples(75))
def test_rates_stay_those_of_exact_progressive_filling_whatever_happens(history):
    """Flows begin and end and capacities change, several at a time; after each step all is shared
    anew in fractions.

    Every second a step; a flow has moved what its rates add up to, however often its bottleneck has
    changed.
    """
    capacity, flows, steps = history
    capacity = list(capacity)
    system = System(capacity, flows)
    moved: dict[int, Fraction] = {}
    for now, (toggled, changed) in enumerate(steps):
        for flow in toggled:
            if flow in moved:
                system.close(flow, now=float(now))
                del moved[flow]
            else:
                system.open(flow, now=float(now))
                moved[flow] = Fraction(0)
        for resource, rate in changed.items():
            capacity[resource] = rate
            system.change(resource, rate)
        got = system.share(float(now))
        running = list(moved)
        exact = max_min(
            dict(enumerate(map(Fraction, capacity))),
            [
                Demand(
                    {r: Fraction(w) for r, w in flows[i].weights.items()},
                    None if flows[i].cap == inf else Fraction(flows[i].cap),
                )
                for i in running
            ],
        )

        assert close_to([float(rate) for rate in exact], rel=1e-10) == [got[i] for i in running]
        for flow, rate in zip(running, exact, strict=True):
            moved[flow] += rate
        assert [system.moved(i, now + 1.0) for i in running] == [
            pytest.approx(float(moved[i]), rel=1e-10, abs=10.0) for i in running
        ]


def test_a_change_far_away_touches_nothing():
    """Two thousand flows in pairs on a thousand links; one of them ends. Only its partner gets
    another rate.
    """
    count = 1000
    system = System(
        [10.0] * count, [Flow({i % count: 1.0}, amount=1e3 + i) for i in range(2 * count)]
    )
    system.open(*range(2 * count)).share()
    looked: list[int] = []
    full_at = sharing.full_at
    with mock.patch.object(
        sharing, "full_at", lambda r, state: looked.append(r) or full_at(r, state)
    ):
        after = system.close(7, now=1.0).share(now=1.0)

    assert {7} == set(looked)
    assert after[7 + count] == 10.0
    assert [rate for i, rate in enumerate(after) if i not in (7, 7 + count)] == [5.0] * (
        2 * count - 2
    )


def test_a_chain_of_bottlenecks_is_followed_as_far_as_rates_change():
    """Flow i is on links i and i + 1; the levels rise along the chain. The first ends: every second
    gains, the others lose, down to the link whose flow is held back by a cap.
    """
    capacity = [2.0, 3.0, 4.0, 5.0, 100.0]
    flows = [on(0), on(0, 1), on(1, 2), on(2, 3), on(3, 4, cap=1.5), on(4)]
    system = System(capacity, flows).open(*range(6))

    assert [1.0, 1.0, 2.0, 2.0, 1.5, 98.5] == system.share()
    assert [1.0, 1.5, 1.5, 2.5, 1.5, 98.5] == system.close(0).share()


# Flows of one call.


def finishes(
    capacity: Sequence[float], flows: Sequence[Flow], call: Sequence[int], release: Sequence[float]
) -> list[float]:
    """When flows end that begin when they are released. `call` numbers calls in the order of the
    first flow of each.
    """
    first = [call.index(c) for c in range(max(call) + 1)]
    of = [flows[i] for i in first]
    n, nothing, zeros = len(flows), np.zeros(0, dtype=np.int64), np.zeros(len(of))
    calls = Calls(
        overhead=zeros,
        work=zeros,
        latency=zeros,
        holds=zeros > 0,
        cap=np.array([f.cap for f in of]),
        paced=zeros > 0,
        lane_start=np.zeros(len(of) + 1, dtype=np.int64),
        early=np.zeros(len(of), dtype=np.int64),
        lanes=nothing,
        use_start=np.cumsum([0, *(len(f.weights) for f in of)]),
        uses=np.array([r for f in of for r in f.weights], dtype=np.int64),
        weight=np.array([w for f in of for w in f.weights.values()]),
    )
    store = KernelStore([float(each) for each in capacity])
    store.append(
        calls,
        np.array(call),
        np.array([f.amount for f in flows]),
        np.ones(n, dtype=np.int32),
        np.zeros(n + 1, dtype=np.int64),
        nothing,
        np.arange(n),
        np.array(release),
        0,
    )
    assert store.advance(0.0, inf)[0]
    return list(store.state.finish)


@st.composite
def crowds(draw: st.DrawFn):
    """(capacities, flows, the call of each, when each begins): several flows of every call."""
    capacity = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 6.0]), min_size=1, max_size=5))
    weights = st.dictionaries(
        st.integers(0, len(capacity) - 1), st.sampled_from([1.0, 2.0, 3.0]), min_size=1
    )
    cap = st.sampled_from([inf, inf, 0.5, 1.0])
    of = draw(st.lists(st.tuples(weights, cap), min_size=1, max_size=5))
    more = draw(st.lists(st.integers(0, len(of) - 1), max_size=12))
    call = [*range(len(of)), *more]
    amount = st.one_of(st.integers(1, 6).map(float), st.floats(0.1, 10.0))
    flows = [Flow(*of[c], amount=draw(amount)) for c in call]
    release = [draw(st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.5])) for _ in call]
    return capacity, flows, call, release


@given(crowds())
@settings(max_examples=examples(200))
def test_flows_of_one_call_end_as_they_do_with_a_call_each(crowd):
    """Flows of one call are shared as one; nothing but rounding may tell."""
    capacity, flows, call, release = crowd
    apart = finishes(capacity, flows, list(range(len(flows))), release)

    assert close_to(apart, rel=1e-12) == finishes(capacity, flows, call, release)


def test_work_for_many_flows_of_one_call_is_that_for_one():
    """A thousand flows on a path that another crosses: it is looked at once for all of them."""
    flows = [on(0, 1)] * 1000 + [on(1)]
    looked: list[int] = []
    elsewhere = sharing.elsewhere
    with mock.patch.object(
        sharing, "elsewhere", lambda c, r, state: looked.append(c) or elsewhere(c, r, state)
    ):
        ends = finishes([1e9, 1e9], flows, [0] * 1000 + [1], [0.0] * 1001)

    assert ends == close_to([1001.0] * 1001)
    assert len(looked) < 20
