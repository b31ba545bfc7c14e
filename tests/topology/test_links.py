"""Links by name, by their ends, by node and by class; slower ones and cut ones."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import InputError, TopologyError
from simreduce.topology import Topology, find_links, load_topology, route
from simreduce.topology.routing.switching import Switching
from tests.thorough import examples, slow

DGX1V = load_topology("dgx1v")


def _names(topology, text):
    return sorted(topology.links[each].name for each in find_links(topology, text))


def _way(topology, source, target):
    return [topology.links[each].name for each in route(topology, source, target).links]


def test_links_by_what_users_call_them():
    """A name is one link, `<>` both directions, a node all of its links, a class all of it."""
    assert _names(DGX1V, "gpu0>gpu3") == ["gpu0>gpu3"]
    assert _names(DGX1V, "gpu3<>gpu0") == ["gpu0>gpu3", "gpu3>gpu0"]
    assert {"gpu0>gpu3", "gpu3>gpu0"} < {*_names(DGX1V, "gpu0")}
    assert all("gpu0" in name for name in _names(DGX1V, "gpu0"))
    assert len(_names(DGX1V, "nvlink2")) == 2 * 16
    with pytest.raises(InputError, match=r"'gpu0<>gpu33' \(did you mean 'gpu0<>gpu3'"):
        find_links(DGX1V, "gpu0<>gpu33")


def test_a_link_that_is_cut_is_not_there():
    """Routes are those of the graph without it, as networkx finds them; names of others stay."""
    cut = DGX1V.scale_links({"gpu0<>gpu3": 0})

    assert {k.name for k in DGX1V.links} - {k.name for k in cut.links} == {"gpu0>gpu3", "gpu3>gpu0"}
    assert [k.id for k in cut.links] == [*range(len(cut.links))]
    assert _way(DGX1V, "gpu0", "gpu3") == ["gpu0>gpu3"]
    assert len(_way(cut, "gpu0", "gpu3")) > 1
    graph = nx.DiGraph((k.source, k.target) for k in cut.links)
    steps = [tuple(name.split("#")[0].split(">")) for name in _way(cut, "gpu0", "gpu3")]
    assert all(graph.has_edge(*step) for step in steps if len(step) == 2)
    assert cut.digest != DGX1V.digest
    assert route(cut, "gpu0", "gpu1").bandwidth == route(DGX1V, "gpu0", "gpu1").bandwidth


def _spines(machine, pairs):
    """How many bytes of these transfers, one each, go up to each spine."""
    load: Counter[str] = Counter()
    for pair in pairs:
        found = route(machine, *pair)
        for link, share in zip(found.links, found.shares, strict=True):
            if machine.links[link].target.startswith("spine"):
                load[machine.links[link].target] += share
    return load


@pytest.mark.parametrize(
    ("choice", "least", "most"), [("split", 8 / 3, 8 / 3), ("first", 2, 3), ("hashed", 0, 5)]
)
def test_what_a_cut_displaces_goes_over_all_that_is_left(choice, least, most):
    """Eight hosts send to those of the next leaf, and one of four spines is gone: three are left
    to share what they send. Hashes collide by chance.
    """
    tree = load_topology(f"fat_tree:64,radix=8,oversubscription=2,equal_cost={choice}")
    pairs = [(f"gpu{i}", f"gpu{i + 8}") for i in range(8)]
    cut = tree.scale_links({"leaf0<>spine1": 0})

    assert tree.router.rule
    load = dict.fromkeys(("spine0", "spine2", "spine3"), 0.0) | _spines(cut, pairs)
    assert len(load) == 3
    assert sum(load.values()) == pytest.approx(8)
    assert all(least - 1e-9 <= each <= most + 1e-9 for each in load.values()), load
    # Between leaves that keep all spines, nothing changes.
    others = [(f"gpu{i + 8}", f"gpu{i + 16}") for i in range(8)]
    assert _spines(cut, others) == _spines(tree, others)


def _saturated(tree):
    """Seconds in which all of leaf0 send to leaf1 at once, over spines that are all of the way."""
    pairs = [(f"gpu{i}", f"gpu{i + 8}") for i in range(8)]
    load = Counter[int]()
    for pair in pairs:
        found = route(tree, *pair)
        load.update(dict(zip(found.links, found.shares, strict=True)))
    return max(load[link] / tree.links[link].bandwidth for link in load)


TREE = load_topology("fat_tree:64,radix=8,oversubscription=2")
FACTORS = st.just(0.0) | st.floats(1e-3, 1.0)


@given(st.lists(FACTORS, min_size=4, max_size=4).filter(any))
@settings(max_examples=examples(50), deadline=None)
def test_slow_spines_take_what_they_have_left(factors):
    """All of a leaf send to the next, over four spines that are all that limits them: they take the
    bytes over the sum of what is left, from all spines whole to some that are cut.
    """
    slow = TREE.scale_links({f"spine{i}": factor for i, factor in enumerate(factors)})

    assert _saturated(slow) == pytest.approx(_saturated(TREE) * 4 / sum(factors))
    assert len(_spines(slow, [("gpu0", "gpu8")])) == sum(map(bool, factors))


@pytest.mark.parametrize("choice", ["first", "hashed"])
def test_no_path_is_left_for_a_small_difference(choice):
    """Paths that differ by a slow link are still dealt out as if they did not."""
    tree = TREE.vary(switching=Switching(choice))
    slow = tree.scale_links({f"spine{i}": 0.99 for i in range(3)})

    for pair in itertools.permutations(tree.devices[::5], 2):
        assert route(slow, *pair).path == route(tree, *pair).path
    again = Topology.from_networkx(slow.graph)
    assert again.digest == slow.digest == pickle.loads(pickle.dumps(slow)).digest  # noqa: S301
    assert slow.scale(2.0).links[-1].width == 2 * tree.links[-1].width


@given(st.dictionaries(st.sampled_from(["leaf0>spine0", "spine1>leaf0", "spine2", "spine3>leaf1"]),
                       st.floats(0.01, 1.0)))  # fmt: skip
@settings(max_examples=examples(50), deadline=None)
def test_a_path_carries_what_its_slowest_link_has_left(factors):
    slow = TREE.scale_links(factors)
    found = route(slow, "gpu0", "gpu8")

    left = []
    for spine in range(4):
        names = f"leaf0>spine{spine}", f"spine{spine}>leaf1"
        left.append(min(factors.get(name, factors.get(f"spine{spine}", 1.0)) for name in names))
    shares = dict(zip((slow.links[k].name for k in found.links), found.shares, strict=True))
    for spine in range(4):
        part = pytest.approx(left[spine] / sum(left))
        assert (shares[f"leaf0>spine{spine}"], shares[f"spine{spine}>leaf1"]) == (part, part)


def test_a_cut_in_the_network_keeps_routes_inside_machines_and_their_nics():
    """As of a machine without cuts, and searched once for all equal machines."""
    whole = load_topology("dgx-a100x6,nic=ib_hdr,fabric=rail_optimised,unit=3")
    cut = whole.scale_links({"spine0": 0, "leaf2<>spine1": 0})
    switches = {name for name, node in whole.nodes.items() if node.kind == "switch"}

    for pair in itertools.permutations(whole.devices[::7], 2):
        before, after = route(whole, *pair).path, route(cut, *pair).path
        assert [n for n in after if n not in switches] == [n for n in before if n not in switches]
        assert "spine0" not in after
    # What no switch joins any more goes through the machines, or is refused.
    apart = whole.scale_links({f"spine{i}": 0 for i in range(3)})
    assert apart.router.rule is None


@pytest.mark.parametrize("choice", ["first", "hashed", "split"])
@pytest.mark.parametrize(
    ("text", "cable"),
    [
        ("torus:5x1", "router0<>router1"),
        *slow([("dgx1vx12,fabric=dragonfly", "router12<>router16")]),
    ],
)
def test_a_cut_where_there_was_one_path_takes_a_detour(text, cable, choice):
    """A ring goes the other way round, and groups that had one cable go over a third: four cables
    in place of one.
    """
    cut = load_topology(f"{text},equal_cost={choice}").scale_links({cable: 0})
    first, second = cable.split("<>")

    assert len(route(cut, first, second).path) == 1 + 4
    for pair in itertools.permutations(cut.devices[::7] + cut.devices[1::11], 2):
        ids = [np.array([cut.router.index[name]]) for name in pair]
        found = cut.router.routes(*ids).links.tolist()
        assert sorted(found) == sorted(route(cut, *pair).links)
        assert not {f"{first}>{second}", f"{second}>{first}"} & {cut.links[k].name for k in found}


def test_faults_are_listed_together():
    """What is not there, and cuts of one direction."""
    with pytest.raises(TopologyError) as caught:
        DGX1V.scale_links({"gpu0>gpu3": 0, "nvlink3": 0.5, "gpu9": 0.1})

    assert len(caught.value.problems) == 3
    for factors in ({"qpi": 1e-300}, {"gpu0": 1e-5, "gpu0<>gpu3": 1e-4}, {"qpi": 1e7}):
        with pytest.raises(TopologyError, match="times its bandwidth; 0 cuts it, else from 1e-06"):
            DGX1V.scale_links(factors)


@given(st.dictionaries(st.sampled_from(["gpu0<>gpu3", "gpu1", "nvlink2", "qpi"]),
                       st.sampled_from([0.25, 0.5, 1.0, 2.0])))  # fmt: skip
@settings(max_examples=examples(100))
def test_factors_multiply(factors):
    """Each link has the product of the factors of all texts that mean it."""
    changed = DGX1V.scale_links(factors)

    for before, after in zip(DGX1V.links, changed.links, strict=True):
        product = 1.0
        for text, factor in factors.items():
            product *= factor if before.id in find_links(DGX1V, text) else 1.0
        assert after.bandwidth == pytest.approx(before.bandwidth * product)
        assert (after.name, after.latency) == (before.name, before.latency)
