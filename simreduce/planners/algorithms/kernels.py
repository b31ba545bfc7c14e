"""All-reduces by one kernel on every GPU, which reads and writes the memory of the others.

`oneshot`: every GPU reads all of the others' data and adds for itself, between two barriers (vLLM's
custom all-reduce, TensorRT-LLM's and FlashInfer's ONESHOT, PyTorch's `one_shot_all_reduce`).

`twoshot`: every GPU reads and adds its part, and after a barrier all read the sums (TWOSHOT).

`multimem`: every GPU has the NVSwitch sum its part on load and multicast it on store, between two
barriers (PyTorch's `multimem_all_reduce_`). Needs NVLink SHARP.

`symmetric`: NCCL's symmetric kernels, the one that NCCL takes or one that is named
(`planners.nccl.constants`). With flags beside the data (LL) no barrier is needed. All-gathers write
to peers, reduce-scatters read from them, or a switch multicasts or sums.

`symmetric:engine`: NCCL's all-gathers and all-to-alls by copy engines, which take no SM. A batch of
copies from every GPU to every other, or to a switch that multicasts them, between two barriers of
the streams.

Barriers before the first bytes and after the last are part of the launch here; the one between is
an op that waits for all.

In-switch reduction (Graham et al. 2016, SHARP; NVLink SHARP): switches add what passes through
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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from simreduce.computing.arrays import Ints
from simreduce.errors import NotFoldable, StrategyError
from simreduce.plan import Executor, PlanBuilder, Value, Values
from simreduce.plan.ops import BEGINS, ENGINE, ONE_WAY, SWITCHED, merged_channel, sync_channel
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.algorithms import direct
from simreduce.planners.algorithms.nccl import switches
from simreduce.planners.algorithms.nccl.paths import BY_ENGINE, decided, launch, nbytes
from simreduce.planners.algorithms.planner import (
    Knobs,
    Options,
    Planner,
    Results,
    Tensors,
    chunk_count,
    knobs,
    plan_chain,
)
from simreduce.planners.layouts import Decision, Layout, Reducer

MOST_GPUS = 8
"""GPUs that the kernels of vLLM, TensorRT-LLM and PyTorch have pointers for (vLLM
csrc/custom_all_reduce.cuh).
"""

MOST_SYMMETRIC = 72
"""GPUs of the largest NVLink domain."""

MOST_BY_ENGINES = 64
"""GPUs whose number a launch holds here (`plan.ops`)."""

_BLOCKS = 36
"""vLLM's blocks of 512 threads (the same file)."""

_TORCH_BLOCKS = 48
"""PyTorch's 24 blocks of 1,024 threads, as blocks of 512 (pytorch
torch/csrc/distributed/c10d/CUDASymmetricMemoryOps.cu).
"""

_NCCL_BLOCKS = 64
"""NCCL's, at most (NVIDIA/nccl src/include/sym_kernels.h)."""

_RISE, _FALL = (merged_channel(stage, _NCCL_BLOCKS) + ONE_WAY for stage in range(2))
"""The channels of what goes up to a switch and comes down again."""

_LEAST, _PIECES = 1 << 15, 16
"""Bytes of a piece that goes through a switch, at least, and pieces at most."""


