"""Resources and costs of kernels that communicate: NCCL's sends, and kernels without channels.

They have kinds of links, protocols, channels and launches, or launches, barriers, loads and stores,
and flags in the data.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, row_starts
from simreduce.engine.lowering.calls import Calls, Signatures
from simreduce.engine.lowering.resources import Resources, Site
from simreduce.engine.runtime import LINK_KINDS, NVLS, KernelConstants, NcclConstants, Software
from simreduce.plan import Executor, Kind
from simreduce.plan.ops import (
    BEGINS,
    ENGINE,
    FOLLOWING,
    JOINED,
    LAST,
    ONE_WAY,
    PEER,
    SWITCHED,
    UNALIGNED,
    count_barriers,
    count_blocks,
    count_halvings,
    count_releases,
)
from simreduce.topology import STAGED, Routes, Topology
from simreduce.topology.routing import is_nvlink

Names: TypeAlias = npt.NDArray[np.str_]

_PROTOCOL = ("", "simple", "ll", "ll128")
"""By executor."""

BYTES = {"simple": 1.0, "ll": 2.0, "ll128": 16 / 15}
"""Bytes on the wire for each byte of data, flags included."""

_PASS = 512 * 8
"""Bytes of data that the threads of a block move at once by LL."""

_WARPS = 512
"""Bytes of data of two warps, which begin to wait for each other."""

_PARTS = 4
"""In which a pass may come over a network."""

_SLICE = 1 << 20
"""Bytes of a slice of Simple at most, with buffers of 4 MiB."""

_MESSAGE = 64 << 10
"""Bytes of a message of a user's send by Simple: half of a chunk."""

_STEPS = 8
"""Steps of a connection's buffer (NCCL_STEPS)."""

_BUFFERS = {"ll": 8 * 512 * 8 * 16 / 2, "ll128": 120 * 640 * 8 * 8 * 15 / 16}
"""Bytes of data in the buffers of LL and LL128 (NVIDIA/nccl src/init.cc)."""

_IN_TREES = 0.4
"""Part of a tree's messages by Simple that wait for the thread of a host; few by LL do."""

_HELD = {"ll128": 0.35}
"""Part of a message's time that the thread of a host is held. By LL128 chunks of 18 to 36 KiB come
faster than the thread looks round, and one look finds several: trees of two H100 in two machines
take 154 and 231 us for 4 and 8 MiB.
"""


_BEYOND_EIGHT = {False: 1.6e-6, True: 5.5e-6}
"""Seconds of a chunk for each head beyond eight, by whether a tree of machines follows; 9 to 15
heads count as 16, more as 32, since a channel's number has no place for others. A block copies a
chunk to every head's buffer, one after another, with fewer warps where others serve the tree
(NVIDIA/nccl src/device/all_reduce.h). 72 GPUs of a rack of GB200 reach 423 GB/s, and each loop of
64 and 128 KiB chunks of two racks takes 290 and 390 us.
"""

_NVLINK, _PCI, _SHM, NET, _NVLS = range(len(LINK_KINDS))


class Sends(NamedTuple):
    """The calls that are sends of NCCL.

    They have the rows of these calls, the kind of link of each, the latency of the network's wires
    and switches on its way, the class of the network's links ("" if it has none), and the bytes/s
    of the slowest link on its way.
    """

    calls: AnyInts
    kind: Ints
    wires: Floats
    network: Names
    slowest: Floats


class _Facts(NamedTuple):
    """Columns over the links of a machine."""

    staged: Bools
    nvlink: Bools
    network: Bools
    name: Names


@lru_cache(maxsize=16)
def _find_facts(topology: Topology) -> _Facts:
    # No figures: what-if changes those and leaves the machine its digest.
    links = topology.links
    return _Facts(
        np.array([link.link_class.startswith(STAGED) for link in links], dtype=np.bool_),
        np.array([is_nvlink(link) for link in links], dtype=np.bool_),
        np.array([not link.holds_lane for link in links], dtype=np.bool_),
        np.array([link.link_class for link in links], dtype=np.str_),
    )


