"""The choice of what NCCL runs for a call: algorithm, protocol, channels and threads.

Since 2.5 the estimate of `time_model` decides. Before, byte thresholds did (`ll_limit`,
`tree_limit`).

Planners ask for it by the names of GPUs, around what a strategy fixes. The connector joins the
channels of all nodes: rings and double binary trees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

import numpy as np

from simreduce import units
from simreduce.computing import once
from simreduce.computing.arrays import Ints
from simreduce.errors import StrategyError, near_or_all
from simreduce.planners.layouts import Decision, joined
from simreduce.planners.layouts.rings import NCCL, LibraryRules
from simreduce.planners.nccl.channel_search import TREE, Graphs, graphs_of
from simreduce.planners.nccl.communicator import NVL, Facts, facts
from simreduce.planners.nccl.constants import (
    ALGORITHMS,
    ALL_PAIRS,
    BY_ENGINES,
    COLLECTIVES,
    COLLNET,
    PROTOCOLS,
    choose_engine,
    choose_symmetric,
    tables,
)
from simreduce.planners.nccl.environment import DEFAULTS, Settings, allows
from simreduce.planners.nccl.library import library_of
from simreduce.planners.nccl.orders import Channel
from simreduce.planners.nccl.time_model import Entry, TimeModel, Tuner, bounded
from simreduce.planners.synthesis.trees import parents, second_tree
from simreduce.topology import Folded, Topology
from simreduce.topology.elements import OFF

_P2P_LL = 16 << 10
"""Bytes up to which send and receive use LL."""
_P2P_PART = 2 << 20
"""Bytes that 2.18 and before send to one GPU of the machine before they take another channel."""
_THRESHOLDS = {"ll": 8, "ll128": 8, "simple": 64}
"""Bytes for each thread below which channels are dropped, then threads. Logs of 2.28 and later show
no other limit, although the scheduler has a least amount of traffic for a channel.
"""
_LL_BYTES = 8 * 256
"""Bytes of each rank that 2.4 gives to a channel by LL before it takes another."""
_WARP = 32
SENDS = ("all_to_all", "send_receive")
SYMMETRIC, BY_ENGINE = "symmetric", "engine"
"""The algorithms of a symmetric kernel, which the protocol names, and of copy engines."""


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """NCCL's choice for one call.

    `channels` is the number that run. `seconds` is the planner's own estimate, nan where it makes
    none. `why` says in words how it was decided. A send fills a channel with `part` bytes before it
    takes another; 0 if all of its channels carry as much.
    """

    algorithm: str
    protocol: str
    channels: int
    threads: int = 512
    seconds: float = math.nan
    why: str = ""
    part: int = 0

    @property
    def text(self) -> str:
        """The strategy that carries the choice: `nccl:ring+ll128+channels=16`. Sends go without
        saying, and copy engines choose their way themselves.
        """
        if self.algorithm in (SYMMETRIC, BY_ENGINE):
            return f"{SYMMETRIC}:{self.protocol if self.algorithm == SYMMETRIC else BY_ENGINE}"
        how = "nccl" if self.algorithm == "p2p" else f"nccl:{self.algorithm}"
        return f"{how}+{self.protocol}+channels={self.channels}"


@dataclass(frozen=True, slots=True)
class P2p:
    """Channels of sends and receives, of all together and of each pair, and bytes of a chunk."""

    channels: int
    channels_per_peer: int
    chunk: int


@dataclass(frozen=True)
class NcclPlan:
    """All that is decided before a call: facts, graphs and model."""

    facts: Facts
    settings: Settings
    graphs: Graphs
    tuner: Tuner
    model: TimeModel


Machine = Topology | Folded | Facts


def plan(machine: Machine, settings: Settings = DEFAULTS) -> NcclPlan:
    """The communicator of all GPUs of a machine, searched and tuned once."""
    known = facts(machine, settings=settings)

    def tune() -> NcclPlan:
        library = library_of(known)
        library.version(settings)
        found = graphs_of(known, settings, library.search)
        tuner = library.tuner(known, found, settings)
        return NcclPlan(known, settings, found, tuner, tuner.model())

    made: NcclPlan = once(known.cache, ("plan", settings), tune)
    return made


def graphs(machine: Machine, settings: Settings = DEFAULTS) -> Graphs:
    """The graphs that NCCL searches for."""
    return plan(machine, settings).graphs


def choose(
    machine: Machine,
    collective: str,
    nbytes: int,
    settings: Settings = DEFAULTS,
    *,
    algorithm: str = "",
    protocol: str = "",
    listed: bool = True,
) -> NcclChoice:
    """Return what NCCL runs for one call of `nbytes`, counted as nccl-tests does.

    If `algorithm` or `protocol` is given, only choices with it count; unless `listed`, only those
    of the model of time, which a tuner's file can name. Raises `StrategyError` for an
    unknown collective, or if no choice is left.
    """
    known = (*COLLECTIVES, *SENDS)
    if collective not in known:
        raise StrategyError(
            f"collective: unknown {collective!r}{near_or_all(collective, known, '; one of ')}"
        )
    at = plan(machine, settings)
    if at.facts.n == 1:
        return NcclChoice("ring", "simple", 1, why="one GPU: nothing to send")
    if collective in SENDS:
        return _sends(at, collective, nbytes)
    if settings.release < (2, 5):
        return _by_threshold(at, collective, nbytes)
    asked = algorithm == ALL_PAIRS
    special = at.tuner.listed(collective, nbytes, asked=asked) if listed else None
    if special and (asked or not (algorithm or protocol)):
        name, usual, channels = special
        return NcclChoice(
            name, protocol or usual, channels, why="listed for so many GPUs and bytes"
        )
    if asked:
        where, what = library_of(at.facts).title(settings), collective.replace("_", "-")
        raise StrategyError(f"{where} has no all-pairs {what} on {at.facts.name}")
    if not (algorithm or protocol) and (found := _by_rule(at, collective, nbytes)):
        return found
    return _by_model(at, collective, nbytes, algorithm, protocol)


def estimates(at: NcclPlan, collective: str, nbytes: int) -> dict[tuple[str, str], float]:
    """The planner's estimate in seconds of each algorithm and protocol that is allowed."""
    found = {
        pair: at.tuner.microseconds(at.model, (collective, *pair), nbytes) * 1e-6
        for pair in product((*ALGORITHMS, COLLNET), PROTOCOLS)
    }
    return {pair: seconds for pair, seconds in found.items() if math.isfinite(seconds)}