@dataclass(frozen=True)
class KernelSchedule:
    """A kernel on every GPU. `body` goes from what the GPUs give, and the op after which the kernel
    runs, to its results. `channel` is that of its launch, in which copy engines also count the
    GPUs; without barriers, flags come with the data. NCCL's symmetric kernels have NCCL's `title`.
    """

    body: Callable[[PlanBuilder, Layout, Values, int], Values]
    channel: int = sync_channel(0, 0)
    title: str = ""

    def run(self, b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
        """The results, once the values `before` are there too."""
        channel = self.channel | BEGINS
        if self.channel & ENGINE:
            channel += merged_channel(0, len(given))
        executor = Executor.KERNEL if self.channel else Executor.KERNEL_LL
        with launch(b, executor, [*given, *before], channel) as op:
            return self.body(b, layout, given, op)


Run = Callable[[PlanBuilder, Layout, Values, Sequence[Value]], Values]


def planner(run: Run, most: int = MOST_GPUS) -> Planner:
    """The planner of a kernel on up to `most` GPUs; each tensor waits for the one before."""

    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        if layout.machines > 1:
            raise NotFoldable("the GPUs of one kernel are of one machine")
        if layout.n > most:
            raise StrategyError(f"runs on up to {most} GPUs, and these are {layout.n}")
        if not layout.joined:
            raise StrategyError("needs NVLinks or NVSwitches between all GPUs")

        def plan_next(tensor: Sequence[Value], before: Sequence[Value]) -> Sequence[Value]:
            given = Values.of(tensor)
            return run(b, layout, given, before) if layout.n > 1 else given

        return plan_chain(b, tensors, plan_next)

    return plan


def as_nccl(collective: str, algorithm: str, protocol: str = "") -> Run:
    """One of NCCL's symmetric kernels or a collective by copy engines, as NCCL takes them where
    `protocol` names none.
    """
    wanted = Decision(algorithm, protocol)

    def run(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
        shares = len(given) if collective == "all_gather" else 1
        total, ranks = nbytes(given) * shares, given.device.tolist()
        how = decided(layout, ranks, collective, total, wanted, given.dtype)
        return schedule(collective, how).run(b, layout, given, before)

    return run


def _held(b: PlanBuilder, given: Values, op: int) -> Values:
    """The values once the op `op` is done."""
    return Values.of([b.hold(value, (op,)) for value in given])


def _all_read(b: PlanBuilder, _: Layout, given: Values, op: int) -> Values:
    """Every GPU reads everything from all, or is sent it, and adds."""
    held, n = _held(b, given, op), len(given)
    wanted = held[direct.givers(n, n) % n][None]
    return direct.add_up(b, direct.exchange(b, held[None], wanted))[0, :]


def _reduce_scatter(b: PlanBuilder, _: Layout, given: Values, op: int) -> Values:
    """Every GPU reads its part from all, or is sent it, and adds."""
    return direct.reduce_scatter(b, _held(b, given, op)[None], Knobs())[0, :]


def _two_shot(b: PlanBuilder, layout: Layout, given: Values, op: int) -> Values:
    """Every GPU adds its part; then all read the sums, a thread from one GPU at a time."""
    sums = _reduce_scatter(b, layout, given, op)
    middle = b.stream(sums[0].device, sync_channel(1, 1))
    done = b.barrier(sums[0].device, sums.op.tolist(), middle)
    return _gather(b, _held(b, sums, done), _serving(_BLOCKS, len(given)))


def _serving(blocks: int, n: int) -> int:
    """The channel of the blocks of a GPU that serve one of its peers."""
    return merged_channel(0, max(blocks // (n - 1), 1))


def _gather(b: PlanBuilder, sums: Values, channel: int | None = None) -> Values:
    """The parts of all on every GPU, over connections of this channel if one is given."""
    n = len(sums)
    sender = direct.givers(n, n)[1:]
    wanted = sums[sender].on(np.broadcast_to(sums.device, sender.shape))
    stream = NO_STREAM if channel is None else b.streams(sums.device[sender], channel)
    arrived = b.copies(wanted, wanted.device, stream=stream)
    at = np.arange(n)[:, None]
    return b.joins(Values.concatenate([sums[None], arrived], axis=0)[(at - np.arange(n)) % n, at])


def _by_switch(
    b: PlanBuilder, layout: Layout, given: Values, op: int, blocks: int = _NCCL_BLOCKS
) -> Values:
    """The switch sums and multicasts, by so many blocks."""
    count, how = _count(nbytes(given) // len(given)), Decision("nvls", "simple", blocks)
    found = switches.boxes(layout, given.device.tolist())
    return switches.nvls_all_reduce(b, given, found, how, (op,), count)


def _count(size: int) -> int:
    """Pieces in which so many bytes go through a switch."""
    return max(min(size // _LEAST, _PIECES), 1)


def _multicast(b: PlanBuilder, layout: Layout, given: Values, op: int) -> Values:
    """Every GPU writes everything once, and the switch multicasts it."""
    ((switch, _),) = switches.boxes(layout, given.device.tolist())
    n = len(given)
    up = b.copies(given, np.full(n, switch), after=(op,))
    parts = up[np.repeat(np.arange(n), n)].reshape(n, n)
    down = b.copies(parts, np.broadcast_to(given.device, (n, n)))
    return b.adds([down[i, :] for i in range(n)])


def _stores(b: PlanBuilder, layout: Layout, given: Values, op: int) -> Values:
    """Every GPU reads and adds its part, and writes the sum to all."""
    return _gather(b, _reduce_scatter(b, layout, given, op), _serving(_NCCL_BLOCKS, len(given)))


def _gathered(
    b: PlanBuilder, _: Layout, given: Values, op: int, over: Callable[[int], int] | None = None
) -> Values:
    """Every GPU writes its part to all, `over` connections of the channel for so many GPUs."""
    return _gather(b, _held(b, given, op), over(len(given)) if over else None)


def _spread(b: PlanBuilder, layout: Layout, given: Values, op: int, *, cut: bool = False) -> Values:
    """Every GPU writes its part once, in pieces if `cut`, and the switch multicasts it."""
    ((switch, _),) = switches.boxes(layout, given.device.tolist())
    n, count = len(given), _count(nbytes(given)) if cut else 1
    part = given.cut(count)
    streams = b.streams(part.device, _RISE)
    up = b.copies(part, np.full(part.shape, switch), stream=streams, after=(op,))
    to, giver = np.broadcast_arrays(given.device[:, None, None], given.device[:, None])
    down = b.copies(
        up[np.tile(np.arange(n), (n, 1))], np.broadcast_to(to, (n, n, count)),
        stream=b.streams(np.broadcast_to(giver, (n, n, count)), _FALL),
    )  # fmt: skip
    return b.joins(b.joins(down))


def _loaded_by_switch(b: PlanBuilder, layout: Layout, given: Values, op: int) -> Values:
    """Every GPU has the switch sum its part on load."""
    ((switch, _),) = switches.boxes(layout, given.device.tolist())
    n = len(given)
    pieces = given.cut(n).cut(_count(nbytes(given) // n))  # by GPU, part and piece
    streams = b.streams(pieces.device, _RISE)
    up = b.copies(pieces, np.full(pieces.shape, switch), stream=streams, after=(op,))
    sums = b.adds([up[i, :] for i in range(n)])
    to = np.broadcast_to(given.device[:, None], sums.shape)
    return b.joins(b.copies(sums, to, stream=b.streams(to, _FALL)))


def _engine_peers(n: int) -> int:
    """The channel of a GPU's copies by engines to all others."""
    return merged_channel(0, n - 1) + ENGINE


def _engine_multicast(b: PlanBuilder, layout: Layout, given: Values, op: int) -> Values:
    """Every GPU writes its part once, and the switch multicasts it."""
    ((switch, _),) = switches.boxes(layout, given.device.tolist())
    n = len(given)
    up = b.copies(given, np.full(n, switch), after=(op,))
    to = np.broadcast_to(given.device[:, None], (n, n))
    giver = np.tile(np.arange(n), (n, 1))
    stream = b.streams(np.full((n, n), switch), merged_channel(0, n) + ENGINE + giver)
    return b.joins(b.copies(up[giver], to, stream=stream))


def _engine_exchange(b: PlanBuilder, _: Layout, given: Values, op: int) -> Values:
    """Every GPU writes a part to every other; by GPU and giver."""
    n = len(given)
    part = _held(b, given, op).cut(n)
    taker, giver = np.indices((n, n))
    far = taker != giver
    sent = part[giver[far], taker[far]]
    stream = b.streams(sent.device, _engine_peers(n))
    moved = b.copies(sent, given.device[taker[far]], stream=stream)
    own = b.slices(part[np.arange(n), np.arange(n)])
    order = np.argsort(np.concatenate([np.flatnonzero(far), np.flatnonzero(~far)]))
    return Values.concatenate([moved, own])[order]


ONE_SHOT = KernelSchedule(_all_read, sync_channel(2, 0))
TWO_SHOT = KernelSchedule(_two_shot, sync_channel(2, 0))
MULTIMEM = KernelSchedule(partial(_by_switch, blocks=_TORCH_BLOCKS), sync_channel(2, 1, SWITCHED))

# fmt: off
SYMMETRIC_KERNELS: Mapping[str, Mapping[str, KernelSchedule]] = {
    "all_reduce": {
        "agxll_r": KernelSchedule(_all_read, title="AllReduce_AGxLL_R"),
        "agxllmc_r": KernelSchedule(_multicast, title="AllReduce_AGxLLMC_R"),
        "rsxld_agxst": KernelSchedule(_stores, sync_channel(2, 1), "AllReduce_RSxLD_AGxST"),
        "rsxldmc_agxstmc":
            KernelSchedule(_by_switch, sync_channel(2, 1, SWITCHED), "AllReduce_RSxLDMC_AGxSTMC"),
    },
    "all_gather": {
        "ll": KernelSchedule(_gathered, title="AllGather_LL"),
        "llmc": KernelSchedule(_spread, title="AllGather_LLMC"),
        "st": KernelSchedule(partial(_gathered, over=partial(_serving, _NCCL_BLOCKS)),
                             sync_channel(2, 1), "AllGather_ST"),
        "stmc":
            KernelSchedule(partial(_spread, cut=True), sync_channel(2, 1, SWITCHED),
                           "AllGather_STMC"),
    },
    "reduce_scatter": {
        "ll": KernelSchedule(_reduce_scatter, title="ReduceScatter_LL"),
        "ld": KernelSchedule(_reduce_scatter, sync_channel(2, 0), "ReduceScatter_LD"),
        "ldmc":
            KernelSchedule(_loaded_by_switch, sync_channel(2, 0, SWITCHED), "ReduceScatter_LDMC"),
    },
}
"""NCCL's symmetric kernels by collective, and the name that strategies have."""
# fmt: on

_ENGINES: Mapping[str, Mapping[str, KernelSchedule]] = {
    "all_gather": {
        "engine": KernelSchedule(partial(_gathered, over=_engine_peers), ENGINE),
        "engine_mc": KernelSchedule(_engine_multicast, ENGINE + SWITCHED),
    },
    "all_to_all": {"engine": KernelSchedule(_engine_exchange, ENGINE)},
}
"""Collectives by copy engines, by what a decision has for a protocol."""


def schedule(collective: str, how: Decision) -> KernelSchedule:
    """What carries out a decision for NCCL's symmetric kernels or copy engines."""
    known = _ENGINES if how.algorithm == BY_ENGINE else SYMMETRIC_KERNELS
    return known[collective][how.protocol]


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
