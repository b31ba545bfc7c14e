"""One link for each bundle of links that all transfers use evenly gives the same times."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given, settings, strategies as st

from simreduce.engine import IDEAL, NOMINAL, TENSORFLOW, Fabric, Fault, Simulator
from simreduce.engine.disturbance import Disturbance
from simreduce.errors import InputError
from simreduce.planners.layouts import layout
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import Topology, load_topology
from simreduce.workload import Gradient, Workload
from tests.thorough import examples

TREES = (
    "fat_tree:18,radix=4,oversubscription={over}",
    "fat_tree:21,levels=3,radix=6,oversubscription={over}",
    "fat_tree:10,levels=3,radix=4,pods=4",
    "dgx1px4,fabric=rail_optimised,unit=2,oversubscription={over}",
)


def simulate(machine: Topology, spec: str, runtime, nbytes: int, *, fixed: bool):
    plan = compile_plan(spec, Workload("w", (Gradient("g", nbytes // 4),)), layout(machine))
    simulator = Simulator(machine, runtime, NOMINAL)
    if not fixed:
        vars(machine.router)["bundles"] = None
    return simulator.simulate(plan)


@settings(max_examples=examples(120, usual=12), deadline=None)
@given(
    st.sampled_from(TREES),
    st.sampled_from([1, 2]),
    st.sampled_from(["direct", "ring", "halving_doubling"]),
    st.sampled_from([IDEAL, TENSORFLOW]),
    st.integers(1, 50_000),
)
def test_bundles_take_as_long_as_their_links(text, over, spec, runtime, count):
    text = text.format(over=over)
    one = simulate(load_topology(text), spec, runtime, 4 * count, fixed=True)
    all_ = simulate(load_topology(text), spec, runtime, 4 * count, fixed=False)

    assert one.seconds == pytest.approx(all_.seconds, rel=1e-9)
    assert one.floors.seconds == pytest.approx(all_.floors.seconds, rel=1e-9)
    assert {use.name: use.share for use in one.links} == pytest.approx(
        {use.name: use.share for use in all_.links}, rel=1e-9
    )


def test_what_makes_links_of_a_bundle_differ_parts_them():
    """Another rate of one of them, a fault, or switches that sum, to which single links lead."""
    text = "fat_tree:12,radix=4"
    tree = load_topology(text)

    assert tree.router.bundles
    assert Simulator(tree).fabric(None).resources.home
    assert not tree.scale_links({"leaf0<>spine1": 0.5}).router.bundles
    assert tree.scale_links({"spine0": 1.0}).router.bundles
    for other in (f"{text},reduce=yes", f"{text},equal_cost=hashed", f"{text},equal_cost=first"):
        assert not load_topology(other).router.bundles
    faulty = Disturbance(faults=(Fault(1e-6, "leaf0>spine1", 0.0),))
    assert Simulator(tree, disturbance=faulty).fabric(None).resources.home is None


def test_a_fixed_fabric_takes_no_changes():
    tree = load_topology("fat_tree:12,radix=4")

    Fabric(simpy.Environment(), tree).set_bandwidth("leaf0>spine1", 1e9)
    with pytest.raises(InputError, match="this fabric is fixed"):
        Fabric(simpy.Environment(), tree, fixed=True).set_bandwidth("leaf0>spine1", 1e9)


def test_modulo_routing_deals_a_shift_evenly_and_so_takes_what_spraying_takes():
    """At 4:1 each of four spines carries two of the eight flows of a leaf, whoever is next: why a
    ring takes the same by `first` and by `split`, and by hash longer.
    """
    text = "fat_tree:64,radix=16,oversubscription=4,latency=0,equal_cost="
    seconds = [
        simulate(load_topology(text + choice), "direct", IDEAL, 1 << 20, fixed=True).seconds
        for choice in ("split", "first", "hashed")
    ]

    assert seconds[1] == pytest.approx(seconds[0], rel=1e-9)
    assert seconds[2] > 1.1 * seconds[0]