def drop_tolls(routes: Routes, mine: Bools, site: Site) -> Routes:
    """Return the routes without the tolls of staged copies where they are `mine`.

    NCCL's kernels write to and read from the memory of the host themselves.
    """
    if not mine.any():
        return routes
    staged = _find_facts(site.topology).staged
    count = np.diff(routes.start)
    row = np.repeat(np.arange(len(count)), count)
    kept = ~(staged[routes.links] & mine[row])
    if kept.all():
        return routes
    start = row_starts(np.bincount(row[kept], minlength=len(count)))
    shares = None if routes.shares is None else routes.shares[kept]
    return routes._replace(start=start, links=routes.links[kept], shares=shares)


def find_sends(signatures: Signatures, routes: Routes, site: Site, resources: Resources) -> Sends:
    """Return NCCL's sends among the calls; `routes` are the routes of all copies."""
    copies = np.flatnonzero(signatures.kind == Kind.COPY)
    mine = signatures.executor[copies] != Executor.TF
    if not mine.any():
        none = np.zeros(0)
        return Sends(copies[:0], copies[:0], none, none.astype(np.str_), none)
    facts = _find_facts(site.topology)
    count = np.diff(routes.start)
    row = np.repeat(np.arange(len(copies)), count)
    kind = np.where(
        np.bincount(row, facts.nvlink[routes.links], minlength=len(copies)) == count, _NVLINK, _PCI
    )
    far = facts.network[routes.links]
    kind[np.bincount(row, far, minlength=len(copies)) > 0] = NET
    latency = np.array([link.latency for link in site.topology.links])[routes.links]
    wires = np.bincount(row, far * latency * routes.crossing, minlength=len(copies))
    network = np.zeros(len(copies), dtype=facts.name.dtype)
    network[row[far]] = facts.name[routes.links[far]]
    names = tuple(site.topology.nodes)
    for i in np.flatnonzero(mine & (kind != NET)).tolist():
        ends = [
            site.topology.nodes[names[site.place[column[copies[i]]]]]
            for column in (signatures.source, signatures.target)
        ]
        if any(node.kind not in ("gpu", "cpu") for node in ends):
            kind[i] = _NVLS
        elif kind[i] == _PCI and not (
            site.by_nccl if signatures.executor[copies[i]] < Executor.KERNEL else site.topology
        ).router.is_peer(*(node.name for node in ends)):
            kind[i] = _SHM
    slowest = np.full(len(copies), np.inf)
    np.minimum.at(slowest, row, resources.rates[routes.links])
    return Sends(copies[mine], kind[mine], wires[mine], network[mine], slowest[mine])


def find_host_memory(
    sends: Sends, routes: Routes, copies: Ints, site: Site, resources: Resources
) -> tuple[Ints, Ints]:
    """The sends through a host's memory, as calls, and the memories, as resources: of the last CPU
    on the way, where NCCL has the receiver's buffer (NCCL_SHM_LOCALITY=2), if its rate is known.

    `routes` are those of the `copies`, as calls.
    """
    calls = sends.calls[sends.kind == _SHM]
    kept, memories = list[int](), list[int]()
    links = site.topology.links
    for call, row in zip(calls.tolist(), np.searchsorted(copies, calls).tolist(), strict=True):
        way = routes.links[routes.start[row] : routes.start[row + 1]].tolist()
        hosts = [links[i].source for i in way if site.topology.nodes[links[i].source].kind == "cpu"]
        if hosts and hosts[-1] in resources.memory:
            kept.append(call)
            memories.append(resources.memory[hosts[-1]])
    return np.array(kept, dtype=np.int64), np.array(memories, dtype=np.int64)


