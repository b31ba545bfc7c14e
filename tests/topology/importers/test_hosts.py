"""Hosts and the switches above them, from files of Slurm, InfiniBand and clouds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simreduce.errors import TopologyError
from simreduce.topology import load_topology
from simreduce.topology.importers.hosts import read_hosts
from simreduce.topology.switch_groups import switch_groups, with_hosts

CONF = """
# a comment
SwitchName=leaf1 Nodes=n[01-02],x  LinkSpeed=100
switchname=leaf2 nodes=n[03-04]
SwitchName=top \\
  Switches=leaf[1-2]
"""
SCONTROL = """
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[01-02],x Switches=(null)
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[03-04]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[01-04],x Switches=leaf[1-2]
"""
IB = """
#
# Topology file: generated on Mon Jan  1 00:00:00 2024
#
vendid=0x2c9
Switch\t40 "S-0000000000000001"\t\t# "MF0;leaf1:MQM8700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-00000000000000a1"[1](a1) \t\t# "n01 mlx5_0" lid 11 4xHDR
[2]\t"H-00000000000000a2"[1](a2) \t\t# "n02 HCA-1" lid 12 4xHDR
[21]\t"S-0000000000000003"[1]\t\t# "MF0;spine1:MQM8700/U1" lid 3 4xHDR
[41]\t"H-00000000000000f1"[1](f1) \t\t# "Mellanox Technologies Aggregation Node" lid 91 4xHDR

Switch\t40 "S-0000000000000002"\t\t# "Quantum Mellanox Technologies" base port 0 lid 2 lmc 0
[1]\t"H-00000000000000a3"[1](a3) \t\t# "n03 mlx5_0" lid 13 4xHDR
[21]\t"S-0000000000000003"[2]\t\t# "MF0;spine1:MQM8700/U1" lid 3 4xHDR

Switch\t40 "S-0000000000000003"\t\t# "MF0;spine1:MQM8700/U1" enhanced port 0 lid 3 lmc 0
[1]\t"S-0000000000000001"[21]\t\t# "MF0;leaf1:MQM8700/U1" lid 1 4xHDR
[2]\t"S-0000000000000002"[21]\t\t# "Quantum" lid 2 4xHDR

Ca\t1 "H-00000000000000f1"\t\t# "Mellanox Technologies Aggregation Node"
[1](f1) \t"S-0000000000000001"[41]\t\t# lid 91 lmc 0 "MF0;leaf1:MQM8700/U1" lid 1 4xHDR

Ca\t1 "H-00000000000000a1"\t\t# "n01 mlx5_0"
[1](a1) \t"S-0000000000000001"[1]\t\t# lid 11 lmc 0 "MF0;leaf1:MQM8700/U1" lid 1 4xHDR

Ca\t1 "H-00000000000000a2"\t\t# "n02 HCA-1"
[1](a2) \t"S-0000000000000001"[2]\t\t# lid 12 lmc 0 "MF0;leaf1:MQM8700/U1" lid 1 4xHDR

Ca\t1 "H-00000000000000b2"\t\t# "n02 HCA-2"
[1](b2) \t"S-0000000000000002"[2]\t\t# lid 14 lmc 0 "Quantum" lid 1 4xHDR

Ca\t1 "H-00000000000000a3"\t\t# "n03 mlx5_0"
[1](a3) \t"S-0000000000000002"[1]\t\t# lid 13 lmc 0 "Quantum" lid 2 4xHDR
"""


def aws(**changes: Any) -> str:
    rows = [
        {"InstanceId": f"i-{i}", "InstanceType": "p5.48xlarge",
         "NetworkNodes": ["nn-1", f"nn-2{i // 4}", f"nn-3{i // 2}"]}
        for i in range(4)
    ]  # fmt: skip
    return json.dumps({"Instances": rows} | changes)


def gcp(*rows: dict[str, Any]) -> str:
    made = [
        {"name": f"vm{i}", "resourceStatus": {"physicalHostTopology": {
            "cluster": "c", "block": f"b{i // 2}", "subblock": f"s{i}", "host": f"h{i}"}}}
        for i in range(3)
    ]  # fmt: skip
    return json.dumps([*made, *rows])


@pytest.mark.parametrize("text", [CONF, SCONTROL])
def test_slurm(text: str) -> None:
    assert read_hosts(text, "t") == {
        "n01": ("top", "leaf1"), "n02": ("top", "leaf1"), "x": ("top", "leaf1"),
        "n03": ("top", "leaf2"), "n04": ("top", "leaf2"),
    }  # fmt: skip


def test_infiniband() -> None:
    assert read_hosts(IB, "t") == {
        "n01": ("spine1", "leaf1"),
        "n02": ("spine1", "S-0000000000000002+leaf1"),
        "n03": ("spine1", "S-0000000000000002"),
    }


def test_clouds() -> None:
    assert read_hosts(aws(), "t")["i-2"] == ("nn-1", "nn-20", "nn-31")
    assert read_hosts(gcp(), "t") == {
        "vm0": ("c", "b0", "s0"), "vm1": ("c", "b0", "s1"), "vm2": ("c", "b1", "s2"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            """SwitchName=a Nodes=n[2-1]
