"""`topo check`: what is wrong, where, and what to do about it."""

from __future__ import annotations

import re

import pytest

from simreduce.topology.check import check_file
from simreduce.topology.routing.router import Router
from tests.topology.importers.files import CUBE_MESH, GRAPHS, TOPO_M, XML

GOOD = """
[nodes.gpu]
names = ["gpu[0-3]"]
kind = "gpu"
model = "V100"
memory_bandwidth = "900 GB/s"
peer = "PHB"
[nodes.cpu]
names = ["cpu0"]
kind = "cpu"
[links.nvlink2]
lanes = 2
pairs = [["gpu0", "gpu[1-3]"], ["gpu1", "gpu[2-3]"], ["gpu2", "gpu3"]]
[links.pcie3_x16]
pairs = [["gpu[0-3]", "cpu0"]]
"""


def found(tmp_path, text: str, name: str = "box.toml") -> list[str]:
    path = tmp_path / name
    path.write_text(text)
    return [
        problem.replace(f"{path}: ", "").replace(str(path), "") for problem in check_file(str(path))
    ]


def test_a_machine_without_fault(tmp_path):
    assert found(tmp_path, GOOD) == []
    for text, name in ((XML, "a.xml"), (TOPO_M, "a.txt"), (CUBE_MESH, "b.txt"), (GRAPHS, "g.xml")):
        assert found(tmp_path, text, name) == []


def test_bridges_join_pairs_beside_bare_gpus(tmp_path):
    """GPUs in PCIe slots: no NVLink is missing, but a bridge is whole."""
    pairs = '[["gpu0", "gpu[1-3]"], ["gpu1", "gpu[2-3]"], ["gpu2", "gpu3"]]'
    one = GOOD.replace(pairs, '[["gpu0", "gpu1"]]')
    uneven = f'{one}[links.nvlink1]\nlanes = 1\npairs = [["gpu2", "gpu3"]]\n'
    three = GOOD.replace(pairs, '[["gpu0", "gpu1"], ["gpu1", "gpu2"], ["gpu0", "gpu2"]]')
    switch = GOOD.replace(pairs, '[["gpu[0-2]", "sw0"]]') + (
        '[nodes.nvswitch]\nnames = ["sw0"]\nkind = "nvswitch"\n'
    )

    assert found(tmp_path, one) == []
    assert any("1 NVLinks, most GPUs like it 2" in each for each in found(tmp_path, uneven))
    for text, most in ((three, 4), (switch, 2)):
        faults = found(tmp_path, text)
        assert any(f"'gpu3' has 0 NVLinks, most GPUs like it {most}" in each for each in faults)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        # What keeps a file from being read is told as elsewhere, all of it.
        (
            '"cpu0"]]',
            '"cpu1"]]',
            "links.pcie3_x16.pairs[0]: no node named 'cpu1' (did you mean 'gpu1'?)",
        ),
        ('"900 GB/s"', '"900"', "nodes.gpu.memory_bandwidth: '900' has no unit"),
        ('["gpu2", "gpu3"]', '["gpu1", "gpu0"]', "already joined by links.nvlink2.pairs[0]"),
        ('names = ["cpu0"]', 'names = ["cpu0", "cpu0"]', "there are two nodes named 'cpu0'"),
        # What can be read but not be meant.
        ('names = ["cpu0"]', 'names = ["cpu[0-1]"]', "nodes.cpu: cpu 'cpu1' has no link; join it"),
        (
            "lanes = 2\n",
            'bandwidth = "25 TB/s"\n',
            "links.nvlink2: gpu0 - gpu1: 2.5e+04 GB/s per lane and direction is no rate",
        ),
        ("lanes = 2\n", 'bandwidth = "250 GB/s"\n', "250 GB/s per lane, but nvlink2 has 25 GB/s"),
        ("lanes = 2\n", 'bandwidth = "2.5 GB/s"\n', "2.5 GB/s per lane, but nvlink2 has 25 GB/s"),
        (
            "lanes = 2\n",
            'achievable = "2 GB/s"\n',
            "achievable 2 GB/s is less than a tenth of nominal 25 GB/s",
        ),
        ("lanes = 2\n", 'latency = "1.8 s"\n', "a latency of 1.8 s; is the unit right?"),
        (
            '"900 GB/s"',
            '"900 MB/s"',
            "nodes.gpu: 'gpu0' has a memory of 0.9 GB/s; is the unit right?",
        ),
        (
            ', ["gpu2", "gpu3"]',
            "",
            "'gpu2' has 4 NVLinks, most GPUs like it 6; add what is missing",
        ),
        ("lanes = 2\n", "lanes = 3\n", "nodes.gpu: 9 NVLinks, but a V100 has 6"),
        ('[["gpu[0-3]", "cpu0"]]', '[["gpu[0-2]", "cpu0"]]', "nodes.gpu: 'gpu3' reaches no CPU"),
        (
            ', ["gpu2", "gpu3"]]\n[links.pcie3_x16]\npairs = [["gpu[0-3]", "cpu0"]]',
            "]\n",
            "'gpu2' does not reach 'gpu3'",
        ),
        (
            'peer = "PHB"',
            'peer = "off"',
            "'gpu0' and 'gpu1' copy through the host, but 'gpu0' has no link to itself",
        ),
    ],
)
def test_faults_have_a_place_and_a_way_out(tmp_path, old, new, fault):
    assert old in GOOD
    problems = found(tmp_path, GOOD.replace(old, new))
    assert any(fault in problem for problem in problems), problems


