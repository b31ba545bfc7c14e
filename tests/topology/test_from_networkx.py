"""Machines from networkx graphs: defaults, faults, and the way there and back."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest

import simreduce as sr
from simreduce.errors import TopologyError
from simreduce.topology import Topology, load_topology, route, shipped

CUBE = Topology.from_networkx(nx.hypercube_graph(3))


def test_a_bare_graph_is_a_machine_of_gpus_on_cables():
    assert CUBE.devices[:3] == ("gpu0.0.0", "gpu0.0.1", "gpu0.1.0")
    assert len(CUBE.links) == 24
    ring, same = load_topology("ring:5"), Topology.from_networkx(nx.cycle_graph(5))
    assert same.devices == ring.devices
    wire = route(ring, "gpu4", "gpu0")
    found = route(same, "gpu4", "gpu0")
    assert (found.bandwidth, found.latency) == (wire.bandwidth, wire.latency) == (25e9, 1e-6)
    assert found.holds_lane == wire.holds_lane
    with pytest.raises(TopologyError, match="GPUs do not forward"):
        route(same, "gpu0", "gpu2")


@pytest.mark.parametrize("spec", ["multi_ring", "halving_doubling", "trees"])
def test_plans_for_neighbours_run_on_a_bare_graph(spec):
    plan = sr.compile(spec, sr.load_workload("bytes:1MiB"), sr.layout(CUBE))

    assert not sr.verify(plan)
    assert sr.simulate(plan, CUBE, runtime="ideal").seconds > 0


def test_a_ring_in_the_order_of_a_cycle():
    ring = Topology.from_networkx(nx.cycle_graph(6))
    plan = sr.compile("ring", sr.load_workload("bytes:6MB"), sr.layout(ring))

    assert not sr.verify(plan)
    # 2 (n - 1) steps of a sixth each.
    assert sr.simulate(plan, ring, runtime="ideal").seconds == pytest.approx(
        10 * (1e-6 + 1e6 / 25e9)
    )


def test_a_graph_is_accepted_where_a_machine_is():
    setup = sr.Setup(nx.complete_graph(4), runtime="ideal")

    assert setup.topology == Topology.from_networkx(nx.complete_graph(4))


@pytest.mark.parametrize(
    "name",
    [name for name, _ in shipped()]
    + [
        "dgx1vx2,fabric=rail_only",
        "fat_tree:20,radix=4",
        "torus:3x3",
        "dragonfly:20,equal_cost=split",
    ],
)
def test_the_graph_of_a_machine_is_that_machine(name):
    machine = load_topology(name)

    for graph in (machine.graph, nx.MultiDiGraph(machine.graph)):
        back = Topology.from_networkx(graph)
        assert back == machine
        assert back.links == machine.links
        assert dict(back.nodes) == dict(machine.nodes)
        assert back.router.rule == machine.router.rule
        assert back.router.switching == machine.router.switching


def test_a_rule_goes_when_the_network_changes():
    tree = load_topology("fat_tree:16,radix=4")
    graph = nx.MultiDiGraph(tree.graph)
    for edge in graph.edges:
        graph.edges[edge]["bandwidth"] = graph.edges[edge]["nominal"] = "12.5 GB/s"
    slow = Topology.from_networkx(graph)
    assert slow.router.rule == tree.router.rule
    assert route(slow, "gpu0", "gpu9").bandwidth == 12.5e9

    graph.remove_node("spine0")
    less = Topology.from_networkx(graph, name="less")
    assert (less.name, less.router.rule) == ("less", None)
    assert "spine0" not in route(less, "gpu0", "gpu9").path


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("multiple", [False, True])
def test_every_class_of_graph_gives_the_same_machine(directed, multiple):
    graphs = {
        (False, False): nx.Graph, (False, True): nx.MultiGraph,
        (True, False): nx.DiGraph, (True, True): nx.MultiDiGraph,
    }  # fmt: skip
    graph = graphs[directed, multiple]()
    for a, b in [("a", "b"), ("b", "c")]:
        graph.add_edge(a, b, bandwidth=4e9, latency="2 us", lanes=2)
        if directed:
            graph.add_edge(b, a, bandwidth="4 GB/s", latency=2e-6, lanes=2)
    found = Topology.from_networkx(graph)

    assert [link.name for link in found.links] == ["a>b", "b>a", "b>c", "c>b"]
    assert {(link.bandwidth, link.latency, link.lanes) for link in found.links} == {(4e9, 2e-6, 2)}


def test_directions_may_differ_and_edges_may_be_parallel():
    graph = nx.MultiDiGraph()
    graph.add_edge("a", "b", bandwidth=1e9)
    graph.add_edge("b", "a", bandwidth=2e9)
    graph.add_edge("a", "b", link_class="nvlink2", lanes=2)
    graph.add_edge("b", "a", link_class="nvlink2", lanes=2)
    found = Topology.from_networkx(graph)

    assert [link.name for link in found.links] == ["a>b", "b>a", "a>b#1", "b>a#1"]
    assert [link.bandwidth for link in found.links[:2]] == [1e9, 2e9]
    assert found.links[2].nominal == 50e9
    assert found.links[2].holds_lane
    assert [found.links[i].link_class for i in route(found, "a", "b").links] == ["nvlink2"]


def test_kinds_and_switches():
    star = nx.star_graph(4)
    star.nodes[0].update(kind="switch", reduces=True)
    found = Topology.from_networkx(star)

    assert found.devices == ("gpu1", "gpu2", "gpu3", "gpu4")
    assert found.nodes["switch0"].machine == ""
    assert route(found, "gpu1", "gpu4").path == ("gpu1", "switch0", "gpu4")


def test_every_fault_is_told_at_once_with_its_place_and_the_nearest_spelling():
    graph = nx.Graph()
    graph.add_node("x", kind="gpuu", transit=3)
    graph.add_edge("gpu0", "gpu1", bandwith="3 GB/s", latency="fast")
    graph.add_edge("gpu0", "gpu 2", lanes=0)
    graph.add_edge("gpu1", "gpu1", link_class="nvlnk2")
    graph.add_edge("gpu1", "x", bandwidth=25)
    graph.add_edge("gpu0", "x", link_class="my link", bandwidth="1 GB/s", latency="1 us")
    with pytest.raises(TopologyError) as error:
        Topology.from_networkx(graph)

    text = str(error.value)
    for part in (
        "node 'x'.kind: unknown kind 'gpuu' (did you mean 'gpu'?)",
        "node 'x'.transit: must be true or false, got 3",
        "edge gpu0 - gpu1.bandwith: unknown key (did you mean 'bandwidth'?)",
        "edge gpu0 - gpu1.latency: 'fast' is not a time",
        "node 'gpu 2': must be text",
        "edge gpu1 - gpu1.latency: missing, as 'nvlnk2' is no known class (did you mean 'nvlink2'",
        "edge x - gpu0.link_class: 'my link' is not a name (1 to 255 letters",
        "edge gpu1 - gpu1: joins a node to itself",
        "edge x - gpu1.bandwidth: must be a bandwidth between 1 kB/s and 1 PB/s, got 25",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("graph", "fault"),
    [
        (nx.DiGraph([(0, 1)]), "has no edge of class 'cable' back"),
        (
            nx.Graph([(0, 1), (2, 3)]),
            r"'gpu2' \(and 1 more\) and 'gpu0' cannot reach each other: no links join them",
        ),
        (nx.Graph(), "0 GPUs"),
        (nx.Graph([(1, "gpu1")]), "would be named 'gpu1', as 1 is"),
        (nx.Graph([(0, 1)], equal_cost="hashd"), "equal_cost: unknown rule 'hashd' .*'hashed'"),
        (nx.Graph([(0, 1)], equal_cost=("hashed", -1)), "equal_cost: must be a whole number from"),
        (nx.Graph([(0, 1)], equal_cots="split"), "unknown key .did you mean 'equal_cost'"),
        (nx.Graph([(0, 1)], name=3), "graph: name: must be text, got 3"),
    ],
)
def test_graphs_that_are_no_machines(graph, fault):
    with pytest.raises(TopologyError, match=fault):
        Topology.from_networkx(graph)


def test_attributes_of_other_programs_are_ignored():
    graph = nx.grid_2d_graph(2, 2)
    nx.set_node_attributes(graph, {node: node for node in graph}, "pos")
    nx.set_edge_attributes(graph, 3, "weight")
    for attributes in (*(a for _, a in graph.nodes(data=True)), graph[0, 0][0, 1]):
        attributes.update(color="red", label="x", layer=1, length=2.0)
        attributes[7] = "no text"

    assert Topology.from_networkx(graph) == Topology.from_networkx(nx.grid_2d_graph(2, 2))


def test_labels_that_are_no_text_become_names():
    place = type("Place", (), {})
    for labels, names in (
        ((np.int64(0), np.int64(1)), ("gpu0", "gpu1")),
        (((0, (1, "a")), (0, (1, "b"))), ("gpu0.1.a", "gpu0.1.b")),
        ((0.5, 1.5), ("gpu0.5", "gpu1.5")),
        ((place(), place()), ("gpu0", "gpu1")),
        ((frozenset("ab"), place), ("gpu0", "gpu1")),
    ):
        assert Topology.from_networkx(nx.Graph([labels])).devices == names


def test_numbers_of_numpy_are_numbers():
    graph = nx.Graph()
    graph.add_node(0, memory_bandwidth=np.float32(2e9), transit=np.bool_(False))
    graph.add_edge(0, 1, bandwidth=np.float64(4e9), latency=np.int64(1), lanes=np.int64(2))
    found = Topology.from_networkx(graph)

    assert found.nodes["gpu0"].memory_bandwidth == 2e9
    assert [(k.bandwidth, k.latency, k.lanes) for k in found.links] == [(4e9, 1.0, 2)] * 2


@pytest.mark.parametrize("equal_cost", ["split", ("split", 0)])
def test_the_rule_for_equal_paths_is_an_attribute_or_an_argument(equal_cost):
    graph = nx.Graph([(0, 1)], equal_cost=equal_cost, name="mine")
    found = Topology.from_networkx(graph)

    assert (found.name, found.router.switching.choice) == ("mine", "split")
    assert Topology.from_networkx(nx.Graph([(0, 1)]), "mine", equal_cost="split") == found
    with pytest.raises(TopologyError, match="equal_cost: unknown rule 'spilt'"):
        Topology.from_networkx(graph, equal_cost="spilt")
    with pytest.raises(TopologyError, match="name: must be text, got 3"):
        Topology.from_networkx(graph, 3)


def test_no_graph():
    with pytest.raises(TypeError, match=r"must be a networkx Graph.*'dgx1v'"):
        Topology.from_networkx("dgx1v")


def test_the_python_interface_takes_graphs():
    cube = nx.hypercube_graph(3)
    plan = sr.compile("halving_doubling", "bytes:1MiB", cube)

    assert sr.simulate(plan, cube, "ideal").seconds == sr.simulate(plan, CUBE, "ideal").seconds


def test_a_caller_cannot_change_the_routes_of_a_topology_over_its_graph():
    box = load_topology("dgx1v")
    before = box.router.route("gpu0", "gpu4"), box.router.route("gpu0", "gpu5")
    with pytest.raises(nx.NetworkXError):
        box.graph.add_edge("gpu0", "gpu5")
    with pytest.raises(nx.NetworkXError):
        box.graph.remove_node("gpu4")
    for *_, attributes in box.graph.edges(data=True):
        attributes |= {"bandwidth": 1.0, "latency": 1.0, "link_class": "route"}
    for _, attributes in box.graph.nodes(data=True):
        attributes |= {"kind": "switch", "transit": True}
    fresh = load_topology("dgx1v")
    assert (box.router.route("gpu0", "gpu4"), box.router.route("gpu0", "gpu5")) == before
    assert all(
        box.router.route(a, b) == fresh.router.route(a, b)
        for a, b in itertools.permutations(box.devices, 2)
    )


def test_a_changed_copy_of_the_graph_is_another_machine():
    box = load_topology("dgx1v")
    changed = box.graph.copy()
    changed.remove_edges_from(
        [(a, b, k) for a, b, k in changed.edges if {a, b} == {"gpu0", "gpu4"}]
    )
    other = Topology.from_networkx(changed)
    assert len(other.router.route("gpu0", "gpu4").links) > 1
    assert len(box.router.route("gpu0", "gpu4").links) == 1
