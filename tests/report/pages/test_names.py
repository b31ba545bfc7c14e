"""What names of strategies mean."""

from __future__ import annotations

import pytest

from simreduce.planners.algorithms import ALGORITHMS
from simreduce.planners.packing import PACKERS, SUMMARIES
from simreduce.report.sections import meaning, names_block


def test_every_packer_has_words():
    """So no name stays unexplained."""
    assert set(SUMMARIES) == set(PACKERS)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nccl+ddp=100", ["nccl", "+ddp"]),
        ("pscpu:32k:xring", ["pscpu", "xring"]),
        ("fsdp, unit=layer, nccl", ["nccl"]),
        ("trees+chunk=64KiB", ["trees", "+chunk"]),
        ("ring/double_tree+repack=8,fp16", ["ring/double_tree", "+repack"]),
        ("of_a_plugin+ddp", []),
    ],
)
def test_parts_of_a_name(text, parts):
    """In the words that the command line has for algorithms; nothing for what is not known here."""
    rows = [row for block in names_block([text, text]) for row in block.table.rows]

    assert [name for name, _ in rows] == parts
    assert all(words == ALGORITHMS[name].summary for name, words in rows if name[0] != "+")
    assert all(words[1:] in meaning(text) for _, words in rows)
