"""Which strategies are worth trying on a machine."""

from __future__ import annotations

from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES, TWO_LEVEL, warn_of_unloaded
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.planners.strategy.automatic import tensorflow_choice

COMMON = (
    "pscpu:32k:xring",  # the example of tf_cnn_benchmarks' documentation
    "xring+small=4096,10",
    "hierarchical_copy+small=65536,10",
    "hierarchical_copy+repack=8,fp16",
    "collective+merge=32",  # TensorFlow 1.14
    "collective+bucket=25M",
    "nccl+bucket=25M",
    "nccl+ddp",
    "nccl+fusion",
)
"""Settings in use with the packers that are not a number of packs."""


def candidates(layout: Layout) -> list[Strategy]:
    """The strategies to try for a layout.

    They are every algorithm with the shard counts and numbers of packs that it proposes for this
    layout; common settings of the other packers; and the strategies that TensorFlow would choose.
    """
    warn_of_unloaded()
    texts = []
    for algorithm in (*ALGORITHMS.values(), *(ALGORITHMS[pair] for pair in TWO_LEVEL)):
        for shards in algorithm.choices(layout):
            spec = algorithm.name if shards == 1 else f"{algorithm.name}#{shards}"
            texts += [f"{spec}+packs={packs}" if packs else spec for packs in algorithm.packs]
    texts += [*COMMON, *tensorflow_choice(layout).values()]
    return [parse_strategy(text) for text in dict.fromkeys(texts)]


def sharing_candidates(layout: Layout) -> list[Strategy]:
    """Every algorithm that all-gathers, reduce-scatters and all-reduces."""
    warn_of_unloaded()
    shared = [name for name in COLLECTIVES["all_gather"] if name in COLLECTIVES["reduce_scatter"]]
    return [
        parse_strategy(name)
        for name in shared
        if name in ALGORITHMS and COLLECTIVES["all_gather"][name].choices(layout)
    ]
