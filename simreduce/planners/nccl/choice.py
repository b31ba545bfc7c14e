"""The choice of what NCCL runs for a call: algorithm, protocol, channels and threads.

Since 2.5 the estimate of `time_model` decides. Before, byte thresholds did (`ll_limit`,
`tree_limit`).

Planners ask for it by the names of GPUs, around what a strategy fixes. The connector joins the
channels of all nodes: rings and double binary trees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise, product

from simreduce import units
from simreduce.computing import once
from simreduce.errors import StrategyError, near_or_all
from simreduce.planners.layouts import Decision, joined
from simreduce.planners.layouts.rings import NCCL, LibraryRules
from simreduce.planners.nccl.channel_search import Graphs, graphs_of
from simreduce.planners.nccl.communicator import NVL, Facts, facts
from simreduce.planners.nccl.constants import (
    ALGORITHMS,
    ALL_PAIRS,
    BY_ENGINES,
    COLLECTIVES,
    COLLNET,
    PROTOCOLS,
    Rule,
    choose_engine,
    choose_symmetric,
    version_text,
)
from simreduce.planners.nccl.environment import DEFAULTS, Settings, allows
from simreduce.planners.nccl.library import Library, library_of
from simreduce.planners.nccl.orders import TREE, NodePaths
from simreduce.planners.nccl.time_model import Entry, TimeModel
from simreduce.planners.synthesis.trees import double_tree
from simreduce.topology import Folded, Topology
from simreduce.topology.elements import OFF

_P2P_LL = 16 << 10
"""Bytes up to which send and receive use LL."""
_P2P_PART = 2 << 20
"""Bytes that 2.18 and before send to one GPU of the machine before they take another channel."""
_THRESHOLDS = {"ll": 8, "ll128": 8, "simple": 64}
"""Bytes for each thread below which channels are dropped, then threads. The library, asked of 2.18
to 2.32, has no other limit but the least traffic of a channel (`_filled_channels`).
"""
_LL_BYTES = 8 * 256
"""Bytes of each rank that 2.4 gives to a channel by LL before it takes another."""
_CHANNEL_RATE, _SENDS = 14, 8
"""GB/s of the network for each channel of a pair, and sends that share one (2.29 and later)."""
_WITHOUT_RULE = "one channel: the tuner's file has no rule for it, and the plugin then says one"
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
    model: TimeModel

    @cached_property
    def paths(self) -> NodePaths:
        """The first node as a search sees it."""
        return NodePaths(self.facts, self.facts.boxes[0], self.settings)


Machine = Topology | Folded | Facts


def plan(machine: Machine, settings: Settings = DEFAULTS) -> NcclPlan:
    """The communicator of all GPUs of a machine, searched and tuned once."""
    known = facts(machine, settings=settings)

    def tune() -> NcclPlan:
        library = library_of(known)
        own = replace(settings, version=library.version(settings))
        found = graphs_of(known, own, library.search)
        return NcclPlan(known, own, found, library.model(known, found, own))

    made: NcclPlan = once(known.cache, ("plan", settings), tune)
    return made


def graphs(machine: Machine, settings: Settings = DEFAULTS) -> Graphs:
    """The graphs that NCCL finds for the first node, which its log has."""
    return _graphs(plan(machine, settings), 0)


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
    special = at.model.listed(collective, nbytes, asked=asked) if listed else None
    if special and (asked or not (algorithm or protocol)):
        name, usual, channels = special
        return NcclChoice(
            name, protocol or usual, channels, why="listed for so many GPUs and bytes"
        )
    if asked:
        where, what = library_of(at.facts).title(settings), collective.replace("_", "-")
        raise StrategyError(f"{where} has no all-pairs {what} on {at.facts.name}")
    rule = None if algorithm or protocol else rule_of(at, collective, nbytes)
    if rule and rule.algorithm:
        entry = (collective, rule.algorithm, rule.protocol)
        return _run(at, entry, nbytes, "a rule of the tuner's file", rule.channels)
    found = _by_model(at, collective, nbytes, algorithm, protocol, rule.channels if rule else 0)
    return replace(found, why=_WITHOUT_RULE) if rule else found


def estimates(at: NcclPlan, collective: str, nbytes: int) -> dict[tuple[str, str], float]:
    """The planner's estimate in seconds of each algorithm and protocol that is allowed."""
    found = {
        pair: at.model.microseconds((collective, *pair), nbytes) * 1e-6
        for pair in product((*ALGORITHMS, COLLNET), PROTOCOLS)
    }
    return {pair: seconds for pair, seconds in found.items() if math.isfinite(seconds)}


