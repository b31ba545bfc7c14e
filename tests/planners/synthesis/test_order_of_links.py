"""The order of a file's links changes no time."""

from __future__ import annotations

from random import Random

import pytest

from simreduce.engine import IDEAL
from simreduce.engine.setup import Setup
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import bench

NODES = '[nodes.gpu]\nnames = ["g0", "g1", "g2", "g3", "g4"]\nkind = "gpu"\n'
LINKS = (
    ("5 GB/s", "2.5 us", "g0", "g1"), ("10 GB/s", "2.5 us", "g0", "g2"),
    ("12.5 GB/s", "0 us", "g2", "g3"), ("100 GB/s", "0 us", "g2", "g4"),
    ("10 GB/s", "0 us", "g1", "g3"), ("16 GB/s", "0.5 us", "g3", "g4"),
)  # fmt: skip


def machine(order) -> str:
    """The file with its links in an order, each from its first end or from its second."""
    text = NODES
    for number, (turned, (rate, latency, *ends)) in enumerate(order):
        first, second = ends[::-1] if turned else ends
        text += f'[links.l{number}]\nbandwidth = "{rate}"\nlatency = "{latency}"\n'
        text += f'pairs = [["{first}", "{second}"]]\n'
    return text


@pytest.mark.parametrize("algorithm", ["multi_ring", "trees", "best_ring"])
def test_the_order_of_links_changes_no_time(tmp_path, algorithm):
    draw, found = Random(7), set()  # noqa: S311 - no secret
    for place in range(6):
        order = [(place > 0 and draw.random() < 0.5, link) for link in LINKS]
        if place:
            draw.shuffle(order)
        path = tmp_path / f"m{place}.toml"
        path.write_text(machine(order), "utf-8")
        (row,) = bench(Setup(str(path), IDEAL), [parse_strategy(algorithm)], [4096])
        found.add(row.seconds)

    assert len(found) == 1
