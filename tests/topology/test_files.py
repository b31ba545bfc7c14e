"""Machine files: every fault at once with its place, overrides, and `extends`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simreduce.errors import TopologyError
from simreduce.topology import Topology, link_classes, load_topology
from simreduce.topology.loader import shipped

GOOD = """
title = "two GPUs"
[nodes.gpu]
names = ["gpu0", "gpu1"]
kind = "gpu"
memory_bandwidth = "900 GB/s"
[nodes.cpu]
names = ["cpu0"]
kind = "cpu"
[links.nvlink2]
pairs = [["gpu0", "gpu1", 2]]
[links.pcie3_x16]
pairs = [["gpu0", "cpu0"], ["gpu1", "cpu0"]]
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a machine file and load it by its bare name."""
    monkeypatch.chdir(tmp_path)

    def load(text: str | bytes, name: str = "box.toml", **overrides: str | int) -> Topology:
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_topology(name, overrides)

    return load


def problems(load, *arguments, **keywords) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        load(*arguments, **keywords)
    return list(caught.value.problems)


def test_a_good_file(written):
    box = written(GOOD)

    assert (box.name, box.title, box.source) == ("box.toml", "two GPUs", "box.toml")
    assert box.devices == ("gpu0", "gpu1")
    assert [link.name for link in box.links[:2]] == ["gpu0>gpu1", "gpu1>gpu0"]
    assert box.links[0].bandwidth == 48e9


def test_every_fault_at_once(written):
    text = """