def add_costs(
    calls: Calls, signatures: Signatures, sends: Sends, constants: NcclConstants
) -> Calls:
    """The calls with NCCL's latencies, launches, protocols and limits of channels."""
    latency, cap, weight = calls.latency.copy(), calls.cap.copy(), calls.weight.copy()
    overhead, holds, paced = calls.overhead.copy(), calls.holds.copy(), calls.paced.copy()
    protocol = np.where(signatures.executor < Executor.KERNEL, signatures.executor, 0)
    if not protocol.any():
        return calls
    latency[signatures.starts > 0] += constants.launch + constants.start["simple"]
    for number, name in enumerate(_PROTOCOL):
        launches = (protocol == number) & (signatures.kind == Kind.INPUT) & (number > 0)
        if launches.any():
            channel = np.maximum(signatures.channel[launches], 0)
            latency[launches] = constants.launch + constants.start[name]
            if (switched := channel & SWITCHED > 0).any():
                latency[launches] += switched * (constants.start[NVLS] - constants.start[name])
            latency[launches] += constants.launch_channel * count_blocks(channel)
    uses = np.diff(calls.use_start)
    factor: Floats = np.ones(len(uses))
    own = protocol[sends.calls] > 0
    columns = zip(*(column[own].tolist() for column in sends), strict=True)
    known = {name: _software(name, constants) for name in set(sends.network.tolist())}
    for call, kind, wires, network, slowest in columns:
        name = _PROTOCOL[protocol[call]]
        key = LINK_KINDS[kind], name
        # Of a network, the wires' and switches' own latency comes on top: EFA's is ten times that
        # of InfiniBand.
        latency[call] = constants.latency[key] + wires
        factor[call] = BYTES[name] / constants.efficiency[key]
        channel = int(signatures.channel[call])
        if channel >= 0 and kind == _NVLS:
            # The warps of a stage wait for each other before every chunk.
            holds[call] = True
            beyond = 8 * (2 ** count_halvings(channel) - 1)
            latency[call] += _BEYOND_EIGHT[channel & JOINED > 0] * beyond
            cap[call] = constants.channel_rate[NVLS] * count_blocks(channel)
        elif channel >= 0:
            blocks = count_blocks(channel)
            software = known[network]
            rate = min(constants.channel_rate[name], software.eager if name == "ll" else math.inf)
            cap[call] = rate * blocks
            if channel & LAST:
                zero_copy = name == "simple" and key[0] in constants.zero_copy
                factor[call] *= 1 + (0 if zero_copy else constants.copy_out[key[0]])
            elif channel & JOINED and kind == NET:
                latency[call] += constants.join[name]
            if kind == NET and not channel & FOLLOWING:
                count = 1.0
                if channel & JOINED:
                    count = _IN_TREES if name == "simple" else 0.0
                if channel & PEER:
                    count = max(math.ceil(signatures.slice[call] / _MESSAGE), 1.0)
                held = _HELD.get(name, 1.0) * constants.message
                overhead[call] = (held + software.message * count) * blocks
                latency[call] += (constants.message - held) * blocks
            if channel & UNALIGNED and name != "ll":
                cap[call] = min(cap[call], constants.unaligned_peer)
            if nbytes := int(signatures.slice[call]):
                link = math.inf if kind == NET else slowest / factor[call]
                pause, paced[call] = constants.slice[LINK_KINDS[kind]], link < cap[call]
                cap[call] = _rate_of_slices(nbytes, blocks, cap[call] / blocks, pause, link)
    weight *= np.repeat(factor, uses)
    return replace(
        calls, overhead=overhead, latency=latency, holds=holds, cap=cap, paced=paced, weight=weight
    )


def limit_by_windows(
    calls: Calls, amount: Floats, call: AnyInts, signatures: Signatures, sends: Sends,
    constants: NcclConstants,
) -> Calls:  # fmt: skip
    """The calls with the windows of NCCL's connections over a network.

    A channel has W bytes on their way to a peer at most, so it moves W a round trip R. The first W
    bytes wait for nothing, so the T bytes that a collective sends over a connection take

        max(T - W, 0) R/W + min(T, W)/r

    at least, where r is the rate without a window. W is the buffer: its 8 steps are filled again
    once the receiver's NIC has acknowledged them, and the receiver has asked for more when it has
    emptied them (`sendProxyProgress` and `recvProxyProgress` of NVIDIA/nccl src/transport/net.cc,
    5067397). A tree and a user's send fill a step with no more than a chunk. R is twice the wires,
    and the latency of a step once: what its software takes on the way there.
    """
    mine = _over_networks(signatures, sends)
    if not mine.any():
        return calls
    far, place = _connections(calls, call, signatures, sends.calls[mine])
    along = np.bincount(place, amount[far])[place]
    moved = np.maximum(np.bincount(call[far], amount[far], len(calls.cap)), 1.0)
    sent = np.bincount(call[far], amount[far] * along, len(calls.cap)) / moved
    cap = calls.cap.copy()
    for at in np.flatnonzero(mine).tolist():
        each, name = int(sends.calls[at]), _PROTOCOL[signatures.executor[sends.calls[at]]]
        channel, nbytes = int(signatures.channel[each]), int(signatures.slice[each])
        blocks, window = count_blocks(channel), _BUFFERS.get(name, constants.buffer)
        if name == "simple" and channel & PEER:
            window = min(window, _STEPS * 2 * _MESSAGE)
        elif name == "simple" and channel & JOINED:
            window = min(window, _STEPS * max(nbytes, 1))
        window = min(window, _software(str(sends.network[at]), constants).window)
        trip = sends.wires[at] + calls.latency[each]
        total = sent[each] / blocks
        waits = max(total - window, 0.0) * trip / window
        if waits > 0.0 and math.isfinite(rate := cap[each] / blocks):
            cap[each] = min(cap[each], blocks * total / (waits + window / rate))
    return replace(calls, cap=cap)


