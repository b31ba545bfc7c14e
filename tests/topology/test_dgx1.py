"""The shipped machines against the tables that nvidia-smi prints on the real ones."""

from __future__ import annotations

import itertools

import pytest

from simreduce.topology import Topology, link_classes, load_topology, matrix_text, path_class, route

# `nvidia-smi topo -m` on a DGX-1 with V100, GPU rows and columns.
DGX1V = """
X   NV1 NV1 NV2 NV2 SYS SYS SYS
NV1 X   NV2 NV1 SYS NV2 SYS SYS
NV1 NV2 X   NV2 SYS SYS NV1 SYS
NV2 NV1 NV2 X   SYS SYS SYS NV1
NV2 SYS SYS SYS X   NV1 NV1 NV2
SYS NV2 SYS SYS NV1 X   NV2 NV1
SYS SYS NV1 SYS NV1 NV2 X   NV2
SYS SYS SYS NV1 NV2 NV1 NV2 X
"""
GPUS = tuple(f"gpu{i}" for i in range(8))


@pytest.fixture(scope="module")
def dgx1v() -> Topology:
    return load_topology("dgx1v")


@pytest.fixture(scope="module")
def dgx1p() -> Topology:
    return load_topology("dgx1p")


def cells(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def lanes(machine: Topology, a: str, b: str) -> int:
    return sum(link.lanes for link in machine.links if (link.source, link.target) == (a, b))


def test_the_v100_matrix_is_that_of_nvidia_smi(dgx1v):
    assert [[path_class(dgx1v, a, b) for b in GPUS] for a in GPUS] == cells(DGX1V)


def test_the_p100_matrix_has_the_same_pairs_with_single_links(dgx1p):
    single = cells(DGX1V.replace("NV2", "NV1"))

    assert [[path_class(dgx1p, a, b) for b in GPUS] for a in GPUS] == single


def test_the_printed_table_starts_as_nvidia_smi_does(dgx1v):
    lines = matrix_text(dgx1v).splitlines()

    assert lines[0].split("\t")[1:] == [
        *(gpu.upper() for gpu in GPUS),
        "mlx5_0",
        "mlx5_1",
        "mlx5_2",
        "mlx5_3",
    ]
    assert " ".join(lines[1].split("\t")) == "GPU0 X NV1 NV1 NV2 NV2 SYS SYS SYS PIX PHB SYS SYS"
    assert lines[13:15] == ["", "Legend:"]


@pytest.mark.parametrize(("name", "egress", "bisection"), [("dgx1v", 6, 6), ("dgx1p", 4, 4)])
def test_lane_counts(name, egress, bisection):
    machine = load_topology(name)
    direct = {(a, b): lanes(machine, a, b) for a, b in itertools.permutations(GPUS, 2)}

    assert [sum(direct[a, b] for b in GPUS if a != b) for a in GPUS] == [egress] * 8
    assert [sum(direct[a, b] > 0 for b in GPUS if a != b) for a in GPUS] == [4] * 8
    assert sum(direct[a, b] for a in GPUS[:4] for b in GPUS[4:]) == bisection
    assert all(direct[a, b] == direct[b, a] for a, b in direct)


def test_both_cycles_are_hamiltonian(dgx1v):
    for width in (2, 1):
        edges = {a: {b for b in GPUS if b != a and lanes(dgx1v, a, b) == width} for a in GPUS}
        walk = ["gpu0"]
        while ahead := edges[walk[-1]] - set(walk):
            walk.append(min(ahead))

        assert len(walk) == 8
        assert "gpu0" in edges[walk[-1]]


def test_the_pcie_and_host_side(dgx1v):
    assert route(dgx1v, "gpu0", "gpu5").path == ("gpu0", "plx0", "cpu0", "cpu1", "plx2", "gpu5")
    # Staged through the host: no peer access between the sockets.
    assert route(dgx1v, "gpu0", "gpu5").bandwidth == 10e9
    assert route(dgx1v, "gpu0", "cpu1").bandwidth == 12e9
    assert lanes(dgx1v, "cpu0", "cpu1") == 2
    assert path_class(dgx1v, "gpu2", "mlx5_1") == "PIX"
    assert path_class(dgx1v, "gpu0", "mlx5_1") == "PHB"
    assert path_class(dgx1v, "gpu0", "cpu0") == "PHB"
    assert path_class(dgx1v, "gpu0", "cpu1") == "SYS"


def test_rates_and_memories(dgx1v, dgx1p):
    doubled = dgx1v.links[route(dgx1v, "gpu0", "gpu3").links[0]]

    assert (doubled.nominal, doubled.bandwidth, doubled.holds_lane) == (50e9, 48e9, True)
    assert dgx1v.nodes["gpu0"].memory_bandwidth == 900e9
    assert dgx1p.nodes["gpu0"].memory_bandwidth == 732e9
    assert dgx1v.nodes["cpu1"].memory_bandwidth == pytest.approx(76.8e9)
    assert dgx1v.hosts == ("cpu0", "cpu1")


def test_link_classes_cite_their_source_and_are_no_faster_than_the_wire():
    for known in link_classes().values():
        assert known.source
        assert 0 < known.achievable <= known.bandwidth
        assert 0 < known.latency < 1e-4
    networks = [name for name, known in link_classes().items() if not known.holds_lane]
    assert networks[:4] == ["ib_fdr", "ib_edr", "ib_hdr", "ib_ndr"]
    assert {name.split("_")[0] for name in networks} == {
        "ib",
        "roce",
        "slingshot11",
        "efa",
        "tcpxo",
        "tcp",
    }
