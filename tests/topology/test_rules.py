"""Networks that have a rule for their routes: fat trees and tori, and many routes at once."""

from __future__ import annotations

import itertools
import math
import pickle

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import TopologyError
from simreduce.topology import Topology, load_topology, route
from tests.thorough import examples, slow


def test_a_fat_tree_has_the_ports_it_promises():
    tree = load_topology("fat_tree:1024,radix=32,oversubscription=2,bandwidth=12.5GB/s,latency=2us")

    kinds = {name.rstrip("0123456789"): 0 for name in tree.nodes}
    for name in tree.nodes:
        kinds[name.rstrip("0123456789")] += 1
    assert kinds == {"gpu": 1024, "cpu": 1, "leaf": 32, "spine": 16}
    assert len(tree.links) == 2 * (1025 + 32 * 16)
    assert {(link.bandwidth, link.latency) for link in tree.links} == {(12.5e9, 1e-6)}
    assert (
        tree.title == "1024 devices on a fat tree, 32 leaves of 32 and 16 spines, 12.5 GB/s, 2 us"
    )
    assert "leaves of 32 and 32 spines" in load_topology("fat_tree:64").title


@pytest.mark.parametrize(
    ("text", "leaves", "spines"),
    [
        ("fat_tree:1", 1, 0),
        ("fat_tree:8", 1, 0),
        ("fat_tree:33", 2, 32),
        ("fat_tree:16,radix=4", 4, 4),
        ("fat_tree:16,radix=4,oversubscription=4", 4, 1),
        ("fat_tree:16,radix=6,oversubscription=1.5", 3, 4),
        ("fat_tree:10,radix=2,oversubscription=0.5", 5, 4),
    ],
)
def test_leaves_and_spines(text, leaves, spines):
    names = [name for name, node in load_topology(text).nodes.items() if node.kind == "switch"]

    assert names == [*(f"leaf{i}" for i in range(leaves)), *(f"spine{i}" for i in range(spines))]


def test_traffic_takes_the_spine_of_its_destination():
    tree = load_topology("fat_tree:64,radix=8,oversubscription=2,latency=2us,equal_cost=first")

    for a, b in itertools.permutations(range(64), 2):
        middle = [f"leaf{a // 8}"] + (
            [f"spine{b % 4}", f"leaf{b // 8}"] if a // 8 != b // 8 else []
        )
        found = route(tree, f"gpu{a}", f"gpu{b}")
        assert found.path == (f"gpu{a}", *middle, f"gpu{b}")
        assert found.latency == (2e-6 if len(middle) == 1 else 4e-6)
    assert route(tree, "cpu0", "gpu0").path == ("cpu0", "leaf7", "spine0", "leaf0", "gpu0")
    assert route(tree, "gpu9", "cpu0").path == ("gpu9", "leaf1", "spine0", "leaf7", "cpu0")


@pytest.mark.parametrize(
    ("size", "radix", "over"), [(16, 4, 2), (12, 4, 1), (18, 6, 3), (16, 8, 4)]
)
def test_half_of_a_fat_tree_reaches_the_other_at_the_rate_of_its_up_links(size, radix, over):
    tree = load_topology(f"fat_tree:{size},radix={radix},oversubscription={over},bandwidth=1GB/s")
    graph = nx.DiGraph()
    for link in tree.links:
        graph.add_edge(link.source, link.target, capacity=link.bandwidth)
    half = size // radix // 2 * radix
    graph.add_edges_from([("left", f"gpu{i}") for i in range(half)])
    graph.add_edges_from([(f"gpu{i}", "right") for i in range(half, size)])

    assert nx.maximum_flow_value(graph, "left", "right") == pytest.approx(half / over * 1e9)


