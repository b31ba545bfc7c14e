"""The declared formats name every key that files of machines and clusters may hold."""

from __future__ import annotations

from simreduce.topology import loader
from simreduce.topology.check import check_file
from simreduce.topology.formats import CLUSTER, MACHINE
from simreduce.topology.generators import FABRIC_KEYS, SETTINGS
from tests.reference import reference

EXAMPLE = """
title = "two GPUs and a host"
[nodes.gpu]
names = ["gpu[0-1]"]
kind = "gpu"
model = "V100"
memory_bandwidth = "900 GB/s"
[nodes.cpu]
names = ["cpu0"]
kind = "cpu"
[links.nvlink2]
pairs = [["gpu0", "gpu1", 2]]
[links.pcie3_x16]
pairs = [["gpu[0-1]", "cpu0"]]
"""


def test_a_small_example_has_no_fault(tmp_path):
    path = tmp_path / "example.toml"
    path.write_text(EXAMPLE)

    assert check_file(str(path)) == []


def test_every_setting_of_a_network_is_declared():
    assert set(CLUSTER.keys) == {*loader._OWN_KEYS, *SETTINGS, *FABRIC_KEYS}


def test_the_reference_has_every_table_of_a_machine():
    text = reference(MACHINE)

    assert all(f"`[{table}" in text for table in ("nodes.", "links.", "routes.", "routing"))
