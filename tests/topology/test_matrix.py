"""Path classes on machines other than the shipped ones."""

from __future__ import annotations

import pytest

from simreduce.errors import TopologyError
from simreduce.topology import Cable, Node, build, load_topology, matrix_text, path_class
from tests.thorough import slow

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
        "t",
        "t",
        "t",
        nodes,
        [Cable(a, b, c, lanes, 1e9, 1e9, 1e-6, True) for a, b, c, lanes in cables],
    )


def test_several_pcie_switches_are_pxb():
    chained = machine(
        ("a", "p", "pcie3_x16", 1), ("p", "q", "pcie3_x16", 1), ("q", "b", "pcie3_x16", 1)
    )

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


@pytest.mark.parametrize(
    ("text", "own", "line", "rows"),
    [
        (
            "dgx-h100x17",
            "dgx-h100",
            "The first of 17 equal machines; the whole matrix has 272 rows",
            16,
        ),
        (
            "dgx1vx100,nic=ib_edr",
            "dgx1v",
            "The first of 100 equal machines; the whole matrix has 1200 rows",
            12,
        ),
        *slow(
            [
                (
                    "switch:16384",
                    "",
                    "The first 16 rows and columns; the whole matrix has 16384 rows",
                    16,
                )
            ]
        ),
    ],
)
def test_of_many_the_matrix_shows_what_repeats(text, own, line, rows):
    """Its cells are those of the whole matrix; that of one machine is the machine's own, but for
    the names.
    """
    machine = load_topology(text)
    told, empty, *table = matrix_text(machine).splitlines()

    assert (told.partition(", and")[0], empty) == (line, "")
    heads = table[0].split("\t")[1:]
    lines = [row.split("\t") for row in table[1 : rows + 1]]
    assert [head for head, *_ in lines] == heads
    assert table[rows + 1] == ""
    names = {name.upper() if name in machine.devices else name: name for name in machine.nodes}
    assert [cells for _, *cells in lines] == [
        [path_class(machine, names[a], names[b]) for b in heads] for a in heads
    ]
    if own:
        alone = matrix_text(load_topology(own)).splitlines()[: rows + 1]
        assert [row.split("\t")[1:] for row in alone[1:]] == [cells for _, *cells in lines]


def test_a_matrix_that_can_be_read_is_whole():
    machine = load_topology("dgx-h100x4")

    assert len(machine.devices) == 32  # and as many NICs
    assert len(matrix_text(machine).split("\n\n")[0].splitlines()) == 1 + 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dgx-h100x24", " Between two machines: 16 rows of 16 NET."),
        ("full:70", " In all: 70 rows of 69 NET + 1 X."),
        ("switch:257", ""),
    ],
)
def test_cells_that_are_not_shown_are_counted(text, words):
    """Those between machines, and those of a matrix that does not take long."""
    first = matrix_text(load_topology(text)).splitlines()[0]

    assert first.partition(" are shown.")[2] == words


def test_the_legend_explains_what_occurs():
    text = matrix_text(load_topology("ring:4"))

    assert text.splitlines()[1] == "GPU0\tX\tNET\t-\tNET"
    assert "  -    = No connection" in text
    assert "PHB" not in text
