"""Rings through more machines than are searched."""

from __future__ import annotations

from collections import Counter

import pytest

from simreduce.errors import StrategyError
from simreduce.plan import Contract, PlanBuilder, verify
from simreduce.planners.algorithms import Options
from simreduce.planners.algorithms.ring import best_ring, multi_ring, sample, search_rings
from simreduce.planners.layouts import layout
from simreduce.planners.synthesis.rings import continue_ring, hops, ring_packing, sample_size
from simreduce.topology import load_topology


@pytest.mark.parametrize("machine", ["dgx1vx9", "dgx1vx10", "dgx-h100x9", "a100-mesh-4x17"])
def test_many_machines_carry_what_few_do(machine):
    """Every rank once in every ring, and no link of the whole machine over its rate."""
    topology = load_topology(machine)
    shape = layout(topology)
    few = sample(shape)
    rings = search_rings(shape, lambda network: ring_packing(network).patterns)
    rate = ring_packing(few.network()).rate
    load = Counter[int]()
    for ring, share in rings:
        assert sorted(ring) == list(range(shape.n))
        for u, v in hops(ring):
            for link in topology.router.route(shape.ranks[u], shape.ranks[v]).links:
                load[link] += share

    assert few.n <= 64 < shape.n
    assert sum(share for _, share in rings) == pytest.approx(rate, rel=1e-6)
    assert all(x <= topology.links[link].bandwidth * (1 + 1e-6) for link, x in load.items())


@pytest.mark.parametrize("planner", [multi_ring, best_ring])
@pytest.mark.parametrize("machine", ["dgx1vx9", "a100-mesh-4x17"])
def test_every_plan_sums(planner, machine):
    shape = layout(load_topology(machine))
    b = PlanBuilder(shape.devices)
    given = [b.input(rank, 0, 1000) for rank in range(shape.n)]
    (result,) = planner(b, shape, [given], Options())
    for value in result:
        b.output(value)

    assert [] == verify(b.finish(Contract.all_reduce(range(shape.n), [(0, 1000, 0)])))


def test_machines_are_taken_in_turn():
    tasks = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]

    assert (0, 1, 3, 2, 4, 5, 6, 7, 9, 8) == continue_ring((0, 1, 3, 2, 4, 5), tasks, 3)
    assert (0, 1, 9, 8, 6, 7, 4, 5, 3, 2) == continue_ring((0, 1, 4, 5, 3, 2), tasks, 3)
    assert continue_ring((0, 2, 1, 3, 4, 5), tasks, 3) is None


@pytest.mark.parametrize(("each", "few"), [(1, 17), (4, 5), (8, 3), (16, 3)])
def test_enough_machines_are_searched_for_rings_that_visit_each_once(each, few):
    assert few == sample_size(each)


def test_many_gpus_in_one_machine_are_refused():
    with pytest.raises(StrategyError, match="up to 64 GPUs, and these are 65"):
        search_rings(layout(load_topology("switch:65")), lambda n: ring_packing(n).patterns)
