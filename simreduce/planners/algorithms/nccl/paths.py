"""The ways round the GPUs that NCCL's channels take, and its choice where nobody knows the machine.

In a machine they are Hamiltonian rings on the links between GPUs. A ring is taken once, then its
reverse, then the next one that is found, while lanes are free: greedily, most free lanes first,
with a bounded search. It finds all six rings of a DGX-1 with V100 and all four of one with P100.
Lanes are also counted twice, as NCCL also takes rings of half a link's rate: the arcs between four
GPUs make six such rings, but two whole ones. Without links there is one way, in rank order.

Through several machines, every NIC has a way that begins at a GPU of it, so that all NICs send and
receive alike. Where no GPU beside it can be the last, the next machine is crossed the other way
round: what leaves by one rail arrives on the same rail.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence

from simreduce import dtypes
from simreduce.errors import NotFoldable
from simreduce.planners.layouts import Decision, Layout

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
