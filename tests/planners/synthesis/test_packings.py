"""What is packed fits, spans, and comes up to the optimum."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings

from simreduce.errors import StrategyError
from simreduce.planners.layouts import layout
from simreduce.planners.synthesis import direct_network, optimum, switched_network
from simreduce.planners.synthesis.rings import all_reduce_rate, best_order, hops, ring_packing
from simreduce.planners.synthesis.trees import (
    PACKINGS,
    all_gather_trees,
    all_reduce_trees,
    broadcast_trees,
    reduce_trees,
)
from simreduce.topology import load_topology
from tests.planners.synthesis.networks import dgx1, digraphs, graphs, unlike_subsets
from tests.thorough import examples


def check_fits(network, packing, edges):
    """No arc carries more than its capacity."""
    load = [0.0] * len(network.arcs)
    for pattern, share in packing.patterns:
        assert share > 0
        for arc, times in network.load(edges(pattern)).items():
            load[arc] += share * times
    assert all(mine <= c * (1 + 1e-6) for mine, c in zip(load, network.capacity, strict=True))


def check_spans(network, tree):
    """Parents before children on the way down, children before parents on the way up, everybody
    once.
    """
    everyone = set(range(network.ranks))
    for edges in (tree.down, [(b, a) for a, b in reversed(tree.up)]):
        if edges:
            seen = {tree.root}
            for parent, child in edges:
                assert parent in seen
                assert child not in seen
                seen.add(child)
            assert seen == everyone
    assert all(network.paths[u][v] for u, v in tree.edges)


def check_trees(network, collective, root, best):
    packing = PACKINGS[collective](network, root)
    check_fits(network, packing, lambda tree: tree.edges)
    for tree, _ in packing.patterns:
        check_spans(network, tree)
    total = sum(share for _, share in packing.patterns)
    groups = network.ranks if collective in ("all_gather", "reduce_scatter") else 1
    assert total >= packing.rate * groups * (1 - 1e-9)
    assert packing.rate * groups <= best * (1 + 1e-6)
    assert packing.rate * groups >= 0.999 * best
    assert packing.rate <= packing.bound * (1 + 1e-9)


@settings(deadline=None, max_examples=examples(25, usual=12))
@given(digraphs())
def test_trees_come_up_to_the_cuts_on_any_digraph(network):
    check_trees(network, "all_reduce", 0, optimum.all_reduce(network).rate)
    check_trees(
        network, "broadcast", network.ranks - 1, optimum.broadcast(network, network.ranks - 1).rate
    )
    check_trees(network, "reduce", 0, optimum.reduce(network, 0).rate)
    check_trees(network, "all_gather", 0, optimum.all_gather(network).rate)
    check_trees(network, "reduce_scatter", 0, optimum.reduce_scatter(network).rate)


@settings(deadline=None, max_examples=examples(250))
@given(graphs())
def test_trees_come_up_to_the_strength_on_any_graph(network):
    check_trees(network, "all_reduce", 0, optimum.strength(network).rate)


@settings(deadline=None, max_examples=examples(40))
@given(digraphs())
def test_rings_fit_and_stay_below_the_optimum(network):
    packing = ring_packing(network)
    check_fits(network, packing, hops)
    for ring, _ in packing.patterns:
        assert sorted(ring) == list(range(network.ranks))
    best = optimum.all_reduce(network).rate
    assert all_reduce_rate(network.ranks, packing.rate) <= best * (1 + 1e-6)
    alone = best_order(network)
    assert alone is not None
    assert network.rate(hops(alone)) >= max(
        network.rate(hops(ring)) for ring, _ in packing.patterns
    ) * (1 - 1e-9)
    assert network.rate(hops(alone)) <= packing.rate * (1 + 1e-3)


@pytest.mark.parametrize("gpus", unlike_subsets(), ids=lambda gpus: "".join(map(str, gpus)))
def test_trees_are_optimal_on_every_kind_of_subset_of_a_dgx1(gpus):
    network = dgx1(gpus)

    check_trees(network, "all_reduce", 0, optimum.strength(network).rate)


def test_the_dgx1v_of_the_literature():
    """Trees 24/7 of a link, broadcasts 6, rings all 6 links of every GPU: two double ones, two
    single ones.
    """
    network = dgx1()

    assert all_reduce_trees(network).rate == pytest.approx(24 / 7, rel=1e-3)
    assert broadcast_trees(network, 5).rate == pytest.approx(6, rel=1e-3)
    assert reduce_trees(network, 5).rate == pytest.approx(6, rel=1e-3)
    assert all_gather_trees(network).rate == pytest.approx(6 / 7, rel=1e-3)
    assert sorted(share for _, share in ring_packing(network).patterns) == [1, 1, 2, 2]
    assert network.rate(hops(best_order(network))) == 2


def test_the_dgx1p_has_four_rings():
    assert [share for _, share in ring_packing(dgx1(double=1.0)).patterns] == [1, 1, 1, 1]


@pytest.mark.parametrize("n", [3, 4, 5, 6, 8, 16])
def test_rings_share_links_at_half_rate_where_no_set_of_whole_ones_uses_all(n):
    """The complete digraphs on 4 and 6 vertices have no Hamiltonian decomposition (Tillson 1980);
    shares do it.
    """
    lanes = {(u, v): 1.0 for u in range(n) for v in range(n) if u != v}
    network = direct_network([f"gpu{i}" for i in range(n)], lanes)

    assert ring_packing(network).rate == pytest.approx(n - 1, rel=1e-3)


@pytest.mark.parametrize("n", [4, 8, 12])
def test_broadcasts_of_a_complete_graph_take_a_tree_for_each_other_rank(n):
    lanes = {(u, v): 1.0 for u in range(n) for v in range(n) if u != v}
    packing = broadcast_trees(direct_network([f"gpu{i}" for i in range(n)], lanes), 2)

    assert packing.rate == pytest.approx(n - 1)
    assert {2} == {tree.hops for tree, _ in packing.patterns}
    assert len(packing.patterns) == n - 1


def test_there_may_be_no_ring():
    network = dgx1((0, 1, 4))

    assert ring_packing(network).patterns == ()
    assert best_order(network) is None


def test_the_best_order_leaves_out_a_slow_cable():
    """A square with a diagonal pair of slow links and one slow side."""
    sides = {(0, 1): 1.0, (1, 2): 4.0, (2, 3): 4.0, (3, 0): 4.0, (0, 2): 4.0, (1, 3): 4.0}
    network = direct_network("abcd", {**sides, **{(b, a): c for (a, b), c in sides.items()}})
    ring = best_order(network)

    assert network.rate(hops(ring)) == 4.0
    assert {0, 1} not in [set(hop) for hop in pairwise((*ring, ring[0]))]


def test_a_ring_through_several_boxes_enters_each_once():
    network = layout(load_topology("dgx1vx3")).network()

    for ring, _ in ring_packing(network).patterns:
        boxes = [rank // 8 for rank in (*ring, ring[0])]
        assert 3 == sum(a != b for a, b in pairwise(boxes))
    assert ring_packing(network).rate == pytest.approx(4 * 11.8e9)


@pytest.mark.parametrize("name", ["a100-pcie-8", "dgx1vx2"])
def test_what_is_staged_through_the_host_is_packed_too(name):
    """Every figure that a copy takes is an arc that trees and rings share, and no cut counts it."""
    topology = load_topology(name)
    network = layout(topology).network()
    loops = [arc for arc, (a, b, _) in enumerate(network.arcs) if a == b]
    packing = all_reduce_trees(network)

    assert loops
    assert network.symmetric
    check_fits(network, packing, lambda tree: tree.edges)
    check_fits(network, ring_packing(network), hops)
    for u, v in network.edges:
        route = topology.router.route(network.names[u], network.names[v]).links
        assert [network.arcs[arc][2] for arc in network.paths[u][v]] == [
            topology.links[i].bandwidth for i in route
        ]
    assert packing.rate <= optimum.all_gather(network).rate
    assert not set(loops) & set(optimum.all_gather(network).arcs)


def test_equal_networks_have_equal_packings():
    first, second = dgx1((0, 1, 2, 3, 5)), dgx1((0, 1, 2, 3, 5))
    before = all_reduce_trees(first)
    all_reduce_trees.cache_clear()

    assert before == all_reduce_trees(second)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("dgx1v", 5),
        ("full:16", 5),
        ("switch:16", 5),
        ("dgx1vx2", 5),
        ("dgx1vx8", 60),
        ("switch:64", 60),
    ],
)
def test_searches_are_quick(name, most):
    """Processor time of a search for trees and one for rings."""
    network = layout(load_topology(name)).network()
    for search in (all_reduce_trees, ring_packing):
        search.cache_clear()
        began = time.process_time()
        packing = search(network)

        assert time.process_time() - began < most
        assert packing.rate >= packing.bound * 0.999


def test_many_ranks_with_unlike_ways_have_the_bound_of_cuts():
    """A ring of 17 that is wide one way round and narrow the other: trees in both directions waste
    the wide one.
    """
    n = 17
    lanes = {(v, (v + 1) % n): 2.0 for v in range(n)} | {((v + 1) % n, v): 1.0 for v in range(n)}
    network = direct_network([f"gpu{i}" for i in range(n)], lanes)
    packing = all_reduce_trees(network)

    assert not network.symmetric
    assert packing.rate == pytest.approx(17 / 16, rel=1e-3)
    assert packing.bound == optimum.narrowest_cut(network) == 3.0
    assert packing.rate <= optimum.all_reduce(network).rate <= packing.bound


def test_a_one_way_ring_of_many_ranks_has_no_tree_in_both_directions():
    network = direct_network(
        [f"gpu{i}" for i in range(17)], {(v, (v + 1) % 17): 1.0 for v in range(17)}
    )

    with pytest.raises(StrategyError, match="no trees were found that span these 17 GPUs"):
        all_reduce_trees(network)


def test_a_switch_is_shared_by_all_trees():
    network = switched_network([f"gpu{i}" for i in range(8)], {})

    check_trees(network, "all_reduce", 0, 8 / 14)
    check_trees(network, "all_gather", 0, 8 / 7)
