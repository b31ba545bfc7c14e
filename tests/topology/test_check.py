"""`topo check`: what is wrong, where, and what to do about it."""

from __future__ import annotations

import pytest

from simreduce.topology.check import check_file
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
    return [problem.replace(f"{path}: ", "").replace(str(path), "") for problem in check_file(str(path))]


def test_a_machine_without_fault(tmp_path):
    assert found(tmp_path, GOOD) == []
    for text, name in ((XML, "a.xml"), (TOPO_M, "a.txt"), (CUBE_MESH, "b.txt"), (GRAPHS, "g.xml")):
        assert found(tmp_path, text, name) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        # What keeps a file from being read is told as elsewhere, all of it.
        ('"cpu0"]]', '"cpu1"]]', "links.pcie3_x16.pairs[0]: no node named 'cpu1' (did you mean 'gpu1'?)"),
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
        ('"900 GB/s"', '"900 MB/s"', "nodes.gpu: 'gpu0' has a memory of 0.9 GB/s; is the unit right?"),
        (', ["gpu2", "gpu3"]', "", "'gpu2' has 4 NVLinks, most GPUs like it 6; add what is missing"),
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


def test_other_files(tmp_path):
    assert "neither a machine file" in found(tmp_path, "hello", "a.txt")[0]
    assert "not well-formed" in found(tmp_path, "<system>", "a.xml")[0]
    assert "GPU1: PIX to GPU0, but NV2 back" in " ".join(
        found(tmp_path, TOPO_M.replace("GPU1\tNV2", "GPU1\tPIX"), "a.txt")
    )
    assert "there is no such file" in check_file(str(tmp_path / "none.toml"))[0]
    assert "cannot be read" in check_file(str(tmp_path / "none.txt"))[0]