SwitchName=a Nodes=n1
SwitchName=b
SwitchName=c Nodes=n1
SwitchName=d Nodes=n1
SwitchName=e Switches=c,z
SwitchName=f Switches=c
Nodes=n9""",
            [
                "t: line 1: 'n[2-1]': 2-1 stands", "t: line 2: there are two switches named a",
                "t: line 3: b has neither", "t: line 8: has no SwitchName",
                "t: e has a switch z", "t: c is below both e and f", "t: n1 is below both c and d",
            ],
        ),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=x", []),
        (
            aws(Instances=[{}, {"InstanceId": "i", "NetworkNodes": []},
                           {"InstanceId": "j", "NetworkNodes": ["a"]},
                           {"InstanceId": "j", "NetworkNodes": ["a", "b"]}], NextToken="x"),
            [
                "t: NextToken: this is one page", "t: Instances[0].InstanceId: missing",
                "t: Instances[1].NetworkNodes: must list", "t: Instances[3].NetworkNodes: has 2",
                "t: Instances[3]: j is there twice",
            ],
        ),
        (
            gcp({"name": "a"}, {}, {"name": "vm1", "resourceStatus": {
                "physicalHostTopology": {"cluster": "c", "block": ""}}}),
            [
                "t: [3].resourceStatus.physicalHostTopology: missing for a",
                "t: [4].name: missing", "t: [5].resourceStatus.physicalHostTopology.block: missing",
                "t: [5].resourceStatus.physicalHostTopology.subblock: missing",
                "t: [5]: vm1 is there twice",
            ],
        ),
        (
            """Switch 36 "S-1" # "leaf"
[x] nothing
Ca 1 "H-1" # "n1 mlx5_0"
[1](b) "S-9"[2]
Ca 1 "H-1" # "n1 mlx5_1"
Ca 1 "H-2"
[1](b) "S-1"[3]
""",
            ["t: line 2: no port of a device", "t: line 5: H-1 is there twice",
             "t: line 6: this adapter has no description"],
        ),
        (
            """SwitchName=a Node=n[1-2]
