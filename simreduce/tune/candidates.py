"""Which strategies are worth trying on a machine."""

from __future__ import annotations

from simreduce.algorithms import ALGORITHMS
from simreduce.layouts import Layout
from simreduce.strategy import Strategy, parse_strategy

PACKS = (0, 2, 4, 8, 16)
"""Numbers of packs tried; 0 is no packing. tf_cnn_benchmarks' own recipes use 2 and 8."""


def candidates(layout: Layout) -> list[Strategy]:
    """Every algorithm with every shard count it finds worth trying here, without packing and with 2 to 16 packs."""
    texts = []
    for algorithm in ALGORITHMS.values():
        for shards in algorithm.choices(layout):
            spec = algorithm.name if shards == 1 else f"{algorithm.name}#{shards}"
            texts += [f"{spec}+packs={packs}" if packs else spec for packs in PACKS]
    return [parse_strategy(text) for text in texts]
