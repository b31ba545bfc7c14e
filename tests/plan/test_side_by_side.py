"""Plans put side by side keep their promises and their streams; results can be moved to the end."""

from __future__ import annotations

from dataclasses import replace

from simreduce.plan import (
    Contract,
    Homes,
    Kind,
    PlanBuilder,
    Promise,
    results_last,
    side_by_side,
    verify,
)


def star(devices, elements, root=0):
    """The sum of all devices on the root, from streams of the senders' second channel."""
    b = PlanBuilder(devices)
    own = [b.input(d, 0, elements) for d in range(len(devices))]
    arrived = [b.copy(v, root, stream=b.stream(v.device, 1)) for v in own]
    held = b.copy(b.add(arrived), (root + 1) % len(devices), after=[v.op for v in arrived])
    b.output(held)
    everyone = frozenset(range(len(devices)))
    return b.finish(Contract.of("reduce", [Promise(held.device, 0, elements, 0, everyone)]))


def test_each_plan_keeps_its_own_addresses_devices_and_streams():
    names = ("a", "b", "c", "d")
    plan = side_by_side([star(("c", "a"), 5), star(("b", "d", "a"), 7), star(("c", "a"), 0)], names)

    assert verify(plan) == []
    assert plan.devices == names
    assert [("a", "c", 5), ("c", "a", 5), ("d", "b", 7), ("a", "b", 7), ("b", "d", 7),
            ("a", "c", 0), ("c", "a", 0)] == plan.copies()  # fmt: skip
    assert [4 + names.index(source) for source in "adaa"] == plan.stream[plan.stream >= 0].tolist()
    assert [0, 5, 12] == plan.contract.lo.tolist()


def test_one_plan_on_its_own_devices_is_itself():
    plan = star(("a", "b", "c"), 9)

    assert side_by_side([plan], plan.devices).digest == plan.digest


def test_a_broken_plan_stays_broken():
    b = PlanBuilder(("a", "b"))
    b.output(b.input(0, 0, 3))
    broken = b.finish(Contract.all_reduce([0], [(0, 3, 0)]))
    other = b.finish(Contract.of("reduce", [Promise(0, 0, 3, 0, frozenset([0, 1]))]))

    assert verify(side_by_side([broken, broken], ("a", "b"))) == []
    assert [p.rule for p in verify(side_by_side([broken, other], ("b", "a")))] == ["wrong sum"]


def moved(lives_on: str, starts_on: str):
    """Copy four elements of contributor 0, whose home is `lives_on`, from `starts_on` to there."""
    b = PlanBuilder(("a", "b"))
    start, end = "ab".index(starts_on), "ab".index(lives_on)
    b.output(b.copy(b.input(start, 0, 4, contributor=0), end))
    promise = Contract.of("none", [Promise(end, 0, 4, 0, frozenset([0]))])
    return b.finish(replace(promise, homes=(Homes(0, {0: end}),)))


def test_a_contributor_has_a_home_in_every_plan():
    """Plans keep their own homes: none reaches into the addresses of another plan."""
    on_a, on_b, stray = moved("a", "a"), moved("b", "b"), moved("b", "a")
    b = PlanBuilder(("a", "b"))
    b.output(b.input(1, 0, 4, contributor=0))
    free = b.finish(Contract.of("none", [Promise(1, 0, 4, 0, frozenset([0]))]))
    plan = side_by_side([on_a, on_a, on_b, free, on_a], ("a", "b"))

    assert verify(plan) == []
    assert (Homes(0, {0: 0}), Homes(8, {0: 1}), Homes(12, {}), Homes(16, {0: 0})) == (
        plan.contract.homes
    )
    assert verify(side_by_side([plan, plan], ("b", "a"))) == []
    for plans in ([stray, on_a], [on_a, stray], [on_a, on_b, stray, free]):
        assert ["contributor"] == [p.rule for p in verify(side_by_side(plans, ("a", "b")))]


def test_an_input_over_two_homes_must_be_on_both():
    b = PlanBuilder(("a", "b"))
    b.output(b.input(0, 0, 8, contributor=0))
    plan = b.finish(Contract.of("none", [Promise(0, 0, 8, 0, frozenset([0]))]))
    wrong = replace(plan.contract, homes=(Homes(0, {0: 0}), Homes(7, {0: 1})))
    right = replace(plan.contract, homes=(Homes(0, {0: 0}), Homes(8, {0: 1})))

    assert ["contributor"] == [p.rule for p in verify(replace(plan, contract=wrong))]
    assert verify(replace(plan, contract=right)) == []


def test_results_go_last_in_the_order_of_their_keys():
    plan = side_by_side([star(("a", "b"), n) for n in (3, 4, 5, 6)], ("a", "b"))
    moved = results_last(plan, [2, 1, 2, 0])

    assert verify(moved) == []
    assert [6, 4, 3, 5] == [
        int(moved.hi[op] - moved.lo[op]) for op in range(len(moved) - 4, len(moved))
    ]
    assert [Kind.OUTPUT] * 4 == list(moved.kind[-4:])
    assert plan.copies() == moved.copies()
