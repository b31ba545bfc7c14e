"""Optima against figures that are known, and against answers found by trying everything."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from simreduce.planners.synthesis import optimum, switched_network
from simreduce.planners.synthesis.optimum import root_and_share
from tests.planners.synthesis.networks import (
    brute_all_gather,
    brute_strength,
    dgx1,
    digraphs,
    flow,
    graphs,
)
from tests.thorough import examples


def test_the_dgx1v_of_the_literature():
    """All-gather 7/6, six arborescences from every root, undirected trees 24/7."""
    network = dgx1()

    assert 8 / optimum.all_gather(network).rate == pytest.approx(7 / 6, rel=1e-15)
    assert [optimum.broadcast(network, root).rate for root in range(8)] == [6.0] * 8
    assert [optimum.reduce(network, root).rate for root in range(8)] == [6.0] * 8
    assert optimum.strength(network).rate == 24 / 7
    assert optimum.all_reduce(network).rate == 24 / 7
    assert optimum.scatter_then_gather(network) == pytest.approx(24 / 7, rel=1e-15)


def test_the_dgx1p_of_the_literature():
    network = dgx1(double=1.0)

    assert [optimum.broadcast(network, root).rate for root in range(8)] == [4.0] * 8
    assert optimum.all_reduce(network).rate == 16 / 7


def test_three_gpus_on_which_trees_beat_rings():
    network = dgx1((0, 2, 3))

    assert optimum.all_reduce(network).rate == 2.5
    assert optimum.broadcast(network, 0).rate == 3.0
    assert optimum.all_reduce(network).bottleneck(network) == "partition {gpu0} {gpu2} {gpu3}"


def test_bottlenecks_have_names():
    assert optimum.all_gather(dgx1()).bottleneck(dgx1()) == "cut {gpu0..gpu6}"
    assert optimum.reduce_scatter(dgx1()).bottleneck(dgx1()) == "cut into {gpu0..gpu6}"
    assert optimum.broadcast(dgx1(), 2).bottleneck(dgx1()) == "cut {gpu2}"


@pytest.mark.parametrize("n", [2, 3, 8, 16])
def test_on_one_switch_a_ring_is_best(n):
    """2(n-1)/n of the tensor through every port, however the trees are made."""
    network = switched_network([f"gpu{i}" for i in range(n)], {})

    assert optimum.all_reduce(network).rate == pytest.approx(n / (2 * (n - 1)))
    assert optimum.scatter_then_gather(network) == pytest.approx(n / (2 * (n - 1)))


@given(digraphs())
def test_cuts_are_the_narrowest_there_are(network):
    assert optimum.all_gather(network).rate == pytest.approx(brute_all_gather(network))
    for root in range(network.ranks):
        others = [v for v in range(network.ranks) if v != root]
        assert optimum.broadcast(network, root).rate == pytest.approx(
            min(flow(network, root, v) for v in others)
        )
        assert optimum.reduce(network, root).rate == pytest.approx(
            min(flow(network, v, root) for v in others)
        )


@given(digraphs())
def test_the_cut_that_is_named_is_the_one(network):
    best = optimum.all_gather(network)
    (side,) = best.parts

    assert best.rate == pytest.approx(
        network.ranks * sum(network.capacity[a] for a in best.arcs) / len(side)
    )


@given(graphs())
def test_the_strength_is_that_of_the_worst_partition(network):
    best = optimum.strength(network)
    joining = sum(network.capacity[arc] for arc in best.arcs) / 2

    assert best.rate == pytest.approx(brute_strength(network))
    assert best.rate == pytest.approx(joining / (len(best.parts) - 1))


@settings(deadline=None, max_examples=examples(40))
@given(graphs(5))
def test_the_programme_over_cuts_agrees_with_the_strength(network):
    assert root_and_share(network)[0] == pytest.approx(optimum.strength(network).rate)


@settings(deadline=None, max_examples=examples(40))
@given(digraphs(5))
def test_sharing_out_the_links_is_never_worse_than_first_scattering_then_gathering(network):
    assert optimum.all_reduce(network).rate >= optimum.scatter_then_gather(network) * (1 - 1e-6)


@pytest.mark.parametrize("ranks", [2, 8, 20])
def test_ports_bound_all_reduces_on_a_switch(ranks):
    """n ports of rate 1 send 2(n-1) tensors: n / (2(n-1)), which a reduce-scatter and an all-gather
    reach.
    """
    network = switched_network([f"gpu{i}" for i in range(ranks)], {})

    assert optimum.ports(network).rate == pytest.approx(ranks / (2 * (ranks - 1)), rel=1e-15)
    assert optimum.scatter_then_gather(network) == pytest.approx(
        optimum.ports(network).rate, rel=1e-15
    )
