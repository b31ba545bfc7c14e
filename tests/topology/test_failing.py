"""Parts that fail: which there are, which of them differ, and what is left."""

from __future__ import annotations

import pytest

from simreduce.errors import InputError, TopologyError
from simreduce.planners.layouts import layout
from simreduce.topology import load_topology, route
from simreduce.topology.loader import CLASSES, distinct, fail, members

TREE = load_topology("dgx1vx3,fabric=fat_tree,radix=8,oversubscription=4")
"""Two nodes of four NICs under the first leaf, one under the second, two spines."""


def test_the_parts_of_each_class():
    counts = {kind: len(members(TREE, kind)) for kind in CLASSES}

    assert counts == {"node": 3, "nic": 12, "leaf": 2, "spine": 2, "core": 0}
    assert members(TREE, "node") == ["n0", "n1", "n2"]
    assert members(load_topology("dgx1v"), "node") == []


def test_parts_that_links_tell_apart():
    """Spines are alike; the node that is alone under its leaf is not like the others."""
    found = distinct(TREE, CLASSES)

    assert (found["spine"], found["node"], found["core"]) == (["spine0"], ["n0", "n2"], [])
    assert found["leaf"] == ["leaf0", "leaf1"]
    assert {"n0.mlx5_0", "n2.mlx5_0"} <= {*found["nic"]} <= {*members(TREE, "nic")}
    assert distinct(load_topology("dgx1vx4"), ["node"]) == {"node": ["n0"]}


def test_a_class_means_its_first():
    for kind in ("spine", "nic", "node", "leaf"):
        first = members(TREE, kind)[0]
        assert fail(TREE, kind) == fail(TREE, first)
        assert fail(TREE, kind).topology.scaled == f"without {first}"
    assert fail(TREE, "none") == (TREE, frozenset())


def test_a_class_and_a_place_mean_one_part():
    assert fail(TREE, "nic 5") == fail(TREE, "n1.mlx5_1")
    assert fail(TREE, "node 2") == fail(TREE, "n2")


def test_a_machine_without_parts_says_so():
    with pytest.raises(InputError, match="has no spine; it has nic"):
        fail(load_topology("dgx1v"), "spine")
    with pytest.raises(InputError, match="no part 'n3' that fails; it has nothing that can fail"):
        fail(load_topology("switch:4"), "n3")


def test_routes_go_round_a_spine():
    """The other carries all."""
    left = fail(TREE, "spine").topology
    path = route(left, "n0.cpu0", "n2.cpu0").path

    assert "spine1" in path
    assert not any("spine0" in (link.source, link.target) for link in left.links)
    assert left.scale_links({"ib_edr": 0.5}).scaled == "without spine0, bandwidth of ib_edr x 0.5"


def test_the_gpus_of_a_node_are_gone():
    """And the network is as it was."""
    failed = fail(TREE, "n1")
    shape = layout(failed.topology).without(failed.gone)

    assert {f"n1.gpu{i}" for i in range(8)} == failed.gone
    assert ([8, 8], 16) == ([len(task) for task in shape.tasks], shape.n)
    assert failed.topology.links == TREE.links


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("core", "has no core; it has node, nic, leaf, spine"),
        ("spin", "no part 'spin' that fails (did you mean 'spine'?)"),
        ("spine7", "no part 'spine7' that fails (did you mean 'spine'?)"),
        ("gpu", "no part 'gpu' that fails; it has node, nic, leaf, spine"),
        ("core 1", "has no core; it has node, nic, leaf, spine"),
        ("spine 2", "no part 'spine 2' that fails; it has spine 0 (spine0) to spine 1 (spine1)"),
        ("node -1", "no part 'node -1' that fails; it has node 0 (n0) to node 2 (n2)"),
    ],
)
def test_what_is_not_there_is_said(text, words):
    with pytest.raises(InputError) as caught:
        fail(TREE, text)
    assert str(caught.value) == f"{TREE.name}: {words}"


def test_a_route_that_is_gone_leads_to_the_key():
    left = fail(TREE, "leaf1", "a.toml: fails").topology

    with pytest.raises(TopologyError, match=r"; a\.toml: fails cuts leaf1$"):
        route(left, "n0.cpu0", "n2.cpu0")
