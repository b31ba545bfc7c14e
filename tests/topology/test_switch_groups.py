"""Machines by the switches they share, and host lists."""

from __future__ import annotations

from math import inf

import pytest

from simreduce.files.formats.syntax import Faults
from simreduce.topology import Topology, load_topology
from simreduce.topology.elements import expand_hosts
from simreduce.topology.switch_groups import machine_kinds, read_machines, switch_groups, with_hosts


def test_one_switch_is_one_group() -> None:
    found = switch_groups(load_topology("gh200x6"))
    assert (found.machines, found.parts, found.rate) == (tuple("012345"), (), inf)


def test_leaves_of_a_fat_tree_with_the_rate_of_their_up_links() -> None:
    machine = load_topology("gh200x10,fabric=fat_tree,radix=4,oversubscription=2")
    found = switch_groups(machine)
    assert [leaf.machines for leaf in found.leaves] == [
        ("0", "1", "2", "3"), ("4", "5", "6", "7"), ("8", "9"),
    ]  # fmt: skip
    up = next(link for link in machine.links if link.name == "leaf0>spine0")
    assert [leaf.rate for leaf in found.leaves] == [2 * up.bandwidth] * 3
    assert found.alike
    shapes = [leaf.shape(dict.fromkeys(found.machines, 1)) for leaf in found.leaves]
    assert shapes[0] == shapes[1] != shapes[2]


def test_units_of_rails_and_pods_of_three_levels() -> None:
    rails = switch_groups(load_topology("dgx-h100x8,fabric=rail_optimised,unit=4"))
    assert [len(leaf.machines) for leaf in rails.leaves] == [4, 4]
    pods = switch_groups(load_topology("gh200x16,fabric=fat_tree,levels=3,radix=4"))
    assert [[len(leaf.machines) for leaf in pod.leaves] for pod in pods.parts] == [[2, 2]] * 4


def test_hashed_paths_make_no_two_machines_alike() -> None:
    text = "gh200x8,fabric=fat_tree,radix=4,equal_cost=hashed"
    found = switch_groups(load_topology(text))
    assert [leaf.machines for leaf in found.leaves] == [(name,) for name in "01234567"]
    assert not found.alike
    assert not any(group.alike for group in found.parts)


def test_congestion_leaves_machines_alike() -> None:
    text = "gh200x8,fabric=fat_tree,radix=4"
    plain, tree = (switch_groups(load_topology(t)) for t in (text, f"{text},congestion=tree"))
    assert plain == tree
    assert len(tree.leaves) == 2


def test_a_slower_link_makes_a_machine_of_another_kind() -> None:
    machine = load_topology("gh200x4,fabric=fat_tree,radix=2")
    assert len({*machine_kinds(machine).values()}) == 1
    slow = machine.scale_links({"n1.mlx5_0" if "n1.mlx5_0" in machine.nodes else "n1.nic0": 0.5})
    kinds = machine_kinds(slow)
    assert kinds["0"] == kinds["2"] != kinds["1"]
    assert ("0", "1") not in [leaf.machines for leaf in switch_groups(slow).leaves]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[0-2,7],login", ["n0", "n1", "n2", "n7", "login"]),
        ("a[08-10]x", ["a08x", "a09x", "a10x"]),
        ("n3", ["n3"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["n[3-1]", "n[a]", "n[0-1][2-3]", ",", "n[0-99999]"])
def test_no_host_lists(text: str) -> None:
    with pytest.raises(ValueError, match=r"hosts|number|stands"):
        expand_hosts(text)


def read(machine: Topology, text: str) -> tuple[tuple[str, ...], list[str]]:
    faults = Faults()
    return read_machines(faults, "", machine, text), faults.problems


def test_machines_of_a_host_list() -> None:
    machine = load_topology("gh200x6")
    assert read(machine, "n[2-3],0,5") == (("2", "3", "0", "5"), [])
    assert read(machine, "4-5,1") == (("4", "5", "1"), [])
    found, problems = read(machine, "n1,n9,1,n6")
    assert found == ("1",)
    assert [problem.partition(";")[0].partition(" (")[0] for problem in problems] == [
        "gh200x6 has no node 'n9'", "gh200x6 has no node 'n6'", "n1 is named twice",
    ]  # fmt: skip


def test_numbers_are_places_of_machines_with_other_names() -> None:
    machine = with_hosts(load_topology("gh200x3"), {"a": ("t",), "b": ("t",), "c": ("t",)}, "f")
    assert read(machine, "2,n0") == (("c",), ["gh200x3 has no node 'n0'; it has a, b, c"])
