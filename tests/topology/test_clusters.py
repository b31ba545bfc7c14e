"""Files that say how many of which machine stand on which network."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from simreduce.errors import TopologyError
from simreduce.topology import fold, load_machine, load_topology, route
from simreduce.topology.check import check_file
from simreduce.topology.generators import FABRICS
from simreduce.topology.graph import Folded
from tests.thorough import examples

POD = """
nodes = 6
machine = "dgx1v"
fabric = "fat_tree"
radix = 8
oversubscription = 2
nic = "ib_hdr"
"""


@pytest.fixture
def files(tmp_path):
    """Writes files and gives their paths."""

    def write(name: str, text: str) -> str:
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_is_what_is_written_inline(files):
    pod = load_topology(files("pod", POD))
    inline = load_topology("dgx1vx6,fabric=fat_tree,radix=8,oversubscription=2,nic=ib_hdr")

    assert pod.digest == inline.digest
    assert pod.title == inline.title
    assert pod.name.endswith("pod.toml")
    assert pod.router.rule == inline.router.rule
    assert check_file(pod.name) == []


@pytest.mark.parametrize("fabric", FABRICS)
def test_every_fabric_has_its_settings_in_files(files, fabric):
    keys = {
        "switch": "",
        "fat_tree": "levels = 3\nradix = 6\noversubscription = 2\npods = 2\nreduce = true",
        "rail_optimised": (
            "unit = 3\noversubscription = 1.5\nreduce = false\nswitch_latency = '0.2 us'"
        ),
        "rail_only": "reduce = true",
        "dragonfly": "p = 4\na = 3\nh = 1\ng = 2",
        "torus": 'dims = "3x2"',
    }[fabric]
    text = f'nodes = 6\nmachine = "dgx1v"\nfabric = "{fabric}"\n{keys}'
    inline = ",".join(
        line.replace(" = ", "=").replace('"', "").replace("'", "") for line in keys.splitlines()
    )
    inline = inline.replace("true", "yes").replace("false", "no")

    expected = load_topology(f"dgx1vx6,fabric={fabric}{',' * bool(inline)}{inline}")
    assert load_topology(files("cluster", text)).digest == expected.digest


def test_a_what_if_extends_a_cluster(files):
    files("pod", POD)

    wider = load_topology(files("wider", 'extends = "pod"\nnodes = 8\noversubscription = 1\n'))
    assert wider.digest == load_topology("dgx1vx8,fabric=fat_tree,radix=8,nic=ib_hdr").digest
    # Another fabric has other settings; the network cards stay.
    rails = load_topology(files("rails", 'extends = "pod"\nfabric = "rail_optimised"\nunit = 3\n'))
    assert rails.digest == load_topology("dgx1vx6,fabric=rail_optimised,unit=3,nic=ib_hdr").digest
    again = load_topology(files("again", 'extends = "rails"\n[overrides]\n"links.qpi.lanes" = 1\n'))
    assert (
        route(again, "n0.cpu0", "n0.cpu1").bandwidth
        == route(rails, "n0.cpu0", "n0.cpu1").bandwidth / 2
    )


def test_overrides_are_of_the_cluster_or_of_its_machine(files):
    pod = files("pod", POD + '[overrides]\n"links.qpi.lanes" = 1\n')

    changed = load_topology(
        pod, {"nodes": 3, "fabric": "dragonfly", "p": 4, "links.qpi.bandwidth": "40 GB/s"}
    )
    inline = load_topology(
        "dgx1vx3,fabric=dragonfly,p=4,nic=ib_hdr",
        {"links.qpi.lanes": 1, "links.qpi.bandwidth": "40 GB/s"},
    )
    assert changed.digest == inline.digest
    assert load_topology(pod, {"title": "mine"}).title == "mine"


def test_the_machine_may_be_a_file_beside_it(files):
    files("slow", 'extends = "dgx1v"\n[links.qpi]\nlanes = 1\n')
    expected = load_topology("dgx1vx2", {"links.qpi.lanes": 1}).digest

    assert load_topology(files("a", 'nodes = 2\nmachine = "slow"\n')).digest == expected
    assert load_topology(files("b", 'nodes = 2\nmachine = "slow.toml"\n')).digest == expected
    # A file may have the name of the shipped machine that it is made of.
    assert (
        load_topology(files("dgx1v", 'nodes = 2\nmachine = "dgx1v"\n')).digest
        == load_topology("dgx1vx2").digest
    )


def test_a_cluster_on_one_switch_folds(files):
    folded = load_machine(files("four", 'nodes = 4\nmachine = "dgx1v"\n'), folded=True)

    assert isinstance(folded, Folded)
    assert folded.digest == fold(load_topology("dgx1vx4")).digest


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ('nodes = 4\nfabric = "switch"', ["machine: must name the machine"]),
        ('machine = "dgx1v"', ["nodes: must be a whole number of machines, got nothing"]),
        (
            f'machine = "dgx1v"\nnodes = 0x{"f" * 9000}',
            ["nodes: this whole number is more than any machine has"],
        ),
        ('machine = "a\\u0000b"\nnodes = 2', ["machine: has a control character"]),
        ('machine = "a/\\u0000b"\nnodes = 2', ["machine: has a control character"]),
        ('nodes = 0\nmachine = "dgx1v"', ["0 machines; at least 1 is needed"]),
        (
            'nodes = true\nmachine = "dgx1v"',
            ["nodes: must be a whole number of machines, got true"],
        ),
        ('nodes = 4\nmachine = "dgx1w"', ["no topology 'dgx1w' (did you mean 'dgx1v'?)"]),
        (
            'nodes = 4\nmachine = "ring:4"',
            ["no topology 'ring:4'; ring is a shape of GPUs, no machine;"],
        ),
        (
            """title = 3
