"""The table of `nvidia-smi topo -m` as a machine that prints the same table."""

from __future__ import annotations

import pytest

from simreduce.errors import TopologyError
from simreduce.topology import Topology, load_topology, matrix_text, path_class, shipped
from simreduce.topology.importers.parts import model_in, model_named
from simreduce.topology.importers.topo_m import is_topo_m, read_topo_m
from tests.topology.importers.files import CUBE_MESH, SWITCHED, TOPO_M


def imported(text: str, model: str | None = "V100") -> Topology:
    return read_topo_m(text, "t", model_named(model) if model else None)[0]


def test_a_recent_table_with_escapes_affinities_and_a_legend():
    box = imported(TOPO_M)

    assert box.devices == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert [path_class(box, "gpu0", other) for other in ("gpu1", "gpu2", "mlx5_0", "mlx5_1")] == [
        "NV2",
        "SYS",
        "PIX",
        "SYS",
    ]
    assert path_class(box, "gpu2", "mlx5_1") == "PXB"
    assert [
        (k.nominal, k.lanes) for k in box.links if (k.source, k.target) == ("gpu0", "gpu1")
    ] == [(50e9, 2)]
    assert box.nodes["gpu0"].memory_bandwidth == 900e9


def test_a_cube_mesh_without_nics_falls_into_two_sockets():
    box = imported(CUBE_MESH)
    dgx1v = load_topology("dgx1v")

    assert [[path_class(box, a, b) for b in box.devices] for a in box.devices] == [
        [path_class(dgx1v, a, b) for b in dgx1v.devices] for a in dgx1v.devices
    ]
    assert len(box.hosts) == 2


def test_as_many_links_to_all_as_a_gpu_has_are_nvswitches():
    box = imported(SWITCHED, "A100")

    assert {k.lanes for k in box.links if k.target == "nvswitch0"} == {12}
    assert path_class(box, "gpu0", "gpu3") == "NV12"
    assert len(box.hosts) == 2


def _affinities(*given: str, cell: str = "NV18") -> str:
    """A table of GPUs that NVLinks join, with their CPUs."""
    lines = ["\t".join(["", *(f"GPU{i}" for i in range(len(given))), "CPU Affinity"])]
    for i, cpus in enumerate(given):
        cells = [" X " if i == j else cell for j in range(len(given))]
        lines.append("\t".join([f"GPU{i}", *cells, cpus]))
    return "\n".join(lines) + "\n"


_NPS4 = (("48-63", 3), ("16-31", 1), ("112-127", 7), ("80-95", 5))


def test_two_affinities_are_two_sockets_where_no_cell_says_another():
    def hosts(table: str) -> list[str]:
        machine = imported(table, "H100")
        found = [k for k in machine.links if k.target in machine.hosts and k.source[:3] == "gpu"]
        return [k.target for k in sorted(found, key=lambda k: k.source)]

    assert hosts(_affinities("0-47", "0-47", "48-95", "48-95")) == ["cpu0", "cpu0", "cpu1", "cpu1"]
    assert set(hosts(_affinities("0-47", "0-47", "0-47", "0-47"))) == {"cpu0"}
    four = _affinities("0-15", "16-31", "32-47", "48-63")  # parts of one socket, perhaps
    assert set(hosts(four)) == {"cpu0"}
    # A DGX A100 with four NUMA nodes a socket (NPS4), as it prints them.
    nodes = [f"{cores}\t{node}" for cores, node in _NPS4]
    nps4 = _affinities(*(node for node in nodes for _ in range(2)))
    nps4 = nps4.replace("CPU Affinity", "CPU Affinity\tNUMA Affinity")
    machine = imported(nps4, "A100")

    assert hosts(nps4) == [f"cpu{i // 2}" for i in range(8)]
    assert {machine.nodes[name].memory_bandwidth for name in machine.hosts} == {204.8e9 / 4}
    # The sockets of POWER9 are NUMA nodes 0 and 8.
    power9 = nps4
    for number, node in ((1, 0), (3, 0), (5, 8), (7, 8)):
        power9 = power9.replace(f"\t{number}\n", f"\t{node}\n")
    machine = imported(power9, "A100")
    assert {machine.nodes[name].memory_bandwidth for name in machine.hosts} == {204.8e9}


