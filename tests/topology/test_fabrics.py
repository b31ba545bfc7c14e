"""Fat trees of three levels, dragonflies and rails: their counts, their cuts and their routes."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from simreduce.errors import TopologyError
from simreduce.topology import Topology, load_topology, route
from simreduce.topology.graph import assemble
from simreduce.topology.importers.parts import model_named
from simreduce.topology.importers.topo_m import read_topo_m
from simreduce.topology.machine_files import to_toml
from tests.thorough import examples


def kinds(topology: Topology) -> Counter[str]:
    """How many switches there are of each name."""
    return Counter(
        name.rstrip("0123456789") for name, node in topology.nodes.items() if node.kind == "switch"
    )


def between_switches(topology: Topology) -> int:
    """Cables."""
    both = [
        k
        for k in topology.links
        if {topology.nodes[n].kind for n in (k.source, k.target)} == {"switch"}
    ]
    return len(both) // 2


def cut(topology: Topology, left: list[str], right: list[str]) -> float:
    """The most that the one devices can send to the others, by networkx, in cables of 1 GB/s."""
    graph = nx.DiGraph()
    for link in topology.links:
        graph.add_edge(link.source, link.target, capacity=link.bandwidth + graph.get_edge_data(
            link.source, link.target, {"capacity": 0.0})["capacity"])  # fmt: skip
    graph.add_edges_from([("left", name) for name in left])
    graph.add_edges_from([(name, "right") for name in right])
    return nx.maximum_flow_value(graph, "left", "right") / 1e9


def searched(topology: Topology) -> Topology:
    """The same without a rule for its routes."""
    return assemble(topology.name, "", "", topology.nodes.values(), topology.links)


def check_routes(topology: Topology, pairs) -> None:
    """Each is a path of links from end to end, no node twice, no GPU in transit; a sample is the
    same one by one.
    """
    pairs = list(pairs)
    index = topology.router.index
    many = topology.router.routes(*np.array([[index[a], index[b]] for a, b in pairs], np.int64).T)
    rows = [many.links[i:j].tolist() for i, j in itertools.pairwise(many.start)]
    for (a, b), row in zip(pairs, rows, strict=True):
        wires = [link for link in map(topology.links.__getitem__, row) if not link.is_toll]
        path = [a, *(link.target for link in wires)]
        assert [*(link.source for link in wires), b] == path
        assert len(set(path)) == len(path)
        assert all(topology.nodes[name].kind != "gpu" for name in path[1:-1])
    for i in range(0, len(pairs), max(len(pairs) // 50, 1)):
        found = route(topology, *pairs[i])
        assert found.links == tuple(rows[i])
        wires = [topology.links[link] for link in rows[i] if not topology.links[link].is_toll]
        assert found.path == (pairs[i][0], *(link.target for link in wires))


# Fat trees of three levels.


@pytest.mark.parametrize("k", [2, 4, 6, 8, 16])
def test_a_full_tree_is_that_of_al_fares(k):
    """k^3/4 hosts on 5 k^2/4 switches: k^2/2 leaves, k^2/2 spines and k^2/4 cores, each with k
    cables.
    """
    hosts = k**3 // 4
    tree = load_topology(f"fat_tree:{hosts},levels=3,radix={k}")

    assert kinds(tree) == {"leaf": k * k // 2, "spine": k * k // 2, "core": k * k // 4}
    assert between_switches(tree) == k**3 // 2
    degree = Counter(link.source for link in tree.links if link.target != "cpu0")
    assert {degree[name] for name, node in tree.nodes.items() if node.kind == "switch"} == {k}
    assert load_topology(f"fat_tree:{hosts},levels=3").digest == tree.digest
    with pytest.raises(
        TopologyError, match=f"with {k} ports hold {hosts} hosts, and here are {hosts + 1}"
    ):
        load_topology(f"fat_tree:{hosts + 1},levels=3,radix={k}")


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), over=st.integers(1, 3), up=st.integers(1, 4))
def test_a_tree_that_is_not_full_has_what_its_hosts_need(data, over, up):
    k = up * (1 + over)
    assume(k % 2 == 0)
    down = k - up
    hosts = data.draw(st.integers(1, min(down * k * k // 2, 300)))
    leaves = math.ceil(hosts / down)
    pods = data.draw(st.none() | st.integers(math.ceil(leaves / (k // 2)), min(k, leaves)))
    text = f"fat_tree:{hosts},levels=3,radix={k},oversubscription={over},equal_cost=first" + (
        f",pods={pods}" if pods else ""
    )
    tree = load_topology(text)

    pod = math.ceil(leaves / pods) if pods else k // 2
    many = pods or math.ceil(leaves / pod)
    expected = {
        "leaf": leaves,
        "spine": many * up if leaves > 1 else 0,
        "core": up * (k // 2) if many > 1 else 0,
    }
    assert kinds(tree) == {name: count for name, count in expected.items() if count}
    cables = leaves * up * (leaves > 1) + many * up * (k // 2) * (many > 1)
    assert between_switches(tree) == cables
    assert len(tree.links) == 2 * (hosts + 1 + cables)
    above = [
        {k.target for k in tree.links if k.source == f"leaf{i}" and k.target.startswith("spine")}
        for i in range(leaves)
    ]
    sizes = [len(list(alike)) for _, alike in itertools.groupby(above)]
    assert len(sizes) == len({frozenset(spines) for spines in above}) == many
    assert max(sizes) <= pod
    assert max(sizes) - min(sizes) <= 1 or not pods
    ends = [*tree.devices, "cpu0"]
    check_routes(
        tree,
        [data.draw(st.tuples(st.sampled_from(ends), st.sampled_from(ends))) for _ in range(10)],
    )


@pytest.mark.parametrize("fabric", ["fat_tree:10,", "dgx1vx3,fabric=fat_tree,nic=ib_hdr,"])
def test_a_tree_has_the_pods_that_it_is_asked_for(fabric):
    """Five leaves, or six, in four pods: two leaves in the first, or the first two, and one in each
    of the others.
    """
    tree = load_topology(f"{fabric}levels=3,radix=4,pods=4,equal_cost=first")

    assert "in 4 pods of 2 spines" in tree.title
    assert kinds(tree)["spine"] == 4 * 2
    under = Counter(
        k.target for k in tree.links if k.source.startswith("leaf") and k.target.startswith("spine")
    )
    large = kinds(tree)["leaf"] - 4
    assert [under[f"spine{i}"] for i in range(8)] == [2] * 2 * large + [1] * 2 * (4 - large)
    check_routes(tree, itertools.permutations(tree.devices[:10] + tree.devices[-2:], 2))


@pytest.mark.parametrize(
    ("k", "over", "pods"), [(4, 1, 4), (4, 1, 2), (6, 2, 4), (6, 1, 2), (8, 3, 2)]
)
def test_half_of_the_pods_reach_the_others_at_the_rate_of_the_up_links(k, over, pods):
    down = k * over // (1 + over)
    hosts = down * (k // 2) * pods
    tree = load_topology(
        f"fat_tree:{hosts},levels=3,radix={k},oversubscription={over},bandwidth=1GB/s"
    )

    halves = tree.devices[: hosts // 2], tree.devices[hosts // 2 :]
    assert cut(tree, *halves) == pytest.approx(hosts / 2 / over)


def test_a_destination_has_one_spine_and_one_core():
    """Spine d mod 2 of a pod, core d / 2 mod 2 of that spine."""
    tree = load_topology("fat_tree:16,levels=3,radix=4,latency=2us,equal_cost=first")

    for a, b in itertools.permutations(range(16), 2):
        path, spine = route(tree, f"gpu{a}", f"gpu{b}").path[1:-1], b % 2
        leaves = (f"leaf{a // 2}", f"leaf{b // 2}")
        if a // 2 == b // 2:
            assert path == leaves[:1]
        elif a // 4 == b // 4:
            assert path == (leaves[0], f"spine{a // 4 * 2 + spine}", leaves[1])
        else:
            up, down = (f"spine{end // 4 * 2 + spine}" for end in (a, b))
            assert path == (leaves[0], up, f"core{2 * spine + b // 2 % 2}", down, leaves[1])
        assert route(tree, f"gpu{a}", f"gpu{b}").latency == pytest.approx((len(path) + 1) * 1e-6)


def test_shifts_share_no_cable_in_a_full_tree():
    """What D-mod-k is for: when all hosts send to the i-th next one, every cable carries one of
    them (Zahavi 2012).
    """
    tree = load_topology("fat_tree:128,levels=3,radix=8,equal_cost=first")
    hosts = np.arange(128)

    for shift in (1, 5, 16, 64, 127):
        links = tree.router.routes(hosts, np.roll(hosts, -shift)).links
        assert np.bincount(links).max() == 1


# Dragonflies.


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), p=st.integers(1, 3), a=st.integers(1, 5), h=st.integers(1, 3))
def test_a_dragonfly_has_what_its_letters_say(data, p, a, h):
    g = data.draw(st.integers(1, a * h + 1))
    hosts = data.draw(st.integers(max(p * a * (g - 1), 0) + 1, p * a * g))
    fly = load_topology(
        f"dragonfly:{hosts},p={p},a={a},h={h},equal_cost=first"
        + data.draw(st.sampled_from(["", f",g={g}"]))
    )

    parallel = a * h // (g - 1) if g > 1 else 0
    assert kinds(fly) == {"router": a * g}
    cables = g * a * (a - 1) // 2 + parallel * g * (g - 1) // 2
    assert between_switches(fly) == cables
    assert len(fly.links) == 2 * (hosts + 1 + cables)
    # No router has more global cables than h, and every two groups share as many.
    groups: Counter[tuple[int, int]] = Counter()
    ends: Counter[str] = Counter()
    for link in fly.links:
        if "router" in link.source and "router" in link.target:
            one, other = (int(name[6:]) // a for name in (link.source, link.target))
            if one != other:
                groups[one, other] += 1
                ends[link.source] += 1
    assert groups == dict.fromkeys(itertools.permutations(range(g), 2), parallel)
    assert max(ends.values(), default=0) <= h
    assert max(Counter(k.source for k in fly.links if "gpu" in k.target).values()) <= p
    names = [*fly.devices, "cpu0"]
    check_routes(
        fly,
        [data.draw(st.tuples(st.sampled_from(names), st.sampled_from(names))) for _ in range(10)],
    )


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("dragonfly:1", (1, 2, 1)),
        ("dragonfly:7", (2, 4, 1)),
        ("dragonfly:9", (2, 4, 2)),
        ("dragonfly:72", (2, 4, 9)),
        ("dragonfly:1024", (4, 8, 32)),
        ("dragonfly:1056", (4, 8, 33)),
        ("dragonfly:1057", (5, 10, 22)),
        ("dragonfly:100,p=4", (4, 8, 4)),
        ("dragonfly:100,a=8", (4, 8, 4)),
        ("dragonfly:100,h=4", (4, 8, 4)),
        ("dragonfly:72,g=3", (4, 8, 3)),
    ],
)
def test_a_dragonfly_is_balanced_and_has_the_groups_it_needs(text, letters):
    """(p, a, g); 1,056 hosts are what p = 4 holds at most, and three groups of p = 3 hold 54."""
    title = load_topology(text).title
    p, a, g = letters

    ends = ["s" * (count > 1) for count in letters]
    assert f"{g} group{ends[2]} of {a} router{ends[1]} with {p} host port{ends[0]}" in title


def test_traffic_takes_one_global_cable_at_most():
    fly = load_topology("dragonfly:42,p=2,a=3,h=2,latency=2us")

    def group(name: str) -> int:
        return int(name.removeprefix("router")) // 3

    for a, b in itertools.permutations(range(42), 2):
        found = route(fly, f"gpu{a}", f"gpu{b}")
        routers = found.path[1:-1]
        assert (routers[0], routers[-1]) == (f"router{a // 2}", f"router{b // 2}")
        assert len(routers) <= 4
        jumps = [group(x) != group(y) for x, y in itertools.pairwise(routers)]
        assert sum(jumps) == (group(routers[0]) != group(routers[-1]))
        assert len(routers) < 4 or jumps == [False, True, False]
        assert found.latency == pytest.approx((len(routers) + 1) * 1e-6)


def test_parallel_global_cables_share_the_destinations():
    fly = load_topology("dragonfly:16,p=2,a=4,h=2,g=2")

    used = {
        hop
        for a, b in itertools.product(range(8), range(8, 16))
        for hop in itertools.pairwise(route(fly, f"gpu{a}", f"gpu{b}").path[1:-1])
        if int(hop[0][6:]) // 4 != int(hop[1][6:]) // 4
    }
    # 8 cables between two groups of 4 routers with 2 each, and each of 8 destinations has its own,
    # so each end two.
    assert len(used) == 4
    assert {source for source, _ in used} == {f"router{i}" for i in range(4)}
    assert Counter(
        k.name.split("#")[0] for k in fly.links if k.source == "router0" and k.target == "router4"
    ) == {"router0>router4": 2}


@pytest.mark.parametrize(
    ("p", "a", "h", "g"),
    [
        (1, 2, 1, 2),
        (1, 2, 1, 3),
        (2, 4, 2, 8),
        (2, 4, 2, 9),
        (2, 4, 2, 4),
        (1, 4, 4, 4),
        (1, 4, 4, 5),
        (3, 4, 1, 5),
    ],
)
def test_half_of_the_groups_reach_the_others_over_the_global_cables(p, a, h, g):
    """floor(g^2/4) pairs of groups, each with its cables, or all hosts of half of the groups when
    these are fewer.
    """
    hosts, less = p * a * g, p * a * (g // 2)
    fly = load_topology(f"dragonfly:{hosts},p={p},a={a},h={h},g={g},bandwidth=1GB/s")

    expected = min(a * h // (g - 1) * (g * g // 4), less)
    assert cut(fly, list(fly.devices[:less]), list(fly.devices[less:])) == pytest.approx(expected)


# Tori.


@pytest.mark.parametrize(
    ("sizes", "cables"),
    [((4, 4), 8), ((4, 6), 8), ((2, 4), 4), ((4, 4, 4), 32), ((3, 4, 6), 24), ((2, 2, 2), 4)],
)
def test_half_of_a_torus_reaches_the_other_over_two_faces(sizes, cables):
    """2 n / s cables across a dimension of even size s, of which there is only one face where s =
    2; the last is cut.
    """
    torus = load_topology(f"torus:{'x'.join(map(str, sizes))},bandwidth=1GB/s")
    half = len(torus.devices) // 2

    assert cut(torus, list(torus.devices[:half]), list(torus.devices[half:])) == pytest.approx(
        cables
    )


# All of them.


@pytest.mark.parametrize(
    "text",
    [
        "switch:9",
        "fat_tree:20,radix=4,oversubscription=2",
        "fat_tree:14,levels=3,radix=4",
        "fat_tree:30,levels=3,radix=6,oversubscription=2",
        "dragonfly:20",
        "dragonfly:18,p=3,a=2,h=3",
        "torus:3x3x3",
        "torus:5x3",
    ],
)
def test_a_rule_gives_what_a_search_finds_where_there_is_one_shortest_path(text):
    """A dragonfly's rule may be longer: it takes one global cable where the shortest path may take
    two.
    """
    topology = load_topology(text)
    plain = searched(topology)
    graph = nx.DiGraph(topology.graph)
    compared = 0
    for a, b in itertools.permutations([*topology.devices, "cpu0"], 2):
        ways = list(itertools.islice(nx.all_shortest_paths(graph, a, b), 2))
        found = route(topology, a, b).path
        if "dragonfly" not in text:
            assert len(found) == len(ways[0])
        if len(ways) == 1 and len(found) == len(ways[0]):
            assert route(plain, a, b).path == found
            compared += 1
    assert compared > len(topology.devices)


FABRICS = [
    "fabric=switch",
    "fabric=fat_tree,radix=4",
    "fabric=fat_tree,radix=3,oversubscription=3",
    "fabric=fat_tree,levels=3",
    "fabric=fat_tree,levels=3,radix=6,oversubscription=2",
    "fabric=rail_optimised",
    "fabric=rail_optimised,unit=2",
    "fabric=rail_optimised,unit=2,oversubscription=2",
    "fabric=rail_optimised,unit=2,levels=3",
    "fabric=rail_only",
    "fabric=dragonfly",
    "fabric=dragonfly,p=3,a=2,h=4",
    "fabric=torus,dims=5x1",
]


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("machine", ["dgx1v", "dgx-h100", "polaris"])
def test_every_pair_of_a_small_cluster_has_a_way(machine, fabric):
    """Also between hosts and NICs, and the same one by one and at once."""
    cluster = load_topology(f"{machine}x5,{fabric},equal_cost=first")
    nics = [node.name for node in cluster.nodes.values() if node.kind == "nic"]

    check_routes(
        cluster, itertools.permutations([*cluster.devices, *cluster.hosts[:3], *nics[::3]], 2)
    )
    for a, b in itertools.product(cluster.devices[:3], cluster.devices[1:]):
        machines = [cluster.nodes[name].machine for name in route(cluster, a, b).path]
        met = [machine for machine, _ in itertools.groupby(m for m in machines if m)]
        assert met == list(dict.fromkeys(cluster.nodes[end].machine for end in (a, b)))


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_cluster_survives_pickling_and_scaling(fabric):
    cluster = load_topology(f"dgx1vx5,{fabric}")

    for copy in (cluster.scale(bandwidth=2), pickle.loads(pickle.dumps(cluster))):  # noqa: S301 - our own
        assert copy.router.rule == cluster.router.rule
        assert route(copy, "n1.gpu0", "n4.gpu7").path == route(cluster, "n1.gpu0", "n4.gpu7").path


@pytest.mark.parametrize(
    "fabric", ["fabric=fat_tree,radix=4", "fabric=rail_optimised,unit=2", "fabric=dragonfly"]
)
def test_inside_the_machines_routes_are_those_that_a_search_finds(fabric):
    """Every GPU of a DGX H100 has a NIC of its own, so that nothing is left to choose there."""
    cluster = load_topology(f"dgx-h100x3,{fabric}")
    plain = searched(cluster)

    def inside(path):
        return [name for name in path if cluster.nodes[name].kind != "switch"]

    for a, b in itertools.permutations(cluster.devices[::3], 2):
        if fabric.startswith("fabric=rail") and int(a[-1]) % 8 != int(b[-1]) % 8 and a[:2] != b[:2]:
            continue  # as long over a CPU as over a spine: a tie
        assert inside(route(cluster, a, b).path) == inside(route(plain, a, b).path)


# Rails.


@settings(max_examples=examples(250), deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 3))
def test_leaf_i_of_a_unit_has_the_ith_nics(machines, unit, over):
    cluster = load_topology(
        f"dgx1vx{machines},fabric=rail_optimised,unit={unit * over},oversubscription={over}"
    )

    units = math.ceil(machines / (unit * over))
    assert kinds(cluster) == {"leaf": 4 * units, "spine": unit}
    assert between_switches(cluster) == 4 * units * unit
    leaf = {
        k.source: k.target
        for k in cluster.links
        if k.target.startswith("leaf") and "mlx" in k.source
    }
    assert leaf == {
        f"n{m}.mlx5_{i}": f"leaf{m // (unit * over) * 4 + i}"
        for m in range(machines)
        for i in range(4)
    }


def test_a_superpod():
    """127 to 128 DGX H100 in 4 scalable units: 32 leaves of 64 ports, half of them up (NVIDIA's
    reference architecture).
    """
    pod = load_topology("dgx-h100x128,fabric=rail_optimised,nic=ib_ndr,equal_cost=first")

    assert kinds(pod) == {"leaf": 32, "spine": 32}
    assert set(Counter(k.source for k in pod.links if k.source.startswith("leaf")).values()) == {64}
    same = route(pod, "n0.gpu3", "n31.gpu3")
    assert [name for name in same.path if "leaf" in name or "spine" in name] == ["leaf3"]
    assert same.path[2:-2] == ("n0.mlx5_3", "leaf3", "n31.mlx5_3")
    away = route(pod, "n0.gpu3", "n32.gpu3").path
    assert away[3:6] == ("leaf3", "spine0", "leaf11")
    cross = route(pod, "n0.gpu3", "n1.gpu5").path
    assert cross[2:-2] == ("n0.mlx5_3", "leaf3", "spine1", "leaf5", "n1.mlx5_5")


def test_bisection_of_rails():
    cluster = load_topology("dgx1vx8,fabric=rail_optimised,unit=2,oversubscription=2")
    rate = {k.bandwidth for k in cluster.links if k.link_class == "ib_edr"}.pop()
    nics = [f"n{m}.mlx5_{i}" for m in range(8) for i in range(4)]
    network = assemble(
        "",
        "",
        "",
        [n for n in cluster.nodes.values() if n.kind in ("nic", "switch")],
        [k for k in cluster.links if k.link_class == "ib_edr"],
    )

    assert cut(network, nics[:16], nics[16:]) * 1e9 == pytest.approx(4 * 8 / 2 / 2 * rate)


def test_rails_alone_are_crossed_inside_the_machine():
    """Over PCIe and the host of the sender, to the NIC on the rail of the receiver."""
    cluster = load_topology("dgx-h100x4,fabric=rail_only,nic=ib_ndr")

    assert kinds(cluster) == {"leaf": 8}
    assert between_switches(cluster) == 0
    assert "8 rails, each a switch of its own" in cluster.title
    assert route(cluster, "n0.gpu2", "n3.gpu2").path[2:-2] == ("n0.mlx5_2", "leaf2", "n3.mlx5_2")
    assert route(cluster, "n0.gpu2", "n3.gpu1").path == (
        "n0.gpu2",
        "n0.pex2",
        "n0.cpu0",
        "n0.pex1",
        "n0.mlx5_1",
        "leaf1",
        "n3.mlx5_1",
        "n3.pex1",
        "n3.gpu1",
    )
    for a, b in itertools.permutations(cluster.devices, 2):
        path = route(cluster, a, b).path
        leaf = [name for name in path if name.startswith("leaf")]
        assert leaf == ([] if a[:2] == b[:2] else [f"leaf{b[-1]}"])


def test_boards_that_only_nvlink_joins_have_rails_of_their_own():
    """A GB200 NVL72 is 18 trays of four NICs: four rails, of which a leaf of 32 has the trays 0 to
    31 of two racks.
    """
    racks = load_topology("gb200-nvl72x2,fabric=rail_optimised")
    assert "on 4 rails, 8 leaves of 32" in racks.title
    for gpu in range(0, 72, 5):
        way = route(racks, "n0.gpu0", f"n1.gpu{gpu}").path
        second = 18 + gpu // 4 >= 32
        assert way[3] == "leaf0"
        assert way[-4] == f"leaf{gpu % 4 + 4 * second}"
        assert len(way) == (7 if (gpu % 4, second) == (0, False) else 9)
    alone = load_topology("gb200-nvl72x2,fabric=rail_only")
    assert {link.target for link in alone.links if link.target.startswith("leaf")} == {
        f"leaf{i}" for i in range(4)
    }
    assert route(alone, "n0.gpu0", "n1.gpu68").path[3:5] == ("leaf0", "n1.mlx5_68")


def test_rails_that_no_pcie_joins_are_not_crossed(tmp_path):
    """Neither by NVLink, which ends at GPUs, nor through other machines."""
    box = tmp_path / "box.toml"
    box.write_text(
        '[nodes.g]\nnames = ["gpu[0-1]"]\nkind = "gpu"\n[nodes.s]\nnames = ["nvs"]\nkind = '
        '"nvswitch"\n'
        '[nodes.n]\nnames = ["nic[0-1]"]\nkind = "nic"\n[links.nvlink4]\npairs = [["gpu[0-1]", '
        '"nvs"]]\n'
        '[links.pcie5_x16]\npairs = [["gpu[0-1]", "nic[0-1]"]]\n'
    )
    rails = load_topology(f"{box}x3,fabric=rail_only")

    assert route(rails, "n0.gpu1", "n2.gpu1").path == (
        "n0.gpu1",
        "n0.nic1",
        "leaf1",
        "n2.nic1",
        "n2.gpu1",
    )
    assert route(rails, "n2.gpu0", "n2.gpu1").path == ("n2.gpu0", "n2.nvs", "n2.gpu1")
    with pytest.raises(
        TopologyError, match=r"no route from 'n1.gpu0' to 'n2.gpu1'.*GPUs do not forward"
    ):
        route(rails, "n1.gpu0", "n2.gpu1")
    index = rails.router.index
    with pytest.raises(TopologyError, match=r"no route from 'n2.gpu0' to 'n1.gpu1'"):
        rails.router.routes(
            np.array([index["n0.gpu0"], index["n2.gpu0"]]),
            np.array([index["n1.gpu0"], index["n1.gpu1"]]),
        )
    joined = load_topology(f"{box}x3,fabric=rail_optimised,equal_cost=first")
    assert route(joined, "n1.gpu0", "n2.gpu1").path[2:-2] == ("leaf0", "spine2", "leaf1")


def test_a_torus_of_machines():
    """All NICs of a machine are on its router."""
    cluster = load_topology("dgx1vx12,fabric=torus,dims=3x4")

    assert kinds(cluster) == {"router": 12}
    assert route(cluster, "n0.gpu0", "n5.gpu2").path[3:-3] == ("router0", "router2", "router5")
    assert route(cluster, "n0.mlx5_0", "n9.mlx5_3").path[1:-1] == ("router0", "router9")


def test_a_switch_more_adds_its_own_latency():
    """A cable between switches costs less than a way out of a machine, with two adapters."""
    base = route(load_topology("dgx1vx4"), "n0.mlx5_0", "n3.mlx5_0").latency
    over = {
        text: route(
            load_topology(f"dgx1vx4,fabric=fat_tree,radix=4{text}"), "n0.mlx5_0", "n3.mlx5_0"
        ).latency
        for text in ("", ",switch_latency=0.35us", ",switch_latency=0")
    }

    assert over[""] == pytest.approx(base + 0.2e-6)
    assert over[",switch_latency=0.35us"] == pytest.approx(base + 0.7e-6)
    assert over[",switch_latency=0"] == base


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("fat_tree:16,levels=4", ["levels: must be a whole number from 2 to 3, got '4'"]),
        ("fat_tree:16,pods=2", ["pods: is for levels=3"]),
        ("fat_tree:16,levels=3,radix=5", ["radix: 5 is odd"]),
        (
            "fat_tree:17,levels=3,radix=4",
            ["radix: three levels of switches with 4 ports hold 16 hosts, and here are 17"],
        ),
        (
            "fat_tree:16,levels=3,radix=8,oversubscription=2",
            ["radix: 8 ports of a leaf do not come out even with 2 times"],
        ),
        (
            "fat_tree:16,levels=3,oversubscription=0.0001",
            ["oversubscription: no switch of up to 16384 ports"],
        ),
        (
            "fat_tree:16,levels=3,radix=4,pods=3",
            ["pods: 8 leaves of switches with 4 ports take 4 to 4 pods, not 3"],
        ),
        ("fat_tree:16,levels=3,radix=4,pods=5", ["take 4 to 4 pods, not 5"]),
        (
            "fat_tree:16384,radix=16,oversubscription=0.01",
            ["1654784 cables in the network are more than the 1048576"],
        ),
        (
            "fat_tree:0,levels=3,radix=x,oversubscription=-1,pods=0,reduce=1",
            [
                "0 devices",
                "radix: must be a whole number from 2 to 16384, got 'x'",
                "oversubscription: must be a number above 0, such as 2 or 1.5, got '-1'",
                "pods: must be a whole number from ",
                "reduce: unknown answer '1'",
            ],
        ),
        (
            "dragonfly:100,p=0,a=x,h=0,g=-1,q=2",
            [
                "q: unknown key",
                "p: must be a whole number from 1 to 16384, got '0'",
                "a: must be a whole number from 1 to 16384, got 'x'",
                "h: must be a whole number from ",
                "g: must be a whole number from ",
            ],
        ),
        ("dragonfly:100,p=1,a=2,h=1", ["3 groups of 2 routers with 1 host hold 6, not 100"]),
        (
            "dragonfly:10,p=1,a=2,h=1,g=4",
            ["g: 2 routers with 1 global cables each link at most 3 groups, not 4"],
        ),
        ("dragonfly:10,a=16000", ["cables in the network are more than"]),
        ("dgx1vx4,fabric=torus", ["dims: must be given as AxB or AxBxC, such as dims=2x2"]),
        ("dgx1vx4,fabric=torus,dims=2x3", ["dims: 2x3 are 6 routers for 4 machines"]),
        (
            "dgx1vx4,fabric=rail_optimized",
            ["unknown fabric 'rail_optimized' (did you mean 'rail_optimised'?)"],
        ),
        ("dgx1vx4,fabric=rail_only,unit=2", ["unit: unknown key"]),
        (
            (
                "dgx1vx4,fabric=rail_optimised,unit=0,oversubscription=z,levels=9,switch_latency=3,"
                "nic=ib"
            ),
            [
                "unknown class of network link 'ib'",
                "switch_latency: '3' has no unit",
                "unit: must be a whole number from 1 to 16384, got '0'",
                "oversubscription: must be a number above 0, such as 2 or 1.5, got 'z'",
                "levels: must be a whole number from ",
            ],
        ),
        (
            "dgx1vx6,fabric=rail_optimised,unit=3,oversubscription=2",
            ["3 hosts under a leaf / 2 is not a number"],
        ),
        ("dragonfly_plus", ["dragonfly_plus'; dragonfly_plus needs its size: dragonfly_plus:N;"]),
        ("ring,latency=1us", ["; ring needs its size: ring:N;"]),
        (
            "fat_tree",
            ["; fat_tree needs its size: fat_tree:N; or a network of machines, such as dgx1vx4,"],
        ),
        ("rail_only:8", ["no topology 'rail_only:8'; rail_only is a network of machines"]),
    ],
)
def test_faults(text, faults):
    with pytest.raises(TopologyError) as caught:
        load_topology(text)

    for problem, fault in itertools.zip_longest(caught.value.problems, faults):
        assert fault in problem


def test_fewer_nics_of_each_machine():
    """They are spread over it; the others and their cables are gone."""
    half = load_topology("dgx-h100x4,fabric=rail_optimised,nics=4")
    names = [node.name for node in half.nodes.values() if node.kind == "nic"]

    assert names[:5] == ["n0.mlx5_0", "n0.mlx5_2", "n0.mlx5_4", "n0.mlx5_6", "n1.mlx5_0"]
    assert kinds(half)["leaf"] == 4
    assert not any("mlx5_1" in name for link in half.links for name in (link.source, link.target))
    assert load_topology("dgx-h100x4,nics=8").digest == load_topology("dgx-h100x4").digest
    for wrong in ("9", "0", "two"):
        with pytest.raises(TopologyError, match=f"nics: must be .* from 1 to 8, got '{wrong}'"):
            load_topology(f"dgx-h100x4,nics={wrong}")


def test_the_nics_that_stay_are_nearest_to_a_gpu(tmp_path):
    """What the table calls SYS from every GPU is for storage."""
    table = (
        "\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\n"
        "GPU0\t X \tSYS\tSYS\tPIX\tSYS\n"
        "GPU1\tSYS\t X \tNODE\tSYS\tPIX\n"
        "NIC0\tSYS\tNODE\t X \tSYS\tNODE\n"
        "NIC1\tPIX\tSYS\tSYS\t X \tSYS\n"
        "NIC2\tSYS\tPIX\tNODE\tSYS\t X \n"
    )
    box = read_topo_m(table, "box", model_named("V100-PCIE"))[0]
    (tmp_path / "box.toml").write_text(to_toml(box), "utf-8")
    path = tmp_path / "two.toml"
    path.write_text('machine = "./box.toml"\nnodes = 2\nnic = "ib_ndr"\nnics = 2\n', "utf-8")
    two = load_topology(str(path))

    names = [node.name for node in two.nodes.values() if node.kind == "nic"]
    assert names == ["n0.NIC1", "n0.NIC2", "n1.NIC1", "n1.NIC2"]


def test_a_file_says_how_many_nics(tmp_path):
    """As the inline text does."""
    path = tmp_path / "four.toml"
    path.write_text('machine = "dgx-h100"\nnodes = 4\nfabric = "rail_only"\nnics = 2\n', "utf-8")

    inline = load_topology("dgx-h100x4,fabric=rail_only,nics=2")
    assert load_topology(str(path)).digest == inline.digest