def _by_model(
    at: NcclPlan, collective: str, nbytes: int, algorithm: str, protocol: str, fixed: int = 0
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
        entry = (*entry[:2], at.model.protocol(entry, nbytes))
    return _run(at, entry, nbytes, why, fixed)


def rule_of(at: NcclPlan, collective: str, nbytes: int) -> Rule | None:
    """The rule of a tuner that NCCL obeys for a call: the first that matches and names what the
    communicator has; None without a tuner.
    """
    settings = at.settings
    pick = partial(
        Rule.matches, collective=collective, nbytes=nbytes, nodes=at.facts.nodes, ranks=at.facts.n,
        registered=settings.registered,
    )  # fmt: skip
    return next(
        (
            rule
            for rule in settings.tuner
            if pick(rule)
            and (
                not rule.algorithm
                or at.model.bandwidth.get((collective, rule.algorithm, rule.protocol), 0.0) > 0
            )
        ),
        None,
    )


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
    seconds = at.model.microseconds(entry, nbytes) * 1e-6
    threads = at.model.threads[algorithm, protocol]
    threshold = _THRESHOLDS[protocol] * (at.facts.n if entry[1:] == ("ring", "ll") else 1)
    most = few = at.model.running_nvls() if algorithm.startswith("nvls") else at.model.channels
    if algorithm in ("ring", "tree", "pat"):
        few = max(min(most, nbytes // (threads * threshold)), 1)
    channels = min(fixed, most) or few
    if algorithm == COLLNET:
        why = f"{why}; {nominal_text((COLLNET,))}"
    elif at.settings.release >= (2, 20) and at.settings.release != (2, 22):
        channels = _filled_channels(at, entry, nbytes, channels)
    # Threads are those of NCCL's own channels, whatever a tuner then says.
    shrinks = algorithm in ("ring", "tree")
    while shrinks and nbytes < few * threads * threshold and threads % 128 == 0:
        threads //= 2
    return NcclChoice(
        algorithm, protocol, channels, at.model.launched(algorithm, protocol, threads),
        seconds if math.isfinite(seconds) else math.nan, why,
    )  # fmt: skip


def _filled_channels(at: NcclPlan, entry: Entry, nbytes: int, most: int) -> int:
    """How many of `most` channels a call fills: each but the last takes whole cells of traffic, as
    many as make an equal share. From 2.26 on a byte by LL counts four times, and cells are 32 KiB
    from 2.29 on. By 2.20 and 2.21 all but the last take an equal share, in whole lines of their
    threads, and by 2.22 all are filled.
    """
    collective, _, protocol = entry
    n = at.facts.n
    times = {"all_reduce": 2, "all_gather": n, "reduce_scatter": n}.get(collective, 1)
    own = max(nbytes // n if collective in ("all_gather", "reduce_scatter") else nbytes, 1)
    if at.settings.release < (2, 22):
        line = 9600 if protocol == "ll128" else 4096
        return -(-own // (line * -(-own // (line * most))))
    times *= 4 if protocol == "ll" and at.settings.release >= (2, 26) else 1
    least = (16 << 10) << (at.settings.release >= (2, 29))
    cell = -(-least // times // 16) * 16
    cells, share = -(-own // cell), max(least, times * own // most)
    return max(min(-(-cells // -(-share // (cell * times))), most), 1)


def p2p(machine: Machine, settings: Settings = DEFAULTS) -> P2p:
    """Channels and chunks of sends and receives.

    A pair over NVLink has two channels for each link's worth of the path, another pair of a node
    two, and pairs of several nodes as many as `_channels_over_network` says of the first GPU. All
    have the fewest of any, rounded up to a power of two, and from 2.29 on half of that until eight
    sends of each rank fit.
    """
    at = plan(machine, settings)
    box, several = at.facts.boxes[0], at.facts.nodes > 1
    channels = min(_power_of_two(at.model.channels), at.model.tables.most_channels)
    # All pairs of GPUs on a switch are alike.
    others = range(1, min(len(box.gpus), 2)) if box.switched else range(len(box.gpus))
    paths = [box.between(u, v) for u in range(len(box.gpus)) for v in others if u != v]
    near = [path for path in paths if path and path.kind <= NVL]
    direct = len(near) == len(paths)
    counts = [
        *(at.model.peer_channels(path.rate) for path in near),
        *[2] * (not direct), *[_channels_over_network(at)] * several,
    ]  # fmt: skip
    sends = -(-at.facts.n // _SENDS) if several and at.settings.release >= (2, 29) else 1
    pair = _halved_to_fit(_power_of_two(min(counts, default=2)), sends, channels)
    chunk = at.model.net_chunk() if several else (512 if direct else 128) << 10
    return P2p(channels, pair, chunk)


def _channels_over_network(at: NcclPlan) -> int:
    """The channels of a pair on two nodes: up to 2.19 two, later one for each NIC near a GPU up to
    what its PCIe link carries, or more: up to 2.28 two that four sends share, then one for each
    14 GB/s of these NICs (asked of 2.18 to 2.32).
    """
    box, release = at.facts.boxes[0], at.settings.release
    turns = at.paths.nics_within(-1, (box.order.index(0),))
    near = filter(None, (box.to_nic[0][nic] for nic in turns))
    rates = [*accumulate(path.rate for path in near)] or [0.0]
    nics = 1 + sum(rate < box.pcie[0] for rate in rates[:-1])
    if release < (2, 29):
        return (
            max(nics, _halved_to_fit(2, at.facts.n / 4, at.model.channels))
            if release >= (2, 20)
            else 2
        )
    return max(nics, -(-int(rates[nics - 1]) // _CHANNEL_RATE))


def _halved_to_fit(count: int, sends: float, channels: int) -> int:
    """The channels of a pair, halved until so many times as many are there."""
    while count > 1 and count * sends > channels:
        count //= 2
    return count


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _sends(at: NcclPlan, collective: str, nbytes: int) -> NcclChoice:
    """All sends of one rank share the channels, as many to each peer. All ranks count as peers,
    also where there is one. Parts of more than 32 chunks (of one, on several nodes) take channels
    that up to four sends share.
    """
    found = p2p(at.facts, at.settings)
    each = nbytes // at.facts.n if collective == "all_to_all" else nbytes
    most = _halved_to_fit(found.channels_per_peer, at.facts.n / 4, found.channels)
    pair, part = most, _P2P_PART
    if at.settings.release >= (2, 19) or at.facts.nodes > 1:
        pair, part = _halved_to_fit(most, at.facts.n, found.channels), max(found.chunk // 8, 1)
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

NO_CTAS = 2
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
            at = plan(facts(self.machine, gpus, self.settings), self.settings)
            most = at.model.running_nvls()
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
        engines = library.engines_since
        by_engines = collective in BY_ENGINES and settings.cta_policy == NO_CTAS
        if by_engines and engines is not None and library.version(settings) >= engines:
            return BY_ENGINE
        return "" if _lacks_symmetric(library, collective, settings, wanted) else SYMMETRIC


def _symmetric(
    known: Facts, collective: str, nbytes: int, settings: Settings, wanted: Decision
) -> str:
    """The name of the symmetric kernel that a library takes, unless one is wanted."""
    library = library_of(known)
    if lacks := _lacks_symmetric(library, collective, settings, wanted):
        raise StrategyError(lacks)
    return wanted.protocol or choose_symmetric(
        known.n, nbytes, known.capability, library.kernels_of(collective),
        multicast=known.multicast and settings.nvls,
    )  # fmt: skip


def _lacks_symmetric(
    library: Library, collective: str, settings: Settings, wanted: Decision
) -> str:
    """Why a library has no symmetric kernel as it is wanted; "" if it has."""
    name, what = library.name, collective.replace("_", "-")
    kernels = [kernel.name for kernel in library.kernels_of(collective)]
    if not kernels:
        return f"{name} has no symmetric kernel for an {what}"
    if wanted.protocol not in ("", *kernels):
        return f"{name} has no {wanted.protocol}; its kernel is {', '.join(kernels)}"
    if library.version(settings) < library.symmetric_since:
        since, own = version_text(library.symmetric_since), library.version_text(settings)
        return f"{name} has symmetric kernels from {since} on; this is {own}"
    sums = collective in SUMMED and not wanted.floats
    return f"NCCL's symmetric {what}s are of floats of at most 32 bits" if sums else ""


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
    rings, members = at.graphs.ring.count, at.facts.members
    # Where rings cross, odd nodes exchange every two, so that each goes on by the NIC it came by.
    crossed = at.graphs.ring.cross_nic == 2 and rings % 2 == 0
    own = [_graphs(at, node).ring.channels for node in range(at.facts.nodes)]
    return tuple(
        tuple(
            members[node][gpu]
            for node in range(at.facts.nodes)
            for gpu in own[node][channel % rings ^ (crossed and node % 2)].gpus
        )
        for channel in range(at.model.channels)
    )


def tree_parents(machine: Machine, settings: Settings = DEFAULTS) -> tuple[tuple[int, ...], ...]:
    """The parent of each rank, -1 for the root, for each running channel.

    Inside a node the GPUs are a chain. Between nodes the first GPUs of the chains are one tree for
    the first half of the channels, and the other of the double tree for the second half. A
    child that comes before its parent in the binary tree hangs on its parent's second GPU, unless
    the tree is plain: so the library joined four nodes.
    """
    at = plan(machine, settings)
    members, count = at.facts.members, at.graphs.tree.count
    nodes = range(at.facts.nodes)
    shapes = double_tree(len(nodes))
    places = nodes, nodes[::-1] if len(nodes) % 2 == 0 else (len(nodes) - 1, *nodes[:-1])
    found = []
    for channel in range(at.model.channels):
        turn, above_gpu = channel // count % 2, [-1] * at.facts.n
        tree, place = shapes[turn], places[turn]
        for node, above in enumerate(tree):
            own = _graphs(at, node).tree.channels[channel % count].gpus
            chain = [members[node][gpu] for gpu in own]
            if above >= 0:
                upper = _graphs(at, above).tree
                there = upper.channels[channel % count].gpus
                second = upper.pattern == TREE and place[node] < place[above]
                above_gpu[chain[0]] = members[above][there[second]]
            for parent, rank in pairwise(chain):
                above_gpu[rank] = parent
        found.append(tuple(above_gpu))
    return tuple(found)


def _graphs(at: NcclPlan, node: int) -> Graphs:
    """The graphs of a node; nodes that differ have channels of their own."""
    return graphs_of(at.facts, at.settings, library_of(at.facts).search, at.facts.boxes[node])
