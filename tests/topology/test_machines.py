"""Every shipped machine: it loads, is terse, says where it is from, and prints the matrix of the
real one.
"""

from __future__ import annotations

import re
import tomllib

import networkx as nx
import pytest

from simreduce.errors import TopologyError
from simreduce.files import data_dir
from simreduce.topology import load_topology, matrix_text, path_class, route, shipped
from simreduce.topology.check import check_file
from simreduce.topology.importers.parts import model_in
from simreduce.topology.importers.topo_m import rule_lines

NAMES = [name for name, _ in shipped()]


def test_the_library_has_what_people_have():
    wanted = (
        "dgx1p dgx1v p3-16xlarge p3dn gce-8xv100 dgx2 dgx-a100 p4d dgx-h100 hgx-h200 p5 hgx-b200 "
        "gb200-nvl72 "
        "pcie-dual-root-8 pcie-single-root-8 pcie-no-p2p-8 pcie-dual-root-4 pcie-single-root-4 "
        "pcie-no-p2p-4 k80-8 "
        "v100-mesh-4 a100-mesh-4 h100-mesh-4 gh200 "
        "a3mega a4 p6-b200 oci-a100 oci-h100 oci-gb200 ndv5 ndv5-h200 dgx1v-2nic rtx3090-8 a6000-8 "
        "l40s-8 "
        "frontier mi300x mi308x mi325x mi350x mi355x oci-mi300x oci-mi355x ndv5-mi300x"
    )
    assert set(wanted.split()) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_is_titled_sourced_short_and_without_fault(name):
    path = data_dir("topologies") / f"{name}.toml"
    text = path.read_text("utf-8")
    document = tomllib.loads(text)

    assert load_topology(name).title == document["title"]
    assert document["sources"]
    assert len(text.splitlines()) <= 80
    assert check_file(str(path)) == []
    assert all(node.network for node in load_topology(name).nodes.values() if node.kind == "nic")


@pytest.mark.parametrize("name", NAMES)
def test_every_pair_of_gpus_of_a_machine_has_a_way(name):
    machine = load_topology(name)
    first = machine.devices[0]

    for other in machine.devices[1:]:
        assert route(machine, first, other).bandwidth > 1e9
        assert route(machine, other, first).latency < 40e-6