title = 5
sauces = []
[nodes.gpu]
names = ["gpu0", "gpu0", "a b", 3]
kind = "gpu"
memory_bandwidth = 900
transit = true
reduces = true
[nodes.box]
kind = "pci_switch"
[links.nvlink2]
lanes = -1
pairs = [["gpu0", "gpu8"], ["gpu0"], ["gpu0", "gpu0"], 7]
[links.qpi]
bandwidth = 25
achievable = "0 GB/s"
latency = "2 min"
pairs = []
[links.foo]
pairs = "x"
[links.pcie3_x16]
achievable = "20 GB/s"
holds_lane = "no"
pairs = []
"""
    assert problems(written, text) == [
        "box.toml: sauces: unknown key (did you mean 'sources'?)",
        "box.toml: title: must be text, got 5",
        (
            "box.toml: nodes.gpu.memory_bandwidth: 900 has no unit; write a bandwidth as text, for "
            "example '25 GB/s' or '200 Gbit/s'"
        ),
        "box.toml: nodes.gpu.transit: GPUs never forward traffic for others",
        "box.toml: nodes.gpu.reduces: is for switches, which can sum what passes through them",
        "box.toml: nodes.box.names: missing; must be a list, each a name or a range",
        "box.toml: nodes.box.kind: unknown kind 'pci_switch' (did you mean 'pcie_switch'?)",
        "box.toml: links.nvlink2.lanes: must be a whole number of lanes from 1 to 1024, got -1",
        (
            "box.toml: links.qpi.bandwidth: 25 has no unit; write a bandwidth as text, for example "
            "'25 "
            "GB/s' or '200 Gbit/s'"
        ),
        "box.toml: links.qpi.achievable: must be between 1 kB/s and 1 PB/s, got '0 GB/s'",
        "box.toml: links.qpi.latency: must be between 0 s and 10 s, got '2 min'",
        "box.toml: links.foo.pairs: must be a list, each a pair of nodes, got 'x'",
        "box.toml: links.pcie3_x16.holds_lane: must be true or false, got 'no'",
        "box.toml: nodes.gpu.names[1]: there are two nodes named 'gpu0'",
        (
            "box.toml: nodes.gpu.names[2]: 'a b' is not a name (1 to 255 letters, digits or any of "
            "_ . : / -, the first no -)"
        ),
        (
            "box.toml: nodes.gpu.names[3]: 3 is not a name (1 to 255 letters, digits or any of _ . "
            ": / -, the first no -)"
        ),
        "box.toml: links.nvlink2.pairs[0]: no node named 'gpu8' (did you mean 'gpu0'?)",
        (
            "box.toml: links.nvlink2.pairs[1]: must be [node, node] or [node, node, lanes], got "
            "['gpu0']"
        ),
        "box.toml: links.nvlink2.pairs[2]: 'gpu0' is linked to itself",
        "box.toml: links.nvlink2.pairs[3]: must be [node, node] or [node, node, lanes], got 7",
        "box.toml: links.foo: 'foo' is no known class, so it must give bandwidth and latency; "
        "known are " + ", ".join(link_classes()),
        "box.toml: links.pcie3_x16.achievable: must be at most the nominal bandwidth",
    ]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            '"gpu1", 2',
            '"gpu1", true',
            "links.nvlink2.pairs[0]: must be a whole number of lanes from 1 to 1024, got true",
        ),
        (
            '"gpu1", 2',
            '"gpu1", 0',
            "links.nvlink2.pairs[0]: must be a whole number of lanes from 1 to 1024, got 0",
        ),
        (
            "lanes",
            "lanes",
            (
                "links.pcie3_x16.pairs[2]: 'cpu0' and 'gpu1' are already joined by "
                "links.pcie3_x16.pairs[1]; give lanes there"
            ),
        ),
        (
            'kind = "gpu"',
            'kind = "cpu"',
            "nodes: 0 devices; at least one group must have kind = 'gpu'",
        ),
        ('kind = "gpu"', 'kind = ""', "nodes.gpu.kind: unknown kind ''; known are gpu, cpu,"),
        ('kind = "gpu"', "kind = [1]", "nodes.gpu.kind: must be one of gpu, cpu, "),
        ('"900 GB/s"', "nan", "nodes.gpu.memory_bandwidth: nan has no unit"),
        ('"900 GB/s"', '"-9 GB/s"', "nodes.gpu.memory_bandwidth: '-9 GB/s' is not a bandwidth"),
        ("[nodes.cpu]", "[nodez.cpu]", "nodez: unknown key (did you mean 'nodes'?)"),
        ('"two GPUs"', '"two GPUs"\nsources = [1]', "sources[0]: must be text, got "),
        ('"two GPUs"', '"two GPUs"\nextends = 1', "extends: must be text, got "),
        (
            '"two GPUs"',
            '"two GPUs"\nextends = "dgx1w"',
            "extends: no machine named 'dgx1w' (did you mean 'dgx1v'?)",
        ),
        (
            '"two GPUs"',
            '"two GPUs"\nextends = "./no.toml"',
            "extends: there is no file './no.toml'",
        ),
    ],
)
def test_single_faults(written, old, new, fault):
    text = GOOD.replace(old, new)
    if old == new:
        text = GOOD.replace('["gpu1", "cpu0"]]', '["gpu1", "cpu0"], ["cpu0", "gpu1"]]')

    assert any(problem.startswith(f"box.toml: {fault}") for problem in problems(written, text))


def test_gpus_that_no_link_joins(written):
    text = GOOD.replace('["gpu0", "gpu1", 2]', "").replace(', ["gpu1", "cpu0"]', "")

    assert problems(written, text) == [
        "box.toml: links: 'gpu1' and 'gpu0' cannot reach each other: no links join them"
    ]


def test_two_tables_may_share_a_class(written):
    text = (
        GOOD
        + '[links.slow]\nclass = "pcie3_x16"\nbandwidth = "8 GB/s"\npairs = [["cpu0", "gpu1"]]\n'
    )
    assert (
        "links.slow.pairs[0]: 'cpu0' and 'gpu1' are already joined by links.pcie3_x16.pairs[1]"
        in "".join(problems(written, text))
    )

    box = written(text.replace(', ["gpu1", "cpu0"]', ""))
    assert {(link.link_class, link.bandwidth) for link in box.links} == {
        ("nvlink2", 48e9),
        ("pcie3_x16", 12e9),
        ("pcie3_x16", 8e9),
    }


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"a = 1\nb = [1,, 2]", "not valid TOML: .*line 2"),
        (b"a = 1\na = 2\n", "not valid TOML: Cannot overwrite a value .*line 2"),
        (b"title = 'x'\n\xff", "line 2 is not UTF-8 text"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"nodes = 3\nlinks = [3]", "nodes: must be a table, got 3"),
        (b"[nodes]\ngpu = 3\n[links]\nqpi = 1979-05-27", "links.qpi: must be a table, got "),
        (b" \n", "is empty"),
        (b"title = 'x'", "0 devices"),
        (b"[links.qpi]\npairs = []\nlanes = 0x" + b"f" * 9000, "got this whole number"),
    ],
)
def test_files_that_are_no_machine(written, content, fault):
    with pytest.raises(TopologyError, match=fault):
        written(content)


def test_files_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dir.toml").mkdir()

    assert problems(load_topology, "./no.toml") == ["./no.toml: there is no such file"]
    assert problems(load_topology, "dir.toml") == ["dir.toml: is a directory, not a file"]
    assert problems(load_topology, "a\0b.toml") == ["a\0b.toml: there is no such file"]
    assert problems(load_topology, "dgx1w")[0].startswith(
        "no topology 'dgx1w' (did you mean 'dgx1v'?)"
    )
    assert problems(load_topology, "")[0].startswith("no topology ''")


def test_a_local_topologies_folder_comes_before_the_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("topologies").mkdir()
    Path("topologies/dgx1v.toml").write_text(GOOD)
    assert load_topology("dgx1v").source == "topologies/dgx1v.toml"

    Path("topologies/dgx1v.toml").write_text('extends = "dgx1v"\ntitle = "mine"')
    assert len(load_topology("dgx1v").devices) == 8
    assert load_topology("dgx1v").title == "mine"


def test_a_name_that_looks_like_several_machines_is_a_name_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("topologies").mkdir()
    Path("topologies/dgx1vx2.toml").write_text(GOOD)

    assert load_topology("dgx1vx2").devices == ("gpu0", "gpu1")
    assert len(load_topology("dgx1vx3").devices) == 24


def test_extends_merges_tables_and_replaces_lists(written):
    Path("base.toml").write_text(
        GOOD.replace("pairs = [[", 'achievable = "20 GB/s"\npairs = [[', 1)
    )
    child = 'extends = "base"\n[nodes.gpu]\nmodel = "B"\n[links.nvlink2]\nbandwidth = "10 GB/s"\n'

    box = written(child)

    assert box.nodes["gpu1"].model == "B"
    assert box.nodes["gpu1"].memory_bandwidth == 900e9
    assert (box.links[0].lanes, box.links[0].nominal, box.links[0].bandwidth) == (2, 20e9, 20e9)
    assert written(child + "pairs = [['gpu0', 'gpu1']]").links[0].lanes == 1


def test_faults_of_a_parent_are_named_by_its_file(written):
    Path("base.toml").write_text(GOOD.replace('"900 GB/s"', "900"))

    assert [p.split(":")[0] for p in problems(written, 'extends = "base"\ntitle = 3')] == [
        "box.toml",
        "base.toml",
    ]


def test_files_that_extend_each_other(written):
    Path("b.toml").write_text('extends = "box"')

    assert problems(written, 'extends = "b"') == [
        "box.toml: extends: the files extend each other in a circle: box.toml -> b.toml -> box.toml"
    ]
    assert "in a circle: box.toml -> box.toml" in problems(written, 'extends = "box"')[0]


def qpi(topology: Topology) -> tuple[float, float, int]:
    link = next(link for link in topology.links if link.link_class == "qpi")
    return link.nominal, link.bandwidth, link.lanes


def test_overrides():
    assert qpi(load_topology("dgx1v", {"links.qpi.bandwidth": "9.6 GB/s"})) == (19.2e9, 19.2e9, 2)
    assert qpi(load_topology("dgx1v", {"links.qpi.lanes": 1})) == (19.2e9, 19.2e9, 1)
    both = {"links.qpi.bandwidth": "10 GB/s", "links.qpi.achievable": "8 GB/s"}
    assert qpi(load_topology("dgx1v", both)) == (20e9, 16e9, 2)
    memory = load_topology("dgx1v", {"nodes.gpu.memory_bandwidth": "1 TB/s"})
    assert memory.nodes["gpu0"].memory_bandwidth == 1e12
    assert load_topology("dgx1v", {"title": "mine"}).digest == load_topology("dgx1v").digest


def test_overriding_the_bandwidth_drops_the_achievable_one(written):
    text = GOOD.replace("pairs = [[", 'achievable = "20 GB/s"\npairs = [[', 1)

    assert written(text).links[0].bandwidth == 40e9
    assert written(text, **{"links.nvlink2.bandwidth": "10 GB/s"}).links[0].bandwidth == 20e9


def test_faults_of_overrides_are_all_told():
    overrides = {"links.qpi.bandwith": "1 GB/s", "links.qpi.latency": 3, "links.qpi.lanes": 0}

    assert problems(load_topology, "dgx1v", overrides) == [
        (
            "dgx1v.toml: override 'links.qpi.bandwith': there is no such key (did you mean "
            "'links.qpi.bandwidth'?)"
        ),
        (
            "dgx1v.toml with overrides: links.qpi.lanes: must be a whole number of lanes from 1 to "
            "1024, got 0"
        ),
        (
            "dgx1v.toml with overrides: links.qpi.latency: 3 has no unit; write a time as text, "
            "for "
            "example '1.5 us' or '700 ns'"
        ),
    ]


def test_a_file_of_that_name_is_pointed_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("", "utf-8")

    assert "no topology 'mine'; there is a file of that name: write ./mine;" in str(
        problems(load_topology, "mine")
    )


def test_every_shipped_machine_says_how_much_memory_its_gpus_have():
    """As its model's name does, where that has a size; the digest does not depend on it."""
    for name, _ in shipped():
        gpus = [n for n in load_topology(name).nodes.values() if n.kind == "gpu"]
        for gpu in gpus:
            stated = re.search(r"(\d+)GB", gpu.model)
            expected = int(stated.group(1)) * 10**9 if stated else gpu.memory
            assert gpu.memory == expected > 0, name
    more = load_topology("dgx1v", {"nodes.gpu.memory": "32 GB"})
    assert more.nodes["gpu0"].memory == 32_000_000_000
    assert more.digest == load_topology("dgx1v").digest
    with pytest.raises(TopologyError, match="memory: must be between 1 MB and 1000 TB"):
        load_topology("dgx1v", {"nodes.gpu.memory": "32 B"})


@pytest.mark.parametrize(("nic", "rate"), [("roce_400_pollara", 48.6e9), ("roce_400_thor2", 45e9)])
def test_nics_of_amd_machines_have_classes_of_their_own(tmp_path, nic, rate):
    """In a machine's file, and as the cables of several."""
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "mi355x"\n[nodes.nic]\nnetwork = "{nic}"\n', "utf-8")

    for machine in (load_topology(f"{path}x2"), load_topology(f"mi355xx2,fabric=switch,nic={nic}")):
        cables = [link for link in machine.links if not link.holds_lane]
        assert {(nic, 50e9, rate)} == {(k.link_class, k.nominal, k.bandwidth) for k in cables}
