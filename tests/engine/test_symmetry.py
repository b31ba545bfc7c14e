"""Parts of a plan that are alike: one takes as long as all, and parts that are not are refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.engine import IDEAL, TENSORFLOW
from simreduce.engine.simulator import likeness
from simreduce.errors import InternalError
from simreduce.plan import Contract, PlanBuilder
from simreduce.topology import load_topology
from tests.simulating import simulate, simulator
from tests.thorough import examples

N = 5
MACHINE = load_topology(f"switch:{N},latency=3us")
NOTHING = Contract.of("nothing", [])


def plan_of(chains, parts, elements=1_000_000):
    """Chains of copies: from a rank on, each so many ranks further. Part c begins c ranks later."""
    b = PlanBuilder(MACHINE.devices)
    for part in parts:
        for chain, (first, *steps) in enumerate(chains):
            at = (first + part) % N
            value = b.input(at, 0, elements * (chain + 1))
            for step in steps:
                at = (at + step) % N
                value = b.copy(value, at)
    return b.finish(NOTHING)


def alike(chains, parts=range(N), topology=MACHINE, runtime=IDEAL):
    return simulator(topology, runtime).compare_parts([plan_of(chains, [c]) for c in parts])


def take(plan, topology=MACHINE, found=None):
    return simulator(topology, IDEAL).simulate_within(plan, math.inf, symmetry=found).seconds


@settings(max_examples=examples(40))
@given(st.lists(st.lists(st.integers(1, N - 1), min_size=2, max_size=5), min_size=1, max_size=4))
def test_one_part_takes_as_long_as_all_together(chains):
    """Chains that meet on the links of every rank, shifted by one from part to part."""
    found, part = alike(chains), plan_of(chains, [0])
    together = simulate(plan_of(chains, range(N)), MACHINE, IDEAL).seconds

    assert take(part, found=found) == pytest.approx(together, rel=1e-12)
    assert take(part) <= together * (1 + 1e-12)


def test_parts_that_do_the_same_on_one_link_weigh_as_many():
    found = alike([[0, 1]], [0, 0, 0])
    together = simulate(plan_of([[0, 1]], [0, 0, 0]), MACHINE, IDEAL).seconds

    assert take(plan_of([[0, 1]], [0]), found=found) == pytest.approx(together, rel=1e-12)


def test_parts_are_not_alike_where_a_link_carries_what_others_do_not():
    """All but one of the shifts: some links carry both hops of a chain, others one."""
    assert alike([[0, 1, 1]]) is not None
    assert alike([[0, 1, 1]], range(N - 1)) is None


def test_parts_are_not_alike_where_one_link_is_slower():
    slow = MACHINE.scale_links({MACHINE.links[0].name: 0.5})

    assert alike([[0, 1]], topology=slow) is None


def test_parts_that_wait_in_one_queue_are_not_alike():
    """The queue of a sender would be taken by other parts in another order."""
    assert alike([[0, 1, 1]], runtime=TENSORFLOW) is None


def test_parts_of_other_sizes_or_lengths_are_not_alike():
    long, short, small = (
        plan_of([[0, 1, 1]], [0]),
        plan_of([[0, 1]], [1]),
        plan_of([[0, 1]], [0], 8),
    )

    assert simulator(MACHINE, IDEAL).compare_parts([long, short]) is None
    assert simulator(MACHINE, IDEAL).compare_parts([short, small]) is None


WIDE = load_topology("switch:8,latency=3us")
FEW = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(lambda pair: pair[0] != pair[1]),
    min_size=1,
    max_size=6,
)


def moves(pairs, shift, topology=WIDE, elements=1_000_000):
    """Copies one after another from rank to rank, each rank so many further on, as lowered."""
    b = PlanBuilder(topology.devices)
    for i, (source, target) in enumerate(pairs):
        b.copy(b.input(source + shift, 0, elements * (i + 1)), target + shift)
    plan = b.finish(NOTHING)
    fabric = simulator(topology, TENSORFLOW).fabric(plan)
    return plan, likeness(fabric.lower(plan), fabric.resources)


@settings(max_examples=examples(60))
@given(FEW, FEW, st.integers(0, 4), st.sampled_from([0.5, 1.0]), st.integers(0, 15))
def test_what_is_alike_takes_the_same_time_to_the_bit(some, others, shift, factor, link):
    machine = WIDE.scale_links({WIDE.links[link].name: factor})
    (first, one), (second, other) = moves(some, 0, machine), moves(others, shift, machine)

    assert factor < 1.0 or some != others or one == other
    if one == other:
        assert take_tf(first, machine) == take_tf(second, machine)


def take_tf(plan, topology):
    return simulate(plan, topology, TENSORFLOW).seconds


def test_what_takes_other_links_sizes_or_queues_is_not_alike():
    slow = WIDE.scale_links({WIDE.links[0].name: 0.5})
    ring, star = [(0, 1), (1, 2)], [(0, 1), (0, 2)]

    assert moves(ring, 0)[1] == moves(ring, 4)[1] != moves(star, 0)[1]
    assert moves(ring, 0)[1] != moves(ring, 4, elements=8)[1]
    assert moves(ring, 0, slow)[1] != moves(ring, 4, slow)[1]


def test_a_part_that_uses_other_links_than_were_compared_is_refused():
    found = alike([[0, 1]], [0])

    with pytest.raises(InternalError, match="other resources"):
        take(plan_of([[0, 1, 1]], [0]), found=found)