# The first rows of `nvidia-smi topo -m`, NODE read as PHB.
PRINTED = {
    # NVIDIA/nccl-tests issue 78, eight of the ten adapters
    "dgx2": ["NV6 PIX PXB PHB PHB SYS SYS SYS SYS"] * 2
    + ["NV6 PXB PIX PHB PHB SYS SYS SYS SYS"] * 2,
    # NVIDIA/nccl-tests issue 68 has one adapter; here every socket has one
    "v100-mesh-4": ["NV2 PIX SYS"] * 2 + ["NV2 SYS PIX"] * 2,
    "dgx-a100": ["NV12 PIX PIX PHB PHB SYS SYS SYS SYS"] * 2
    + ["NV12 PHB PHB PIX PIX SYS SYS SYS SYS"] * 2,
    "p4d": ["NV12 PIX PHB SYS SYS"] * 2 + ["NV12 PHB PIX SYS SYS"] * 2,
    "dgx-h100": ["NV18 PIX PHB PHB PHB SYS SYS SYS SYS", "NV18 PHB PIX PHB PHB SYS SYS SYS SYS"],
    "ndv4": ["NV12 PIX PIX SYS SYS SYS SYS SYS SYS"] * 2,
    "alps": ["NV6 PHB SYS SYS SYS"],
    "hgx-b200": ["NV18 PIX PHB PHB PHB SYS SYS SYS SYS"],
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_matrix_is_that_of_the_real_machine(name):
    machine = load_topology(name)
    nics = [node.name for node in machine.nodes.values() if node.kind == "nic"]

    for i, row in enumerate(PRINTED[name]):
        nvlink, *others = row.split()
        gpu = f"gpu{i}"
        assert {path_class(machine, gpu, other) for other in machine.devices if other != gpu} == {
            nvlink
        }
        assert [path_class(machine, gpu, nic) for nic in nics] == others


@pytest.mark.parametrize(
    ("name", "other", "word"),
    [
        ("pcie-dual-root-8", "gpu1", "PIX"),
        ("pcie-dual-root-8", "gpu2", "PHB"),
        ("pcie-dual-root-8", "gpu4", "SYS"),
        ("pcie-single-root-8", "gpu3", "PIX"),
        ("pcie-single-root-8", "gpu4", "PXB"),
        ("pcie-no-p2p-8", "gpu1", "PHB"),
        ("k80-8", "gpu1", "PIX"),
        ("gce-8xv100", "gpu5", "PHB"),
        ("gb200-nvl72", "gpu71", "NV18"),
    ],
)
def test_the_way_between_two_gpus(name, other, word):
    assert path_class(load_topology(name), "gpu0", other) == word


def test_nvlinks_per_gpu():
    """Rates per direction of all NVLinks of a GPU, nominal: 80, 150, 300, 450 and 900 GB/s."""
    for name, rate in {
        "dgx1p": 80e9,
        "dgx1v": 150e9,
        "p3dn": 150e9,
        "dgx2": 150e9,
        "v100-mesh-4": 150e9,
        "dgx-a100": 300e9,
        "a100-mesh-4": 300e9,
        "dgx-h100": 450e9,
        "h100-mesh-4": 450e9,
        "hgx-h800": 200e9,
        "alps": 450e9,
        "hgx-b200": 900e9,
        "gb200-nvl72": 900e9,
    }.items():
        machine = load_topology(name)
        for gpu in machine.devices:
            out = [
                k.nominal
                for k in machine.links
                if k.source == gpu and k.link_class.startswith("nvlink")
            ]
            assert sum(out) == rate, (name, gpu)


@pytest.mark.parametrize(
    ("name", "link", "achievable", "arch"),
    [
        ("mi300x", 64e9, 48e9, "gfx942"),
        ("mi308x", 64e9, 48e9, "gfx942"),
        ("mi325x", 64e9, 48e9, "gfx942"),
        ("mi350x", 76.8e9, 57.6e9, "gfx950"),
        ("mi355x", 76.8e9, 57.6e9, "gfx950"),
        ("oci-mi300x", 64e9, 48e9, "gfx942"),
        ("oci-mi355x", 76.8e9, 57.6e9, "gfx950"),
        ("ndv5-mi300x", 64e9, 48e9, "gfx942"),
    ],
)
def test_an_amd_mesh_joins_every_two_gpus_by_one_link(name, link, achievable, arch):
    machine = load_topology(name)

    for i, a in enumerate(machine.devices):
        assert model_in(machine.nodes[a].model).arch == arch
        for b in (b for b in machine.devices if b != a):
            taken = route(machine, a, b)
            (wire,) = (machine.links[key] for key in taken.links)
            assert (wire.nominal, taken.bandwidth) == (link, pytest.approx(achievable))
            assert path_class(machine, a, b) == "XGMI1"
        nics = [node.name for node in machine.nodes.values() if node.kind == "nic"]
        assert [path_class(machine, a, nic) for nic in nics] == [
            "PIX" if i == j else "PHB" if i // 4 == j // 4 else "SYS" for j in range(8)
        ]


def test_frontiers_dies_have_the_links_of_its_diagram():
    """200 GB/s to the twin, 50 or 100 to other modules; who has no link copies by the host, as no
    die forwards for others.
    """
    machine = load_topology("frontier")
    rates = {
        (link.source, link.target): link.nominal / 1e9
        for link in machine.links
        if link.link_class == "xgmi_cdna2"
    }

    assert {rates[f"gpu{i}", f"gpu{i ^ 1}"] for i in range(8)} == {200}
    assert {pair for pair, rate in rates.items() if rate == 100} == {
        ("gpu0", "gpu6"), ("gpu6", "gpu0"), ("gpu2", "gpu4"), ("gpu4", "gpu2")
    }  # fmt: skip
    out = [sum(rate for (a, _), rate in rates.items() if a == gpu) for gpu in machine.devices]
    assert out == [350, 300] * 4
    assert "cpu0" in machine.router.path("gpu0", "gpu3")
    for a in machine.devices:
        for b in machine.devices:
            assert not set(machine.router.path(a, b)[1:-1]) & set(machine.devices)
    for i in range(8):
        assert path_class(machine, f"gpu{i}", f"cxi{i // 2}") == "PIX"


def test_check_finds_what_an_amd_mesh_lacks(tmp_path):
    path = tmp_path / "m.toml"
    pairs = '[["gpu0", "gpu[2-7]"], ["gpu1", "gpu[2-7]"], ["gpu2", "gpu[3-7]"]]'
    path.write_text(f'extends = "mi300x"\n[links.mesh]\npairs = {pairs}\n')

    assert any("'gpu2' has 7 xGMI links" in line for line in check_file(str(path)))
    path.write_text('extends = "mi300x"\n[links.mesh]\nlanes = 2\n')
    assert any("14 xGMI links, but a MI300X has 7" in line for line in check_file(str(path)))


def test_a_what_if_is_three_lines(tmp_path):
    path = tmp_path / "wide.toml"
    path.write_text('extends = "dgx1v"\n[links.qpi]\nbandwidth = "76.8 GB/s"\n')

    wide = load_topology(str(path))
    assert [k.nominal for k in wide.links if k.link_class == "qpi"] == [153.6e9] * 2
    assert matrix_text(wide) == matrix_text(load_topology("dgx1v"))
    path.write_text('extends = "dgx-a100"\n[nodes.gpu]\npeer = "off"\n')
    assert load_topology(str(path)).nodes["gpu3"].peer == "off"
    # And on the command line of a scenario, one key.
    assert load_topology("dgx-a100", {"nodes.gpu.peer": "NV"}).nodes["gpu3"].peer == "NV"


@pytest.mark.parametrize(
    ("name", "links", "bisection"), [("dgx1v", 6, 6), ("dgx1p", 4, 4), ("p3dn", 6, 6)]
)
def test_cuts_of_a_cube_mesh(name, links, bisection):
    """In links: every GPU's, those between the sockets, and the broadcast cut from every root."""
    machine = load_topology(name)
    graph = nx.DiGraph()
    for link in machine.links:
        if link.link_class.startswith("nvlink"):
            graph.add_edge(link.source, link.target, capacity=link.lanes)

    assert {graph.degree(gpu, weight="capacity") for gpu in machine.devices} == {2 * links}
    assert sum(graph[a][b]["capacity"] for a, b in graph.edges if a < "gpu4" <= b) == bisection
    assert nx.diameter(graph) == 2
    for root in machine.devices:
        cuts = [
            nx.maximum_flow_value(graph, root, other) for other in machine.devices if other != root
        ]
        assert min(cuts) == links


@pytest.mark.parametrize("name", NAMES)
def test_the_legend_explains_every_cell(name):
    table, legend = matrix_text(load_topology(name)).split("Legend:")
    rows = [line.split("\t") for line in table.splitlines() if "\t" in line]
    cells = {cell for row in rows[1:] for cell in row[1:]}

    assert {re.sub("^(NV|XGMI)[0-9]+$", r"\1#", cell) for cell in cells} == {
        line.split("=")[0].strip() for line in legend.strip().splitlines()
    }


def test_shipped_machines_whose_gpus_are_far_from_nics_pay_for_the_host():
    """Root ports, flat PCIe and no GPUDirect: those of the list, of which each has figures for such
    copies.
    """
    far = {}
    for name, _ in shipped():
        machine = load_topology(name)
        far[name] = [gpu for gpu in machine.devices if machine.router.nics_beyond(gpu)]
        figures = {link.source for link in machine.links if link.is_toll}
        assert figures >= set(far[name]), name
    some = {name: len(gpus) for name, gpus in far.items() if gpus}
    assert some == {
        "a100-mesh-4": 4,
        "a100-pcie-8": 8,
        "a6000-8": 8,
        "abci-v": 4,
        "dgx1v-2nic": 4,
        "gce-8xv100": 8,
        "h100-mesh-4": 4,
        "k80-8": 8,
        "l40s-8": 8,
        "p3-16xlarge": 8,
        "p3dn": 8,
        "pcie-dual-root-4": 4,
        "pcie-dual-root-8": 8,
        "pcie-no-p2p-4": 4,
        "pcie-no-p2p-8": 8,
        "rtx2080ti-2": 2,
        "rtx3090-8": 8,
        "rtx4090-2": 2,
        "snellius": 4,
    }
    assert rule_lines(load_topology("a100-mesh-4")) == [
        (
            "GPUDirect RDMA: up to PXB or over C2C, as in NCCL; gpu0 to gpu3: no NIC so near, so "
            "to a "
            "network by way of the host"
        )
    ]
    assert rule_lines(load_topology("polaris")) == [
        "GPUDirect RDMA: up to PHB, else by way of the host"
    ]
    assert rule_lines(load_topology("gh200")) == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("BM.GPU.H100.8", "oci-h100"),
        ("bm.gpu.gb200.4", "oci-gb200"),
        ("BM.GPU.A100-v2.8x4", "oci-a100"),
        ("a3-megagpu-8g", "a3mega"),
        ("a4-highgpu-8g,fabric=rail_only", "a4"),
        ("p6-b200.48xlarge", "p6-b200"),
        ("p5.48xlarge", "p5"),
        ("p5e.48xlarge", "p5e"),
        ("p5een.48xlarge", "p5en"),
        ("a3-ultragpu-8g", "a3ultra"),
        ("p4dn.24xlargex2", "p4d"),
        ("p4d.24xlarge", "p4d"),
        ("Standard_ND96isr_H100_v5", "ndv5"),
        ("ND96isr_H200_v5", "ndv5-h200"),
        ("Standard_ND96isr_MI300X_v5", "ndv5-mi300x"),
        ("BM.GPU.MI300X.8", "oci-mi300x"),
        ("BM.GPU.MI355X.8", "oci-mi355x"),
        ("mi300", "mi300x"),
        ("nvd5-h200", "ndv5-h200"),
    ],
)
def test_what_clouds_call_a_machine_leads_to_its_name(typed, meant):
    """By the titles of shipped machines, case aside, else by the nearest name."""
    with pytest.raises(TopologyError) as caught:
        load_topology(typed)

    assert f"(did you mean {meant!r}?)" in str(caught.value)