def test_all_faults_of_a_file_are_told_at_once(tmp_path):
    text = GOOD.replace("900 GB/s", "900 MB/s").replace("lanes = 2", 'lanes = 2\nlatency = "1 s"')

    assert len(found(tmp_path, text)) == 2


EVERYTHING = """
title = "everything wrong"
extends = "dgx1v"
[nodes.gpu]
names = ["gpu[0-7]", "gpu3"]
memory_bandwith = "900 GB/s"
peer = "PHX"
gpudirect = "PIXX"
[nodes.nic]
memory_bandwidth = "16 MB/s"
[nodes.cpu]
kind = "cpuu"
[nodes.lonely]
names = ["lonely0"]
kind = "pcie_switch"
[links.nvlink2]
pairs = [["gpu0", "gpu9"], ["gpu0", "gpu1"], ["gpu1", "gpu0"], ["gpu2", "gpu2"], ["gpu1"]]
bandwidth = "25"
[links.nvlnk3]
pairs = [["gpu4", "gpu5"]]
[links.qpi]
bandwidth = "1000 TB/s"
latency = "1 fortnight"
lanes = 0
[links.pcie4_x16]
bandwidth = "315 GB/s"
pairs = [["plx0", "gpu0"]]
[routing]
equal_cost = "splits"
[rooting]
a = 1
"""
"""A dangling pair, one in both orders, a device without link, absurd rates, a name twice, units,
and slips of spelling.
"""


def test_one_file_with_every_kind_of_fault(tmp_path):
    problems = found(tmp_path, EVERYTHING)

    for fault in (
        "rooting: unknown key (did you mean 'routing'?)",
        "nodes.gpu.memory_bandwith: unknown key (did you mean 'memory_bandwidth'?)",
        "nodes.gpu.peer: unknown reach 'PHX' (did you mean 'PXB'?)",
        "nodes.gpu.gpudirect: unknown reach 'PIXX' (did you mean 'PIX'?)",
        "nodes.gpu.names[1]: there are two nodes named 'gpu3'",
        "nodes.nic: 'mlx5_0' has a memory of 0.016 GB/s; is the unit right?",
        "nodes.cpu.kind: unknown kind 'cpuu' (did you mean 'cpu'?)",
        "nodes.lonely: pcie_switch 'lonely0' has no link; join it to something, or remove it",
        "links.nvlink2.bandwidth: '25' has no unit; write for example '25 GB/s'",
        "links.nvlink2.pairs[0]: no node named 'gpu9' (did you mean 'gpu7'?)",
        "links.nvlink2.pairs[2]: 'gpu1' and 'gpu0' are already joined by links.nvlink2.pairs[1]",
        "links.nvlink2.pairs[3]: 'gpu2' is linked to itself",
        "links.nvlink2.pairs[4]: must be [node, node] or [node, node, lanes], got ['gpu1']",
        (
            "links.nvlnk3: 'nvlnk3' is no known class, so it must give bandwidth and latency (did "
            "you "
            "mean 'nvlink3'?)"
        ),
        "links.qpi.latency: '1 fortnight': unknown unit 'fortnight' for a time",
        "links.qpi: cpu0 - cpu1: 1e+06 GB/s per lane and direction is no rate of a wire",
        "links.qpi.lanes: must be a whole number of lanes from 1 to 1024, got 0",
        "links.pcie4_x16: plx0 - gpu0: 315 GB/s per lane, but pcie4_x16 has 31.5 GB/s",
        "links.pcie4_x16: plx0 - gpu0 are joined by pcie3_x16 in the other order too",
        "routing.equal_cost: unknown rule 'splits' (did you mean 'split'?)",
    ):
        assert sum(problem.startswith(fault) for problem in problems) == 1, (fault, problems)
    assert len(problems) == 20


