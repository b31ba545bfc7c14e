"""Reduction algorithms, one file each. Adding one is a file and a line in `ALGORITHMS`.

A planner is a function `(builder, layout, tensors, options) -> results` (see `planner`). What the devices at hand or
the shard count do not allow is a `StrategyError` that says what would be. A planner sees a `Layout`: devices, tasks,
which pairs are linked. It knows no bandwidth and no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simreduce.algorithms.copy_to_device import copy_to_cpu, copy_to_gpus
from simreduce.algorithms.hierarchical_copy import hierarchical_copy
from simreduce.algorithms.planner import Options, Planner, Results, Tensors
from simreduce.algorithms.reduce_to_one import reduce_to_one
from simreduce.algorithms.ring import ring
from simreduce.algorithms.shuffle import pscpu, psgpu
from simreduce.algorithms.xring import xring
from simreduce.errors import StrategyError
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder


def _one(_: Layout) -> Sequence[int]:
    return (1,)


def _powers_of_two(layout: Layout) -> Sequence[int]:
    return [1 << i for i in range(len(layout.ranks).bit_length())]


def _several_orders(layout: Layout) -> Sequence[int]:
    # In one task the rings of all sub-chunks are rotations of one list and use the same links.
    return (1,) if len(layout.tasks) == 1 else (1, 2)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A planner with what the command line says about it.

    `shards` is the meaning of `#k`, "" if it has none; `choices` gives the shard counts worth trying on a layout.
    """

    name: str
    plan: Planner
    summary: str
    shards: str = ""
    choices: Callable[[Layout], Sequence[int]] = _one

    def reduce(self, b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        """Plan the sum of every tensor over all ranks."""
        if options.shards != 1 and not self.shards:
            raise StrategyError(f"{self.name}#{options.shards}: {self.name} takes no shards")
        return self.plan(b, layout, tensors, options)


def _table(*rows: Algorithm) -> Mapping[str, Algorithm]:
    return {row.name: row for row in rows}


ALGORITHMS: Mapping[str, Algorithm] = _table(
    Algorithm(
        "xring", xring, "tf_cnn_benchmarks' ring over all GPUs", "sub-chunks per segment", _several_orders
    ),
    Algorithm(
        "pscpu", pscpu, "sums shards on the tasks' CPUs, a group of CPUs per tensor", "CPUs per tensor"
    ),
    Algorithm(
        "psgpu",
        psgpu,
        "sums shards on the GPUs, a group of GPUs per tensor",
        "GPUs per tensor",
        _powers_of_two,
    ),
    Algorithm("hierarchical_copy", hierarchical_copy, "two quads and a bridge, made for the DGX-1"),
    Algorithm("copy_to_cpu", copy_to_cpu, "sums every tensor on the CPU, then copies it to every GPU"),
    Algorithm("copy_to_gpus", copy_to_gpus, "sums tensor i on GPU i mod n, then copies it to every GPU"),
    Algorithm(
        "reduce_to_one", reduce_to_one, "sums every tensor on the first GPU, then copies it to every GPU"
    ),
    Algorithm("ring", ring, "textbook ring: reduce-scatter, then all-gather, one chunk per rank"),
)
"""Every algorithm by the name users type."""

__all__ = ["ALGORITHMS", "Algorithm", "Options", "Planner", "Results", "Tensors"]
