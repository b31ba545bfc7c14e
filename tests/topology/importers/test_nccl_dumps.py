"""What NCCL's own library wrote (NCCL_GRAPH_DUMP_FILE, NCCL_TOPO_DUMP_FILE), without a change.

It was asked on fake GPUs on 2026-11-30, as `simreduce_validate.nccl_library` asks; the version is
in the name of a file. `four-h100x2` is two nodes of four H100 on NVSwitches with two NICs,
`two-hosts` two of two GB200 that NVLinks join (MNNVL). Of `alpsx2`, each rank named the maker of
the CPU that its GPU hangs on, so that the library found CPUs of one number to differ, and wrote
both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simreduce.errors import TopologyError
from simreduce.topology import load_topology
from simreduce.topology.importers.nccl_xml import read_nccl_graphs, read_nccl_topology
from simreduce.topology.machine_files import to_toml
from simreduce.topology.routing import is_nvlink

DUMPS = Path(__file__).parent / "dumps"


def text(name):
    return (DUMPS / f"{name}.xml").read_text(encoding="utf-8")


def topology(name):
    return read_nccl_topology(text(name), name)


def graphs(name):
    return {graph.id: graph for graph in read_nccl_graphs(text(name), name)}


@pytest.mark.parametrize("version", ["2.18.3", "2.32.3"])
def test_rings_by_decimal_and_by_hexadecimal_numbers(version):
    ring = graphs(f"four-h100x2-{version}-graph")[0]

    assert ring.pattern == "ring"
    assert {frozenset(channel.gpus) for channel in ring.channels} == {frozenset(range(4))}
    assert {channel.net_in for channel in ring.channels} == {"0", "1"}


@pytest.mark.parametrize(("version", "heads"), [("2.18.3", [0, 1, 0, 0]), ("2.32.3", [0, 2])])
def test_a_channel_of_nvls_has_its_head_alone(version, heads):
    """2.18 names a head and as many times GPU 0 as there are other GPUs."""
    nvls = graphs(f"four-h100x2-{version}-graph")[3]

    assert nvls.pattern == "nvls"
    assert [channel.gpus for channel in nvls.channels] == [(head,) for head in heads]
    assert {(channel.net_in, channel.net_out) for channel in nvls.channels} == {
        ("0", "0"),
        ("1", "1"),
    }


def test_gpus_of_several_hosts_are_numbered_through():
    found = graphs("two-hosts-2.27.7-graph")

    assert {channel.gpus for channel in found[0].channels} == {(0, 1, 2, 3)}
    assert [channel.gpus for channel in found[3].channels] == [(0,), (1,), (2,), (3,)]


def test_the_topology_of_a_node():
    machine, notes = topology("four-h100x2-2.32.3-topo")

    assert machine.devices == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert {link.link_class for link in machine.links if is_nvlink(link)} == {"nvlink4"}
    assert machine.nodes["nvswitch0"].reduces
    assert machine.nodes["mlx5_1"].network == "ib_ndr"
    assert not any("hosts" in note for note in notes)


def test_what_ranks_say_of_one_cpu_is_one_cpu():
    machine, notes = topology("alpsx2-2.30.7-topo")
    alps = load_topology("alps")

    assert machine.hosts == alps.hosts == ("cpu0", "cpu1", "cpu2", "cpu3")
    assert machine.devices == alps.devices
    for name in (*alps.devices, "cxi0", "cxi1", "cxi2", "cxi3"):
        assert {(link.target, link.lanes) for link in machine.wires_from[name]} == {
            (link.target, link.lanes) for link in alps.wires_from[name]
        }
    assert not any("hosts" in note for note in notes)


def test_cpus_of_one_number_without_a_host_are_a_fault():
    once = text("alpsx2-2.30.7-topo").replace(' host_hash="0x72fc54a32a8e38d2"', "")

    with pytest.raises(TopologyError, match="there are two CPUs with numaid 0"):
        read_nccl_topology(once, "x.xml")


def test_the_first_of_several_hosts_is_read_and_the_others_are_told():
    machine, notes = topology("two-hosts-2.27.7-topo")

    assert (machine.devices, machine.hosts) == (("gpu0", "gpu1"), ("cpu0", "cpu1"))
    assert {machine.nodes[gpu].model for gpu in machine.devices} == {"GB200"}
    assert notes[0] == (
        "the file has 2 hosts, and this is the first of them, host_hash '0x72fc54a32a8e38d2'"
    )
    assert f"# {notes[0]}" in to_toml(machine, notes)
