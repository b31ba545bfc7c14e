"""Switches that sum for NCCL: NVSwitches in a machine (NVLS, NVLSTree), the network's (CollNet)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from simreduce.computing import grouped
from simreduce.computing.arrays import Ints
from simreduce.errors import NotFoldable, StrategyError
from simreduce.plan import Executor, PlanBuilder, Values
from simreduce.plan.ops import JOINED, halve_threads, merged_channel
from simreduce.planners.algorithms.direct import add_up
from simreduce.planners.algorithms.nccl.paths import Lane, chunk_count, halve, lanes, nbytes, ways
from simreduce.planners.algorithms.trees import Tree, down, up
from simreduce.planners.layouts import Aggregation, Decision, Layout, Reducer, aggregations
from simreduce.planners.synthesis.trees import parents, second_tree

_LOOPS = (64, 1 << 16), (8, 1 << 15), (2, 1 << 14)
_LOOPS_ACROSS = (4, 1 << 16), (1, 1 << 15)
"""Bytes of a chunk where fewer loops of longer ones would do; on one machine or across several."""

MOST_HEADS, _EIGHT = 32, 8
"""Heads that NCCL has at most (NCCL_MAX_NVLS_ARITY), and GPUs of most nodes."""

Box = tuple[int, list[int]]
"""A device that is a switch, and places of ranks that it links."""


def boxes(layout: Layout, ranks: Sequence[int]) -> list[Box]:
    """A switch that sums for each machine, or one for all of them."""
    if layout.machines > 1:
        raise NotFoldable("machines have different places in NCCL's tree")
    place = {rank: i for i, rank in enumerate(ranks)}
    found, index = [], {name: i for i, name in enumerate(layout.devices)}
    near = grouped((rank, each) for each in layout.reducers for rank in each.ranks)

    def switch_of(task: Sequence[int]) -> Reducer | None:
        return next((each for each in near.get(task[0], ()) if {*task} <= {*each.ranks}), None)

    for task in [ranks] if switch_of(ranks) else layout.among(ranks):
        switch = switch_of(task)
        if not switch:
            raise StrategyError("needs switches that sum and link all GPUs of a machine (NVSwitch)")
        found.append((index[switch.name], [place[rank] for rank in task]))
    if len({len(box[1]) for box in found}) > 1:
        raise StrategyError("needs the same number of GPUs on every machine")
    return found


def nvls_all_reduce(
    b: PlanBuilder,
    given: Values,
    found: Sequence[Box],
    how: Decision,
    after: Sequence[int],
    count: int = 0,
) -> Values:
    """The sum on every rank, in `count` pieces or as many as NCCL makes.

    In a machine of g GPUs each is the head of an equal part, or each of the first 32. The switch
    sums what all hold of it and gives the sum to the head, which sends it back to be multicast to
    all. A port carries the tensor once and a part of it besides, each way: t = a + S (1 + 1/g)/B,
    so the bus bandwidth is 2B (g-1)/(g+1). Before the sums go back, the heads of all machines
    reduce them over the double binary tree of machines, each over its own NIC. Chunks of 16 KiB to
    128 KiB on every channel for every head follow one another.
    """
    ranks, homes, sums, made = len(found[0][1]), [], [], []
    heads = ranks if count else min(ranks, MOST_HEADS)
    mine = slice(how.way, how.way + 1) if how.way >= 0 else slice(ranks)
    stages = [merged_channel(stage, how.channels) for stage in range(4)]
    if heads > _EIGHT and not count:
        share = halve_threads(JOINED * (len(found) > 1), (heads - 1).bit_length() - 3)
        stages = [stages[0] + share, *stages[1:3], stages[3] + share]
    count = count or _chunks(given, len(found), heads * how.channels)
    for switch, places in found:
        own = given[np.array(places[mine])].cut(count)  # by rank and piece
        there = np.full(own.shape, switch)
        rose = b.copies(own, there, stream=b.streams(own.device, stages[0]), after=after)
        part = b.adds([rose[rank, ...] for rank in range(len(own))]).cut(heads).swapaxes(0, 1)[mine]
        homes.append(own.device)
        to = own.device[: len(part)]
        sums.append(b.copies(part, to, stream=b.streams(to, stages[1])))
    across = Values.stack(sums, axis=2)
    across = _across(b, across, max(how.channels // 2, 1)) if len(found) > 1 else across
    for node, (switch, _) in enumerate(found):
        held = across[..., node]
        back = b.copies(held, np.full(held.shape, switch), stream=b.streams(held.device, stages[2]))
        whole = own[:1].on(back.device[:1]).with_ops(b.joins(back.swapaxes(0, 1)).op[None])
        made.append(b.copies(whole, homes[node], stream=b.streams(homes[node], stages[3])))
    order = np.argsort([place for _, places in found for place in places[mine]])
    return b.joins(Values.concatenate(made)[order])


def _across(b: PlanBuilder, sums: Values, channels: int) -> Values:
    """By head, piece and machine: the sum over all machines, half by each tree of `channels`."""
    machines, made = sums.shape[2], []
    for i, order in enumerate((np.arange(machines), second_tree(machines))):
        tree, channel = Tree(parents(machines), order), merged_channel(4 + i, channels) + JOINED
        total = up(b, sums.cut(2)[:, :, order, i], tree, channel)
        made.append(down(b, total, tree, channel)[:, :, np.argsort(order)])
    return b.joins(Values.stack(made, axis=3))


def chunk_bytes(total: int, machines: int, at_once: int) -> int:
    """Bytes of NCCL's chunks, `at_once` on all channels of all heads (src/enqueue.cc)."""
    size = 1 << (16 if machines >= 4 else 17)
    for loops, shorter in _LOOPS_ACROSS if machines > 1 else _LOOPS:
        size = min(size, shorter) if total < loops * at_once * size else size
    return size


