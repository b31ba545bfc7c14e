"""Inline topologies: textbook shapes, and several machines on a fabric."""

from __future__ import annotations

import math

import pytest

from simreduce.errors import TopologyError
from simreduce.topology import load_machine, load_topology, route


@pytest.mark.parametrize(
    ("text", "cables"),
    [
        ("ring:1", 1),
        ("ring:2", 3),
        ("ring:3", 6),
        ("ring:8", 16),
        ("full:1", 1),
        ("full:5", 15),
        ("switch:1", 2),
    ],
)
def test_counts(text, cables):
    topology = load_topology(text)

    assert len(topology.links) == 2 * cables
    assert topology.hosts == ("cpu0",)
    assert topology.devices == tuple(f"gpu{i}" for i in range(int(text.split(":")[1])))


@pytest.mark.parametrize("latency", ["1us", "0.3 us", "7ns", "0s", "0", "1.7us"])
@pytest.mark.parametrize("shape", ["ring:5", "full:5", "switch:5"])
def test_alpha_is_from_end_to_end_and_beta_per_port(shape, latency):
    topology = load_topology(f"{shape},bandwidth=12.5GB/s,latency={latency}")
    seconds = {
        "1us": 1e-6,
        "0.3 us": 0.3 * 1e-6,
        "7ns": 7 * 1e-9,
        "0s": 0.0,
        "0": 0.0,
        "1.7us": 1.7 * 1e-6,
    }[latency]

    for target in ("gpu1", "cpu0"):
        found = route(topology, "gpu0", target)
        assert found.latency == seconds
        assert found.bandwidth == 12.5e9
        assert not found.holds_lane


def test_defaults_and_names():
    topology = load_topology("switch:3")

    assert topology.title == "3 devices on one switch, 25 GB/s, 1 us"
    assert (topology.name, topology.source) == ("switch:3", "switch:3")
    assert topology.nodes["gpu0"].memory_bandwidth == math.inf
    assert topology.nodes["switch0"].machine == ""
    assert {topology.nodes[name].machine for name in topology.devices} == {"0"}


def test_overrides_are_the_settings():
    assert load_topology("ring:4,latency=3us", {"latency": "2 us"}) != load_topology(
        "ring:4,latency=2us"
    )
    assert (
        load_topology("ring:4,latency=3us", {"latency": "2 us"}).digest
        == load_topology("ring:4,latency=2us").digest
    )
    with pytest.raises(TopologyError, match=r"latncy: unknown key \(did you mean 'latency'"):
        load_topology("ring:4", {"latncy": "2 us"})


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("ring:0", ["0 devices; at least 1 is needed"]),
        ("ring:-1", ["'-1' is not a number of devices from 1 to 16384"]),
        ("ring:", ["'' is not a number of devices from 1 to 16384"]),
        ("full:513", ["513 devices are more than the 512 of this shape"]),
        ("ring:" + "9" * 5000, ["is not a number of devices"]),
        (
            "switch:x,bandwith=3,latency=5,foo,latency=6us",
            [
                "'foo' must be",
                "latency is given twice",
                "did you mean 'bandwidth'",
                "'5' has no unit",
                "'x' is not a",
            ],
        ),
        ("ring:4,bandwidth=0GB/s", ["must be between 1 kB/s and 1 PB/s, got '0GB/s'"]),
        ("dgx1vx0", ["0 machines; at least 1"]),
        ("dgx1vx2049", ["16392 devices are more than can be simulated: at most 16384 devices"]),
        (
            "dgx1vx2,fabric=hypercube,nic=edr,rails=2",
            [
                "rails: unknown key",
                (
                    "unknown fabric 'hypercube'; known are switch, fat_tree, rail_optimised, "
                    "rail_only,"
                    " dragonfly, torus"
                ),
                "did you mean 'ib_edr'?",
            ],
        ),
        ("dgx1vx2,fabric=fattree", ["unknown fabric 'fattree' (did you mean 'fat_tree'?)"]),
        ("dgx1vx2,radix=4", ["radix: unknown key; known keys: fabric, nic"]),
        (
            "dgx1vx2,fabric=fat_tree,radix=3,oversubscription=2",
            ["3 hosts under a leaf / 2 is not a number"],
        ),
        (
            "fat_tree:x,radix=0,oversubscription=a,reduce=ye,shuffle=-2,bandwidth=1",
            [
                "'1' has no unit",
                "'x' is not a number of devices",
                "radix: must be a whole number from 2 to 16384, got '0'",
                "oversubscription: must be a number above 0, such as 2 or 1.5, got 'a'",
                "reduce: unknown answer 'ye' (did you mean 'yes'?)",
                "shuffle: must be a whole number from 0 to 9223372036854775807, got '-2'",
            ],
        ),
        (
            "fat_tree:64,radix=31,oversubscription=2",
            ["31 hosts under a leaf / 2 is not a number of up-links"],
        ),
        ("fat_tree:8,oversubscription=0", ["must be a number above 0, such as 2 or 1.5, got '0'"]),
        (
            "switch:4,reduce=1,shufle=2",
            ["shufle: unknown key", "unknown answer '1'; known are yes, no"],
        ),
        ("dgx1vx2,nic=nvlink2", ["unknown class of network link 'nvlink2'"]),
        (
            "dgx1wx2,nic=x",
            ["unknown class of network link 'x'", "no topology 'dgx1w' (did you mean 'dgx1v'?)"],
        ),
        ("dgx3", ["no topology 'dgx3' (did you mean 'dgx2'?)"]),
        (
            "dgx3,nic=x",
            ["unknown class of network link 'x'", "no topology 'dgx3' (did you mean 'dgx2'?)"],
        ),
        ("torus:4", ["'4' is not a size AxB or AxBxC"]),
        ("torus:2x2x2x2", ["'2x2x2x2' is not a size AxB or AxBxC"]),
        ("torus:4x0", ["0 devices; at least 1"]),
        ("torus:256x65", ["16640 devices are more than can be simulated: at most 16384 devices"]),
        ("torus:4x4,radix=4,shufle=1", ["radix: unknown key", "did you mean 'shuffle'?"]),
        ("torsu:4x4", ["no topology 'torsu:4' (did you mean 'torus'?)"]),
    ],
)
def test_faults(text, faults):
    with pytest.raises(TopologyError) as caught:
        load_topology(text)

    assert len(caught.value.problems) == len(faults)
    for problem, fault in zip(caught.value.problems, faults, strict=True):
        assert fault in problem
        assert len(problem) < 400


