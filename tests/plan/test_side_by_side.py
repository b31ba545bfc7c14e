"""Plans put side by side keep their promises and their streams; results can be moved to the end."""

from __future__ import annotations

from simreduce.plan import Contract, Kind, PlanBuilder, Promise, results_last, side_by_side, verify


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


def test_results_go_last_in_the_order_of_their_keys():
    plan = side_by_side([star(("a", "b"), n) for n in (3, 4, 5, 6)], ("a", "b"))
    moved = results_last(plan, [2, 1, 2, 0])

    assert verify(moved) == []
    assert [6, 4, 3, 5] == [
        int(moved.hi[op] - moved.lo[op]) for op in range(len(moved) - 4, len(moved))
    ]
    assert [Kind.OUTPUT] * 4 == list(moved.kind[-4:])
    assert plan.copies() == moved.copies()