def _by_model(
    at: NcclPlan, collective: str, nbytes: int, algorithm: str, protocol: str
) -> NcclChoice:
    every = estimates(at, collective, nbytes)
    found = [(a, p) for a, p in every if algorithm in ("", a) and protocol in ("", p)]
    if not found:
        what = "+".join(filter(None, (algorithm, protocol)))
        lacks = f"{library_of(at.facts).name} has no {what}"
        words = lacks if every else "NCCL_ALGO and NCCL_PROTO leave no algorithm"
        raise StrategyError(f"{collective}: {words} on {at.facts.name}")
    best, *others = sorted(found, key=lambda pair: every[pair])
    why = (
        f"next: {'+'.join(others[0])}, {units.format_duration(every[others[0]])}"
        if others
        else "the only one allowed"
    )
    entry = (collective, *best)
    if not (protocol or at.settings.protocols):
        entry = (*entry[:2], at.tuner.protocol(entry, nbytes))
    return _run(at, entry, nbytes, why)


def _by_rule(at: NcclPlan, collective: str, nbytes: int) -> NcclChoice | None:
    for rule in at.settings.tuner:
        if rule.matches(collective, nbytes, at.facts.nodes, at.facts.n):
            entry = (collective, rule.algorithm, rule.protocol)
            if at.model.bandwidth.get(entry, 0.0) <= 0:
                # NCCL ignores a tuner's choice that the communicator does not have.
                return None
            return _run(at, entry, nbytes, "a rule of the tuner's file", max(0, rule.channels))
    return None