swichname=b nodes=n3
SwitchName=c Nodes=n4 LinkSpeed=1
SwitchName=t Switchs=a,b,cc""",
            [
                "t: line 1: Node: unknown key (did you mean 'Nodes'?)",
                "t: line 2: swichname: unknown key (did you mean 'SwitchName'?)",
                "t: line 4: Switchs: unknown key (did you mean 'Switches'?)",
                "t: t has a switch cc, and no line is about that (did you mean 'c'?)",
            ],
        ),
        (
            "SwichName=a Nodes=n1",
            ["t: line 1: SwichName: unknown key (did you mean 'SwitchName'?)"],
        ),
        (
            """{"Instance": [{"InstanceID": "a", "NetworkNodes": ["x"]},
                {"InstanceId": "b", "NetworkNode": ["x"], "GroupName": "g"}]}""",
            [
                "t: Instance: unknown key (did you mean 'Instances'?)",
                "t: Instances[0].InstanceID: unknown key (did you mean 'InstanceId'?)",
                "t: Instances[1].NetworkNode: unknown key (did you mean 'NetworkNodes'?)",
            ],
        ),
        (
            gcp({"name": "a", "resourceState": {"physicalHostTopologi": {
                "clusters": "c", "block": "b", "subblock": "s"}}}),
            [
                "t: [3].resourceState: unknown key (did you mean 'resourceStatus'?)",
                "t: [3].resourceStatus.physicalHostTopologi: unknown key (did you mean",
                "t: [3].resourceStatus.physicalHostTopology.clusters: unknown key (did you mean",
            ],
        ),
        ("Hosts: none", ["t: none of the output of `ibnetdiscover`"]),
        ('{"NetworkNodes"', ["t: no JSON"]),
    ],
)  # fmt: skip
def test_every_fault_at_once(text: str, faults: list[str]) -> None:
    if not faults:  # switches in a circle that no host is below
        assert read_hosts(text, "t") == {"x": ("c",)}
        return
    with pytest.raises(TopologyError) as error:
        read_hosts(text, "t")
    found = error.value.problems
    assert len(found) == len(faults), found
    for problem, words in zip(found, faults, strict=True):
        assert problem.startswith(words), problem


def test_hosts_that_share_switches_take_machines_that_do() -> None:
    machine = load_topology("gh200x9,fabric=fat_tree,radix=3")
    hosts = {"a": ("t", "1"), "b": ("t", "2"), "c": ("t", "1"), "d": ("t", "2"), "e": ("t", "2")}
    placed = with_hosts(machine, hosts, "f")
    groups = [{*leaf.machines} for leaf in switch_groups(placed).leaves]
    assert {"b", "d", "e"} in groups
    assert any({"a", "c"} < group for group in groups)
    assert [link for link in placed.links] == [link for link in machine.links]  # noqa: C416


def test_a_machine_that_is_left_gives_its_name_to_a_host() -> None:
    machine = load_topology("gh200x4,fabric=switch")
    placed = with_hosts(machine, {"3": ("t",), "2": ("t",)}, "f")
    assert switch_groups(placed).machines == ("2", "2'", "3", "3'")


def test_upper_levels_that_the_network_lacks_are_left_out() -> None:
    machine = load_topology("gh200x8,fabric=fat_tree,radix=2")
    hosts = {f"h{i}": ("t", f"pod{i // 4}", f"leaf{i // 2}") for i in range(8)}
    groups = [leaf.machines for leaf in switch_groups(with_hosts(machine, hosts, "f")).leaves]
    assert groups == [(f"h{i}", f"h{i + 1}") for i in range(0, 8, 2)]


def test_three_levels_keep_their_pods() -> None:
    machine = load_topology("gh200x8,fabric=fat_tree,levels=3,radix=4")
    hosts = {f"h{i}": ("t", f"pod{i % 2}", f"leaf{i % 4}") for i in range(8)}
    network = switch_groups(with_hosts(machine, hosts, "f"))
    pods = {frozenset(pod.machines) for pod in network.parts}
    assert pods == {frozenset(f"h{i}" for i in range(k, 8, 2)) for k in (0, 1)}


def test_hosts_that_do_not_fit() -> None:
    machine = load_topology("gh200x6,fabric=fat_tree,radix=3")
    with pytest.raises(TopologyError, match=r"f has 7 hosts, and gh200x6.* has 6 nodes"):
        with_hosts(machine, {f"h{i}": ("t", "l") for i in range(7)}, "f")
    with pytest.raises(TopologyError, match=r"4 hosts below l.*fit no group that is left"):
        with_hosts(machine, {f"h{i}": ("t", "l" if i < 4 else "m") for i in range(6)}, "f")


BLOCKS = """BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2
BlockName=b3 BlockIndex=2 Nodes=n[5-6] BlockSize=2
BlockName=b4 BlockIndex=3 Nodes=n[7-8] BlockSize=2
AggregatedBlock=b[1-4] BlockIndex=6 Nodes=n[1-8] BlockSize=8
AggregatedBlock=b[1-2] BlockIndex=4 Nodes=n[1-4] BlockSize=4
AggregatedBlock=b[3-4] BlockIndex=5 Nodes=n[5-8] BlockSize=4
"""


def test_blocks_that_are_one_at_a_larger_size_are_below_a_switch():
    found = read_hosts(BLOCKS, "x")

    assert found["n1"] == ("b[1-4]", "b[1-2]", "b1")
    assert found["n8"] == ("b[1-4]", "b[3-4]", "b4")
    with pytest.raises(TopologyError, match=r"b\[3-5\] has a block b5, and no line is about that"):
        read_hosts(BLOCKS.replace("=b[3-4]", "=b[3-5]"), "x")


YAML = """---
- topology: other
  tree: {switches: [{switch: s, nodes: "m[1-2]"}]}
- topology: mine
  cluster_default: true
  tree:
    switches:
      - switch: root
        children: s[1-2]
      - switch: s1
        nodes: n[01-02]
      - switch: s2
        nodes: n[03-04]
"""


def test_topologies_of_slurm_as_yaml():
    """That of the cluster; else the first, which may have blocks."""
    assert read_hosts(YAML, "x") == {
        "n01": ("root", "s1"), "n02": ("root", "s1"), "n03": ("root", "s2"), "n04": ("root", "s2"),
    }  # fmt: skip
    first = YAML.replace("true", "false")
    assert read_hosts(first, "x") == {"m1": ("s",), "m2": ("s",)}
    blocks = "- topology: b\n  block:\n    blocks:\n      - {block: b1, nodes: n1}\n"
    assert read_hosts(blocks, "x") == {"n1": ("b1",)}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- topology: [", "is no YAML"),
        ("topology: mine\n", "must be a list of topologies"),
        ("- topology: mine\n  flat: true\n", "topology 'mine' has neither a tree nor blocks"),
        (YAML.replace("children: s[1-2]", "children: s[1-3]"), "root has a switch s3"),
        (YAML.replace("switch: s1", "swich: s1"), "has no SwitchName"),
    ],
)
def test_faults_of_a_topology_as_yaml(text, fault):
    with pytest.raises(TopologyError, match=fault):
        read_hosts(text, "x")
