"""The memory that a communicator of NCCL holds on a GPU: the buffers of its connections.

A connection is the way of a channel to one peer. Its buffers are made when a collective first runs
an algorithm that takes it, for all channels of rings and trees; before 2.22 when the communicator
is made, with all its algorithms and a pool for sends over the network (`src/group.cc`,
`src/transport/generic.cc` of NVIDIA/nccl 2.30):

    ring        to the next GPU, from the one before
    tree        to and from the parent and the children
    pat         to and from each GPU that is a power of two away
    nvlstree    to and from the parent and the children of a node, on the GPUs that are its heads

Each protocol has a buffer: LL 512 KiB, LL128 4.7 MiB, Simple `NCCL_BUFFSIZE`. A sender and a
receiver have these, rounded up to 2 MiB (`src/transport/p2p.cc`, `net.cc`):

    GPU to GPU                          a page                  LL, LL128, Simple
    so over NVLink between two A100     Simple                  LL, LL128
    by a NIC that reads the GPU         LL128, Simple           LL, LL128, Simple
    through a host's memory             nothing                 nothing

NVLink SHARP has two buffers for each channel and head, of 8 chunks of 128 KiB; before 2.21 of
`NCCL_BUFFSIZE` and 2 MiB (`src/transport/nvls.cc`).

So a communicator of two A100 of a node held 544 MiB by 2.14, and one of four 688 MiB on its first
GPU (NVIDIA/nccl issue 964). Not counted: sends and all-to-alls, which connect GPUs on demand;
CollNet, symmetric memory and RCCL, and chunks of 256 KiB that Blackwell takes on several nodes
(`ncclNvlsTreeSm100Tuning`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from simreduce.computing import once
from simreduce.computing.arrays import Ints
from simreduce.planners.nccl.choice import NcclPlan, p2p, ring_orders, tree_parents
from simreduce.planners.nccl.communicator import NVL, PHB, BoxPath
from simreduce.planners.synthesis.trees import double_tree

_LL, _LL128 = 8 * 512 * 8 * 16, 120 * 640 * 8 * 8
_PAGE, _ROUNDED = 1 << 12, 1 << 21
_STEPS, _CHUNK, _SHARED = 8, 128 << 10, 16
"""Chunks of a buffer of NVLink SHARP, and their bytes; chunks of a channel in the pool for sends.
"""
_LAZY, _CHUNKED, _READS = (2, 22), (2, 21), 80
"""Versions that connect at the first call and that have chunks of NVLink SHARP; the compute
capability of GPUs that read what is sent.
"""


def held_bytes(at: NcclPlan, algorithms: Iterable[str]) -> Ints:
    """Bytes that the buffers of a communicator take on the GPU of each rank, once collectives have
    run these algorithms; 0 for one GPU, and for RCCL.
    """
    taken = frozenset(algorithms)
    if at.facts.n == 1 or at.facts.library != "nccl":
        return np.zeros(at.facts.n, np.int64)
    key = "buffers", at.settings, taken
    found: Ints = once(at.facts.cache, key, lambda: _held_bytes(at, {*taken}))
    return found


def _held_bytes(at: NcclPlan, taken: set[str]) -> Ints:
    settings, pool = at.settings, 0
    if settings.release < _LAZY:
        taken |= {"ring", "tree", *(name for _, name, _ in at.model.latency)}
        sends = p2p(at.facts, settings)
        pool = sends.channels * _SHARED * sends.chunk
    if taken & {"nvls", "nvlstree"} and at.graphs.nvls:
        chunks = _STEPS * _CHUNK if settings.release >= _CHUNKED else settings.buffer
        beside = 0 if settings.release >= _LAZY else _ROUNDED
        pool += at.model.running_nvls() * 2 * (chunks + beside) * at.graphs.nvls.count
    return _of_connections(at, _connections(at, taken)) + pool


def _connections(at: NcclPlan, taken: set[str]) -> Ints:
    """Channel, sender and receiver of each connection, in three rows."""
    found = [_along(np.empty((0, at.facts.n), np.int64), np.empty((0, at.facts.n), np.int64))]
    if "ring" in taken:
        orders = np.array(ring_orders(at.facts, at.settings))
        found.append(_along(orders, np.roll(orders, -1, 1)))
    trees = [np.array(tree_parents(at.facts, at.settings))] if "tree" in taken else []
    if "nvlstree" in taken and at.graphs.nvls:
        trees.append(_rails(at))
    ranks = np.arange(at.facts.n)
    for parents in trees:
        children = np.broadcast_to(ranks, parents.shape)
        found += [_along(children, parents), _along(parents, children)]
    if "pat" in taken:
        all_ranks = np.tile(ranks, (at.model.channels, 1))
        for power in range((at.facts.n - 1).bit_length()):
            peers = (all_ranks + (1 << power)) % at.facts.n
            found += [_along(all_ranks, peers), _along(peers, all_ranks)]
    return np.unique(np.concatenate(found, 1), axis=1)


def _along(senders: Ints, receivers: Ints) -> Ints:
    """Connections by rows of channels; -1 is nobody."""
    channels = np.broadcast_to(np.arange(len(senders))[:, None], senders.shape)
    known = (senders >= 0) & (receivers >= 0)
    return np.array([channels[known], senders[known], receivers[known]])


def _rails(at: NcclPlan) -> Ints:
    """The parent of each rank in the tree of each channel of NVLink SHARP: the GPU in its place on
    the node above, for heads; -1 for others. Odd channels have the second tree.
    """
    heads = {each.gpus[0] for each in at.graphs.nvls.channels} if at.graphs.nvls else set()
    members, found = at.facts.members, np.full((at.model.running_nvls(), at.facts.n), -1)
    for turn, tree in enumerate(double_tree(at.facts.nodes)):
        for node, above in enumerate(tree):
            for place in heads if above >= 0 else ():
                found[turn::2, members[node][place]] = members[above][place]
    return found


def _of_connections(at: NcclPlan, connections: Ints) -> Ints:
    """Bytes of these on the GPU of each rank."""
    n, facts, simple, both = at.facts.n, at.facts, at.settings.buffer, _LL + _LL128
    _, senders, receivers = connections
    node, by_nic = np.zeros(n, np.int64), np.zeros(n, bool)
    places = dict[int, int]()
    for i, (box, ranks) in enumerate(zip(facts.boxes, facts.members, strict=True)):
        node[[*ranks]] = i
        by_nic[[*ranks]] = [any(map(_direct, each)) for each in box.to_nic]
        places |= {rank: place for place, rank in enumerate(ranks)}
    inside = node[senders] == node[receivers]
    ways = [
        facts.boxes[node[u]].between(places[u], places[v]) if same else None
        for u, v, same in zip(senders.tolist(), receivers.tolist(), inside, strict=True)
    ]
    direct = np.array([*map(_direct, ways)], bool)
    reads = np.array([way is not None and way.kind == NVL for way in ways], bool)
    reads &= facts.capability == facts.newest == _READS
    by_gpus = [
        direct * np.where(reads, _rounded(_PAGE + mine), _rounded(_PAGE + other))
        for mine, other in ((simple, 0), (both, both + simple))
    ]
    sent = np.where(inside, by_gpus[0], by_nic[senders] * _rounded(_LL128 + simple))
    received = np.where(inside, by_gpus[1], by_nic[receivers] * _rounded(both + simple))
    whole = np.bincount(senders, sent, n) + np.bincount(receivers, received, n)
    return whole.astype(np.int64)


def _direct(path: BoxPath | None) -> bool:
    """Whether a path goes through no host's memory."""
    return path is not None and path.kind < PHB


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ROUNDED) * _ROUNDED
