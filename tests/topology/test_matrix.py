"""Path classes on machines other than the shipped ones."""

from __future__ import annotations

import pytest

from simreduce.errors import TopologyError
from simreduce.topology import Cable, Node, build, load_topology, matrix_text, path_class

KINDS = {
    "a": "gpu",
    "b": "gpu",
    "c": "gpu",
    "p": "pcie_switch",
    "q": "pcie_switch",
    "s": "nvswitch",
    "t": "nvswitch",
}


def machine(*cables: tuple[str, str, str, int]):
    nodes = [Node(name, kind, transit=kind != "gpu") for name, kind in KINDS.items()]
    return build(
        "t", "t", "t", nodes, [Cable(a, b, c, lanes, 1e9, 1e9, 1e-6, True) for a, b, c, lanes in cables]
    )


def test_several_pcie_switches_are_pxb():
    chained = machine(("a", "p", "pcie3_x16", 1), ("p", "q", "pcie3_x16", 1), ("q", "b", "pcie3_x16", 1))

    assert path_class(chained, "a", "b") == "PXB"
    assert path_class(chained, "a", "q") == "PIX"


def test_nvswitches_count_the_links_of_a_gpu():
    star = machine(*((gpu, chip, "nvlink3", 2) for gpu in "ab" for chip in "st"))

    assert path_class(star, "a", "b") == "NV4"


def test_direct_links_add_up_over_classes():
    pair = machine(("a", "b", "nvlink2", 2), ("a", "b", "nvlink3", 1), ("a", "c", "pcie3_x16", 1))

    assert path_class(pair, "a", "b") == "NV3"
    assert path_class(pair, "a", "c") == "PIX"
    assert path_class(pair, "b", "c") == "-"


def test_textbook_links_are_a_network():
    assert path_class(load_topology("ring:3"), "gpu0", "gpu1") == "NET"
    assert path_class(load_topology("switch:3"), "gpu0", "gpu1") == "NET"
    assert path_class(load_topology("switch:3"), "gpu0", "gpu0") == "X"


def test_unknown_names():
    with pytest.raises(TopologyError, match="no node named 'gpu7'"):
        path_class(load_topology("ring:3"), "gpu0", "gpu7")


def test_the_legend_explains_what_occurs():
    text = matrix_text(load_topology("ring:4"))

    assert text.splitlines()[1] == "GPU0\tX\tNET\t-\tNET"
    assert "  -    = No connection" in text
    assert "PHB" not in text
