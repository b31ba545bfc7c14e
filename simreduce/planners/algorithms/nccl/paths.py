"""The ways round the GPUs that NCCL's channels take, and its choice where nobody knows the machine.

In a machine they are Hamiltonian rings on the links between GPUs. A ring is taken once, then its
reverse, then the next one that is found, while lanes are free: greedily, most free lanes first,
with a bounded search. It finds all six rings of a DGX-1 with V100 and all four of one with P100.
Lanes are also counted twice, as NCCL also takes rings of half a link's rate: the arcs between four
GPUs make six such rings, but two whole ones. Without links there is one way, in rank order.

Through several machines, every NIC has a way that begins at a GPU of it, so that all NICs send and
receive alike. Where no GPU beside it can be the last, the next machine is crossed the other way
round: what leaves by one rail arrives on the same rail.

How NCCL shares a tensor out: over channels, and in each over pieces that follow one another.

Channels that would do the same are one *lane* here, as wide as they are together: all channels of
an NVSwitch go the same way.

A chunk of a rank is sent in slices, two or more of them under way. Loops over a large tensor
are alike, and a rank starts the next before the last has come round, so what counts is how many
slices fill the connection. A piece therefore represents as many slices as it takes to keep a plan
small. In a ring every connection is busy all the time, and pieces longer than the latency cost
nothing. In a chain, a tree or a switch the first piece has to arrive before the others count: with
p pieces for s slices over h hops the time is up to (h - 1)(1/p - 1/s) of the whole too long. Trees
and switches therefore send NCCL's own chunks, unless these are very many.

NCCL lets 8 steps be under way on a connection, which binds over long links only: the engine knows
(`limit_by_windows`).

A plan may hold a *part* of a collective: what the channels of one way round the GPUs carry. By
itself it is no collective and proves nothing. Where ways are alike, one of them takes as long as
all together, if resources carry what they would carry then (`engine.simulator`).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Bools, Ints
from simreduce.errors import NotFoldable
from simreduce.plan import Executor, PlanBuilder, Value, Values
from simreduce.plan.ops import FOLLOWING, Numbers, merged_channel
from simreduce.planners.algorithms.planner import After, Connect, Pull
from simreduce.planners.algorithms.trees import Send
from simreduce.planners.layouts import Decision, Layout

T = TypeVar("T")

_MOST = 32
"""Rings that NCCL takes at most."""

_VISITS = 20_000
"""Nodes visited by one search at most."""

Way = tuple[int, ...]


def rings(layout: Layout, ranks: Sequence[int]) -> list[Way]:
    """Orders of `ranks` (all of one task, or of several tasks), one for each different channel."""
    return [
        tuple(
            r
            for i, part in enumerate(way)
            for r in part[:: -1 if _turns(layout, way[0]) and i % 2 else 1]
        )
        for way in ways(layout, ranks)
    ]


def check_alike(layout: Layout, ranks: Sequence[int], share: int, channels: int) -> None:
    """NotFoldable if folded machines that rings cross in two directions do not do the same in both.

    They do the same where every GPU has a NIC of its own and the channels share out a rank's
    `share` of elements evenly.
    """
    if layout.machines == 1 or not any(_turns(layout, way) for (way,) in ways(layout, ranks)):
        return
    if len({layout.nic(rank) for rank in ranks}) < len(ranks):
        raise NotFoldable("rings cross every second machine backwards, whose GPUs share NICs")
    if share % channels:
        raise NotFoldable(
            f"rings cross every second machine backwards, and {channels} channels do not share "
            f"{share} elements of each rank evenly"
        )


def _turns(layout: Layout, way: Way) -> bool:
    """Whether every second machine is crossed backwards, as a way ends at another NIC."""
    return layout.nic(way[0]) != layout.nic(way[-1])


def ways(layout: Layout, ranks: Sequence[int]) -> list[list[Way]]:
    """By channel and task, the ranks of the task in order. The first ones of a channel have NICs in
    the same place.
    """
    several = layout.task_count > 1
    found = [_disjoint(layout, task, several=several) for task in layout.among(ranks)]
    if len(found) == 1 and layout.machines == 1:
        return [[order] for order in found[0]]
    return [
        [_cut(layout, each[number % len(each)], nic) for each in found]
        for number, nic in _choices(layout, found)
    ]


def _choices(layout: Layout, found: Sequence[Sequence[Way]]) -> list[tuple[int, int]]:
    """By channel, which ring of a task it takes and at which NIC it begins: as many begin at each
    NIC, as many end at each, and as many take each ring, as can be.
    """
    nics = sorted({layout.nic(rank) for rank in found[0][0]})
    count = math.lcm(len(nics), *(len(each) for each in found))
    last = {
        (number, nic): layout.nic(_cut(layout, ring, nic)[-1])
        for nic in nics
        for number, ring in enumerate(found[0])
    }
    begun, ended, taken = Counter[int](), Counter[int](), Counter[int]()
    chosen: list[tuple[int, int]] = []
    for _ in range(count if count <= _MOST else len(nics)):
        number, nic = min(
            last, key=lambda c: (begun[c[1]], ended[last[c]], taken[c[0]], c[1], c[0])
        )
        chosen.append((number, nic))
        begun[nic] += 1
        ended[last[number, nic]] += 1
        taken[number] += 1
    return chosen


def _cut(layout: Layout, ring: Way, nic: int) -> Way:
    """The ring from a GPU of the NIC on, if possible to one beside it."""
    starts = [i for i, rank in enumerate(ring) if layout.nic(rank) == nic] or [0]
    start = next((i for i in starts if layout.nic(ring[i - 1]) == nic), starts[0])
    return (*ring[start:], *ring[:start])


def _disjoint(layout: Layout, ranks: Sequence[int], *, several: bool) -> list[Way]:
    """The rings of one task, of `several`; equal tasks are searched once."""
    lanes = tuple(tuple(layout.links[a][b] for b in ranks) for a in ranks)
    most = layout.rules.limit(len(ranks), several=several)
    found = layout.rules.listed(lanes, several=several) or _ring_search(lanes)[:most]
    return [tuple(ranks[i] for i in ring) for ring in found]


@functools.lru_cache(maxsize=64)
def _ring_search(lanes: tuple[Way, ...]) -> tuple[Way, ...]:
    """Rings over GPUs 0, 1, ... with these lanes from each to each; one in rank order if there is
    none. A ring is there as often as it is taken, by turns with the others.
    """
    once, twice = (_packed(lanes, copies) for copies in (1, 2))
    times = Counter(twice if len(twice) > 2 * len(once) else once)
    share = math.gcd(*times.values())
    rounds = range(max(times.values(), default=0))
    return tuple(ring for i in rounds for ring in times if i * share < times[ring]) or (
        tuple(range(len(lanes))),
    )


def _packed(links: tuple[Way, ...], copies: int) -> list[Way]:
    found: list[Way] = []
    n = range(len(links))
    free = {(a, b): links[a][b] * copies for a in n for b in n if links[a][b]}
    while len(n) > 2 and len(found) < _MOST and (ring := _search(n, free)):
        for order in (ring, (ring[0], *ring[:0:-1])):
            arcs = list(zip(order, (*order[1:], order[0]), strict=True))
            if all(free.get(arc, 0) for arc in arcs):
                free |= {arc: free[arc] - 1 for arc in arcs}
                found.append(order)
    return found


def _search(n: range, lanes: dict[tuple[int, int], int]) -> Way:
    """One ring over free lanes, by depth-first search; most lanes first, then lowest rank."""
    # networkx has no search for Hamiltonian cycles, only heuristics for tours of complete graphs.
    stack: list[Way] = [(0,)]
    for _ in range(_VISITS):
        path = stack.pop() if stack else ()
        if not path or (len(path) == len(n) and lanes.get((path[-1], path[0]), 0) > 0):
            return path
        free = [r for r in n if r not in path and lanes.get((path[-1], r), 0) > 0]
        stack += [(*path, r) for r in sorted(free, key=lambda r: (lanes[path[-1], r], -r))]
    return ()


_LL, _LL128 = 1 << 16, 1 << 22
"""Bytes up to which the protocols are taken."""

_SENDS = ("all_to_all", "send_receive")

SYMMETRIC, BY_ENGINE = "symmetric", "engine"
"""The algorithms of a decision for one of NCCL's symmetric kernels, or one of the ways of copy
engines, which its protocol names.
"""

_FLOATS = ("float32", "float16", "bfloat16")
"""What symmetric kernels sum; NCCL has others of 8 bits too (src/sym_kernels.cc)."""

_SIMPLE_ONLY = ("nvls", "nvlstree", "collnet", "pat", "p2p")

_FEWEST = 2
"""GPUs for which NCCL has switches sum nothing, at most."""

_THRESHOLD = {"simple": 64 * 512, "ll": 8 * 512, "ll128": 8 * 640}
"""Bytes of a tensor for each channel, at least; of a ring by LL, for each rank as well."""


def decided(
    layout: Layout, ranks: Sequence[int], collective: str, nbytes: int, wanted: Decision,
    dtype: int = 0,
) -> Decision:  # fmt: skip
    """Fill in what `wanted` leaves open: by the machine's own choice, or else by a plain rule."""
    wanted = wanted._replace(rules=layout.rules, floats=dtypes.NAMES[dtype] in _FLOATS)
    if layout.decide:
        return layout.decide(tuple(layout.ranks[r] for r in ranks), collective, nbytes, wanted)
    if not wanted.is_open:
        return wanted
    if wanted.algorithm == BY_ENGINE:
        return wanted._replace(protocol=wanted.protocol or "engine")
    if wanted.algorithm == SYMMETRIC:
        own = _symmetric(layout, ranks, collective, nbytes)
        return wanted._replace(protocol=wanted.protocol or own)
    algorithm = wanted.algorithm or ("p2p" if collective in _SENDS else "ring")
    small = "ll" if nbytes <= _LL else "ll128" if nbytes <= _LL128 else "simple"
    protocol = wanted.protocol or ("simple" if algorithm in _SIMPLE_ONLY else small)
    least = _THRESHOLD[protocol] * (
        len(ranks) * layout.machines if protocol == "ll" and algorithm == "ring" else 1
    )
    most = 2 * max(len(rings(layout, ranks)), 8)
    channels = wanted.channels or max(min(most, nbytes // least), 1)
    return wanted._replace(algorithm=algorithm, protocol=protocol, channels=channels)


_KERNELS = {
    "all_reduce": ("agxll_r", "rsxld_agxst", "rsxldmc_agxstmc"),
    "all_gather": ("ll", "st", "stmc"),
    "reduce_scatter": ("ll", "ld", "ldmc"),
}
"""By collective: with flags, without, and by switches."""


def _symmetric(layout: Layout, ranks: Sequence[int], collective: str, nbytes: int) -> str:
    """The symmetric kernel: flags beside small data, else switches that sum, or loads, stores."""
    flags, plain, by_switch = _KERNELS[collective]
    multicast = any({*ranks} <= {*switch.ranks} for switch in layout.reducers)
    large = by_switch if multicast and len(ranks) > _FEWEST else plain
    return flags if nbytes <= _LL // len(ranks) else large


_LEAST = 1 << 15
"""Bytes of the smallest slice of Simple."""

_OPS = 6_000
"""Copies of one collective, about; more pieces would change little."""

_COPIES = 1 << 22
"""Copies of one collective over trees, about."""


class Lane(NamedTuple):
    """Channels `first` to `last` (not included) of `of`, which do the same; `channel` is theirs."""

    first: int
    last: int
    of: int
    channel: int

    def share(self, values: Values) -> Values:
        """The part of every value that these channels carry."""
        size, whole = values.elements, self.of
        each, more = size // whole, size % whole
        lo, hi = (values.lo + each * c + more * c // whole for c in (self.first, self.last))
        return values.view(lo, hi)


def lanes(ways: Sequence[T], channels: int) -> list[tuple[T, Lane]]:
    """Every way that has channels, with its lane; channel c takes the way c % len(ways)."""
    count = np.bincount(np.arange(channels) % len(ways), minlength=len(ways)).tolist()
    last = np.cumsum(count).tolist()
    return [
        (way, Lane(end - blocks, end, channels, merged_channel(number % 64, blocks)))
        for number, (way, blocks, end) in enumerate(zip(ways, count, last, strict=True))
        if blocks
    ]


def lanes_of(how: Decision, ways: Sequence[T], of: int) -> list[tuple[T, Lane]]:
    """The lanes of every way; of a part, those whose number modulo `of` is its way's."""
    made = lanes(ways, how.channels)
    return made if how.way < 0 else made[how.way :: of]


def nbytes(values: Values) -> int:
    """Bytes of the largest value."""
    return int(values.elements.max(initial=0)) * dtypes.SIZES[values.dtype]


def step_bytes(how: Decision) -> int:
    """Bytes of data in a step."""
    flagged = how.rules.flagged(how.protocol)
    return flagged.step if flagged else how.step


def pieces(
    values: Values, channels: int, step: int, copies: int, least: int = 1, most: int = _OPS
) -> int:
    """How many pieces of about `step` bytes a channel's share of every value is cut into, if one
    piece makes so many copies, of `most` in all.
    """
    share = nbytes(values) / channels
    return int(max(min(-(-share // step), most / copies), min(least, share / _LEAST), 1))


def chunk_count(size: int, chunk: int, copies: int, hops: int) -> int:
    """The number of chunks that a channel sends `size` bytes in.

    Each chunk makes `copies` copies, and the longest way has `hops` hops. Chunks are larger than
    NCCL's where copies would be too many.
    """
    return max(min(-(-size // chunk), max(_COPIES // copies, 4 * hops)), 1)


def halve(size: int, of: int, hops: float, loops: Iterable[tuple[int, int]]) -> int:
    """Bytes of a chunk, from `size` on halved while `of` bytes have fewer chunks than each of some
    `loops` asks for each hop, down to the bytes that it states (NVIDIA/nccl src/enqueue.cc).
    """
    for least_chunks, least in loops:
        while size > least and of // size < least_chunks * hops:
            size //= 2
    return size


@contextmanager
def launch(
    b: PlanBuilder, executor: Executor, values: Sequence[Value], channel: int
) -> Iterator[int]:
    """Mark the ops appended inside as those of kernels with this executor.

    Yields the op to wait for: it is done when all `values` are there and the kernels run, on the
    channels that `channel` represents (`merged_channel`).
    """
    before, b.executor = b.executor, executor
    first = values[0].device
    try:
        yield b.barrier(first, [value.op for value in values], b.stream(first, channel))
    finally:
        b.executor = before


def join(b: PlanBuilder, made: Sequence[Values]) -> Values:
    """By rank, what lanes made by piece, rank and chunk."""
    each = [values.swapaxes(0, 1).swapaxes(1, 2) for values in made]
    whole = Values.concatenate([v[:, :, None] for v in each], axis=2)
    return b.joins(whole.reshape(whole.shape[0], -1))


def fill(found: Values, given: Sequence[Value], how: Decision) -> Values:
    """The result of every rank; of a part, as if it were the whole tensor, and what a rank has
    where it gets none.
    """
    if how.way < 0:
        return found
    whole = Values.of(given)
    op = whole.op.copy()
    op[np.isin(whole.device, found.device)] = found.op
    return whole.with_ops(op)


_WARPS, FEW_WARPS = 16, 4
"""Warps of a block by LL, about; and warps that one part represents along a tree or a chain."""


def machine_of(layout: Layout, values: Values) -> Ints:
    """The number of the machine of each value's rank; -1 for each of folded GPUs in one machine,
    which no network joins.
    """
    if layout.one_task:
        return np.full(len(values), -1)
    task = {rank: number for number, ranks in enumerate(layout.tasks) for rank in ranks}
    return np.array([task[rank] for rank in values.device.tolist()])


def on_all_machines(order: Ints, machines: int) -> Ints:
    """An order of the ranks of one of equal machines, machine after machine."""
    return (np.arange(machines)[:, None] * len(order) + order).ravel()


def part_count(values: Values, how: Decision, chunks: int, most: int, warps: int = _WARPS) -> int:
    """In how many parts, `most` or fewer, each of a channel's `chunks` moves on between GPUs.

    A ring goes on with a block's next step, before which the block's warps wait for each other. A
    tree or a chain goes on with the next block, whose warps do not wait.
    """
    flagged = how.rules.flagged(how.protocol)
    if flagged is None:
        return 1
    held = flagged.hold * warps // _WARPS * chunks * how.channels
    return max(min(nbytes(values) // held, most), 1)


def send(
    b: PlanBuilder, held: Values, to: Ints, channel: int, far: Bools,
    after: After = (), away: Numbers = 0,
) -> Values:  # fmt: skip
    """Copies of `held`, by chunk, part and connection, to the devices `to`. Over the connections
    that are `far` a chunk waits for all of its parts.

    With LL and LL128 flags travel with the data, so a block passes on what its threads hold at once
    while the rest still arrives. A NIC's proxy sends a chunk when it is complete; the receiver
    begins with the first lines that arrive. With Simple a chunk, or a slice of one, is passed on
    when it is complete.
    """
    following = np.arange(held.shape[1]) > 0
    stream = b.streams(held.device, channel + FOLLOWING * following[:, None])
    beyond = held[..., far]
    if not (beyond.op == beyond.op[:, :1]).all():  # else views of one value
        op = held.op.copy()
        op[..., far] = b.joins(beyond.swapaxes(1, 2)).op[:, None]
        held = held.with_ops(op)
    return b.copies(held, to, stream=stream, after=after, away=away)


def connect(count: int, far: Bools, *, beyond: bool) -> Connect:
    """Return a replacement of `family.puller` for groups that are chunks, each in `count` parts.

    A network joins the ranks that are `far` to the ranks before them, and folded machines if it is
    `beyond` them.
    """

    def pull(b: PlanBuilder, device: Ints, source: Ints, *, channel: int) -> Pull:
        away, sender = np.divmod(source, device.shape[1])
        machines: Numbers = away if away.any() else 0
        shape = (-1, count, device.shape[1])

        def step(values: Values, wanted: Values, after: After) -> Values:
            given = wanted.with_ops(values.op[:, sender]).on(device[:, sender])
            moved = send(b, given.reshape(*shape), wanted.device.reshape(shape), channel,
                         far | (beyond & (away > 0)), after, machines)  # fmt: skip
            return moved.reshape(*wanted.shape)

        return step

    return pull


def edges(b: PlanBuilder, channel: int, machine: Ints, parent: Ints) -> Send:
    """Copies over the edges of a tree; `machine` and `parent` are by node."""

    def move(held: Values, to: Ints, node: Ints, after: Sequence[int]) -> Values:
        return send(b, held, to, channel, machine[node] != machine[parent[node]], after)

    return move