def test_machines_on_a_switch():
    cluster = load_topology("dgx1vx12")
    box = load_topology("dgx1v")

    assert len(cluster.devices) == 96
    assert cluster.devices[:2] == ("n0.gpu0", "n0.gpu1")
    assert cluster.devices[16] == "n2.gpu0"
    assert cluster.devices[-1] == "n11.gpu7"
    assert cluster.hosts[:3] == ("n0.cpu0", "n0.cpu1", "n1.cpu0")
    assert cluster.nodes["n11.plx0"].machine == "11"
    assert cluster.nodes["switch0"].machine == ""
    assert len(cluster.links) == 12 * (len(box.links) + 2 * 4)
    assert "12 x NVIDIA DGX-1" in cluster.title
    copied = [cluster.links[i] for i in route(cluster, "n3.gpu0", "n3.gpu3").links]
    assert [(link.lanes, link.bandwidth) for link in copied] == [(2, 48e9)]


def test_the_nic_class_and_overrides_reach_the_cluster():
    cluster = load_topology("dgx1vx2,nic=ib_hdr,fabric=switch", {"links.qpi.lanes": 1})

    assert route(cluster, "n0.mlx5_0", "n1.mlx5_0").bandwidth == 24e9
    assert route(cluster, "n0.cpu0", "n0.cpu1").bandwidth == 19.2e9
    assert (
        load_topology("dgx1vx2", {"nic": "ib_hdr"}).digest
        == load_topology("dgx1vx2,nic=ib_hdr").digest
    )


def test_machines_that_cannot_be_multiplied(tmp_path):
    box = tmp_path / "box.toml"
    text = '[nodes.g]\nnames = ["a"]\nkind = "gpu"\n'
    box.write_text(text)
    with pytest.raises(TopologyError, match="has no nic"):
        load_topology(f"{box}x2")

    box.write_text(
        text
        + '[nodes.h]\nnames = ["b"]\nkind = "nic"\nmachine = "1"\n[links.ib_edr]\npairs=[["a","b"]]'
    )
    with pytest.raises(TopologyError, match="several machines already"):
        load_topology(f"{box}x2")

    box.write_text(
        text + '[nodes.h]\nnames = ["b"]\nkind = "nic"\n[links.pcie3_x16]\npairs=[["a","b"]]'
    )
    assert load_topology(f"{box}x2").devices == ("n0.a", "n1.a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ring:1", "1 device in a ring"),
        ("ring:2", "2 devices in a ring"),
        ("p3-16xlargex2", ", 1 tcp_25 port each, on "),
        ("dgx1vx2", ", 4 ib_edr ports each, on "),
        ("fat_tree:8,levels=3,radix=4,oversubscription=3", "pods of 1 spine, and 2 cores"),
    ],
)
def test_titles_count_in_good_english(text, words):
    assert words in load_topology(text).title


def test_a_leaf_has_more_than_one_host():
    """A fat tree of leaves with one host each is a slip."""
    with pytest.raises(TopologyError, match="radix: must be a whole number from 2 to 16384"):
        load_topology("fat_tree:8,radix=1")


@pytest.mark.parametrize(
    "text",
    [
        "dgx1vx2000000",
        "ring:20000",
        "dgx1vx2049,fabric=torus,dims=2049x1",
        "dgx1vx99999,fabric=fat_tree",
    ],
)
def test_limits_are_stated_in_one_way(text):
    """However many machines or devices there are."""
    words = (
        "more than can be simulated: at most 16384 devices one by one, or 1048576 equal machines"
    )
    with pytest.raises(TopologyError, match=words):
        load_machine(text, folded=text == "dgx1vx2000000")
