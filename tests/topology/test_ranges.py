"""Ranges in names: what they stand for, how they pair, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import TopologyError
from simreduce.topology import load_topology
from simreduce.topology.elements import expand_range, pair_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu0", ["gpu0"]),
        ("gpu[0-2]", ["gpu0", "gpu1", "gpu2"]),
        ("n[1-2].gpu", ["n1.gpu", "n2.gpu"]),
        ("cpu[0-5:2]", ["cpu0", "cpu2", "cpu4"]),
        ("x[7-7]", ["x7"]),
    ],
)
def test_a_range_stands_for_names(text, names):
    assert expand_range(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "gpu[",
        "gpu]",
        "gpu[]",
        "gpu[3]",
        "gpu[1-0]",
        "gpu[0-9:0]",
        "[0-1][0-1]",
        "g[0-4096]",
        "g[a-b]",
    ],
)
def test_what_is_no_range(text):
    with pytest.raises(ValueError, match=r"range|names"):
        expand_range(text)


def test_ranges_pair_in_blocks():
    gpus, plx = expand_range("gpu[0-7]"), expand_range("plx[0-3]")

    assert pair_names(gpus, plx)[:3] == [("gpu0", "plx0"), ("gpu1", "plx0"), ("gpu2", "plx1")]
    assert pair_names(plx, gpus)[-1] == ("plx3", "gpu7")
    assert pair_names(["s"], plx) == [("s", name) for name in plx]
    with pytest.raises(ValueError, match="3 and 2 names do not pair"):
        pair_names(["a", "b", "c"], ["x", "y"])


@given(st.integers(1, 60), st.integers(1, 60))
def test_every_name_of_both_sides_is_paired(n, share):
    pairs = pair_names([f"a{i}" for i in range(n * share)], [f"b{i}" for i in range(n)])

    assert len({a for a, _ in pairs}) == len(pairs) == n * share
    assert {b for _, b in pairs} == {f"b{i}" for i in range(n)}


MACHINE = """
[nodes.gpu]
names = ["gpu[0-3]"]
kind = "gpu"
[nodes.plx]
names = ["plx[0-1]"]
kind = "pcie_switch"
[links.pcie3_x16]
pairs = [["gpu[0-3]", "plx[0-1]"], ["plx0", "plx1"]]
"""


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("gpu[0-3]", "gpu[3-0]", "'gpu[3-0]' stands for no names"),
        ('"plx[0-1]"]\nkind', '"plx[0-1]", "plx1"]\nkind', "there are two nodes named 'plx1'"),
        ('["gpu[0-3]", "plx', '["gpu[0-4]", "plx', "no node named 'gpu4'"),
        ('["gpu[0-3]", "plx[0-1]"]', '["gpu[0-2]", "plx[0-1]"]', "3 and 2 names do not pair"),
        ('["plx0", "plx1"]', '["gpu0", "gpu[0-3]"]', "'gpu0' is linked to itself"),
        (
            '["plx0", "plx1"]',
            '["plx[0-1]", "gpu[0-3]"]',
            "already joined by links.pcie3_x16.pairs[0]",
        ),
    ],
)
def test_faults_of_ranges_have_their_place(tmp_path, old, new, fault):
    path = tmp_path / "box.toml"
    assert old in MACHINE
    path.write_text(
        MACHINE.replace(old, new, 1) if "kind" not in old else MACHINE.replace(old, new)
    )

    with pytest.raises(TopologyError) as caught:
        load_topology(str(path))
    assert any(fault in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[nodes.cpu]\nnames = ["c"]\nkind = "cpu"\npeer = "PHB"', "nodes.cpu.peer: is for GPUs"),
        (
            "[links.new]\nclass = 'pcie3_x16'\npairs = [['plx0', 'plx1']]\nboth_ways = '1 GB/s'",
            "begin with 'staged'",
        ),
        (
            "[routes.x]\npairs = [['gpu0', 'gpu0']]\nbandwidth = '1 GB/s'",
            "routes.x.pairs[0]: 'gpu0' has no route to itself",
        ),
        ("[routes.x]\npairs = [['gpu0', 'gpu1', 2]]\nbandwidth = '1 GB/s'", "a route has no lanes"),
        ("[routes.x]\npairs = [['gpu0', 'gpu1']]", "routes.x.bandwidth: missing"),
    ],
)
def test_faults_of_peers_and_routes(tmp_path, text, fault):
    path = tmp_path / "box.toml"
    path.write_text(f"{MACHINE}\n{text}\n")

    with pytest.raises(TopologyError) as caught:
        load_topology(str(path))
    assert any(fault in problem for problem in caught.value.problems), caught.value.problems


def test_thousands_of_faults_are_not_all_told(tmp_path):
    path = tmp_path / "box.toml"
    path.write_text(
        MACHINE + '[links.nvlink2]\npairs = [["gpu9", "gpu8"]' + ', ["gpu9", "gpu8"]' * 4000 + "]\n"
    )

    with pytest.raises(TopologyError) as caught:
        load_topology(str(path))
    assert len(caught.value.problems) == 1001
    assert "more faults than these" in caught.value.problems[-1]


@pytest.mark.slow
def test_a_few_lines_cannot_ask_for_millions_of_links(tmp_path):
    path = tmp_path / "box.toml"
    names = (
        '[nodes.gpu]\nnames = ["gpu[0-4095]"]\nkind = "gpu"\n'
        '[nodes.s]\nnames = ["s[0-4095]"]\nkind = "switch"\n'
    )
    tables = "".join(
        f'[links.c{i}]\nbandwidth = "1 GB/s"\nlatency = "1 us"\npairs = [["gpu[0-4095]", '
        '"s[0-4095]"]]\n'
        for i in range(70)
    )
    path.write_text(names + tables)

    with pytest.raises(TopologyError, match="more than 262144 links"):
        load_topology(str(path))


def test_a_range_of_millions_is_counted_and_refused():
    with pytest.raises(
        ValueError, match="stands for 100000000 names, and a range for 4096 at most"
    ):
        expand_range("gpu[0-99999999]")
