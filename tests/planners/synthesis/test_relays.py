"""All-to-alls over other ranks."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings

from simreduce.errors import StrategyError
from simreduce.planners.layouts import layout
from simreduce.planners.synthesis import Network, direct_network, switched_network
from simreduce.planners.synthesis.rings import all_to_all, all_to_all_paths, concurrent_flow
from simreduce.topology import load_topology
from tests.planners.synthesis.networks import dgx1, digraphs
from tests.thorough import examples


def check(network: Network) -> None:
    """Every pair gets the rate, along paths from one to the other, and no arc carries too much."""
    flow = concurrent_flow(network)
    load, given_ = Counter[int](), Counter[tuple[int, int]]()
    for path, share in flow.paths:
        assert all(a[1] == b[0] for a, b in pairwise(path))
        given_[path[0][0], path[-1][1]] += share
        for arc, times in network.load(path).items():
            load[arc] += share * times
    n = network.ranks

    assert len(given_) == n * (n - 1)
    assert all(rate == pytest.approx(flow.rate, rel=1e-5) for rate in given_.values())
    assert all(load[arc] <= rate * (1 + 1e-6) for arc, rate in enumerate(network.capacity))
    assert all(load[arc] >= network.capacity[arc] * (1 - 1e-5) for arc in flow.tight)


@settings(deadline=None, max_examples=examples(40))
@given(digraphs())
def test_flows_fit_and_fill_what_limits_them(network):
    check(network)


@pytest.mark.parametrize(
    ("network", "rate"),
    [
        (dgx1(), 3 / 8),
        (switched_network("abcd", {}), 1 / 3),
        (direct_network("abc", {(0, 1): 1.0, (1, 2): 1.0, (2, 0): 1.0}), 1 / 3),
    ],
    ids=["dgx1v", "switch", "one-way ring"],
)
def test_closed_forms(network, rate):
    """A DGX-1V: 8/3 of what one link takes for a part. A one-way ring of n: n (n - 1) / 2 each."""
    check(network)
    assert concurrent_flow(network).rate == pytest.approx(rate)
    assert all_to_all(network).rate == pytest.approx(rate * network.ranks)


@pytest.mark.parametrize("n", [4, 5, 6, 8])
def test_a_ring_takes_its_mean_distance(n):
    """Both ways round: the distances to all others, shared by two links."""
    lanes = {(v, (v + turn) % n): 1.0 for v in range(n) for turn in (1, -1)}
    distances = sum(min(d, n - d) for d in range(1, n))

    flow = concurrent_flow(direct_network([str(v) for v in range(n)], lanes))
    assert flow.rate == pytest.approx(2 / distances)


def test_paths_are_as_short_as_the_rate_allows():
    assert {1} == {len(path) for path, _ in concurrent_flow(switched_network("abcd", {})).paths}
    assert {1, 2} == {len(tree.down) for tree, _ in all_to_all_paths(dgx1()).patterns}


def test_too_many_flows_are_refused():
    with pytest.raises(StrategyError, match="relays are found for up to 20,000 flows"):
        concurrent_flow(layout(load_topology("switch:30")).network())