def test_affinities_are_no_sockets_where_a_cell_joins_them():
    table = _affinities("0-47", "0-47", "48-95", "48-95", cell="NODE")
    assert len(imported(table, "L40S").hosts) == 1


def test_bridged_pairs_are_no_nvswitch():
    assert "nvswitch0" not in imported(TOPO_M, "A100").nodes


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, _ in shipped()
        if name not in ("gb200-nvl72", "oci-gb200", "gh200", "alps", "hgx-h800")
    ],
)
def test_the_table_we_print_is_read_back_as_itself(name):
    text = matrix_text(load_topology(name))

    assert matrix_text(read_topo_m(text, name, None)[0]) == text


def test_what_is_assumed_is_told():
    assert any("no GPU model" in note for note in read_topo_m(CUBE_MESH, "t")[1])
    assert any("does not say on which socket" in note for note in read_topo_m(CUBE_MESH, "t")[1])


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("GPU1\tNV2\t X \tSYS", "GPU1\tNV1\t X \tSYS", "GPU1: NV1 to GPU0, but NV2 back"),
        ("GPU1\tNV2\t X \tSYS", "GPU1\tNV2\tPIX\tSYS", "GPU1: PIX to itself"),
        ("GPU2\tSYS\tSYS", "GPU2\tSYS\tBLA", "line 4: 'BLA' is no cell"),
        ("NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \t\n", "NIC1\tSYS\n", "line 7: 1 cell for 6 devices"),
        ("GPU3\tSYS\tSYS\tNV2", "GPU4\tSYS\tSYS\tNV2", "no row of GPU3 and 2 more"),
        ("GPU0\tGPU1\tGPU2", "GPU0\tGPU0\tGPU2", "a device twice"),
    ],
)
def test_faults(old, new, fault):
    assert old in TOPO_M
    with pytest.raises(TopologyError) as caught:
        imported(TOPO_M.replace(old, new, 1))
    assert any(fault in problem for problem in caught.value.problems), caught.value.problems


def test_a_table_that_no_machine_prints_is_told():
    """GPU0 and GPU1 share a switch with the NIC, which is far from GPU1."""
    table = "\tGPU0\tGPU1\tnic0\nGPU0\tX\tPIX\tPIX\nGPU1\tPIX\tX\tSYS\nnic0\tPIX\tSYS\tX\n"
    _, notes = read_topo_m(table, "t", model_named("V100"))

    assert notes == [
        "the memory of a CPU is taken for 128 GB/s, as of Skylake",
        "no machine prints this table: nic0 is SYS to GPU1, but by the others it would be PIX",
    ]
    for text in (TOPO_M, CUBE_MESH, SWITCHED):
        assert not any(
            "no machine" in note for note in read_topo_m(text, "t", model_named("A100"))[1]
        )


def test_links_that_the_model_does_not_have():
    with pytest.raises(TopologyError, match="K80 has no NVLinks"):
        imported(CUBE_MESH, "K80")
    with pytest.raises(TopologyError, match="GPU0: 6 NVLinks, but a P100 has 4"):
        imported(CUBE_MESH, "P100")
    with pytest.raises(TopologyError, match=r"unknown model 'V10' \(did you mean 'V100'"):
        model_named("V10")


def test_other_text_is_not_taken_for_a_table():
    assert is_topo_m(TOPO_M)
    assert not is_topo_m("hello GPU0\n")
    with pytest.raises(TopologyError, match="no line that begins the table"):
        imported("hello")


BRIDGED = """
        GPU0    GPU1    GPU2    GPU3
GPU0     X      NV4     NODE    NODE
GPU1    NV4      X      NODE    NODE
GPU2    NODE    NODE     X      NV4
GPU3    NODE    NODE    NV4      X
"""
"""Four GPUs with a bridge for each two."""


@pytest.mark.parametrize("name", ["RTX3090", "RTX 3090", "NVIDIA GeForce RTX 3090", "rtx a6000"])
def test_bridges_carry_copies(name):
    """GeForce has peer access over its bridge and over nothing else."""
    box = imported(BRIDGED, name)
    bridge, host = box.router.route("gpu0", "gpu1"), box.router.route("gpu0", "gpu2")

    assert bridge.path == ("gpu0", "gpu1")
    assert bridge.bandwidth == 4 * 12e9
    assert host.path == ("gpu0", "cpu0", "gpu2")
    assert box.router.is_peer("gpu0", "gpu1")
    assert box.router.is_peer("gpu0", "gpu2") == ("6000" in name)


