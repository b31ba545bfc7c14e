"""What a generator makes, and the parts that several of them use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simreduce.topology.generators.inline import Settings
from simreduce.topology.graph import Cable, Node
from simreduce.topology.ways import Ways


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes and cables in the order of their ids, a line that describes them, and how traffic goes if not by search."""

    title: str
    nodes: list[Node]
    cables: list[Cable]
    ways: Ways | None = None


def ends(count: int) -> list[Node]:
    """GPUs gpu0, gpu1, ... and the host cpu0, which passes nothing on."""
    return [
        *(Node(f"gpu{i}", "gpu", transit=False) for i in range(count)),
        Node("cpu0", "cpu", transit=False),
    ]


def cable(a: Node, b: Node, bandwidth: float, latency: float) -> Cable:
    """A cable of a textbook network: a sender is free once its message is on the wire."""
    return Cable(a.name, b.name, "cable", 1, bandwidth, bandwidth, latency, holds_lane=False)


def placed(settings: Settings, count: int) -> list[int]:
    """`shuffle=SEED`: the GPU that sits at each of `count` places, the GPU of that number unless stated."""
    seed = settings.whole("shuffle", 0, 0, 2**63 - 1)
    if "shuffle" not in settings.values:
        return list(range(count))
    return [int(gpu) for gpu in np.random.default_rng(seed).permutation(count)]