@pytest.mark.parametrize("shape", ["fat_tree:256,radix=16,oversubscription=2", "torus:8x8x4"])
def test_a_shuffle_moves_the_gpus_and_nothing_else(shape):
    plain, mixed, again, other = (
        load_topology(shape + tail) for tail in ("", ",shuffle=1", ",shuffle=1", ",shuffle=2")
    )

    assert mixed.devices == plain.devices
    assert mixed.digest == again.digest
    assert len({plain.digest, mixed.digest, other.digest}) == 3
    ports = [
        {link.target: link.source for link in each.links if "gpu" in link.source}
        for each in (plain, mixed)
    ]
    assert [link.target for link in plain.links[:512:2]] == [
        link.target for link in mixed.links[:512:2]
    ]
    assert sorted(ports[0]) == sorted(ports[1])
    seats = [int(link.source[3:]) for link in mixed.links[:512:2]]
    assert seats == np.random.default_rng(1).permutation(256).tolist()


def test_the_spine_of_a_shuffled_tree_is_that_of_the_place():
    tree = load_topology("fat_tree:64,radix=8,oversubscription=2,shuffle=5,equal_cost=first")
    place = {f"gpu{gpu}": i for i, gpu in enumerate(np.random.default_rng(5).permutation(64))}

    for a, b in itertools.permutations(tree.devices, 2):
        path = route(tree, a, b).path
        if len(path) == 5:
            assert path[1:4] == (
                f"leaf{place[a] // 8}",
                f"spine{place[b] % 4}",
                f"leaf{place[b] // 8}",
            )


@pytest.mark.parametrize(
    "sizes", [(8, 8), (4, 4, 4), (2, 3), (1, 5), (2, 2, 2), (3, 1, 2), (1, 1), (5, 4)]
)
def test_a_torus_has_a_cable_to_every_neighbour(sizes):
    torus = load_topology(f"torus:{'x'.join(map(str, sizes))},bandwidth=10GB/s")
    count = math.prod(sizes)

    between = {
        frozenset((k.source, k.target)) for k in torus.links if "router" in k.source + k.target
    }
    between = {pair for pair in between if all(name.startswith("router") for name in pair)}
    expected = set()
    for at in itertools.product(*map(range, sizes)):
        for d, size in enumerate(sizes):
            to = (*at[:d], (at[d] + 1) % size, *at[d + 1 :])
            expected |= {frozenset(number(sizes, each) for each in (at, to))} if size > 1 else set()
    assert between == {frozenset(f"router{i}" for i in pair) for pair in expected}
    assert len(torus.links) == 2 * (count + 1 + len(expected))
    degree = sum(min(size - 1, 2) for size in sizes)
    assert torus.links[0].bandwidth == max(degree, 1) * 10e9


def number(sizes: tuple[int, ...], at: tuple[int, ...]) -> int:
    return sum(x * math.prod(sizes[:d]) for d, x in enumerate(at))


@pytest.mark.parametrize("sizes", [(8, 8), (4, 3, 5), (2, 3), (1, 5), (2, 2, 2), (5, 4)])
def test_traffic_on_a_torus_goes_dimension_by_dimension_the_shorter_way(sizes):
    torus = load_topology(f"torus:{'x'.join(map(str, sizes))},latency=3us")

    places = [at[::-1] for at in itertools.product(*(range(size) for size in sizes[::-1]))]
    for a, b in itertools.permutations(places, 2):
        walk, at = [a], list(a)
        for d, size in enumerate(sizes):
            ahead = (b[d] - at[d]) % size
            step = 1 if 2 * ahead <= size else -1
            while at[d] != b[d]:
                at[d] = (at[d] + step) % size
                walk.append(tuple(at))
        found = route(torus, f"gpu{number(sizes, a)}", f"gpu{number(sizes, b)}")
        assert found.path[1:-1] == tuple(f"router{number(sizes, each)}" for each in walk)
        assert found.latency == pytest.approx((len(walk) - 1) * 3e-6)
    assert route(torus, "gpu0", "cpu0").path == ("gpu0", "router0", "cpu0")


