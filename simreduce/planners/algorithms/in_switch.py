"""In-switch reduction (Graham et al. 2016, SHARP; NVLink SHARP): switches add what passes through
them.

A switch of a network multicasts what it has summed: every rank sends its data up once and gets the
sum back once. One that links all ranks by ports of B: a + S/B when the chunks are small, whatever
n, where a is that of two ports (a ring needs 2(n-1)/n S/B). An NVSwitch gives the sum to the rank
that asks for it, the head of an n-th, which sends it back to be multicast. A port carries an n-th
more each way: 2a + S (1 + 1/n)/B, a bus bandwidth of 2B (n-1)/(n+1).

Where several switches link all ranks, or several tops link all leaves (the spines of a fat tree),
each takes an equal share. The device list holds the switches like any other device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.errors import StrategyError
from simreduce.plan import PlanBuilder, Value, Values
from simreduce.planners.algorithms.family import chunk_count, knobs
from simreduce.planners.algorithms.planner import Options, Results, Tensors
from simreduce.planners.layouts import Layout, Reducer


def in_switch(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
    """Every tree of switches sums its share of the tensor, chunk by chunk."""
    trees = summing_trees(layout)
    results: list[Sequence[Value]] = []
    for tensor in tensors:
        whole = Values.of(tensor)
        chunk = knobs(options, whole.dtype).chunk
        shares = whole.cut(len(trees))
        count = chunk_count(int(shares.elements.max()), chunk, shares.lo.size)
        pieces = [
            _through(b, layout, shares[:, i].cut(count), top, leaves, 4 * i)
            for i, (top, leaves) in enumerate(trees)
        ]
        results.append(b.joins(Values.concatenate(pieces, axis=1)) if layout.n > 1 else whole)
    return results


def summing_trees(layout: Layout) -> list[tuple[Reducer, Sequence[Reducer]]]:
    """(top, its leaves) of every tree of switches; a switch that links all ranks is both."""
    flat = [switch for switch in layout.reducers if len(switch.ranks) == layout.n]
    if flat:
        return [(switch, [switch]) for switch in flat]
    leaves = [switch for switch in layout.reducers if switch.ranks]
    tops = [
        switch
        for switch in layout.reducers
        if not switch.ranks and all(leaf.name in switch.switches for leaf in leaves)
    ]
    if not tops or sorted(rank for leaf in leaves for rank in leaf.ranks) != list(range(layout.n)):
        raise StrategyError(
            "needs switches that sum, and none links all GPUs, nor all of the leaves with each GPU "
            "on one of them; "
            "a topology says `reduces = true` at such a switch, a generator reduce=yes"
        )
    return [(top, leaves) for top in tops]


def _through(
    b: PlanBuilder,
    layout: Layout,
    chunks: Values,
    top: Reducer,
    leaves: Sequence[Reducer],
    channel: int,
) -> Values:
    """By rank and chunk, the sum that one tree makes of the `chunks` of every rank."""
    place = {name: np.full((1, chunks.shape[1]), i) for i, name in enumerate(layout.devices)}
    if top.heads and top.ranks:
        return _through_heads(b, chunks[np.array(top.ranks)], place[top.name], channel)

    def climb(values: Values, switch: Reducer) -> Values:
        """The sum on `switch`, by chunk, of values by sender and chunk."""
        arrived = b.copies(values, place[switch.name], stream=b.streams(values.device, channel))
        return b.adds([arrived[i, ...] for i in range(len(arrived))])[None]

    def descend(values: Values, to: Ints) -> Values:
        """The values by chunk, on every device of `to`, whose port takes them one after another."""
        wide = np.broadcast_to(to, (len(to), chunks.shape[1]))
        return b.copies(values, to, stream=b.streams(wide, channel + 1))

    sums = [climb(chunks[np.array(leaf.ranks)], leaf) for leaf in leaves]
    ranks = [np.array(leaf.ranks)[:, None] for leaf in leaves]
    if len(leaves) == 1:
        made = descend(sums[0], ranks[0])
    else:
        total = climb(Values.concatenate(sums), top)
        back = [descend(total, place[leaf.name]) for leaf in leaves]
        made = Values.concatenate(
            [descend(values, to) for values, to in zip(back, ranks, strict=True)]
        )
    return made[np.argsort(np.concatenate(ranks)[:, 0])]


def _through_heads(b: PlanBuilder, chunks: Values, switch: Ints, channel: int) -> Values:
    """By rank and chunk, the sum, after a round trip through the ranks.

    The switch adds the chunks and sends every rank an equal part. The ranks send their parts back,
    and the switch multicasts them.
    """
    ranks = chunks.device
    there = np.broadcast_to(switch, ranks.shape)
    rose = b.copies(chunks, there, stream=b.streams(ranks, channel))
    parts = b.adds([rose[i, ...] for i in range(len(rose))]).cut(len(rose)).swapaxes(0, 1)
    held = b.copies(parts, ranks, stream=b.streams(ranks, channel + 1))
    back = b.copies(held, there, stream=b.streams(ranks, channel + 2))
    whole = b.joins(back.swapaxes(0, 1))[None]
    return b.copies(whole, ranks, stream=b.streams(ranks, channel + 3))