def _by_threshold(at: NcclPlan, collective: str, nbytes: int) -> NcclChoice:
    """The choice of 2.4, which knows no NCCL_PROTO; of NCCL_ALGO, whether it leaves trees."""
    channels, limit = at.model.channels, ll_limit(at.facts, at.model.channels)
    trees = collective == "all_reduce" and allows(at.settings.algorithms, collective, "tree")
    by_tree = trees and nbytes <= tree_limit(at.facts, channels)
    protocol, few = "simple", channels
    if nbytes <= limit:
        protocol, few = "ll", min(channels, max(1, -(-nbytes // (_LL_BYTES * at.facts.n))))
    why = f"up to {units.format_size(limit)} by LL"
    return NcclChoice("tree" if by_tree else "ring", protocol, few, 256, math.nan, why)


def ll_limit(known: Facts, channels: int) -> int:
    """Bytes up to which 2.4 uses LL: 64 for each of 256 threads, channel and rank, half before
    Volta, twice as many on several nodes.
    """
    each = (64 if known.capability >= 70 else 32) * (2 if known.nodes > 1 else 1)
    return known.n * channels * 256 * each


def tree_limit(known: Facts, channels: int) -> float:
    """Bytes up to which 2.4 uses trees: where a ring of 6 us a hop and a tree of 15 us a level and
    4 us a GPU take equally long. With NVLink a channel counts 5 GB/s and a tree reaches 3/4 of
    rings, on two nodes 3/2; without, all channels count 5 GB/s and trees reach 2/3.
    """
    n, nodes = known.n, known.nodes
    saved = 6 * (n - 1) - 15 * math.floor(math.log2(nodes)) - 4 * (n // nodes - 1)
    if nodes < 2 or saved <= 0:
        return 0
    nvlink = max(known.boxes[0].nvlink) > 0
    ring = 5000.0 * (channels if nvlink else 1)
    part = 3 / 4 * (2 if nodes == 2 else 1) if nvlink else 2 / 3
    return math.inf if part > 1 else ring * part / (1 - part) * saved


_UNMEASURED = {COLLNET: "CollNet's", "pat": "PAT's"}
"""Algorithms whose times rest on no measurement."""
_NOMINAL = {
    COLLNET: _UNMEASURED[COLLNET], "nccl:pat": _UNMEASURED["pat"],
    "symmetric:engine": "the copy engine's", "nccl_cta_policy=2": "the copy engine's",
    "registered=1": "buffer registration's",
    "all_gather symmetric": "the symmetric all-gather's",
    "reduce_scatter symmetric": "the symmetric reduce-scatter's",
}  # fmt: skip
"""By what strategies or settings say, whose times rest on no measurement."""


def is_measured(algorithm: str) -> bool:
    """Whether published times were compared with an algorithm of NCCL."""
    return algorithm not in (*_UNMEASURED, SYMMETRIC, BY_ENGINE)


def nominal_text(words: Iterable[str]) -> str:
    """Says which times rest on no measurement, where strategies or settings of NCCL, as users write
    them, may lead to any.
    """
    texts = [text.lower() for text in words]
    found = dict.fromkeys(
        title for name, title in _NOMINAL.items() if any(name in text for text in texts)
    )
    return "; ".join(
        f"{title} times are nominal: no published table of it was compared" for title in found
    )


def _run(at: NcclPlan, entry: Entry, nbytes: int, why: str, fixed: int = 0) -> NcclChoice:
    """The choice with the channels and threads that are left for few bytes."""
    _, algorithm, protocol = entry
    seconds = at.tuner.microseconds(at.model, entry, nbytes) * 1e-6
    channels, threads = at.model.channels, at.model.threads[algorithm, protocol]
    threshold = _THRESHOLDS[protocol] * (at.facts.n if entry[1:] == ("ring", "ll") else 1)
    if algorithm in ("nvls", "nvlstree"):
        channels = nvls_channels(at)
    elif algorithm == COLLNET:
        why += f"; {nominal_text((COLLNET,))}"
    elif not fixed:
        channels = max(min(channels, nbytes // (threads * threshold)), 1)
    few = algorithm in ("ring", "tree")
    while few and nbytes < channels * threads * threshold and threads % 128 == 0:
        threads //= 2
    known = seconds if math.isfinite(seconds) else math.nan
    threads = max(threads, 3 * _WARP)
    return NcclChoice(algorithm, protocol, fixed or channels, threads, known, why)


def nvls_channels(at: NcclPlan) -> int:
    """Channels of NVLS when they run."""
    newer = 24 if at.facts.nodes == 1 else 32
    return bounded(newer if at.facts.capability >= 100 else 16, at.settings)


def p2p(machine: Machine, settings: Settings = DEFAULTS) -> P2p:
    """Channels and chunks of sends and receives.

    A pair over NVLink has two channels for each link's worth of the path, others have two; all
    pairs have the fewest of any, rounded up to a power of two.
    """
    at = plan(machine, settings)
    most = tables(settings.release).most_channels
    box, counts = at.facts.boxes[0], [2] if at.facts.nodes > 1 else []
    # All pairs of GPUs on a switch are alike.
    others = range(1, min(len(box.gpus), 2)) if box.switched else range(len(box.gpus))
    paths = [box.between(u, v) for u in range(len(box.gpus)) for v in others if u != v]
    near = [path for path in paths if path and path.kind <= NVL]
    direct = len(near) == len(paths)
    counts += [at.tuner.peer_channels(path.rate) for path in near] + [2] * (not direct)
    channels, inside = min(_power(at.model.channels), most), (512 if direct else 128) << 10
    chunk = at.tuner.net_chunk() if at.facts.nodes > 1 else inside
    return P2p(channels, min(_power(min(counts, default=2)), channels), chunk)


def _power(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _sends(at: NcclPlan, collective: str, nbytes: int) -> NcclChoice:
    """All sends of one rank share the channels, as many to each peer. All ranks count as peers,
    also where there is one. Parts of more than 32 chunks (of one, on several nodes) take channels
    that up to four sends share.
    """
    found = p2p(at.facts, at.settings)
    each = nbytes // at.facts.n if collective == "all_to_all" else nbytes
    most = found.channels_per_peer
    while most * at.facts.n > 4 * found.channels and most > 1:
        most //= 2
    pair, part = most, _P2P_PART
    if at.settings.release >= (2, 19) or at.facts.nodes > 1:
        part = max(found.chunk // 8, 1)
        while pair * at.facts.n > found.channels and pair > 1:
            pair //= 2
        longest = found.chunk * (32 if at.facts.nodes == 1 else 1)
        while each > pair * longest and 2 * pair <= most:
            pair *= 2
    filled = -(-each // part)
    pair, part = (max(filled, 1), part) if filled <= pair else (pair, 0)
    protocol = "ll" if each <= _P2P_LL else "simple"
    why = f"sends of {units.format_size(each)} over {units.plural(pair, 'channel')} each"
    return NcclChoice("p2p", protocol, pair, 640, math.nan, why, part)


STEPS = 8
"""Parts of a buffer."""

_ZERO = 2
"""NCCL_CTA_POLICY of no SM."""
SUMMED = ("all_reduce", "reduce_scatter")
"""Collectives whose symmetric kernels add."""


@dataclass(frozen=True)
class Decide:
    """Fills in what a decision leaves open on one machine."""

    machine: Topology | Folded
    settings: Settings
    rules: LibraryRules = NCCL

    def __call__(
        self, gpus: tuple[str, ...], collective: str, nbytes: int, wanted: Decision
    ) -> Decision:
        """The decision of NCCL for a collective among these GPUs. NVLS of a gather, which has no
        plan, is decided as a ring.
        """
        wanted = wanted._replace(step=self.settings.buffer // STEPS, rules=self.rules)
        if wanted.channels and wanted.algorithm in ("nvls", "nvlstree"):
            most = nvls_channels(plan(facts(self.machine, gpus, self.settings), self.settings))
            if wanted.channels > most:
                raise StrategyError(
                    f"{wanted.algorithm} has up to {most} channels here, not {wanted.channels}: "
                    f"take +channels={most}"
                )
        if not wanted.is_open and wanted.algorithm != ALL_PAIRS:
            return wanted
        if wanted.algorithm == COLLNET:
            return self._collnet(gpus, wanted)
        found = self.choice(gpus, collective, nbytes, wanted)
        if found.algorithm == "nvls" and collective != "all_reduce":
            found = self.choice(gpus, collective, nbytes, wanted._replace(algorithm="ring"))
        return wanted._replace(
            algorithm=wanted.algorithm or found.algorithm,
            protocol=wanted.protocol or found.protocol,
            channels=wanted.channels or found.channels,
            part=found.part if wanted.channels in (0, found.channels) else 0,
        )

    def choice(
        self, gpus: tuple[str, ...], collective: str, nbytes: int, wanted: Decision
    ) -> NcclChoice:
        """What NCCL runs for a collective of floats or others among these GPUs, of what is wanted:
        a symmetric kernel where applications allow it, else what `choose` finds.
        """
        known = facts(self.machine, gpus, self.settings)
        by = wanted.algorithm or self._takes_symmetric(known, collective, wanted)
        if take := {SYMMETRIC: _symmetric, BY_ENGINE: _by_engines}.get(by):
            name = take(known, collective, nbytes, self.settings, wanted)
            return NcclChoice(by, name, 0, 0, why="buffers are symmetric windows")
        return choose(
            known, collective, nbytes, self.settings,
            algorithm=wanted.algorithm, protocol=wanted.protocol,
        )  # fmt: skip

    def _collnet(self, gpus: tuple[str, ...], wanted: Decision) -> Decision:
        """CollNet where a strategy asks for it, whatever NCCL_COLLNET_ENABLE is."""
        if wanted.protocol not in ("", "simple"):
            raise StrategyError(f"CollNet runs by Simple only, not by {wanted.protocol}")
        at = plan(facts(self.machine, gpus, self.settings), self.settings)
        return wanted._replace(
            protocol="simple", channels=wanted.channels or max(at.model.channels, 1)
        )

    def _takes_symmetric(self, known: Facts, collective: str, wanted: Decision) -> str:
        """`symmetric` or `engine` where NCCL takes one: buffers are symmetric windows, GPUs may
        reach each other's memory, and nothing asks for an algorithm; else "".
        """
        settings, library = self.settings, library_of(known)
        asked = wanted.algorithm or wanted.protocol or settings.algorithms or settings.protocols
        if not settings.symmetric or asked or not known.nodes == 1 < known.n:
            return ""
        if settings.reach == OFF or not joined(self.machine, known.ranks):
            return ""
        engines, version = library.engines_since, library.version(settings)
        by_engines = collective in BY_ENGINES and settings.cta_policy == _ZERO
        if by_engines and engines is not None and version >= engines:
            return BY_ENGINE
        has = any(kernel.collective == collective for kernel in library.symmetric)
        sums = collective in SUMMED and not wanted.floats
        return SYMMETRIC if has and not sums and version >= library.symmetric_since else ""


def _symmetric(
    known: Facts, collective: str, nbytes: int, settings: Settings, wanted: Decision
) -> str:
    """The name of the symmetric kernel that a library takes, unless one is wanted."""
    library, what = library_of(known), collective.replace("_", "-")
    among = [kernel for kernel in library.symmetric if kernel.collective == collective]
    if not among:
        raise StrategyError(f"{library.name} has no symmetric kernel for an {what}")
    names = [kernel.name for kernel in among]
    if wanted.protocol and wanted.protocol not in names:
        has = ", ".join(names)
        raise StrategyError(f"{library.name} has no {wanted.protocol}; its kernel is {has}")
    if library.version(settings) < library.symmetric_since:
        since, own = ".".join(map(str, library.symmetric_since)), library.version_text(settings)
        raise StrategyError(f"{library.name} has symmetric kernels from {since} on; this is {own}")
    if collective in SUMMED and not wanted.floats:
        raise StrategyError(f"NCCL's symmetric {what}s are of floats of at most 32 bits")
    multicast = known.multicast and settings.nvls
    return wanted.protocol or choose_symmetric(
        known.n, nbytes, known.capability, among, multicast=multicast
    )


def _by_engines(known: Facts, collective: str, nbytes: int, settings: Settings, _: Decision) -> str:
    """Which way copy engines go."""
    library = library_of(known)
    if library.engines_since is None:
        raise StrategyError(f"{library.name} has no collectives by copy engines")
    multicast = known.multicast and settings.nvls and collective == "all_gather"
    return choose_engine(known.n, nbytes // known.n, known.capability, multicast=multicast)


def ring_orders(machine: Machine, settings: Settings = DEFAULTS) -> tuple[tuple[int, ...], ...]:
    """The ranks in ring order, for each running channel: node after node."""
    at = plan(machine, settings)
    bases = _bases(at)
    return tuple(
        tuple(
            base + gpu for node, base in enumerate(bases) for gpu in _of(at, node, "ring", i).gpus
        )
        for i in (c % at.graphs.ring.count for c in range(at.model.channels))
    )


def tree_parents(machine: Machine, settings: Settings = DEFAULTS) -> tuple[tuple[int, ...], ...]:
    """The parent of each rank, -1 for the root, for each running channel.

    Inside a node the GPUs are a chain. Between nodes the first GPUs of the chains are one tree for
    the first half of the channels, and the other of the double tree for the second half; a second
    child hangs on the second GPU of its parent node, unless the tree is plain.
    """
    at = plan(machine, settings)
    bases, count = _bases(at), at.graphs.tree.count
    balanced = at.graphs.tree.pattern == TREE
    shapes = double_tree(at.facts.nodes)
    found = []
    for channel in range(at.model.channels):
        tree, above_gpu, served = shapes[channel // count % 2], [-1] * at.facts.n, set[int]()
        for node, (base, above) in enumerate(zip(bases, tree, strict=True)):
            gpus = _of(at, node, "tree", channel % count).gpus
            if above >= 0:
                there = _of(at, above, "tree", channel % count).gpus
                # Of a balanced tree the second GPU serves the second child.
                second = balanced and len(there) > 1 and above in served
                above_gpu[base + gpus[0]] = bases[above] + there[second]
            served.add(above)
            for parent, gpu in pairwise(gpus):
                above_gpu[base + gpu] = base + parent
        found.append(tuple(above_gpu))
    return tuple(found)


def double_tree(nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two binary trees of nodes as parents, -1 for the root: of an even number none has children in
    both. The second is the first mirrored, or shifted by one where the number is odd.
    """
    up = parents(nodes)

    def tree(place: Ints) -> tuple[int, ...]:
        found = np.full(nodes, -1)
        found[place[1:]] = place[up[1:]]
        return tuple(found.tolist())

    return tree(np.arange(nodes)), tree(second_tree(nodes))


def _bases(at: NcclPlan) -> list[int]:
    """The first rank of each node."""
    return [0, *accumulate(len(box.gpus) for box in at.facts.boxes)][:-1]


def _of(at: NcclPlan, node: int, pattern: str, channel: int) -> Channel:
    """A channel of a node; nodes that differ have channels of their own."""
    graphs = graphs_of(at.facts, at.settings, library_of(at.facts).search, at.facts.boxes[node])
    return (graphs.ring if pattern == "ring" else graphs.tree).channels[channel]