@pytest.mark.parametrize("text", ["torus:6x5", "torus:3x4x2", "torus:8x1"])
def test_no_way_on_a_torus_is_longer_than_the_shortest(text):
    torus = load_topology(text)
    hops = dict(nx.all_pairs_shortest_path_length(torus.graph))

    for a, b in itertools.permutations([*torus.devices, "cpu0"], 2):
        assert len(route(torus, a, b).links) == hops[a][b]


TEXTS = [
    "ring:6",
    "full:5",
    "switch:9",
    "switch:4,reduce=yes",
    "fat_tree:20,radix=4,oversubscription=2,equal_cost=first",
    "fat_tree:23,radix=5,shuffle=7,equal_cost=first",
    "fat_tree:6",
    "torus:4x5",
    "torus:2x3x4,shuffle=2",
    "torus:1x2",
    "dgx1vx3",
    "dgx1vx3,fabric=fat_tree,radix=2,oversubscription=2",
    "dgx1p",
]


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=examples(200, usual=20), deadline=None)
@given(data=st.data())
def test_many_routes_at_once_are_the_single_ones(text, data):
    """From and to any nodes that have a route."""
    topology = load_topology(text)
    names = list(topology.nodes)
    drawn = data.draw(
        st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=30)
    )
    pairs = [pair for pair in drawn if reachable(topology, *pair)]
    index = topology.router.index
    many = topology.router.routes(
        *np.array([[index[a], index[b]] for a, b in pairs], np.int64).reshape(-1, 2).T
    )

    assert len(many.start) == len(pairs) + 1
    for i, (a, b) in enumerate(pairs):
        one = route(topology, a, b)
        assert tuple(many.links[many.start[i] : many.start[i + 1]].tolist()) == one.links
        assert many.holds_lane[i] == one.holds_lane


def reachable(topology: Topology, a: str, b: str) -> bool:
    try:
        route(topology, a, b)
    except TopologyError:
        return False
    return True


@pytest.mark.parametrize("text", TEXTS)
def test_every_route_is_a_path(text):
    topology = load_topology(text)

    for a, b in itertools.permutations([*topology.devices, *topology.hosts], 2):
        if not reachable(topology, a, b):
            continue
        found = route(topology, a, b)
        links = [topology.links[i] for i in found.links if not topology.links[i].is_toll]
        assert [a, *(link.target for link in links)] == list(found.path)
        assert [*(link.source for link in links), b] == list(found.path)
        assert len(set(found.path)) == len(found.path)
        assert all(topology.nodes[name].kind != "gpu" for name in found.path[1:-1])


@pytest.mark.parametrize("text", ["fat_tree:64,radix=8,oversubscription=2", "torus:4x4"])
def test_a_rule_outlives_scaling_and_pickling(text):
    topology = load_topology(text)

    for copy in (topology.scale(bandwidth=2), pickle.loads(pickle.dumps(topology))):  # noqa: S301 - our own
        assert copy.router.rule == topology.router.rule
        assert route(copy, "gpu0", "gpu13").path == route(topology, "gpu0", "gpu13").path


def test_no_route_among_many_is_told():
    ring = load_topology("ring:5")

    with pytest.raises(TopologyError, match=r"no route from 'gpu0' to 'gpu2'"):
        ring.router.routes(np.array([0, 0]), np.array([1, 2]))


def test_machines_on_a_fat_tree():
    """The NICs are its hosts, and traffic takes the spine of the NIC it goes to."""
    cluster = load_topology("dgx1vx4,fabric=fat_tree,radix=4,oversubscription=2,equal_cost=first")

    assert "4 x NVIDIA DGX-1" in cluster.title
    assert cluster.title.endswith("4 ib_edr ports each, on a fat tree, 4 leaves of 4 and 2 spines")
    for target, spine in (("gpu0", 0), ("gpu2", 1), ("gpu4", 0), ("gpu6", 1)):
        found = route(cluster, "n0.gpu0", f"n2.{target}")
        assert found.path[3:6] == ("leaf0", f"spine{spine}", "leaf2")
        assert found.path[0] == "n0.gpu0"
    home = route(cluster, "n0.mlx5_0", "n0.mlx5_2")
    assert "leaf0" not in home.path
    assert route(cluster, "n0.mlx5_0", "n3.mlx5_3").path == (
        "n0.mlx5_0",
        "leaf0",
        "spine1",
        "leaf3",
        "n3.mlx5_3",
    )
    shared = load_topology("dgx1vx4,fabric=fat_tree")
    assert route(shared, "n0.mlx5_0", "n3.mlx5_3").path == ("n0.mlx5_0", "leaf0", "n3.mlx5_3")