sources = "x"
nodes = "many"
machine = "dgx1v"
fabric = "fat_tree"
radixx = 3
reduce = []
            [links.qpi]
lanes = 1
[overrides]
"links.qpi.lane" = 1""",
            [
                "title: must be text",
                "sources: must be a list",
                "links: is of machine files; [overrides] has keys of the machine",
                "reduce: must be text or a number, got []",
                "nodes: must be a whole number of machines, got many",
                "radixx: unknown key (did you mean 'radix'?)",
                "override 'links.qpi.lane': there is no such key (did you mean 'links.qpi.lanes'?)",
            ],
        ),
        (
            'nodes = 4\nmachine = "dgx1v"\n[overrides]\n"links.qpi.lanes" = true',
            [
                "overrides.links.qpi.lanes: must be text or a whole number, got true",
                "lanes: must be a whole number of lanes",
            ],
        ),
        (
            """nodes = 4
machine = "dgx1v"
congestion = true
switch_latency = false
fabric = "fat_tree"
reduce = true""",
            ["switch_latency: 'false' is not a time", "congestion: unknown congestion 'true'"],
        ),
        (
            'nodes = 4\nmachine = "dgx1v"\nfabric = "torus"\ndims = "3x2"\nnic = "x"',
            ["unknown class of network link 'x'", "dims: 3x2 are 6 routers for 4 machines"],
        ),
    ],
)
def test_every_fault_is_told(files, text, faults):
    path = files("bad", text)
    with pytest.raises(TopologyError) as caught:
        load_topology(path)

    assert len(caught.value.problems) == len(faults)
    for problem, fault in zip(caught.value.problems, faults, strict=True):
        assert fault in problem
    assert check_file(path) == list(caught.value.problems)


def test_clusters_do_not_nest(files):
    pod = files("pod", POD)

    for text in (
        f"{pod}x2",
        files("nest", 'nodes = 2\nmachine = "pod"'),
        files("self", 'nodes = 2\nmachine = "self.toml"'),
    ):
        with pytest.raises(TopologyError, match="is made of several machines already"):
            load_topology(text)


def test_a_machine_that_is_unknown_is_said_with_the_file_and_its_key(files):
    with pytest.raises(TopologyError, match=r"pod\.toml: machine: no topology 'dgx-h10' \(did you"):
        load_topology(files("pod", 'nodes = 2\nmachine = "dgx-h10"'))


VALUES = st.one_of(
    st.integers(-2, 40),
    st.booleans(),
    st.floats(0, 4),
    st.sampled_from(['"x"', '"2x3"', "[]", "{}", '"1 us"', "inf", "nan"]),
)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    fabric=st.sampled_from([*FABRICS, "none"]),
    keys=st.dictionaries(
        st.sampled_from(
            [
                "radix",
                "levels",
                "oversubscription",
                "pods",
                "unit",
                "p",
                "a",
                "h",
                "g",
                "dims",
                "reduce",
                "nic",
                "switch_latency",
                "nodes",
                "title",
            ]
        ),
        VALUES,
        max_size=5,
    ),
)
def test_any_values_give_a_cluster_or_its_faults(files, fabric, keys):
    lines = {"nodes": 6, "machine": '"v100-mesh-4"', "fabric": f'"{fabric}"'} | keys
    text = "\n".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in lines.items()
    )
    path = files("any", text)
    faults = check_file(path)

    assert all("any.toml" in problem for problem in faults)
    if not faults:
        cluster = load_topology(path)
        assert route(cluster, cluster.devices[0], cluster.devices[-1]).bandwidth > 0


@pytest.mark.parametrize(
    ("text", "link_class"),
    [
        ("dgx-h100x2", "ib_ndr"),
        ("dgx-h100x2,nic=ib_hdr", "ib_hdr"),
        ("p4dex2", "efa_100"),
        ("a100-mesh-4x2", "ib_hdr"),
        ("rtx4090-2x2", "tcp_10"),
        ("boxx2", "ib_edr"),
    ],
)
def test_nics_join_the_network_that_they_have_a_port_for(tmp_path, monkeypatch, text, link_class):
    """Unless the text says otherwise, or the machine does not say."""
    (tmp_path / "topologies").mkdir()
    (tmp_path / "topologies" / "box.toml").write_text(
        '[nodes.gpu]\nnames = ["gpu0"]\nkind = "gpu"\n[nodes.nic]\nnames = ["nic0"]\nkind = "nic"\n'
        '[links.pcie3_x16]\npairs = [["gpu0", "nic0"]]\n'
    )
    monkeypatch.chdir(tmp_path)
    topology = load_topology(text)

    assert {
        link.link_class for link in topology.links if "switch0" in (link.source, link.target)
    } == {link_class}


def test_nics_for_several_networks_need_a_word(tmp_path):
    """Nobody can tell which of the two the switch is of."""
    path = tmp_path / "box.toml"
    path.write_text(
        'extends = "dgx1v"\n[nodes.other]\nnames = ["nic9"]\nkind = "nic"\nnetwork = "ib_hdr"\n'
        '[links.extra]\nclass = "pcie3_x16"\npairs = [["nic9", "plx0"]]\n'
    )
    (tmp_path / "two.toml").write_text('nodes = 2\nmachine = "box.toml"\nfabric = "switch"\n')
    with pytest.raises(TopologyError) as caught:
        load_topology(str(tmp_path / "two.toml"))

    assert "NICs for ib_edr and for ib_hdr; say which all are to be taken for" in str(caught.value)


def test_only_nics_have_a_network(tmp_path):
    """And it must be a class of links between machines."""
    path = tmp_path / "box.toml"
    path.write_text(
        'extends = "dgx1v"\n[nodes.gpu]\nnetwork = "ib_edr"\n[nodes.nic]\nnetwork = "nvlink2"\n'
    )
    with pytest.raises(TopologyError) as caught:
        load_topology(str(path))

    assert [problem.split(": ", 1)[1].split(":")[0] for problem in caught.value.problems] == [
        "nodes.gpu.network",
        "nodes.nic.network",
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        '[overrides]\n"links.nvlink2.lanes" = 1',
        "[overrides]\nlinks.nvlink2.lanes = 1",
        "[overrides.links.nvlink2]\nlanes = 1",
    ],
)
def test_an_override_is_written_as_toml_allows(files, overrides):
    """With the key in quotes, dotted, or as a table."""
    path = files("two", f'nodes = 2\nmachine = "dgx1v"\nfabric = "switch"\n{overrides}\n')
    nvlinks = {link.lanes for link in load_topology(path).links if link.link_class == "nvlink2"}

    assert nvlinks == {1, 2}  # pairs with two links say so themselves