def test_gpus_that_send_by_the_host_for_nothing(tmp_path):
    nic = (
        '[nodes.nic]\nnames = ["nic0"]\nkind = "nic"\n'
        '[links.pcie4_x16]\npairs = [["nic0", "cpu0"]]\n'
    )
    text = GOOD.replace('peer = "PHB"', 'peer = "PHB"\ngpudirect = "PXB"')

    assert found(tmp_path, text) == []
    assert found(tmp_path, GOOD + nic) == []
    assert found(tmp_path, text + nic)[0].startswith(
        "nodes.gpu: 'gpu0' and 'nic0' copy through the host, but 'gpu0' has no link to itself"
    )


def test_what_only_gpus_join_to_the_rest_is_told(tmp_path):
    """Once for each part; parts with GPUs are told by these."""
    two = GOOD.replace('["cpu0"]', '["cpu[0-1]"]')
    pairs = '[links.pcie3_x16]\npairs = [["gpu[0-1]", "cpu0"], ["gpu[2-3]", "cpu1"]]\n'
    split = two.replace('[links.pcie3_x16]\npairs = [["gpu[0-3]", "cpu0"]]\n', pairs)
    nics = (
        '[nodes.nic]\nnames = ["nic[0-1]"]\nkind = "nic"\n[nodes.plx]\nnames = ["plx9"]\nkind = '
        '"pcie_switch"\n'
        '[links.pcie4_x16]\npairs = [["nic[0-1]", "plx9"]]\n'
    )

    assert found(tmp_path, split) == [
        "nodes.cpu: cpu 'cpu1' and 'cpu0' are not joined; add the link between the sockets"
    ]
    assert found(tmp_path, f'{split}[links.qpi]\npairs = [["cpu0", "cpu1"]]') == []
    assert found(tmp_path, GOOD + nics) == [
        (
            "nodes.nic: 'nic0' (and 2 more) is joined to no CPU and no GPU; link it to one, or "
            "remove "
            "it"
        )
    ]
    assert found(tmp_path, GOOD + nics.replace('"plx9"]]', '"plx9"], ["plx9", "cpu0"]]')) == []
    # A NIC that the GPU hangs on needs no CPU.
    assert found(tmp_path, GOOD + nics.replace('"plx9"]]', '"plx9"], ["plx9", "gpu0"]]')) == []


def test_one_fault_hides_no_other(tmp_path):
    """Neither of a table whose name begins alike, nor of the same table; only a rate that was not
    read is not judged.
    """
    pairs = '[links.pcie3_x16]\npairs = [["gpu[0-3]", "cpu0"]]\n'
    alike = GOOD.replace(
        pairs,
        '[links.pc]\nclass = "pcie3_x16"\nbandwidth = "157 GB/s"\npairs = [["gpu[0-1]", "cpu0"]]\n'
        '[links.pc2]\nclass = "pcie4_x16"\nbandwidth = "15"\nlatency = "1 s"\npairs = [["gpu[2-3]",'
        ' "cpu0"]]\n',
    )
    assert [problem.partition(";")[0] for problem in found(tmp_path, alike)] == [
        "links.pc2.bandwidth: '15' has no unit",
        "links.pc: gpu0 - cpu0: 157 GB/s per lane, but pcie3_x16 has 15.75 GB/s",
        "links.pc2: gpu2 - cpu0: a latency of 1 s",
    ]
    twice = GOOD.replace(
        pairs,
        '[links.pcie3_x16]\nbandwidth = "157 GB/s"\npairs = [["gpu[0-3]", "cpu0"], ["gpu0", '
        '"cpu0"]]\n',
    )
    assert [problem.partition(";")[0] for problem in found(tmp_path, twice)] == [
        (
            "links.pcie3_x16.pairs[1]: 'gpu0' and 'cpu0' are already joined by "
            "links.pcie3_x16.pairs[0]"
        ),
        "links.pcie3_x16: gpu0 - cpu0: 157 GB/s per lane, but pcie3_x16 has 15.75 GB/s",
    ]
    unread = GOOD.replace("lanes = 2\n", 'lanes = 2\nachievable = "20"\n')
    assert len(found(tmp_path, unread)) == 1