def spare_first_messages(
    calls: Calls, call: AnyInts, signatures: Signatures, sends: Sends, constants: NcclConstants
) -> Calls:
    """The calls without what a network's software costs the first messages of rings by LL and
    LL128: the 8 steps of a buffer are posted before anything is sent. The others bear it evenly.
    """
    mine = _over_networks(signatures, sends)
    mine &= np.array([_software(str(name), constants).message > 0 for name in sends.network], bool)
    if not mine.any():
        return calls
    far, place = _connections(calls, call, signatures, sends.calls[mine])
    first = np.minimum(_STEPS / np.bincount(place), 1.0)[place]
    count = np.maximum(np.bincount(call[far], minlength=len(calls.cap)), 1)
    posted = np.bincount(call[far], first, len(calls.cap)) / count
    overhead = calls.overhead.copy()
    for at in np.flatnonzero(mine).tolist():
        each, channel = int(sends.calls[at]), int(signatures.channel[sends.calls[at]])
        name = _PROTOCOL[signatures.executor[each]]
        if name != "simple" and not channel & (PEER | JOINED | FOLLOWING):
            message = _software(str(sends.network[at]), constants).message
            overhead[each] -= message * count_blocks(channel) * posted[each]
    return replace(calls, overhead=overhead)


def _over_networks(signatures: Signatures, sends: Sends) -> Bools:
    """Which sends are of a channel of NCCL's over a network."""
    executor = signatures.executor[sends.calls]
    found: Bools = (sends.kind == NET) & (signatures.channel[sends.calls] >= 0)
    return found & (executor > Executor.TF) & (executor < Executor.KERNEL)


def _connections(
    calls: Calls, call: AnyInts, signatures: Signatures, sending: AnyInts
) -> tuple[Ints, Ints]:
    """The ops of `sending` calls, and the number of each one's connection; a collective has its
    own.
    """
    pipe = np.full(len(calls.cap), -1)
    pipe[sending] = calls.lanes[calls.lane_start[sending + 1] - 1]
    launch = (signatures.kind == Kind.INPUT) & (signatures.executor > Executor.TF)
    far = np.flatnonzero(pipe[call] >= 0)
    _, place = np.unique(
        np.stack([pipe[call[far]], np.cumsum(launch[call])[far]]), axis=1, return_inverse=True
    )
    return far, place.ravel()


def _software(network: str, constants: NcclConstants) -> Software:
    """The software of a network whose links have this class."""
    found = (each for name, each in constants.software.items() if network.startswith(name))
    return next(found, Software())


def _rate_of_slices(nbytes: int, blocks: int, rate: float, pause: float, link: float) -> float:
    """Bytes/s of so many blocks that share a link of `link` bytes/s and send slices of `nbytes`.

    One alone would move bytes at `rate`, and pauses after each slice.

    Blocks go their own ways, so the link is a queue of a closed network: a block spends
    R = D (1 + (b - 1)/b Q) there, where D is the time of a slice that has the link for itself and
    Q = b R/(Z + R) are on the link; Z is the time that it spends elsewhere (Schweitzer, 1979).
    """
    nbytes = min(nbytes, _SLICE)
    alone = nbytes / link
    away = pause + max(nbytes / rate - alone, 0.0)
    more = blocks * alone - away
    there = (more + math.sqrt(more * more + 4.0 * alone * away)) / 2.0
    return blocks * nbytes / (away + there)


