"""Links by name, by their ends, by node and by class; slower ones and cut ones."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import InputError, TopologyError
from simreduce.topology import find_links, load_topology, route

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
@settings(max_examples=100)
def test_factors_multiply(factors):
    """Each link has the product of the factors of all texts that mean it."""
    changed = DGX1V.scale_links(factors)

    for before, after in zip(DGX1V.links, changed.links, strict=True):
        product = 1.0
        for text, factor in factors.items():
            product *= factor if before.id in find_links(DGX1V, text) else 1.0
        assert after.bandwidth == pytest.approx(before.bandwidth * product)
        assert (after.name, after.latency) == (before.name, before.latency)
