"""The choice, the frontier and where the choice changes, against brute force."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings, strategies as st

from simreduce.study.capacity.choose import (
    CapacityCandidate,
    CapacityTarget,
    Configuration,
    choose,
    frontier,
    near_miss,
    offer,
    rivals,
    within_target,
)
from simreduce.study.capacity.flips import error_flips, formula_flip, price_flips, search, walk
from tests.study.capacity.made import candidate, price_list, situations
from tests.thorough import examples


def _key(found):
    return None if found is None else found.candidate.key


def test_machines_whose_rates_are_assumed_are_not_told_apart_where_intervals_meet():
    """Half of a step of 10 s computes: 9 to 11.7 s at 1.25 to 0.75 times the rate. One of 13 s
    takes 11.7 s at least; a little more than that is slower for sure.
    """

    def rivals_of(step, rate, **limits):
        made = [
            candidate(name, step=seconds, quantities={"a": 1}, assumed=assumed)
            for name, seconds, assumed in (("one", 10.0, "5 TFLOP/s"), ("other", step, rate))
        ]
        machines = [replace(c, key=c.key._replace(machine=c.key.name)) for c in made]
        best, *rest = [
            offer(c, price_list(a=10.0), CapacityTarget(samples=3600.0, **limits)) for c in machines
        ]
        return [each.candidate.key.machine for each in rivals([best, *rest], best, "cost")]

    assert ["other"] == rivals_of(12.9, "6 TFLOP/s")
    assert [] == rivals_of(13.0, "6 TFLOP/s")
    assert [] == rivals_of(10.5, "5 TFLOP/s")  # the error of one rate is common to both
    assert ["other"] == rivals_of(10.005, "5 TFLOP/s")  # as good
    assert ["other"] == rivals_of(12.0, "6 TFLOP/s", step_time=10.9)
    assert [] == rivals_of(12.0, "6 TFLOP/s", step_time=10.7)  # 10.8 s at least miss the target


def test_a_case_by_hand():
    """Three machines, a run of 3600 samples: 2 h for 20, 1 h for 30, 30 min for 45 USD."""
    slow, middle, fast = (
        candidate("slow", step=20.0, quantities={"a": 1}),  # 0.5 samples/s
        candidate("middle", step=10.0, quantities={"b": 1}),
        candidate("fast", step=5.0, quantities={"a": 3, "b": 2}),
    )
    prices = price_list(a=10.0, b=30.0)
    found = [offer(c, prices, CapacityTarget(samples=3600.0)) for c in (slow, middle, fast)]

    assert [(20.0, 2.0), (30.0, 1.0), (45.0, 0.5)] == [(o.cost, o.time / 3600) for o in found]
    assert found[::-1] == frontier(found)
    for more, wanted in (
        ({}, slow),
        ({"time": 3600.0}, middle),
        ({"time": 3599.0}, fast),
        ({"minimise": "time"}, fast),
        ({"minimise": "time", "budget": 44.0}, middle),
        ({"minimise": "hourly", "samples_per_second": 0.6}, middle),
        ({"samples_per_second": 3.0}, None),
    ):
        assert (wanted and wanted.key) == _key(
            choose([slow, middle, fast], prices, CapacityTarget(samples=3600.0, **more))
        )


def test_what_nearly_meets_the_target_and_is_better_is_named():
    """The run of 3600 samples takes 2 h for 20, or 1 h for 30 USD."""
    slow, middle = (
        candidate("slow", step=20.0, quantities={"a": 1}),
        candidate("middle", step=10.0, quantities={"b": 1}),
    )
    prices = price_list(a=10.0, b=30.0)

    def found(**target):
        minimise = target.get("minimise", "cost")
        wanted = CapacityTarget(samples=3600.0, **target)
        offers = [offer(c, prices, wanted) for c in (slow, middle)]
        near = near_miss(offers, choose([slow, middle], prices, wanted), minimise)
        return near and (near.candidate.key.name, near.misses, round(near.short, 3))

    assert ("slow", ("time",), 0.029) == found(time=7000.0)
    assert found(time=6000.0) is None  # a fifth is not near
    assert found() is None  # it is the choice
    assert ("middle", ("budget",), 0.071) == found(minimise="time", budget=28.0)
    assert ("middle", ("time",), 0.029) == found(time=3500.0)  # nothing meets it
    assert ("middle", ("samples_per_second",), 0.091) == found(samples_per_second=1.1)


@settings(max_examples=examples(40))
@given(situations())
def test_the_choice_is_the_least_of_all_that_meet_the_target(situation):
    """And the frontier has what no other beats in both time and cost."""
    candidates, prices, target = situation
    offers = [offer(c, prices, target) for c in candidates]
    fine = [o for o in offers if o.meets]
    value = {"cost": lambda o: o.cost, "hourly": lambda o: o.hourly, "time": lambda o: o.time}
    chosen = choose(candidates, prices, target)

    assert (chosen is None) == (not fine)
    if chosen is not None:
        least = value[target.minimise]
        assert least(chosen) == min(map(least, fine))
    for each in offers:
        beaten = any(o.time <= each.time and o.cost < each.cost for o in offers) or any(
            o.time < each.time and o.cost <= each.cost for o in offers
        )
        on = any((o.time, o.cost) == (each.time, each.cost) for o in frontier(offers))
        assert on == (not beaten)


@settings(max_examples=examples(40))
@given(situations(), st.floats(0.0, 1.0))
def test_a_cheaper_price_never_makes_an_option_worse(situation, factor):
    """It costs no more and misses no target that it met."""
    candidates, prices, target = situation
    for name, item in prices.items.items():
        cheaper = prices.but(name, item.value * factor)
        for each in candidates:
            before, after = (offer(each, p, target) for p in (prices, cheaper))
            assert after.hourly <= before.hourly
            assert after.cost <= before.cost
            assert set(after.misses) <= set(before.misses)


@settings(max_examples=examples(40))
@given(situations(), st.floats(0.05, 1.0))
def test_a_shorter_step_never_makes_an_option_worse(situation, factor):
    """Whatever makes it shorter."""
    candidates, prices, target = situation
    for each in candidates:
        before, after = (offer(c, prices, target) for c in (each, each.slower(factor)))
        assert after.time <= before.time * (1 + 1e-12)
        assert after.cost <= before.cost * (1 + 1e-12)
        assert each.efficiency <= each.slower(factor).efficiency * (1 + 1e-12)


def _holds_until(assumption, answer, reach):
    """The answer is the same up to a flip, and another a hair beyond it."""
    now = answer(assumption.value)
    for flip, sign in ((assumption.down, -1), (assumption.up, 1)):
        end = reach**sign * assumption.value if flip is None else flip.at
        inside = [
            assumption.value + (end - assumption.value) * share for share in (0.25, 0.5, 0.75)
        ]
        assert all(answer(value) == now for value in inside)
        if flip is not None:
            hair = 1e-9 * flip.at
            assert flip.at == assumption.value or answer(flip.at - sign * hair) == now
            assert answer(flip.at + sign * hair) == flip.becomes != now


@settings(max_examples=examples(40))
@given(situations())
def test_prices_flip_the_choice_exactly_where_they_are_said_to(situation):
    """Up to that value nothing changes, a hair beyond it the choice is the other one."""
    candidates, prices, target = situation
    for assumption in price_flips(candidates, prices, target):
        _holds_until(
            assumption,
            lambda value, name=assumption.name: _key(
                choose(candidates, prices.but(name, value), target)
            ),
            1e6,
        )


@settings(max_examples=examples(40))
@given(situations())
def test_errors_of_the_step_flip_the_choice_exactly_where_they_are_said_to(situation):
    """Of the choice alone, and common to all."""
    candidates, prices, target = situation
    chosen = choose(candidates, prices, target)
    if chosen is None:
        return
    alone, common = error_flips(candidates, prices, target, chosen)

    def of(changed):
        return lambda factor: _key(
            choose([c.slower(factor) if changed(c) else c for c in candidates], prices, target)
        )

    _holds_until(alone, of(lambda c: c is chosen.candidate), 1e6)
    _holds_until(common, of(lambda _: True), 1e6)


def test_the_price_at_which_a_machine_is_no_longer_worth_it():
    """Twice as fast is worth twice the price: 2.74 USD/h, where the other costs 1.37."""
    one = candidate("one", step=2.0, quantities={"a": 1})
    two = candidate("two", step=1.0, quantities={"b": 1})
    prices = price_list(a=1.37, b=2.5)
    a, b = price_flips([one, two], prices, CapacityTarget())

    assert two.key == _key(choose([one, two], prices, CapacityTarget()))
    assert (1.25, one.key, None) == (a.down.at, a.down.becomes, a.up)
    assert (2.74, one.key, None) == (b.up.at, b.up.becomes, b.down)


def test_a_tie_flips_at_once():
    """Two equal candidates: the first wins, until its price is higher by anything."""
    pair = [candidate(name, quantities={name: 1}) for name in ("a", "b")]
    a, b = price_flips(pair, price_list(a=2.0, b=2.0), CapacityTarget())

    assert (2.0, pair[1].key, None) == (a.up.at, a.up.becomes, a.down)
    assert (2.0, pair[1].key, None) == (b.down.at, b.down.becomes, b.up)


@given(st.floats(1.0, 100.0), st.floats(0.2, 5.0))
def test_bisection_finds_a_threshold(value, factor):
    """To its tolerance, in the direction in which it lies."""
    threshold = value * factor
    down, up = search(value, lambda x: ("high",) if x >= threshold else ("low",), (2, 6), 1e-9)
    found, other = (down, up) if factor <= 1.0 else (up, down)

    assert other is None
    assert math.isclose(found.at, threshold, rel_tol=2e-9)


def test_failures_that_change_the_choice():
    """The more nodes, the sooner failures make them worthless."""
    few, many = candidate("few", 1.0, nodes=1), candidate("many", 1.0, nodes=4)

    def answer(mtbf):
        worn = replace(many, goodput=math.exp(-10.0 / mtbf))
        return _key(choose([few, worn], price_list(), CapacityTarget(minimise="time")))

    found = formula_flip("mtbf", 50.0, "s", answer)

    assert (None, few.key) == (found.up, found.down.becomes)
    assert math.isclose(found.down.at, 10.0 / math.log(4.0), rel_tol=1e-9)


def test_walk_visits_breakpoints_outwards():
    """A breakpoint at which nothing changes is passed."""
    assert (None, 3.0) == tuple(
        flip and flip.at for flip in walk(1.0, lambda x: ("b" if x > 3.0 else "a",), [0.5, 2, 3])
    )


def test_reach_ends_at_the_first_count_below():
    """Later counts that are above again do not count."""
    series = [
        candidate("s", nodes=n, unmoved=e) for n, e in ((1, 0.9), (2, 0.8), (4, 0.6), (8, 0.85))
    ]
    (found,) = within_target(series, 0.8)

    assert (series[1], series[2]) == (found.last, found.first_below)
    assert isinstance(found.last, CapacityCandidate)


def test_one_node_is_of_the_series_of_every_network():
    """And a batch that follows from the number of nodes parts nothing."""

    def one(nodes, network, efficiency):
        key = Configuration("", "m", str(nodes), network, "ddp", "nccl", str(64 // nodes))
        return candidate("x", nodes=nodes, unmoved=efficiency, key=key)

    nets = [one(n, net, e) for net in ("a", "b") for n, e in ((2, 0.9), (4, 0.7))]
    found = within_target([one(1, "", 1.0), *nets], 0.8, ("nodes", "batch"))

    assert [(r.series.network, r.last.nodes, r.first_below.nodes) for r in found] == [
        ("a", 2, 4), ("b", 2, 4),
    ]  # fmt: skip
    [alone] = within_target([one(1, "", 1.0)], 0.8)
    assert (alone.last.nodes, alone.first_below) == (1, None)
