"""Routes: GPUs forward nothing, the fewest hops win, and ties are broken by rule."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import TopologyError
from simreduce.topology import Cable, Node, Topology, build, load_topology, path_class, route


def machine(nodes: dict[str, str], cables: list[tuple[str, str, float, float]], box: str = "0") -> Topology:
    """A topology of named kinds and of (a, b, bandwidth, latency) cables."""
    return build(
        "test",
        "test",
        "test",
        [Node(name, kind, machine=box, transit=kind != "gpu") for name, kind in nodes.items()],
        [Cable(a, b, "wire", 1, bandwidth, bandwidth, latency, True) for a, b, bandwidth, latency in cables],
    )


@pytest.mark.parametrize("name", ["dgx1v", "dgx1p", "dgx1vx2", "full:5", "switch:5"])
def test_no_route_passes_through_a_gpu_and_every_one_adds_up(name):
    topology = load_topology(name)

    for a, b in itertools.permutations([*topology.devices, *topology.hosts], 2):
        found = route(topology, a, b)
        links = [topology.links[i] for i in found.links]
        assert [link.source for link in links] == list(found.path[:-1])
        assert [link.target for link in links] == list(found.path[1:])
        assert all(topology.nodes[name].kind != "gpu" for name in found.path[1:-1])
        assert found.bandwidth == min(link.bandwidth for link in links)
        assert found.latency == pytest.approx(sum(link.latency for link in links))
        assert found.holds_lane == all(link.holds_lane for link in links)


def test_a_route_to_itself_is_empty():
    found = route(load_topology("ring:2"), "gpu0", "gpu0")

    assert (found.links, found.latency, found.path) == ((), 0.0, ("gpu0",))


def test_gpus_that_only_other_gpus_join_have_no_route():
    ring = load_topology("ring:5")

    assert len(route(ring, "gpu0", "gpu4").links) == 1
    with pytest.raises(TopologyError, match=r"'gpu0' to 'gpu2'.*GPUs do not forward"):
        route(ring, "gpu0", "gpu2")
    assert path_class(ring, "gpu0", "gpu2") == "-"


def test_an_unknown_end_is_named_with_its_nearest():
    with pytest.raises(TopologyError, match=r"'gpu9' \(did you mean 'gpu"):
        route(load_topology("dgx1v"), "gpu0", "gpu9")


def test_a_direct_link_wins_and_the_widest_of_parallel_ones():
    topology = build(
        "t",
        "t",
        "t",
        [Node("a", "gpu"), Node("b", "gpu")],
        [Cable("a", "b", "slow", 1, 1e9, 1e9, 1e-6, True), Cable("a", "b", "fast", 1, 2e9, 2e9, 9e-6, True)],
    )

    assert [topology.links[i].link_class for i in route(topology, "a", "b").links] == ["fast"]
    assert [link.name for link in topology.links] == ["a>b", "b>a", "a>b#1", "b>a#1"]


KINDS = {"a": "gpu", "b": "gpu", "s1": "switch", "s2": "switch", "s10": "switch"}


def via(**middles: tuple[float, float]) -> list[tuple[str, str, float, float]]:
    return [(end, middle, *figures) for middle, figures in middles.items() for end in "ab"]


@pytest.mark.parametrize(
    ("cables", "middle"),
    [
        (via(s1=(1e9, 1e-6), s2=(2e9, 5e-6)), "s2"),
        (via(s1=(1e9, 2e-6), s2=(1e9, 1e-6)), "s2"),
        (via(s10=(1e9, 1e-6), s2=(1e9, 1e-6)), "s2"),
    ],
    ids=["bandwidth", "latency", "natural order"],
)
def test_ties(cables, middle):
    assert route(machine(KINDS, cables), "a", "b").path == ("a", middle, "b")


def test_the_tie_break_looks_at_whole_paths():
    # The widest way to `m` is the slow one, but behind a narrow last link both are as wide and the quick one wins.
    kinds = {"a": "gpu", "b": "gpu", "wide": "switch", "quick": "switch", "m": "switch"}
    cables = [
        ("a", "wide", 9e9, 5e-6),
        ("a", "quick", 2e9, 1e-6),
        ("wide", "m", 9e9, 5e-6),
        ("quick", "m", 2e9, 1e-6),
        ("m", "b", 1e9, 1e-6),
    ]

    assert route(machine(kinds, cables), "a", "b").path == ("a", "quick", "m", "b")


def test_traffic_of_one_machine_stays_in_it():
    pair = load_topology("dgx1vx2")

    # Out of one NIC and in at the other would be fewer hops.
    assert route(pair, "n0.gpu0", "n0.mlx5_2").path == (
        "n0.gpu0",
        "n0.plx0",
        "n0.cpu0",
        "n0.cpu1",
        "n0.plx2",
        "n0.mlx5_2",
    )
    crossing = route(pair, "n0.gpu0", "n1.gpu5")
    assert [name for name in crossing.path if "gpu" not in name] == [
        "n0.plx0",
        "n0.mlx5_0",
        "switch0",
        "n1.mlx5_2",
        "n1.plx2",
    ]
    assert not crossing.holds_lane
    assert path_class(pair, "n0.gpu0", "n1.gpu0") == "NET"


def test_a_node_without_transit_is_an_end_only():
    ring = load_topology("ring:4")

    assert route(ring, "gpu0", "cpu0").path == ("gpu0", "cpu0")
    with pytest.raises(TopologyError):
        route(ring, "gpu1", "gpu3")


@st.composite
def fabrics(draw):
    """Random machines of up to 4 GPUs and 5 switches, with few distinct figures so that ties are common."""
    names = {f"gpu{i}": "gpu" for i in range(draw(st.integers(2, 4)))}
    names |= {f"s{i}": "switch" for i in range(draw(st.integers(1, 5)))}
    pairs = list(itertools.combinations(names, 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=len(pairs)))
    figures = st.tuples(st.sampled_from([1e9, 2e9]), st.sampled_from([1e-6, 3e-6]))
    return machine(names, [(a, b, *draw(figures)) for a, b in chosen])


@settings(max_examples=200, deadline=None)
@given(fabrics())
def test_routes_are_the_best_of_all_simple_paths(topology):
    for a, b in itertools.permutations(topology.devices, 2):
        inner = [name for name, node in topology.nodes.items() if node.kind != "gpu" or name in (a, b)]
        paths = list(nx.all_simple_paths(nx.DiGraph(topology.graph.subgraph(inner)), a, b))
        if not paths:
            with pytest.raises(TopologyError):
                route(topology, a, b)
            continue
        assert route(topology, a, b).path == tuple(min(paths, key=lambda path: merit(topology, path)))


def merit(topology: Topology, path: list[str]) -> tuple[object, ...]:
    links = [topology.graph.get_edge_data(*hop) for hop in itertools.pairwise(path)]
    links = [next(iter(parallel.values()))["link"] for parallel in links]
    micros = sum(round(link.latency * 1e6) for link in links)
    return len(path), -min(link.bandwidth for link in links), micros, path


def test_a_large_switch_routes_quickly():
    topology = load_topology("switch:1024")
    devices = topology.devices

    routes = [route(topology, a, b) for a, b in itertools.pairwise(devices)]

    assert {found.latency for found in routes} == {1e-6}
    assert route(topology, "gpu0", "gpu1") is routes[0]