def test_a_switch_may_reduce():
    assert load_topology("switch:4,reduce=yes").nodes["switch0"].reduces
    assert not load_topology("switch:4,reduce=no").nodes["switch0"].reduces
    assert load_topology("switch:4,reduce=no").digest == load_topology("switch:4").digest
    assert load_topology("switch:4,reduce=yes").digest != load_topology("switch:4").digest
    tree = load_topology("fat_tree:8,radix=4,reduce=yes")
    assert {node.name for node in tree.nodes.values() if node.reduces} == {
        "leaf0", "leaf1", "spine0", "spine1", "spine2", "spine3"
    }  # fmt: skip


def test_a_switch_of_a_file_may_reduce(tmp_path):
    box = tmp_path / "box.toml"
    box.write_text(
        '[nodes.g]\nnames = ["a"]\nkind = "gpu"\n'
        '[nodes.s]\nnames = ["s"]\nkind = "nvswitch"\nreduces = true\n'
        '[links.nvlink2]\npairs = [["a", "s"]]'
    )

    assert {name: node.reduces for name, node in load_topology(str(box)).nodes.items()} == {
        "a": False,
        "s": True,
    }


DIGESTS = {
    "ring:8": "337e01970ef7",
    "full:8": "39b92b74b04a",
    "switch:1024": "4dc1b8329e80",
    "dgx1v": "e1f45983452f",
    "dgx1vx4": "24d67e711411",
    "fat_tree:64,radix=8,oversubscription=2,equal_cost=first": "c8014b86e12d",
    "fat_tree:64,shuffle=1,equal_cost=first": "a90f497b93ea",
    "torus:4x4x4": "816a567a0637",
}


@pytest.mark.parametrize("text", DIGESTS)
def test_digests_stand(text):
    """They name machines in results that people keep."""
    assert load_topology(text).digest == DIGESTS[text]


@pytest.mark.parametrize("text", ["switch:4096", "torus:16x16x16", *slow(["fat_tree:4096"])])
def test_thousands_of_gpus_make_no_graph(text):
    """It would take longer than all the rest, and nothing on the way to a simulation needs it."""
    topology = load_topology(text)
    ends = np.arange(4096)
    routes = topology.router.routes(ends, np.roll(ends, 1), bundled=True)

    assert len(routes.start) == 4097
    assert "graph" not in vars(topology)


@pytest.mark.parametrize("text", ["dgx1vx3", "dgx1px2", "dgx1vx1"])
def test_the_routes_of_equal_machines_are_those_of_the_first_two(text):
    """Found for them once, and moved to the others."""
    machine = load_topology(text)
    ends = [*machine.devices, *machine.hosts]
    pairs = list(itertools.product(ends, ends))
    place = machine.router.index
    source, target = (np.array([place[pair[end]] for pair in pairs]) for end in (0, 1))
    found = machine.router.routes(source, target)

    for i, pair in enumerate(pairs):
        assert (
            tuple(found.links[found.start[i] : found.start[i + 1]]) == route(machine, *pair).links
        )
    ends = machine.router.routes(np.array([place["switch0"]]), np.array([place[machine.hosts[0]]]))
    assert tuple(ends.links) == route(machine, "switch0", machine.hosts[0]).links
    again = pickle.loads(pickle.dumps(machine))  # noqa: S301 - our own
    assert again.router.rule == machine.router.rule
