"""Links by name, by their ends, by node and by class; slower ones and cut ones."""

from __future__ import annotations

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


def test_a_network_with_a_rule_goes_around_a_cut():
    """The arithmetic of a fat tree does not know of cuts, so routes are searched."""
    tree = load_topology("fat_tree:64")
    ends = tree.devices[0], tree.devices[-1]
    before = _way(tree, *ends)
    wire = before[len(before) // 2]
    cut = tree.scale_links({wire.replace(">", "<>"): 0})

    assert tree.router.rule
    after = _way(cut, *ends)
    assert wire not in after
    assert len(after) == len(before)


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