def with_first_passes(
    amount: Floats, call: AnyInts, signatures: Signatures, sends: Sends, constants: NcclConstants
) -> Floats:
    """Return the bytes of every op with the extra time of a block's passes by LL.

    The first pass takes longer, and later ones with fewer threads. A NIC does not wait for threads,
    but for all warps of a first pass, which may come in parts.
    """
    mine = (signatures.executor == Executor.NCCL_LL) & (signatures.kind == Kind.COPY)
    mine &= signatures.channel >= 0
    if not mine.any():
        return amount
    halvings = np.where(mine, count_halvings(signatures.channel), 0)
    far = np.zeros(len(mine), dtype=np.bool_)
    far[sends.calls[sends.kind == NET]] = True
    halvings[far] = 0
    begins = mine & (signatures.channel & FOLLOWING == 0)
    blocks = np.where(mine, count_blocks(signatures.channel), 0)
    most = blocks * (_PASS >> halvings)
    first = np.where(begins[call], np.minimum(amount, most[call]), 0.0)
    parts = (mine & far & ~begins)[call] & (amount <= (most // _PARTS)[call])
    first[parts] = amount[parts]
    slower = constants.few_threads * (2.0**halvings - 1)
    rate = constants.channel_rate["ll"]
    wait = constants.first_warps * rate / _WARPS if math.isfinite(rate) else 0.0
    return np.where(
        far[call],
        amount + constants.first_pass * first,
        amount
        + wait * np.minimum(first, (blocks * _WARPS)[call])
        + slower[call] * (amount - first),
    )


_HOPS, _HOPS_ONE_WAY = 4, 2
"""On a switch's way to sum and multicast: up, to who asks for the sum, back, and down to all; and
to do one of the two.
"""


def add_kernel_costs(
    calls: Calls, signatures: Signatures, sends: Sends, constants: KernelConstants
) -> Calls:
    """The calls with the latencies, barriers, rates and flags of kernels."""
    mine = signatures.executor >= Executor.KERNEL
    if not mine.any():
        return calls
    latency, cap = calls.latency.copy(), calls.cap.copy()
    launches: Bools = mine & (signatures.kind == Kind.INPUT)
    channel = np.maximum(signatures.channel[launches], 0)
    release = np.where(channel & SWITCHED > 0, constants.release_multicast, constants.release)
    latency[launches] = (
        (channel & BEGINS > 0) * constants.launch
        + count_barriers(channel) * constants.barrier
        + count_releases(channel) * release
    )
    latency[launches] = np.where(
        channel & ENGINE > 0, _engine_launch(channel, constants), latency[launches]
    )
    at = mine[sends.calls]
    copies, kinds = sends.calls[at], sends.kind[at]
    flags = signatures.executor[copies] == Executor.KERNEL_LL
    switched = kinds == LINK_KINDS.index(NVLS)
    blocks = signatures.channel[copies]
    one_way: Bools = flags | ((blocks >= 0) & (blocks & ONE_WAY > 0))
    hops = np.where(switched, np.where(one_way, _HOPS_ONE_WAY, _HOPS), 1)
    engines = (blocks >= 0) & (blocks & ENGINE > 0)
    first = np.where(engines, 0.0, np.where(flags, constants.flag, constants.load))
    latency[copies] = first / hops + sends.wires[at]
    limited = (blocks >= 0) & ~engines
    cap[copies[limited]] = constants.block * count_blocks(blocks[limited])
    cap[copies[engines]] = constants.engine_rate / count_blocks(blocks[engines])
    efficiency = np.array([constants.efficiency[kind] for kind in LINK_KINDS])
    factor: Floats = np.ones(len(latency))
    wire = np.where(flags, BYTES["ll"], BYTES["simple"]) / efficiency[kinds]
    factor[copies] = np.where(engines, 1.0, wire)
    weight = calls.weight * np.repeat(factor, np.diff(calls.use_start))
    return replace(calls, latency=latency, cap=cap, weight=weight)


def _engine_launch(channel: Ints, constants: KernelConstants) -> Floats:
    """Seconds until copy engines begin."""
    switched, gpus = channel & SWITCHED > 0, count_blocks(channel)
    return np.where(
        switched,
        constants.engine_multicast_launch + constants.engine_multicast_copy * gpus,
        constants.engine_launch + constants.engine_copy * gpus,
    )