def test_models_without_nvlinks_are_refused_where_a_table_shows_some():
    with pytest.raises(
        TopologyError, match=r"RTX4090 has no NVLinks, but the file shows 4 at a GPU; .*: RTX3090, "
    ):
        imported(BRIDGED, "RTX4090")
    with pytest.raises(TopologyError, match=r"shows 6 at a GPU; GPUs with so many: V100$"):
        imported(CUBE_MESH, "RTX4090")
    with pytest.raises(
        TopologyError, match=r"shows 12 at a GPU; GPUs with so many: A100, A100-64GB, A100-80GB"
    ):
        imported(SWITCHED, "RTX4090")
    four = BRIDGED.replace("NODE", "NV4 ")
    with pytest.raises(
        TopologyError, match="GPU3: NVLinks to 3 GPUs, but a bridge of RTX3090 join"
    ):
        imported(four, "RTX3090")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("RTX 309", "RTX3090"), ("3090", "RTX3090"), ("L40S-48Q", "L40S"), ("A6000", "RTXA6000")],
)
def test_a_model_of_another_number_is_another_product(typed, meant):
    """It is never proposed."""
    with pytest.raises(TopologyError, match=rf"unknown model .* \(did you mean '{meant}'\?\)"):
        model_named(typed)
    for other in ("RTX 4900", "Tesla M10", "RTX 3050", ""):
        with pytest.raises(TopologyError, match="; known are K80, "):
            model_named(other)


@pytest.mark.parametrize(
    ("printed", "model"),
    [
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100-PCIE-16GB", "V100-PCIE"),
        ("Tesla V100S-PCIE-32GB", "V100S-PCIE"),
        ("Tesla V100-FHHL-16GB", "V100-PCIE"),
        ("Tesla P100-PCIE-16GB", "P100-PCIE"),
        ("Tesla T4", "T4"),
        ("NVIDIA TITAN X (Pascal)", "TITANX-PASCAL"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE"),
        ("NVIDIA A100-SXM-64GB", "A100-64GB"),
        ("NVIDIA A800 40GB Active", "A800-PCIE-40GB"),
        ("Tesla V100-SXM3-32GB-H", "V100"),
        ("Quadro RTX 5000", "RTX 5000"),
        ("NVIDIA RTX 5000 Ada Generation", "RTX 5000 Ada"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 SFF Ada"),
        ("NVIDIA RTX PRO 5000 Blackwell", "RTX PRO 5000"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070Ti SUPER"),
        ("NVIDIA RTX A2000 12GB", "RTXA2000"),
        ("NVIDIA L2", "L2"),
        ("Tesla M40 24GB", "M40"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("NVIDIA A800-SXM4-80GB", "A800"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX3090Ti"),
        ("NVIDIA GeForce RTX 4090 D", "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 6000", "RTX 6000"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names_are_those_that_programs_print(printed, model):
    assert model_named(printed).name == model


@pytest.mark.parametrize("printed", ["NVIDIA A100-SXM4-48GB", "NVIDIA H100 64GB HBM2"])
def test_another_size_of_memory_is_another_gpu(printed):
    with pytest.raises(TopologyError, match="unknown model"):
        model_named(printed)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("DGX H100 with H100-SXM5", "H100"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("RTX A1000", None),
        ("Quadro GP100", None),
        ("A100X", None),
    ],
)
def test_a_model_in_a_text_is_whole_words(text, model):
    found = model_in(text)
    assert (found and found.name) == model


def test_gpus_of_grace_hang_on_it_by_c2c():
    """PCIe is for the NICs alone."""
    box = imported(_affinities("0-71", "0-71", "72-143", "72-143"), "NVIDIA GB200")
    assert {box.nodes[name].model for name in box.hosts} == {"Grace"}
    own = {(k.source, k.target): k.link_class for k in box.links if k.source in box.devices}
    assert [own[pair] for pair in (("gpu0", "cpu0"), ("gpu3", "cpu1"))] == ["c2c", "c2c"]
    assert {k.link_class for k in box.links if {k.source, k.target} == {*box.hosts}} == {
        "grace_link"
    }
