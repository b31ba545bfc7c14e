"""NCCL's graph XML."""

from __future__ import annotations

import pytest

from simreduce.errors import TopologyError
from simreduce.topology.importers.nccl_xml import read_nccl_graphs
from tests.topology.importers.files import GRAPHS


def test_rings_and_trees():
    ring, tree = read_nccl_graphs(GRAPHS, "g.xml")

    assert (ring.pattern, ring.speed_intra, ring.speed_inter, ring.type_intra) == (
        "ring",
        20e9,
        12e9,
        "NVL",
    )
    assert [channel.gpus for channel in ring.channels] == [(0, 1, 2), (2, 1, 0)]
    assert [(c.net_in, c.net_out) for c in ring.channels] == [("0", "1"), (None, None)]
    assert (tree.id, tree.pattern, len(tree.channels)) == (1, "tree", 1)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('pattern="4"', 'pattern="9"', "line 2: pattern '9'"),
        (
            'nchannels="2" speedintra="20" speedinter="12" latency',
            'nchannels="5" latency',
            "nchannels is '5'",
        ),
        (
            '<gpu dev="2"/><gpu dev="1"/>',
            '<gpu dev="3"/><gpu dev="1"/>',
            "the rings are not of the same GPUs",
        ),
        ('<gpu dev="2"/><gpu dev="1"/>', '<gpu dev="1"/><gpu dev="1"/>', "a GPU stands twice"),
        ('<gpu dev="2"/><gpu dev="1"/>', '<gpu dev="x"/>', "line 4: <gpu> with dev 'x'"),
        ('speedintra="20"', 'speedintra="fast"', "speedintra 'fast'"),
        ("<graphs", "<rings", "not well-formed"),
    ],
)
def test_faults(old, new, fault):
    assert old in GRAPHS
    with pytest.raises(TopologyError) as caught:
        read_nccl_graphs(GRAPHS.replace(old, new, 1), "g.xml")
    assert any(fault in problem for problem in caught.value.problems), caught.value.problems
    with pytest.raises(TopologyError, match="graphs begin with <graphs>"):
        read_nccl_graphs("<system/>", "g.xml")
