"""Routes: GPUs forward nothing, the fewest hops win, and ties are broken by rule."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import TopologyError
from simreduce.topology import (
    Cable,
    Node,
    Topology,
    build,
    load_topology,
    path_class,
    route,
    shipped,
)
from simreduce.topology.routing.router import Router
from simreduce.topology.routing.rules import EqualMachines
from tests.thorough import examples


def machine(
    nodes: dict[str, str], cables: list[tuple[str, str, float, float]], box: str = "0"
) -> Topology:
    """A topology of named kinds and of (a, b, bandwidth, latency) cables."""
    return build(
        "test",
        "test",
        "test",
        [Node(name, kind, machine=box, transit=kind != "gpu") for name, kind in nodes.items()],
        [
            Cable(a, b, "wire", 1, bandwidth, bandwidth, latency, True)
            for a, b, bandwidth, latency in cables
        ],
    )


@pytest.mark.parametrize(
    "name",
    [name for name, _ in shipped()] + ["dgx1vx2", "p5x2,nic=efa_100x4", "full:5", "switch:5"],
)
def test_no_route_passes_through_a_gpu_and_every_one_adds_up(name):
    topology = load_topology(name)

    ends = [*topology.devices[:24], *topology.hosts[:4]]
    for a, b in itertools.permutations(ends, 2):
        if "gb200" in name and "cpu" in a + b and not same_tray(a, b):
            continue  # trays are joined by NVLink alone
        found = route(topology, a, b)
        links = [topology.links[i] for i in found.links]
        wires = [link for link in links if not link.is_toll]
        assert [link.source for link in wires] == list(found.path[:-1])
        assert [link.target for link in wires] == list(found.path[1:])
        assert all(topology.nodes[name].kind != "gpu" for name in found.path[1:-1])
        assert found.bandwidth == min(link.bandwidth for link in links)
        assert found.latency == pytest.approx(sum(link.latency for link in links))
        assert found.holds_lane == all(link.holds_lane for link in links)


def same_tray(a: str, b: str) -> bool:
    return len({int(name[3:]) // (4 if name.startswith("gpu") else 2) for name in (a, b)}) == 1


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
        [
            Cable("a", "b", "slow", 1, 1e9, 1e9, 1e-6, True),
            Cable("a", "b", "fast", 1, 2e9, 2e9, 9e-6, True),
        ],
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
    # The widest way to `m` is the slow one, but behind a narrow last link both are as wide and the
    # quick one wins.
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
    """Random machines of up to 4 GPUs and 5 switches, with few distinct figures so that ties are
    common.
    """
    names = {f"gpu{i}": "gpu" for i in range(draw(st.integers(2, 4)))}
    names |= {f"s{i}": "switch" for i in range(draw(st.integers(1, 5)))}
    pairs = list(itertools.combinations(names, 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=len(pairs)))
    figures = st.tuples(st.sampled_from([1e9, 2e9]), st.sampled_from([1e-6, 3e-6]))
    return machine(names, [(a, b, *draw(figures)) for a, b in chosen])


@settings(max_examples=examples(200), deadline=None)
@given(fabrics())
def test_routes_are_the_best_of_all_simple_paths(topology):
    for a, b in itertools.permutations(topology.devices, 2):
        inner = [
            name for name, node in topology.nodes.items() if node.kind != "gpu" or name in (a, b)
        ]
        paths = list(nx.all_simple_paths(nx.DiGraph(topology.graph.subgraph(inner)), a, b))
        if not paths:
            with pytest.raises(TopologyError):
                route(topology, a, b)
            continue
        assert route(topology, a, b).path == tuple(
            min(paths, key=lambda path: merit(topology, path))
        )


def merit(topology: Topology, path: list[str]) -> tuple[object, ...]:
    links = [topology.graph.get_edge_data(*hop) for hop in itertools.pairwise(path)]
    links = [topology.links[next(iter(parallel))] for parallel in links]
    micros = sum(round(link.latency * 1e6) for link in links)
    return len(path), -min(link.bandwidth for link in links), micros, path


def test_a_large_switch_routes_quickly():
    topology = load_topology("switch:1024")
    devices = topology.devices

    routes = [route(topology, a, b) for a, b in itertools.pairwise(devices)]

    assert {found.latency for found in routes} == {1e-6}
    assert route(topology, "gpu0", "gpu1") is routes[0]


PEERS = """
[nodes.gpu]
names = ["gpu[0-3]"]
kind = "gpu"
peer = "{peer}"
[nodes.plx]
names = ["plx[0-1]"]
kind = "pcie_switch"
[nodes.cpu]
names = ["cpu[0-1]"]
kind = "cpu"
[links.nvlink2]
pairs = [["gpu0", "gpu3"]]
[links.pcie3_x16]
pairs = [["gpu[0-3]", "plx[0-1]"], ["plx[0-1]", "cpu[0-1]"]]
[links.staged_pcie3]
pairs = [["gpu[0-3]", "gpu[0-3]"], ["plx[0-1]", "plx[0-1]"]]
[links.qpi]
pairs = [["cpu0", "cpu1"]]
"""
"""Two switches of two GPUs on two sockets, and a link across."""


def peers(tmp_path, peer: str, more: str = "") -> Topology:
    path = tmp_path / "peers.toml"
    path.write_text(PEERS.format(peer=peer) + more)
    return load_topology(str(path))


@pytest.mark.parametrize(
    ("peer", "direct"),
    [
        ("off", set()),
        ("NV", {"gpu0-gpu3"}),
        ("PIX", {"gpu0-gpu3", "gpu0-gpu1"}),
        ("PHB", {"gpu0-gpu3", "gpu0-gpu1"}),
        ("SYS", {"gpu0-gpu3", "gpu0-gpu1", "gpu0-gpu2"}),
    ],
)
def test_gpus_copy_directly_as_far_as_their_peer_access_reaches(tmp_path, peer, direct):
    """Beyond it a copy goes through the nearest host, and both ends take their staging figures."""
    box = peers(tmp_path, peer)

    for other in ("gpu1", "gpu2", "gpu3"):
        found = route(box, "gpu0", other)
        figures = [box.links[i].name for i in found.links if box.links[i].is_toll]
        assert box.router.is_peer("gpu0", other) == (f"gpu0-{other}" in direct)
        assert ("gpu0>gpu0" in figures) == (f"gpu0-{other}" not in direct)
        if figures:
            assert "cpu0" in found.path
            assert found.bandwidth == 10e9
            assert f"{other}<{other}" in figures
            assert found.latency > 11e-6
    # The way that nvidia-smi prints does not depend on it.
    assert [path_class(box, "gpu0", f"gpu{i}") for i in range(4)] == ["X", "PIX", "SYS", "NV1"]


def test_a_staged_copy_below_one_switch_goes_up_and_comes_down(tmp_path):
    found = route(peers(tmp_path, "off"), "gpu0", "gpu1")

    assert found.path == ("gpu0", "plx0", "cpu0", "plx0", "gpu1")


def test_without_a_host_a_staged_pair_has_no_route(tmp_path):
    path = tmp_path / "none.toml"
    path.write_text(
        '[nodes.gpu]\nnames = ["gpu[0-1]"]\nkind = "gpu"\npeer = "off"\n'
        '[links.nvlink2]\npairs = [["gpu0", "gpu1"]]\n'
    )

    with pytest.raises(TopologyError, match="without peer access or GPUDirect a copy needs a CPU"):
        route(load_topology(str(path)), "gpu0", "gpu1")


def test_what_is_known_of_a_pair_counts_besides_its_links(tmp_path):
    """Two GPUs below one switch that reach less than its links would let them."""
    odd = (
        '[routes.anti_locality]\npairs = [["gpu0", "gpu1"]]\n'
        'bandwidth = "9.2 GB/s"\nlatency = "2 us"\n'
    )
    plain, box = peers(tmp_path, "PHB"), peers(tmp_path, "PHB", odd)

    for a, b in (("gpu0", "gpu1"), ("gpu1", "gpu0")):
        assert route(box, a, b).bandwidth == 9.2e9
        assert route(box, a, b).latency == pytest.approx(route(plain, a, b).latency + 2e-6)
        assert route(box, a, b).path == route(plain, a, b).path
    assert route(box, "gpu0", "gpu2") == route(plain, "gpu0", "gpu2")
    changed = load_topology(
        str(tmp_path / "peers.toml"), {"routes.anti_locality.bandwidth": "5 GB/s"}
    )
    assert route(changed, "gpu0", "gpu1").bandwidth == 5e9


BOXES = """
[nodes.gpu]
names = ["gpu[0-1]"]
kind = "gpu"
gpudirect = "{reach}"
[nodes.plx]
names = ["plx[0-1]"]
kind = "pcie_switch"
[nodes.nic]
names = ["nic{nic}"]
kind = "nic"
[nodes.cpu]
names = ["cpu[0-1]"]
kind = "cpu"
[links.pcie3_x16]
pairs = [["gpu[0-1]", "plx[0-1]"], ["nic{nic}", "plx0"], ["plx[0-1]", "cpu[0-1]"]]
[links.staged_pcie3]
pairs = [["gpu[0-1]", "gpu[0-1]"], ["plx[0-1]", "plx[0-1]"]]
[links.qpi]
pairs = [["cpu0", "cpu1"]]
"""
"""Two GPUs, each below a switch of its socket; the NIC is beside the first."""


def two_boxes(tmp_path, reach: str) -> Topology:
    path = tmp_path / "box.toml"
    path.write_text(BOXES.format(reach=reach, nic=0))
    return load_topology(f"{path}x2,nic=ib_edr")


@pytest.mark.parametrize(
    ("reach", "by_host"),
    [
        ("off", (True, True)),
        ("PIX", (False, True)),
        ("P2C", (False, True)),
        ("PHB", (False, True)),
        ("SYS", (False, False)),
    ],
)
def test_gpus_send_directly_to_nics_as_near_as_their_gpudirect_reaches(tmp_path, reach, by_host):
    """gpu0 is PIX to the NIC and gpu1 SYS. Beyond the reach the way leads over the nearest host,
    and the end pays.
    """
    pair = two_boxes(tmp_path, reach)
    away = {False: ("plx0", "nic0"), True: ("plx0", "cpu0", "plx0", "nic0")}[by_host[0]]
    far = ("plx1", "cpu1", "cpu0", "plx0", "nic0")

    there = route(pair, "n0.gpu0", "n1.gpu0")
    assert there.path == (
        "n0.gpu0", *(f"n0.{name}" for name in away), "switch0",
        *(f"n1.{name}" for name in reversed(away)), "n1.gpu0",
    )  # fmt: skip
    across = route(pair, "n0.gpu1", "n1.gpu0")
    assert across.path[1:7] == (*(f"n0.{name}" for name in far), "switch0")
    figures = {pair.links[i].name for i in across.links if pair.links[i].is_toll}
    out = {"n0.gpu1>n0.gpu1", "n0.gpu1>n0.gpu1#1", "n0.plx1>n0.plx1", "n0.plx1>n0.plx1#1"}
    into = {"n1.plx0<n1.plx0", "n1.plx0>n1.plx0#1", "n1.gpu0<n1.gpu0", "n1.gpu0>n1.gpu0#1"}
    assert figures == (into if by_host[0] else set()) | (out if by_host[1] else set())
    assert (across.bandwidth == 10e9) == by_host[1]
    # In a machine it says nothing.
    assert not any(pair.links[i].is_toll for i in route(pair, "n0.gpu0", "n0.gpu1").links)
    assert path_class(pair, "n0.gpu0", "n0.nic0") == "PIX"


GRACE = """
[nodes.gpu]
names = ["gpu0"]
kind = "gpu"
[nodes.nic]
names = ["nic0"]
kind = "nic"
[nodes.cpu]
names = ["cpu[0-1]"]
kind = "cpu"
[links.{up}]
pairs = [["gpu0", "cpu0"]]
[links.pcie5_x16]
pairs = [["nic0", "{at}"]]
[links.grace_link]
pairs = [["cpu0", "cpu1"]]
"""


@pytest.mark.parametrize(
    ("up", "at", "direct"),
    [("c2c", "cpu0", True), ("c2c", "cpu1", False), ("pcie4_x16", "cpu0", False)],
)
def test_unless_stated_gpus_send_directly_as_far_as_nccl_lets_them(tmp_path, up, at, direct):
    """Below PCIe switches, or over C2C to the host that the NIC is on; not over a host bridge, not
    to another socket.
    """
    path = tmp_path / "grace.toml"
    path.write_text(GRACE.format(up=up, at=at))
    assert (load_topology(str(path)).router.nics_beyond("gpu0") == []) == direct
    plain = two_boxes(tmp_path, "P2C")
    for text in ('gpudirect = "P2C"', ""):
        box = tmp_path / "unsaid.toml"
        box.write_text(BOXES.format(reach="P2C", nic=0).replace('gpudirect = "P2C"', text))
        pair = load_topology(f"{box}x2,nic=ib_edr")
        assert pair.digest == plain.digest
        for ends in (("n0.gpu0", "n1.gpu0"), ("n0.gpu1", "n1.gpu0")):
            assert route(pair, *ends) == route(plain, *ends)


def test_a_transfer_by_the_host_loads_the_way_up_and_down(tmp_path):
    """Two PCIe links more at each end, and the figures of the GPU."""
    near, by_host = (
        route(two_boxes(tmp_path, reach), "n0.gpu0", "n1.gpu0") for reach in ("SYS", "off")
    )

    assert by_host.latency - near.latency == pytest.approx(4 * 0.87e-6 + 2 * 5.5e-6)
    back = route(two_boxes(tmp_path, "off"), "n1.gpu0", "n0.gpu0")
    assert back.path == by_host.path[::-1]


def test_tcp_sends_from_the_memory_of_the_host(tmp_path):
    two_boxes(tmp_path, "SYS")
    pair = load_topology(f"{tmp_path / 'box.toml'}x2,nic=tcp_100")

    assert route(pair, "n0.gpu0", "n1.gpu0").path[:5] == (
        "n0.gpu0",
        "n0.plx0",
        "n0.cpu0",
        "n0.plx0",
        "n0.nic0",
    )
    assert route(pair, "n0.gpu0", "n1.gpu0").path[5:] == (
        "switch0", "n1.nic0", "n1.plx0", "n1.cpu0", "n1.plx0", "n1.gpu0",
    )  # fmt: skip


def test_of_nics_as_many_hops_away_the_one_on_the_socket_is_near(tmp_path):
    """gpu0 is three hops from nic1 over its own CPU, and from nic2 over the other."""
    text = BOXES.format(reach="SYS", nic="[1-2]").replace(
        '["nic[1-2]", "plx0"]', '["nic1", "plx2"], ["nic2", "cpu1"]'
    )
    text = text.replace(
        '["gpu[0-1]", "plx[0-1]"], ', '["gpu0", "cpu0"], ["gpu1", "cpu1"], ["plx2", "cpu0"], '
    )
    path = tmp_path / "box.toml"
    path.write_text(
        text.replace('["plx[0-1]"]\nkind', '["plx[0-2]"]\nkind').replace(
            "[links.qpi]", '[links.qpi]\nlanes = 2\nlatency = "0.87 us"'
        )
    )
    pair = load_topology(f"{path}x2,nic=ib_edr")

    assert route(pair, "n0.gpu0", "n1.gpu0").path[1:4] == ("n0.cpu0", "n0.plx2", "n0.nic1")


def test_gpus_that_share_nics_have_one_each():
    """Two GPUs and two NICs below every switch of a DGX A100: eight rails."""
    pair = load_topology("dgx-a100x2,nic=ib_hdr")

    for i in range(8):
        nics = [name for name in route(pair, f"n0.gpu{i}", f"n1.gpu{i}").path if "mlx5" in name]
        assert nics == [f"n0.mlx5_{i}", f"n1.mlx5_{i}"]


def test_more_gpus_than_nics_take_turns():
    pair = load_topology("polarisx2,nic=slingshot11")

    used = [
        [name for name in route(pair, f"n0.gpu{i}", f"n1.gpu{i}").path if "cxi" in name]
        for i in range(4)
    ]
    assert used == [[f"n0.cxi{i % 2}", f"n1.cxi{i % 2}"] for i in range(4)]


def test_a_gpu_below_two_switches_has_a_nic_of_its_own():
    kinds = {"gpu0": "gpu", "gpu1": "gpu", "plx0": "pcie_switch", "plx1": "pcie_switch"}
    kinds |= {"nic0": "nic", "nic1": "nic"}
    nodes = [Node(name, kind, transit=kind != "gpu") for name, kind in kinds.items()]
    nodes.append(Node("out", "switch", machine=""))
    pairs = [(a, b) for b in ("plx0", "plx1") for a in kinds if "plx" not in a]
    pairs += [("nic0", "out"), ("nic1", "out")]
    box = build("t", "", "t", nodes, [Cable(*ab, "pcie3", 1, 1e9, 1e9, 1e-6, True) for ab in pairs])

    assert route(box, "gpu0", "out").path == ("gpu0", "plx0", "nic0", "out")
    assert route(box, "gpu1", "out").path == ("gpu1", "plx0", "nic1", "out")


def test_switches_of_two_rails_reach_each_other_through_a_machine():
    rails = load_topology("dgx1vx2,fabric=rail_only")

    path = route(rails, "leaf0", "leaf1").path
    assert (path[0], path[-1]) == ("leaf0", "leaf1")
    assert path[1] == "n0.mlx5_0"


@pytest.mark.parametrize(
    "name",
    [
        "dgx-h100x3",
        "dgx-a100x4,fabric=rail_optimised",
        "dgx1vx2",
        "oci-gb200x2,fabric=fat_tree",
        "p4dx3",
    ],
)
def test_a_gpus_own_nic_is_that_of_the_first_of_equal_machines(name):
    """As a search of all machines finds it."""
    machine = load_topology(name)
    whole = Router(machine.nodes, machine.links)

    assert isinstance(machine.router.rule, EqualMachines)
    assert [whole.nic(each) for each in machine.nodes] == [*map(machine.router.nic, machine.nodes)]
    assert any(map(machine.router.nic, machine.devices))