def test_what_other_commands_take_for_a_machine(tmp_path, monkeypatch):
    """A shipped name, one of the local folder, an inline machine; a file of that very name comes
    first.
    """
    assert check_file("dgx1v") == check_file("dgx1vx4,fabric=torus,dims=2x2") == []
    assert "no topology 'dgx1w' (did you mean 'dgx1v'?)" in check_file("dgx1w")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topologies").mkdir()
    (tmp_path / "topologies" / "mine.toml").write_text(GOOD.replace("900 GB/s", "900 MB/s"))
    assert check_file("mine")[0].startswith(
        "topologies/mine.toml: nodes.gpu: 'gpu0' has a memory of 0.9 GB/s"
    )
    (tmp_path / "dgx1v").write_text("hello")
    assert "neither a machine file" in check_file("dgx1v")[0]


def test_other_files(tmp_path):
    assert "neither a machine file" in found(tmp_path, "hello", "a.txt")[0]
    assert "not well-formed" in found(tmp_path, "<system>", "a.xml")[0]
    assert "GPU1: PIX to GPU0, but NV2 back" in " ".join(
        found(tmp_path, TOPO_M.replace("GPU1\tNV2", "GPU1\tPIX"), "a.txt")
    )
    assert "there is no such file" in check_file(str(tmp_path / "none.toml"))[0]
    assert "there is no such file" in check_file(str(tmp_path / "none.txt"))[0]


MANY = """
[nodes.gpu]
names = ["gpu[0-299]"]
kind = "gpu"
peer = "{peer}"
gpudirect = "{gpudirect}"
[nodes.cpu]
names = ["cpu0"]
kind = "cpu"
[nodes.nic]
names = ["nic[0-3]"]
kind = "nic"
[links.pcie3_x16]
pairs = [["gpu[0-299]", "cpu0"], ["nic[0-3]", "cpu0"]]
"""


@pytest.mark.parametrize(("peer", "gpudirect"), [("PHB", "PHB"), ("PIX", "PHB"), ("PHB", "PIX")])
def test_of_many_gpus_few_ways_are_tried(tmp_path, monkeypatch, peer, gpudirect):
    """A few for each GPU, not for each pair of them; what is wrong with the first is told."""
    asked = []
    path = Router.path

    def counted(self, source, target):
        asked.append((source, target))
        return path(self, source, target)

    monkeypatch.setattr(Router, "path", counted)
    faults = found(tmp_path, MANY.format(peer=peer, gpudirect=gpudirect))

    assert len(set(asked)) < 5 * 300
    assert len(asked) < 20 * 300
    others = ["gpu1"] if peer == "PIX" else ["nic0"] if gpudirect == "PIX" else []
    assert [fault.partition(" copy through")[0] for fault in faults] == [
        f"nodes.gpu: 'gpu0' and '{other}'" for other in others
    ]


def test_a_cloud_file_without_nvlinks_is_a_fault(tmp_path):
    """Its GPUs have some, and would copy at PCIe rates."""
    path = tmp_path / "cloud.xml"
    path.write_text(re.sub(r"<nvlink [^>]*/>", "", XML))

    (fault,) = [each for each in check_file(str(path)) if "NVLinks" in each]
    assert "no NVLinks, but 'gpu0' is of model A100, which has 12" in fault
    assert "`simreduce topo import --nvlink`" in fault


def test_links_that_no_copy_takes(tmp_path):
    """GPUs without peer access leave their NVLinks idle."""
    off = GOOD.replace("PHB", "off").replace(
        "[links.pcie3", '[links.staged_pcie3]\npairs = [["gpu[0-3]", "gpu[0-3]"]]\n[links.pcie3'
    )
    unused = (
        "links.nvlink2: no copy takes nvlink2 x2 from 'gpu0' to 'gpu1' (and 5 more); "
        'peer = "off" refuses NVLinks too, and peer = "NV" lets copies take them'
    )

    assert found(tmp_path, off) == [unused]
    assert found(tmp_path, off.replace('"off"', '"NV"')) == []
    spare = GOOD.replace(
        "[links.nvlink2]", '[links.qpi]\npairs = [["gpu0", "gpu1"]]\n[links.nvlink2]'
    )
    assert found(tmp_path, spare) == ["links.qpi: no copy takes qpi x1 from 'gpu0' to 'gpu1'"]


def test_a_model_that_has_no_nvlinks(tmp_path):
    faults = found(tmp_path, GOOD.replace("V100", "GeForce RTX 4090"))

    words = "nodes.gpu: RTX4090 has no NVLinks, but the file shows 6 at a GPU; GPUs with so many: "
    assert faults == [f"{words}V100"]
