"""Networks that differ in names and order have one canonical form."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.planners.layouts import layout
from simreduce.planners.synthesis import Network, direct_network, switched_network
from simreduce.planners.synthesis.packing import canonical
from simreduce.planners.synthesis.trees import PACKINGS
from simreduce.topology import load_topology
from tests.planners.synthesis.networks import dgx1, digraphs, graphs
from tests.thorough import examples


def relabel(network: Network, seed: int) -> Network:
    """The same network with its ranks and arcs in another order."""
    chance = np.random.default_rng(seed)
    order, arcs = chance.permutation(network.ranks), chance.permutation(len(network.arcs))
    new_arc = np.argsort(arcs)
    place = {int(rank): i for i, rank in enumerate(order)}
    return Network(
        names=tuple(f"device {i}" for i in range(len(network.names))),
        ranks=network.ranks,
        arcs=tuple(
            (place.get(a, a), place.get(b, b), rate)
            for a, b, rate in (network.arcs[arc] for arc in arcs)
        ),
        paths=tuple(
            tuple(tuple(int(new_arc[arc]) for arc in network.paths[u][v]) for v in order)
            for u in order
        ),
        tasks=(tuple(range(network.ranks)),),
    )


def form(network: Network) -> tuple[object, ...]:
    """What packings see."""
    known, _ = canonical(network)
    return known.ranks, known.paths, known.capacity


@given(st.one_of(digraphs(), graphs()), st.integers(0, 99))
def test_one_form_for_any_order(network, seed):
    assert form(network) == form(relabel(network, seed))


@pytest.mark.parametrize(
    "machine", ["dgx1v", "torus:4x4", "full:32", "switch:32", "a100-pcie-8", "dgx1vx2"]
)
def test_one_form_for_machines(machine):
    network = layout(load_topology(machine)).network()

    assert form(network) == form(relabel(network, 1)) == form(relabel(network, 2))
    assert form(network) == form(network.reverse())


def test_one_form_where_colours_tell_nothing():
    """Two triangles and a hexagon: in both every rank has two neighbours."""
    rings = [(0, 1, 2, 0), (3, 4, 5, 3)], [(0, 1, 2, 3, 4, 5, 0)]
    triangles, hexagon = (
        switched_network(
            "abcdef",
            {pair: 1.0 for ring in each for a, b in pairwise(ring) for pair in ((a, b), (b, a))},
        )
        for each in rings
    )

    assert form(triangles) == form(relabel(triangles, 3))
    assert form(hexagon) == form(relabel(hexagon, 3))
    assert form(triangles) != form(hexagon)


def test_the_root_comes_first():
    network = dgx1()
    known, order = canonical(network, 5)

    assert order[0] == 5
    assert sorted(order) == list(range(8))
    for u, v in known.edges:
        (arc,), (mine,) = network.paths[order[u]][order[v]], known.paths[u][v]
        assert network.arcs[arc][2] == known.arcs[mine][2]


def test_other_rates_have_another_form():
    lanes = {(a, b): 1.0 for a in range(3) for b in range(3) if a != b}

    assert form(direct_network("abc", lanes)) != form(direct_network("abc", {**lanes, (0, 1): 2.0}))


@pytest.mark.parametrize("collective", PACKINGS)
@settings(max_examples=examples(50, usual=5), deadline=None)
@given(network=digraphs(5), seed=st.integers(0, 99))
def test_packings_are_alike_in_any_order(collective, network, seed):
    other = relabel(network, seed)
    root = 0
    if collective in ("broadcast", "reduce"):
        root = int(np.argsort(np.random.default_rng(seed).permutation(network.ranks))[0])
    mine, theirs = PACKINGS[collective](network, 0), PACKINGS[collective](other, root)

    assert [share for _, share in mine.patterns] == [share for _, share in theirs.patterns]
    assert [tree.hops for tree, _ in mine.patterns] == [tree.hops for tree, _ in theirs.patterns]