def _chunks(given: Values, machines: int, at_once: int) -> int:
    size = nbytes(given)
    chunk, hops = chunk_bytes(size, machines, at_once), 4 * machines.bit_length()
    return chunk_count(-(-size // at_once), chunk, 6 * len(given), hops)


_RAILS = 16
"""Rails with streams of their own."""

_UP, _DOWN, _OUT, _IN = (_RAILS * stage for stage in range(4))
"""The first channel of each stage: to the head and back, to the switch and back."""

_LONGEST = 1 << 18
_LOOPS_DIRECT = (64, 1 << 17), (8, 1 << 16), (8, 1 << 15)
_LOOPS_CHAIN = (64, 1 << 17), (8, 1 << 16), (1, 1 << 15)
"""Bytes of a chunk at most; chunks for each hop within a machine, and the bytes of a chunk that is
not halved for them (NVIDIA/nccl src/enqueue.cc).
"""


def collnet_all_reduce(
    b: PlanBuilder, layout: Layout, given: Values, how: Decision, after: Sequence[int]
) -> Values:
    """The sum on every rank.

    Every rail, the NICs in the same place of all machines, has a tree of switches and an equal part
    of the tensor. In a machine the GPU beside the NIC, the head, gets the sum of its part: from all
    others directly where an NVSwitch joins them (CollNetDirect), else along a chain (CollNetChain).
    The heads send it to the network and get the sum over all machines back, which goes the same way
    to the other GPUs. A NIC carries its part once each way, whatever the number of machines: over g
    NICs of B and fast links within machines, t = a + S/(g B), where a ring needs 2(n-1)/n S/(g B).

    Up to a switch and down from it a piece takes what a send between machines takes, and between
    switches the wire only.
    """
    ranks = given.device.tolist()
    trees = aggregations(layout, ranks)
    place = {rank: i for i, rank in enumerate(ranks)}
    rails: dict[int, list[list[int]]] = {}
    for way in ways(layout, ranks):
        rails.setdefault(layout.nic(way[0][0]), [[place[r] for r in part] for part in way])
    # Whether a switch joins the GPUs of every machine.
    direct = all(
        any(switch.heads and {*part} <= {*switch.ranks} for switch in layout.reducers)
        or all(layout.links[u][v] for u, v in permutations(part, 2))
        for part in layout.among(ranks)
    )
    made = []
    for number, (rail, lane) in enumerate(lanes(list(rails), how.channels)):
        stage = _Stage(b, layout, how, lane, number, len(rails), direct=direct)
        made.append(stage.all_reduce(given, rails[rail], trees[rail], after))
    return b.joins(Values.concatenate(made, axis=1))


class _Stage:
    """The part of one rail."""

    def __init__(
        self,
        b: PlanBuilder,
        layout: Layout,
        how: Decision,
        lane: Lane,
        number: int,
        rails: int,
        *,
        direct: bool,
    ) -> None:
        self.b, self.layout, self.how, self.lane, self.direct = b, layout, how, lane, direct
        self.number, self.rails = number % _RAILS, rails

    def channel(self, stage: int) -> int:
        """The channel of a stage. The blocks of all channels serve all heads of a machine."""
        within = self.direct and stage in (_UP, _DOWN)
        blocks = self.how.channels if within else self.lane.last - self.lane.first
        return merged_channel(stage + self.number, blocks)

    def all_reduce(
        self, given: Values, parts: Sequence[Sequence[int]], tree: Aggregation, after: Sequence[int]
    ) -> Values:
        """By rank and piece: the sum over all ranks. Each of `parts` begins with its head."""
        own = self.lane.share(given).cut(self._count(given, parts))
        sums = [self.gather(own, part, after) for part in parts]
        total = self.through(Values.stack(sums), tree, after)
        made = [self.spread(total[i, ...], own, part) for i, part in enumerate(parts)]
        order = np.argsort([rank for part in parts for rank in part])
        return Values.concatenate(made)[order]

    def _count(self, given: Values, parts: Sequence[Sequence[int]]) -> int:
        depth = 2 if self.direct else max(map(len, parts))
        at_once, total = self.how.channels * (self.rails if self.direct else 1), nbytes(given)
        loops = _LOOPS_DIRECT if self.direct else _LOOPS_CHAIN
        size = halve(_LONGEST, total // at_once, depth, loops)
        copies = 2 * len(given) * self.rails
        return chunk_count(-(-total // at_once), size, copies, 2 * depth + 2)

    def gather(self, own: Values, part: Sequence[int], after: Sequence[int]) -> Values:
        """By piece, the sum over a machine on its head."""
        b, head, channel = self.b, part[0], self.channel(_UP)
        if len(part) == 1:
            return b.slices(own[head, ...])
        if self.direct:
            rest = own[np.array(part[1:])]
            to, stream = np.full(rest.shape, own.device[head, 0]), b.streams(rest.device, channel)
            arrived = b.copies(rest, to, stream=stream, after=after)
            return b.adds([own[head, ...], *(arrived[i, ...] for i in range(len(arrived)))])
        total, waits = own[part[-1], ...], after
        for rank in part[-2::-1]:
            stream = b.streams(total.device, channel)
            arrived = b.copies(total, own.device[rank], stream=stream, after=waits)
            total, waits = b.adds([arrived, own[rank, ...]]), ()
        return total

    def spread(self, total: Values, own: Values, part: Sequence[int]) -> Values:
        """By rank of a machine and piece, the total that its head has."""
        b, channel, seen = self.b, self.channel(_DOWN), [total]
        if self.direct and len(part) > 1:
            to = own.device[np.array(part[1:])]
            moved = b.copies(total[None], to, stream=b.streams(to, channel))
            return Values.concatenate([total[None], moved])
        for rank in part[1:]:
            stream = b.streams(seen[-1].device, channel)
            seen.append(b.copies(seen[-1], own.device[rank], stream=stream))
        return Values.stack(seen)

    def through(self, sums: Values, tree: Aggregation, after: Sequence[int]) -> Values:
        """By machine and piece, on the heads: the sum that the switches make of `sums`."""
        b, names = self.b, self.layout.devices
        leaf = np.array([names.index(name) for name in tree.leaves])
        there = np.broadcast_to(leaf[:, None], sums.shape)
        stream = b.streams(sums.device, self.channel(_OUT))
        rose = b.copies(sums, there, stream=stream, after=after)
        groups = [np.flatnonzero(leaf == each) for each in dict.fromkeys(leaf.tolist())]
        held = [add_up(b, rose[group].swapaxes(0, 1)) for group in groups]
        if len(held) > 1:
            executor, b.executor = b.executor, Executor.TF
            up = Values.stack(held)
            top = np.full(up.shape, names.index(tree.top))
            came = b.copies(up, top, stream=b.streams(up.device, _OUT + self.number))
            total = add_up(b, came.swapaxes(0, 1))
            stream = b.streams(up.device, _IN + self.number)
            fallen = b.copies(total[None], up.device, stream=stream)
            held = [fallen[i, ...] for i in range(len(groups))]
            b.executor = executor
        back = [self.down(sums.device[g], v) for g, v in zip(groups, held, strict=True)]
        return Values.concatenate(back)[np.argsort(np.concatenate(groups))]

    def down(self, heads: Ints, total: Values) -> Values:
        """The total of a leaf, on the heads below it."""
        return self.b.copies(total[None], heads, stream=self.b.streams(heads, self.channel(_IN)))
