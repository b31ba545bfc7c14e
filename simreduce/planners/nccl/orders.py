"""One search for channels: walks through orders of the GPUs of a node, as NCCL makes them.

They are made depth first, on what channels leave of the links, until there are as many channels as
may be, or so many steps are made (`ncclTopoSearchRec`, NVIDIA/nccl src/graph/search.cc). The order
of trying and the number of steps decide what is found, so both are NCCL's.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simreduce.planners.nccl.communicator import LOCAL, NVL, P2C, PHB, PXB, PXN, Box, BoxPath, Facts
from simreduce.planners.nccl.environment import Settings

RING, TREE, PLAIN, NVLS = "ring", "tree", "plain_tree", "nvls"

REVISED = (2, 19)
"""From this version on, channels go to neighbours alone on NVSwitches, other NICs are tried before
farther paths, and NVLS is made faster outside; asked of 2.18 and 2.21.
"""
_BY_NUMBER_STEPS = 1 << 10
"""Steps of the first try, of GPUs by their numbers."""
_CROSSING = 0.15
"""By how much channels must be better that leave a node by another NIC, for each kind of crossing.
"""
_HOST_COST = 1.2
"""Bytes of PCIe that a byte copied between GPUs through an Intel host bridge takes."""
_REQUESTS = 1 / 8
"""Bytes that a GPU before A100 sends for each byte that it reads."""
_FRAMES = 4
"""Calls within each other for a GPU of a channel, at most."""

Loads = tuple[tuple[int, float], ...]
"""Arcs of a path, and what a byte over it takes of each."""


class NodePaths:
    """A node as the search sees it: paths between GPUs and to NICs, and which are near.

    GPUs are numbered as in NCCL's graph of the node: the first is `order[0]` of the box.
    """

    def __init__(self, facts: Facts, box: Box, settings: Settings) -> None:
        self.box, self.n = box, len(box.gpus)
        self.ranks, self.nics = range(self.n), range(len(box.nics) if facts.nodes > 1 else 0)
        self.between = [[box.between(u, v) for v in box.order] for u in box.order]
        self.into = [[box.from_nic[k][u] for u in box.order] for k in self.nics]
        self.out = [[box.to_nic[u][k] for k in self.nics] for u in box.order]
        self.up = [box.up[u] for u in box.order]
        self.others = [list(self._others(u)) for u in self.ranks]
        """For each GPU those with a way from it, by number from its own on: the negated rate and
        the hops of the way, the distance by number, and the GPU.
        """
        self.nearest = [[to for *_, to in sorted(each)] for each in self.others]
        self.near_nics = [_nearest(row) for row in self.out]
        self.near_gpus = [_nearest(row) for row in self.into]
        self.near_gpu = [self._near_gpu(k) for k in self.nics]
        if settings.release >= (2, 12) and not settings.pxn_disable:
            farthest = P2C if settings.release >= (2, 28) else PXB
            self.out = [[self._relayed(u, k, farthest) for k in self.nics] for u in self.ranks]
        self.neighbours_only = bool(box.ports) and settings.release >= REVISED
        self.own_gpu_first = settings.release >= (2, 27)
        self.sends_requests = facts.capability < 80
        self.slow_host = facts.vendor == "Intel"
        self.loads = {id(way): loads for way, loads in self._loads()}
        self.pull = functools.cache(self._pull)
        self.nics_within = functools.cache(self._nics_within)

    def _others(self, gpu: int) -> Iterator[tuple[float, int, int, int]]:
        for i in range(1, self.n):
            to = (gpu + i) % self.n
            if way := self.between[gpu][to]:
                yield -way.rate, way.hops, i, to

    def _near_nic(self, gpu: int, turn: int) -> int:
        """The NIC of a GPU's channel: GPUs that share NICs take them in turn."""
        nics = self.near_nics[gpu]
        gpus = self.near_gpus[nics[0]]
        bits = len(nics).bit_length() - 1
        place = self.box.order[gpu]
        if len(nics) == 1 << bits:
            place = int(f"{place % len(nics):0{bits}b}"[::-1], 2)
        return nics[(place + turn % -(-len(nics) // max(len(gpus), 1))) % len(nics)]

    def _near_gpu(self, nic: int) -> int | None:
        turns = itertools.product(range(len(self.nics)), self.near_gpus[nic])
        found = (u for turn, u in turns if self.near_nics[u] and self._near_nic(u, turn) == nic)
        return next(found, None)

    def _relayed(self, gpu: int, nic: int, farthest: int) -> BoxPath | None:
        """The way out: a GPU's own, or over NVLink through the GPU near the NIC (PXN), where that
        is wider or the own way crosses a host.
        """
        own, peer = self.out[gpu][nic], self.near_gpu[nic]
        if peer is None or peer == gpu:
            return own
        first, last = self.between[gpu][peer], self.out[peer][nic]
        if first is None or last is None or first.kind > NVL or last.kind > farthest:
            return own
        if own is not None and last.rate <= own.rate and own.kind <= PXN:
            return own
        arcs, rate = (*first.arcs, *last.arcs), min(first.rate, last.rate)
        return BoxPath(PXN, arcs, rate, first.hops + last.hops)

    def _loads(self) -> Iterator[tuple[BoxPath, Loads]]:
        """What a byte over each path takes."""
        for rows, port in ((self.between, 0), (self.out, 1)):
            for way in filter(None, itertools.chain(*rows)):
                cost = _HOST_COST if way.kind == PHB and self.slow_host else 1.0
                inside, last = way.arcs[: len(way.arcs) - port], way.arcs[len(way.arcs) - port :]
                yield way, (*((arc, cost) for arc in inside), *((arc, 1.0) for arc in last))
        for ways in self.into:
            for up, into in zip(self.up, ways, strict=True):
                if into is not None:
                    back = [(arc, _REQUESTS) for arc in up[:1]] if self.sends_requests else []
                    yield into, (*((arc, 1.0) for arc in into.arcs), *back)

    def _pull(self, head: int) -> BoxPath:
        """What a channel of NVLS loads: every port both ways, that of its head twice."""
        way = BoxPath(NVL, (), math.inf, 0)
        ports = [(u, arc) for u, (*arcs, _) in enumerate(self.box.ports) for arc in arcs]
        own = self.box.order[head]
        self.loads[id(way)] = tuple((int(arc), 1.0 + (u == own)) for u, arc in ports)
        return way

    def _nics_within(self, kind: int, gpus: Sequence[int]) -> list[int]:
        """NICs in the order of trying: those near the GPUs in turn, then others up to a class of
        paths.
        """
        near = (
            self._near_nic(gpu, turn) for gpu in gpus for turn in range(len(self.near_nics[gpu]))
        )
        others = (
            nic
            for each in range(kind + 1)
            for gpu in gpus
            for nic, way in enumerate(self.out[gpu])
            if way and way.kind == each
        )
        return [*dict.fromkeys((*near, *others))]

    def widest(self) -> float:
        """The rate of the widest path: between GPUs, or to a NIC where there are several nodes."""
        if self.n == 1 and not self.nics:
            return LOCAL
        if self.box.switched and not self.nics:
            return max(self.box.nvlink)
        pairs = itertools.permutations(self.ranks, 2)
        ways = itertools.chain(*self.out) if self.nics else (self.between[u][v] for u, v in pairs)
        return max((way.rate for way in ways if way), default=0.0)


def _nearest(ways: Sequence[BoxPath | None]) -> list[int]:
    """The places of the widest ways, of these the nearest."""
    best = max(((way.rate, -way.kind) for way in ways if way), default=None)
    return [i for i, way in enumerate(ways) if way and (way.rate, -way.kind) == best]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a search asks for, and what it has so far: `count` channels of `gpus` and `nics`.

    Speeds are in MB/s. `least` and `most` are numbers of channels.
    """

    pattern: str
    speed_intra: float
    speed_inter: float
    type_intra: int
    type_inter: int
    cross_nic: int
    same_channels: bool
    least: int
    most: int
    count: int = 0
    hops: int = 0
    gpus: tuple[tuple[int, ...], ...] = ()
    nics: tuple[tuple[int, int], ...] = ()

    @property
    def total(self) -> float:
        """Channels x speed."""
        return self.count * self.speed_intra

    def is_better(self, count: int, hops: int, other: Demand, gpus: int) -> bool:
        """Whether so many channels over so many hops are worth more than `other`."""
        if count < self.least:
            return False
        if self.pattern == NVLS:
            more = other.count < count <= gpus
            return more or count * self.speed_inter > other.count * other.speed_inter
        total = count * self.speed_intra
        target = other.total * (1 - (other.cross_nic - self.cross_nic) * _CROSSING)
        if total != target:
            return total > target
        comparable = (self.pattern, self.cross_nic) == (other.pattern, other.cross_nic)
        return comparable and hops < other.hops


_BY_NUMBER, _AGAIN = "by number", "again"
"""Orders that are tried before others: of the GPUs by number, and that of the channel before."""


class Walk:
    """One search: it goes through channels within a demand, and keeps what is better than `best`.

    `steps` are those that are left, -1 once there is nothing better to find.
    """

    def __init__(self, paths: NodePaths, ask: Demand, best: Demand, steps: int) -> None:
        self.paths, self.ask, self.best, self.steps = paths, ask, best, steps
        self.count = self.hops = 0
        self.left = [1e3 * rate for rate in paths.box.capacity]
        self.ports = [nic.rate for nic in paths.box.nics]
        self.orders = [[0] * paths.n for _ in range(ask.most)]
        self.ends = [[-1, -1] for _ in range(ask.most)]
        self.is_tree = ask.pattern in (TREE, PLAIN)
        several = bool(paths.nics)
        self.nics = paths.nics_within(ask.type_inter, paths.ranks)
        # The steps after which a channel leaves by a NIC, or goes home to its first GPU.
        self.exit = (paths.n - 1 if ask.pattern == RING else 0) if several else -1
        self.home = paths.n - 1 if ask.pattern == RING and not several else -1

    def all_channels(self) -> None:
        """Make the search, whose functions call themselves for each GPU of each channel."""
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, _FRAMES * self.paths.n * self.ask.most))
        try:
            self._channels()
        finally:
            sys.setrecursionlimit(before)

    def _channels(self) -> None:
        """Try whatever can be the next channel, and those after it."""
        ask, count = self.ask, self.count
        if self.paths.nics:
            self._over_nics()
        elif ask.pattern == NVLS:
            self._enter(count)
        else:
            self._enter(*((self.orders[count - 1][0], _AGAIN) if count else (0, _BY_NUMBER)))
            for gpu in self.paths.ranks if count == 0 or not ask.same_channels else ():
                self._enter(gpu)

    def _over_nics(self) -> None:
        ask, paths, count = self.ask, self.paths, self.count
        speed = int(ask.speed_inter / 1e3)
        nics = self.nics
        for i in range(1 if ask.pattern == NVLS else len(nics)):
            nic = nics[(count + i) % len(nics)]
            if self.ports[nic] < speed or not self._follows(nic, 1):
                continue
            self.ends[count][0] = nic
            self.ports[nic] -= speed
            if ask.pattern == NVLS:
                heads = [order[0] for order in self.orders[:count]]
                gpu = paths.near_gpu[nic]
                if count < len(nics) and gpu is not None and gpu not in heads:
                    self._enter(gpu, nic=nic)
            elif count and ask.same_channels:
                self._enter(self.orders[count - 1][0], _AGAIN, nic)
            else:
                if count == 0 and not paths.neighbours_only:
                    kept, self.steps = self.steps, _BY_NUMBER_STEPS
                    self._enter(0, _BY_NUMBER, nic)
                    self.steps = kept if self.steps >= 0 else -1
                for gpu in self._near(nic):
                    self._enter(gpu, nic=nic)
            self.ports[nic] += speed

    def _near(self, nic: int) -> list[int]:
        """The GPUs near a NIC in the order of trying: its own first, before 2.27 those whose PCIe
        link has something left.
        """
        own, by_own = self.paths.near_gpu[nic], self.paths.own_gpu_first
        return sorted(
            self.paths.near_gpus[nic],
            key=lambda gpu: gpu != own if by_own else self._spare(gpu) <= 0,
        )

    def _follows(self, nic: int, end: int) -> bool:
        """Whether a ring that crosses may take this NIC at one of its ends: every second one goes
        back the way of the one before.
        """
        ask = self.ask
        bound = ask.pattern == RING and ask.cross_nic == 2 and self.count % 2
        return not bound or nic == self.ends[self.count - 1][end]

    def _enter(self, gpu: int, forced: str = "", nic: int | None = None) -> None:
        """Begin a channel with a GPU."""
        if nic is None:
            self._visit(gpu, 0, 1 << gpu, self.exit, forced)
            return
        way, back = self.paths.into[nic][gpu], self.paths.out[gpu][nic]
        if self._take(way, back, self.ask.speed_inter, self.ask.type_inter):
            self._visit(gpu, 0, 1 << gpu, self.exit, forced)
            self._give_back(way, self.ask.speed_inter)

    def _visit(self, gpu: int, step: int, seen: int, leaves: int, forced: str) -> None:
        """Go on from a GPU, which is the channel's at this step."""
        if self.steps <= 0:
            return
        self.steps -= 1
        ask, last = self.ask, self.paths.n - 1
        if step > last:
            self._complete()
            return
        self.orders[self.count][step] = gpu
        if step == leaves:
            self._leave(gpu, step, seen, forced)
        elif ask.pattern == NVLS:
            self._pull(gpu)
        elif step < last or step == self.home:
            for to in self._next_gpus(gpu, step, seen, leaves, forced):
                way, back = self.paths.between[gpu][to], self.paths.between[to][gpu]
                if self._take(way, back, ask.speed_intra, ask.type_intra):
                    self._visit(to, step + 1, seen | 1 << to, leaves, forced)
                    self._give_back(way, ask.speed_intra)
        else:
            self._visit(gpu, last + 1, seen, -1, forced)

    def _leave(self, gpu: int, step: int, seen: int, forced: str) -> None:
        """Go out by a NIC, and on. A tree's two first GPUs share the way out, half each."""
        ask, ends = self.ask, self.ends[self.count]
        halved = ask.pattern == TREE
        speed = ask.speed_inter / 2 if halved else ask.speed_inter
        for nic in self.paths.nics_within(ask.type_inter, (gpu,)):
            if halved and step and nic != ends[1]:
                continue
            crosses = nic != ends[0]
            if crosses and (ask.cross_nic == 0 or ask.pattern == PLAIN):
                continue
            if not self._follows(nic, 0):
                continue
            way, back = self.paths.out[gpu][nic], self.paths.into[nic][gpu]
            if self._take(way, back, speed, ask.type_inter):
                ends[1] = nic
                self._visit(gpu, step, seen, 1 if halved and step == 0 else -1, forced)
                self._give_back(way, speed)

    def _pull(self, head: int) -> None:
        """Go on with the head of a channel of NVLS, which loads the ports of all GPUs."""
        way = self.paths.pull(head)
        if self._take(way, None, self.ask.speed_intra, NVL):
            self._visit(head, self.paths.n, 0, -1, "")
            self._give_back(way, self.ask.speed_intra)

    def _next_gpus(self, gpu: int, step: int, seen: int, leaves: int, forced: str) -> Sequence[int]:
        """The GPUs to try next: near and wide ones first, by number from this one on."""
        order, n = self.orders[self.count], self.paths.n
        if step == n - 1:
            return (order[0],)
        if forced == _BY_NUMBER:
            return (step + 1,)
        if forced == _AGAIN:
            return (self.orders[self.count - 1][step + 1],)
        if self.paths.neighbours_only:
            beside = {RING: (-1, 1), TREE: (1, -1)}.get(self.ask.pattern, (1,))
            near = dict.fromkeys((gpu + i) % n for i in beside)
            return [v for v in near if not seen >> v & 1]
        if leaves == -1:
            return [v for v in self.paths.nearest[gpu] if not seen >> v & 1]
        # What goes out next should be near the NIC.
        into, found = self.paths.into[self.ends[self.count][0]], []
        for rate, hops, i, to in self.paths.others[gpu]:
            if not seen >> to & 1:
                way, spare = into[to], -self._spare(to)
                far = (-way.rate, spare, way.hops) if way else (0.0, spare, 0)
                found.append((far, rate, hops, i, to))
        found.sort()
        if leaves != step + 1 and len({each[1:3] for each in found}) == 1:
            found.reverse()
        return [to for *_, to in found]

    def _spare(self, gpu: int) -> float:
        """What is left of a GPU's PCIe link."""
        return min(map(self.left.__getitem__, self.paths.up[gpu]), default=-1.0)

    def _complete(self) -> None:
        """A channel is whole: keep what is better, and look for the next."""
        self.count += 1
        ask, count, hops = self.ask, self.count, self.hops
        if ask.is_better(count, hops, self.best, self.paths.n):
            gpus = tuple(map(tuple, self.orders[:count]))
            nics = tuple((a, b) for a, b in self.ends[:count])
            self.best = replace(ask, count=count, hops=hops, gpus=gpus, nics=nics)
            if count == ask.most:
                self.steps = -1
        if count < ask.most:
            self._channels()
        self.count -= 1

    def _take(self, way: BoxPath | None, back: BoxPath | None, speed: float, farthest: int) -> bool:
        """Take a way, if its class is allowed, back too for a tree, and it has room."""
        if way is None or way.kind > farthest:
            return False
        if self.is_tree and (back is None or back.kind > farthest):
            return False
        left, loads = self.left, self.paths.loads[id(way)]
        for arc, times in loads:
            if left[arc] < speed * times:
                return False
        for arc, times in loads:
            left[arc] = math.floor(left[arc] - speed * times + 0.5)
        self.hops += way.hops
        return True

    def _give_back(self, way: BoxPath | None, speed: float) -> None:
        """Give back a speed of all that a way crosses."""
        if way is not None:
            left = self.left
            for arc, times in self.paths.loads[id(way)]:
                left[arc] = math.floor(left[arc] + speed * times + 0.5)
            self.hops -= way.hops
