"""The trees of switches that sum what the NICs of several machines send (SHARP).

The NICs in the same place of all machines are a rail, and each rail has a tree of its own: the
switch that has all of them, or a switch above all that have some. A switch of NVIDIA's carries two
streaming aggregation flows at most, so that the leaves have to be those of one rail or two (NVIDIA
HPC-X Software Toolkit Rev 2.25.1, "NCCL-RDMA-SHARP Plugins",
https://docs.nvidia.com/networking/display/hpcxv2251/nccl-rdma-sharp-plugins).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from simreduce.errors import NotFoldable, StrategyError
from simreduce.planners.layouts.values import Layout, Reducer

MOST_FLOWS = 2
"""Streaming aggregation flows that a switch carries at once."""


class Aggregation(NamedTuple):
    """The tree of one rail: its top, and for each machine the leaf of its NIC; the top itself where
    one switch has all NICs.
    """

    top: str
    leaves: tuple[str, ...]


def aggregations(layout: Layout, ranks: Sequence[int]) -> dict[int, Aggregation]:
    """By place of the NIC, the tree that sums what the machines of `ranks` send there.

    Raises `StrategyError` where there is none, with what is missing.
    """
    if layout.machines > 1:
        raise NotFoldable("the network's switches sum over all machines")
    chosen = {*ranks}
    tasks = [[rank for rank in task if rank in chosen] for task in layout.tasks]
    tasks = [task for task in tasks if task]
    if len(tasks) < 2:
        raise StrategyError("switches of a network sum between machines, and these GPUs share one")
    rails = [dict.fromkeys(_place(layout, rank) for rank in task) for task in tasks]
    if any(rail.keys() != rails[0].keys() for rail in rails):
        raise StrategyError("needs GPUs at the same NICs of every machine")
    flows: Counter[str] = Counter()
    found = {}
    for place in rails[0]:
        heads = [next(r for r in task if _place(layout, r) == place) for task in tasks]
        found[place] = _tree(layout, heads, flows)
    crowded = [name for name, count in flows.items() if count > MOST_FLOWS]
    if crowded:
        raise StrategyError(
            f"{flows[crowded[0]]} rails would share {crowded[0]}, and a switch carries "
            f"{MOST_FLOWS} aggregation flows at once; a rail-optimised network has a leaf for "
            "each rail"
        )
    return found


def _place(layout: Layout, rank: int) -> int:
    return layout.nics[rank] if layout.nics else 0


def _tree(layout: Layout, heads: Sequence[int], flows: Counter[str]) -> Aggregation:
    """The tree over the NICs of these ranks, by the top that has the fewest flows yet."""
    summing = [switch for switch in layout.reducers if not switch.heads]
    leaves = [_leaf(layout, summing, head) for head in heads]
    names = dict.fromkeys(leaves)
    tops = [each.name for each in summing if names.keys() <= {*each.switches}]
    if len(names) == 1:
        tops = leaves[:1]
    if not tops:
        raise StrategyError(f"no switch that sums is linked to all of {', '.join(names)}")
    top = min(tops, key=lambda name: flows[name])
    flows.update({*names, top})
    return Aggregation(top, tuple(leaves))


def _leaf(layout: Layout, summing: Sequence[Reducer], head: int) -> str:
    """The switch at the NIC of a rank."""
    for switch in summing:
        if head in switch.nics or head in switch.ranks:
            return switch.name
    raise StrategyError(
        f"needs switches of the network that sum, and none is at the NIC of {layout.ranks[head]}; "
        "a topology says `reduces = true` at such a switch, a generator reduce=yes"
    )
