"""Reports of `simreduce topo`: machines, matrices of copies, rings and trees, imported files.

`simreduce nccl` says what NCCL chooses, in the words of its own log (NCCL_DEBUG=INFO with GRAPH and
TUNING).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from simreduce import units
from simreduce.computing import grouped
from simreduce.engine import Calibration
from simreduce.files import tables
from simreduce.files.formats.documents import (
    ABSENT,
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    INTEGER,
    ITSELF,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    KeyKind,
    Record,
    list_of,
    map_of,
    number_in,
    one_of,
    or_null,
)
from simreduce.files.tables import Column, Table
from simreduce.planners.nccl import (
    Graph,
    NcclChoice,
    estimates,
    graphs,
    p2p,
    ring_orders,
    tree_parents,
)
from simreduce.planners.nccl.choice import BY_ENGINE, SENDS, SYMMETRIC, NcclPlan
from simreduce.planners.nccl.communicator import CLASSES
from simreduce.planners.nccl.constants import ALL_PAIRS, COLLECTIVES, KERNELS, PROTOCOLS
from simreduce.planners.nccl.library import library_of
from simreduce.planners.synthesis import Network
from simreduce.report.headings import TOPOLOGY_KEYS
from simreduce.report.pictures import Panel
from simreduce.study.tune.sizes import PeerToPeer
from simreduce.topology import Folded, Topology
from simreduce.topology.importers.topo_m import nic_classes
from simreduce.topology.routing.switching import CHOICES, CONGESTIONS
from simreduce.version import __version__

T = TypeVar("T")

ROUNDED_US = number_in("us", lambda seconds: round(seconds * 1e6, 6))
ROUNDED_GB_PER_SECOND = number_in("GB/s", lambda rate: round(rate * 1e-9, 6))

_NICS = Key(
    "nics",
    list_of(
        Record(
            "nics",
            "Its NICs for one class of network.",
            Key("class", TEXT, 'The class, such as `ib_ndr`; "" if none is stated.', "0"),
            Key("count", COUNT, "How many NICs.", "1"),
        )
    ),
    "Its NICs, by class of network.",
    lambda machine: nic_classes(machine).items(),
)

LIST = Document(
    "topo-list",
    "`simreduce topo list --json`: the machines that come with simreduce.",
    Key(
        "topologies",
        list_of(
            Record(
                "topology",
                "A machine.",
                Key("name", TEXT, "Its name."),
                Key("title", TEXT, "What it is."),
                Key("gpus", COUNT, "Its GPUs.", lambda machine: len(machine.devices)),
                _NICS,
            )
        ),
        "Every machine.",
        ITSELF,
    ),
    command="topo list",
)
"""Of machines."""

SHOW = Document(
    "topo-show",
    "`simreduce topo show --json`: the nodes and links of a machine.",
    Key("topology", TEXT, "Its name.", "name"),
    Key("title", TEXT, "What it is."),
    Key("digest", TEXT, "Names its content: equal machines have equal digests."),
    Key(
        "equal_cost",
        Record(
            "equal_cost",
            "What switches do with transfers.",
            Key("choice", one_of(*CHOICES), "Which of them are taken."),
            Key("seed", INTEGER, "The seed of hashed routes."),
            Key("queue_pairs", COUNT, "Over how many hashed routes each two ends spread."),
            Key("congestion", one_of(*CONGESTIONS), "What a flow that is held does to others."),
            Key("congested", RATIO, "The part of the time that this is so."),
        ),
        "What switches do with transfers, and which of equal routes these take.",
        "router.switching",
    ),
    _NICS,
    Key(
        "nodes",
        list_of(
            Record(
                "node",
                "A device, a switch, a NIC, ...",
                Key("name", TEXT, "Its name."),
                Key("kind", TEXT, "What it is."),
                Key("model", TEXT, 'Its model; "" if it is not known.'),
            )
        ),
        "Every node.",
        lambda machine: machine.nodes.values(),
    ),
    Key(
        "links",
        list_of(
            Record(
                "link",
                "A link, one way.",
                Key("source", TEXT, "Where it begins."),
                Key("target", TEXT, "Where it ends."),
                Key("class", TEXT, "Its class, such as `nvlink2`.", "link_class"),
                Key("lanes", COUNT, "Its lanes."),
                Key("nominal_gb_per_s", GB_PER_SECOND, "What it is sold as.", "nominal"),
                Key("bandwidth_gb_per_s", GB_PER_SECOND, "What it carries.", "bandwidth"),
                Key("latency_us", MICROSECONDS, "What a byte takes.", "latency"),
            )
        ),
        "Every link, each way.",
    ),
    command="topo show",
)
"""Of a machine."""

CHECK = Document(
    "topo-check",
    "`simreduce topo check --json`: the faults of a file.",
    Key("file", TEXT, "The file, or the name of a machine."),
    Key("problems", list_of(TEXT), "Every fault and every warning, with its place."),
    command="topo check",
)


def topology_keys(path: str) -> tuple[Key, ...]:
    """The name and the digest of the machine at a path."""
    parts = zip(TOPOLOGY_KEYS, ("name", "digest"), strict=True)
    return tuple(replace(key, get=f"{path}.{part}") for key, part in parts)


class Copies(NamedTuple):
    """The predicted copies between the GPUs of a machine."""

    machine: Topology
    calibration: Calibration
    predicted: PeerToPeer


def _matrix_of(kind: KeyKind) -> KeyKind:
    return list_of(list_of(kind))


_RATES = _matrix_of(or_null(ROUNDED_GB_PER_SECOND))
_TIMES = _matrix_of(or_null(ROUNDED_US))
_MATRICES = Record(
    "matrices",
    "A matrix of each kind: a row for each sender, null on the diagonal and without a route.",
    Key("unidirectional_gb_per_s", _RATES, "One way.", "one_way"),
    Key("bidirectional_gb_per_s", _RATES, "Both ways together.", "both_ways"),
    Key("latency_us", _TIMES, "Of a small copy.", "latency"),
)
P2P = Document(
    "topo-p2p",
    "`simreduce topo p2p --json`: what p2pBandwidthLatencyTest would print.",
    *topology_keys("machine"),
    Key(
        "calibration", TEXT, "The constants that figures were predicted with.", "calibration.name"
    ),
    Key(
        "devices", list_of(TEXT), "The GPUs, in the order of rows and columns.", "predicted.devices"
    ),
    Key(
        "peer_access", _matrix_of(FLAG), "Whether a GPU reaches another's memory directly.",
        "predicted.peers",
    ),
    Key("p2p_disabled", _MATRICES, "Without peer access.", "predicted.disabled"),
    Key("p2p_enabled", _MATRICES, "With peer access.", "predicted.enabled"),
    command="topo p2p",
)  # fmt: skip
"""Of `Copies`."""


def p2p_table(document: Mapping[str, Any]) -> str:
    """The text of p2pBandwidthLatencyTest.

    A dash marks the diagonal, where that program measures memory, and pairs without a route.
    """
    peers = [
        [1 if i == j or cell else 0 for j, cell in enumerate(row)]
        for i, row in enumerate(document["peer_access"])
    ]
    parts = [
        _matrix(title.format(word), document[f"p2p_{word.lower()}"][name], "{:.2f}")
        for name, title in (
            ("unidirectional_gb_per_s", "Unidirectional P2P={} Bandwidth Matrix (GB/s)"),
            ("bidirectional_gb_per_s", "Bidirectional P2P={} Bandwidth Matrix (GB/s)"),
            ("latency_us", "P2P={} Latency Matrix (us)"),
        )
        for word in ("Disabled", "Enabled")
    ]
    return "\n\n".join([_matrix("P2P Connectivity Matrix", peers, "{}"), *parts])


def _matrix(title: str, rows: Sequence[Sequence[float | None]], form: str) -> str:
    names = ("D\\D", *map(str, range(len(rows))))
    cells = tuple(
        (str(number), *("-" if cell is None else form.format(cell) for cell in row))
        for number, row in enumerate(rows)
    )
    table = Table(tuple(Column(name, width=6) for name in names), cells)
    return "\n".join([title, *table.lines(gap=1)])


class PackingOutcome(NamedTuple):
    """Bytes/s of the whole tensor: reached, if anything was packed, and at best; and what limits
    it.
    """

    rate: float | None
    optimum: float
    bottleneck: str

    @property
    def gap(self) -> float | None:
        """The part of the optimum that is not reached; rounding is none."""
        if self.rate is None:
            return None
        gap = 1 - self.rate / self.optimum
        return gap if gap > 1e-9 else 0.0


class Packed(NamedTuple):
    """Rings or trees that share a machine, each with its bytes/s, their text and their pictures.

    `best` is the best single ring, `link_rate` what all rings carry together, and `searched` the
    number of machines that were searched of `machines` equal ones, 0 for all.
    """

    machine: Topology
    network: Network
    about: str
    outcome: PackingOutcome
    patterns: Sequence[tuple[Any, float]] | None = None
    lines: Sequence[str] = ()
    panels: Sequence[Panel] = ()
    gpus: int = 0  # 0: those of the network
    collective: str = ""
    link_rate: float = 0.0
    best: tuple[Sequence[int], float] = ((), 0.0)
    machines: int = 0
    searched: int = 0


def _names(network: Network, ranks: Iterable[int]) -> list[str]:
    return [network.names[rank] for rank in ranks]


_PACKED = (
    Key("topology", TEXT, "The name of the machine.", "machine.name"),
    Key(
        "digest", TEXT, "Names the machine's content: equal machines have equal digests.",
        "machine.digest",
    ),
    Key(
        "gpus", list_of(TEXT), "The GPUs that were searched.",
        lambda packed: packed.network.names[: packed.network.ranks],
    ),
    Key(
        "rate_gb_per_s", or_null(GB_PER_SECOND),
        "The tensor over the time, of what was found; null if nothing was packed.", "outcome.rate",
    ),
    Key("optimum_gb_per_s", GB_PER_SECOND, "The most that it can be.", "outcome.optimum"),
    Key("gap", or_null(RATIO), "The part of the optimum that is not reached.", "outcome.gap"),
    Key("bottleneck", TEXT, "What limits it.", "outcome.bottleneck"),
    Key(
        "network", one_of("direct", "routed"), "Whether only links between GPUs are used.",
        lambda packed: "direct" if packed.network.direct else "routed",
    ),
)  # fmt: skip
_SHARE = Key("share_gb_per_s", GB_PER_SECOND, "What each of its links carries.", "1")
_RING = Record(
    "ring",
    "A ring through all GPUs.",
    Key(
        "order", list_of(TEXT), "The GPUs in its order.",
        get_in=lambda ring, packed: _names(packed.network, ring[0]),
    ),
    _SHARE,
)  # fmt: skip
RINGS = Document(
    "topo-rings",
    "`simreduce topo rings --json`: rings that share a machine best.",
    *_PACKED,
    Key("link_rate_gb_per_s", GB_PER_SECOND, "What all rings carry together.", "link_rate"),
    Key("rings", list_of(_RING), "The rings.", "patterns"),
    Key("best_order", _RING, "The best single ring.", "best"),
    Key(
        "machines", COUNT, "Machines, if only a few of equal ones were searched.",
        lambda packed: packed.machines or ABSENT, optional=True,
    ),
    Key(
        "searched_machines", COUNT, "Of these, the ones that were searched.",
        lambda packed: packed.searched or ABSENT, optional=True,
    ),
    command="topo rings",
)  # fmt: skip
_HOPS = list_of(list_of(TEXT, 2))
TREES = Document(
    "topo-trees",
    "`simreduce topo trees --json`: trees that share a machine best.",
    *_PACKED,
    Key("collective", TEXT, "What they carry."),
    Key(
        "trees",
        list_of(
            Record(
                "tree",
                "A tree, or of an all-to-all a path.",
                Key(
                    "root", TEXT, "Its root.",
                    get_in=lambda tree, packed: packed.network.names[tree[0].root],
                ),
                Key(
                    "up", _HOPS, "Senders and receivers on the way to the root.",
                    get_in=lambda tree, packed: [_names(packed.network, e) for e in tree[0].up],
                ),
                Key(
                    "down", _HOPS, "Senders and receivers on the way from it.",
                    get_in=lambda tree, packed: [_names(packed.network, e) for e in tree[0].down],
                ),
                _SHARE,
            )
        ),
        "The trees; not with `--bound`.",
        lambda packed: ABSENT if packed.patterns is None else packed.patterns,
        optional=True,
    ),
    command="topo trees",
)  # fmt: skip

_CHANNELS = list_of(
    Record(
        "channel",
        "A channel.",
        Key("gpus", list_of(COUNT), "Its GPUs, in order."),
        Key("net_in", or_null(TEXT), "The NIC before the first."),
        Key("net_out", or_null(TEXT), "The NIC behind the last."),
    )
)
GRAPHS = Document(
    "topo-import-graphs",
    "`simreduce topo import` of NCCL's graph XML (NCCL_GRAPH_DUMP_FILE).",
    Key("program", one_of("nccl"), "What wrote the file.", lambda _: "nccl"),
    Key(
        "graphs",
        list_of(
            Record(
                "graph",
                "A result of NCCL's search.",
                Key("id", COUNT, "Its number."),
                Key("pattern", TEXT, "What it searched for."),
                Key(
                    "speed_intra_gb_per_s", GB_PER_SECOND, "A channel inside a node.", "speed_intra"
                ),
                Key(
                    "speed_inter_gb_per_s", GB_PER_SECOND, "A channel between nodes.", "speed_inter"
                ),
                Key("type_intra", TEXT, "The class of the paths inside a node."),
                Key("type_inter", TEXT, "The class of the paths between nodes."),
                Key("channels", _CHANNELS, "The channels."),
            )
        ),
        "The graphs.",
        ITSELF,
    ),
    command="topo import",
)
"""Of `NcclGraph` values."""


MATRICES = Document(
    "topo-import-p2p",
    "`simreduce topo import` of what p2pBandwidthLatencyTest or nvbandwidth printed.",
    Key("program", one_of("p2pBandwidthLatencyTest", "nvbandwidth"), "What wrote the file.", "0"),
    Key(
        "matrices",
        list_of(
            Record(
                "matrix",
                "A matrix: a row for each sender. It has one of the two keys with rows.",
                Key("kind", one_of("one_way", "both_ways", "latency"), "What it is of."),
                Key("peer_access", FLAG, "Whether GPUs reach each other's memory."),
                Key("reads", FLAG, "Whether the receiving GPU drives the copies."),
                Key(
                    "rows_us", _TIMES, "Latencies.",
                    lambda each: each.rows if each.kind == "latency" else ABSENT, optional=True,
                ),
                Key(
                    "rows_gb_per_s", _RATES, "Bandwidths.",
                    lambda each: ABSENT if each.kind == "latency" else each.rows, optional=True,
                ),
            )
        ),
        "The matrices, in the order of the file.",
        "1",
    ),
    command="topo import",
)  # fmt: skip
"""Of `MeasuredMatrix` values."""

ROWS = Document(
    "topo-import-nccl-tests",
    "`simreduce topo import` of what nccl-tests printed.",
    Key("program", one_of("nccl-tests"), "What wrote the file.", lambda _: "nccl-tests"),
    Key("nthreads", COUNT, "Threads of a process; 0 if the log does not say it.", "0.0"),
    Key("ngpus", COUNT, "GPUs of a thread; 0 if the log does not say it.", "0.1"),
    Key("iterations", COUNT, "Calls in a row; 0 if the log does not say it.", "0.2"),
    Key(
        "rows",
        list_of(
            Record(
                "row",
                "A size.",
                Key(
                    "collective", or_null(TEXT), "The collective; null if the log does not say it.",
                    lambda row: row.collective or None,
                ),
                Key("size_bytes", BYTES, "The tensor.", "size"),
                Key("count", COUNT, "Elements, counted as nccl-tests does."),
                Key("type", TEXT, "The type of its elements.", "dtype"),
                Key("redop", TEXT, "The reduction, or `none`."),
                Key("time_us", ROUNDED_US, "One collective, out of place.", "time"),
                Key("algbw_gb_per_s", ROUNDED_GB_PER_SECOND, "Size over time.", "algbw"),
                Key(
                    "busbw_gb_per_s", ROUNDED_GB_PER_SECOND, "Algbw times nccl-tests' factor.",
                    "busbw",
                ),
            )
        ),
        "Every size, in the order of the file.",
        "1",
    ),
    command="topo import",
)  # fmt: skip
"""Of what `read_launch` returns, and `MeasuredRow` values."""


_PATTERN = {"tree": 1, "plain_tree": 3, "ring": 4, "nvls": 5}
_ALGORITHMS = {
    "tree": "Tree", "ring": "Ring", "nvls": "NVLS", "nvlstree": "NVLSTree", "pat": "PAT",
    "collnet": "CollNet", "p2p": "P2P", ALL_PAIRS: "MSCCL", SYMMETRIC: "Symmetric",
}  # fmt: skip
_PROTOCOLS = {
    "ll": "LL", "ll128": "LL128", "simple": "Simple",
    **{k.name: k.name for k in KERNELS if k.name not in PROTOCOLS},
    "engine": "engine", "engine_mc": "engine_mc",
}  # fmt: skip
_COLLECTIVES = {
    name: "".join(word.capitalize() for word in name.split("_")) for name in (*COLLECTIVES, *SENDS)
}
_SHOWN_RANKS = 32
"""Of a longer ring the rest is left out."""
_TUNING, _CELL = 25, 17
"""Characters before the cells of a row of the tuning table, and of a cell."""


class ChosenCall(NamedTuple):
    """A call of a collective, what NCCL runs for it, and the seconds that we simulate, if we do."""

    nbytes: int
    choice: NcclChoice
    simulated: float | None = None


class ChosenCalls(NamedTuple):
    """Calls of one collective on a machine, by NCCL's plan for it."""

    machine: Topology | Folded
    plan: NcclPlan
    collective: str
    calls: Sequence[ChosenCall]


def nccl_text(asked: ChosenCalls, about: str) -> str:
    """Graphs, channels, tuning table and choices."""
    document = NCCL.write(asked)
    title = f"# {asked.collective}, NCCL's own estimate"
    parts = [
        tables.comments(_about(asked, about)),
        list(_graph_lines(asked.plan)),
        list(_channel_lines(document)),
        list(_tuning_lines(asked.plan)),
        [title, *_CHOICE.table(document["choices"]).lines(comment=True)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _about(asked: ChosenCalls, about: str) -> list[str]:
    known, machine = asked.plan.facts, asked.machine
    hardware = f"compute capability {known.capability / 10:.1f}, {known.vendor} hosts"
    shape = f"{units.plural(known.n, 'rank')} on {units.plural(known.nodes, 'node')}"
    return [
        f"simreduce {__version__}: what {library_of(known).title(asked.plan.settings)} chooses",
        f"topology {machine.name} ({machine.digest}), {shape}, {hardware}",
        *([about] if about else []),
    ]


def _graph_lines(at: NcclPlan) -> Iterator[str]:
    box = at.facts.boxes[0]
    yield f"NCCL INFO === System : maxBw {at.paths.widest():.1f} totalBw {box.total:.1f} ==="
    devs = {nic.name: dev for dev, nic in enumerate(box.nics)}
    for graph in _graphs(at):
        yield (
            f"NCCL INFO Pattern {_PATTERN[graph.pattern]}, crossNic {int(graph.cross_nic) * 2}, "
            f"nChannels {graph.count}, bw {graph.speed_intra:f}/{graph.speed_inter:f}, "
            f"type {graph.types}, sameChannels {int(graph.same_channels)}"
        )
        orders = []
        for channel in graph.channels:
            nets = channel.net_in, channel.net_out
            ends = [[f"NET/{devs[net]}"] if net else [] for net in nets]
            gpus = [f"GPU/{at.facts.members[0][gpu]}" for gpu in channel.gpus]
            orders.append(" ".join([*ends[0], *gpus, *ends[1]]))
        yield from (f"NCCL INFO {places:>2} : {order}" for places, order in _folded(orders))


def _folded(values: Iterable[T], digits: int = 1) -> Iterator[tuple[str, T]]:
    """Each value once, behind its places: `0-3,8`, with at least so many digits."""
    for value, places in grouped((value, place) for place, value in enumerate(values)).items():
        runs = groupby(enumerate(places), lambda each: each[1] - each[0])
        ends = ([f"{place:0{digits}}" for _, place in run] for _, run in runs)
        yield ",".join("-".join(dict.fromkeys((first, *more[-1:]))) for first, *more in ends), value


def _graphs(at: NcclPlan) -> list[Graph]:
    found = graphs(at.facts, at.settings)
    return [found.ring, found.tree, *([found.nvls] if found.nvls else [])]


def _channel_lines(document: Mapping[str, Any]) -> Iterator[str]:
    rings, found, n = document["rings"], document["p2p"], document["ranks"]
    orders = []
    for ring in rings:
        start = ring.index(0)
        orders.append((*ring[start:], *ring[:start]))
    for places, order in _folded(orders, 2):
        more = " ..." if len(order) > _SHOWN_RANKS else ""
        ranks = "".join(f" {rank:3}" for rank in order[:_SHOWN_RANKS])
        yield f"NCCL INFO Channel {places}/{len(rings):02} :{ranks}{more}"
    shown = [f"[{places}] {tree}" for places, tree in _folded(map(_tree, document["tree_parents"]))]
    yield f"NCCL INFO Trees {' '.join(shown)}"
    yield f"NCCL INFO P2P Chunksize set to {found['chunk_bytes']}"
    yield f"NCCL INFO threadThresholds 8/8/64 | {8 * n}/8/64 | 512 | 512"
    yield (
        f"NCCL INFO {document['channels']} coll channels, 0 collnet channels, "
        f"{document['nvls_channels']} nvls channels, {found['channels']} p2p channels, "
        f"{found['channels_per_peer']} p2p channels per peer"
    )


def _tree(parents: Sequence[int]) -> str:
    """Rank 0 in a tree: its children, itself, its parent."""
    children = [rank for rank, parent in enumerate(parents) if parent == 0]
    down = [*children, -1, -1, -1][:3]
    return f"{'/'.join(map(str, down))}->0->{parents[0]}"


def _tuning_lines(at: NcclPlan) -> Iterator[str]:
    """NCCL's tables of three algorithms each, of fewer on a page without room for them."""
    model = at.model
    names = [name for name in _ALGORITHMS if any(key[1] == name for key in model.latency)]
    pairs = [(name, protocol) for name in names for protocol in PROTOCOLS]
    room = (tables.page_width(_TUNING + 9 * _CELL) - _TUNING) // _CELL
    step = max(room // 3 * 3 or room, 1)
    for first in range(0, len(pairs), step):
        block = pairs[first : first + step]
        counts = Counter(name for name, _ in block)
        yield "NCCL INFO   Algorithm   |" + "".join(
            f" {f'{_ALGORITHMS[name]:>{min(31, _CELL * count - 3)}}':{_CELL * count - 3}} |"
            for name, count in counts.items()
        )
        yield "NCCL INFO   Protocol    |" + "".join(
            f" {_PROTOCOLS[protocol]:>14} |" for _, protocol in block
        )
        threads = "".join(f" {model.threads.get(pair, 0):>14} |" for pair in block)
        yield f"NCCL INFO  Max NThreads |{threads}"
        for collective in COLLECTIVES:
            cells = "".join(
                f"{model.latency.get((collective, *pair), 0.0):8.1f}/"
                f"{model.bandwidth.get((collective, *pair), 0.0):6.1f} |"
                for pair in block
            )
            yield f"NCCL INFO {_COLLECTIVES[collective]:>13} |{cells}"


def _known(seconds: float | None) -> float | None:
    """The seconds; None if NCCL makes no estimate."""
    return None if seconds is None or math.isnan(seconds) else seconds


def _estimates(call: ChosenCall, asked: ChosenCalls) -> dict[str, float | None]:
    """NCCL's estimates of a call, by algorithm and protocol."""
    if asked.collective in SENDS:
        return {}
    found = estimates(asked.plan, asked.collective, call.nbytes)
    return {"+".join(pair): _known(seconds) for pair, seconds in found.items()}


def _tuning(asked: ChosenCalls) -> list[tuple[str, str, str, float, float]]:
    """Collective, algorithm, protocol, latency in us and GB/s of each row of the tuning table."""
    model = asked.plan.model
    return [(*key, us, model.bandwidth[key]) for key, us in model.latency.items()]


def _or_dash(count: int) -> str:
    return str(count or "-")


_GB_PER_SECOND = number_in("GB/s")
_ROUNDED = {unit: number_in(unit, lambda value: round(value, 6)) for unit in ("us", "GB/s")}
_CHOICE = Record(
    "choice",
    "What NCCL runs for a call.",
    Key("nbytes", BYTES, "The tensor.", column=Column("size", "(B)")),
    Key(
        "algorithm", one_of(*_ALGORITHMS), "The algorithm.",
        lambda row: {BY_ENGINE: SYMMETRIC}.get(row.choice.algorithm, row.choice.algorithm),
        column=Column("algorithm", left=True, spare=1, show=_ALGORITHMS.__getitem__),
    ),
    Key(
        "protocol", one_of(*_PROTOCOLS), "The protocol, or the symmetric kernel.",
        "choice.protocol",
        column=Column("protocol", left=True, spare=2, show=_PROTOCOLS.__getitem__),
    ),
    Key(
        "channels", COUNT, "Channels that run; 0 of symmetric kernels.", "choice.channels",
        column=Column("channels", spare=3, show=_or_dash),
    ),
    Key(
        "threads", COUNT, "Threads of a channel; 0 of symmetric kernels.", "choice.threads",
        column=Column("threads", spare=5, show=_or_dash),
    ),
    Key(
        "estimate_us", or_null(ROUNDED_US), "NCCL's own estimate; null if it makes none.",
        lambda call: _known(call.choice.seconds),
        column=Column("estimate", "(us)", show="{:.1f}".format),
    ),
    Key(
        "simulated_us", or_null(ROUNDED_US), "What we simulate; null if we do not.",
        lambda call: _known(call.simulated),
        column=Column("simulated", "(us)", show="{:.1f}".format, keep="known"),
    ),
    Key(
        "strategy", TEXT, "The strategy that carries the choice.", "choice.text",
        column=Column("strategy", left=True),
    ),
    Key(
        "why", TEXT, "How it was decided.", "choice.why",
        column=Column("why", left=True, spare=4),
    ),
    Key(
        "estimates_us",
        map_of(or_null(ROUNDED_US)),
        "NCCL's estimates of each `algorithm+protocol`.",
        get_in=_estimates,
    ),
)  # fmt: skip
_GRAPH = Record(
    "graph",
    "A result of NCCL's search.",
    Key("pattern", one_of(*_PATTERN), "What it searched for."),
    Key("speed_intra_gb_per_s", _GB_PER_SECOND, "A channel inside a node.", "speed_intra"),
    Key("speed_inter_gb_per_s", _GB_PER_SECOND, "A channel between nodes.", "speed_inter"),
    Key(
        "type_intra", one_of(*CLASSES), "The class of the paths inside a node.",
        lambda graph: CLASSES[graph.type_intra],
    ),
    Key(
        "type_inter", one_of(*CLASSES), "The class of the paths between nodes.",
        lambda graph: CLASSES[graph.type_inter],
    ),
    Key(
        "cross_nic", FLAG, "Whether a channel uses different NICs to send and to receive.",
        lambda graph: bool(graph.cross_nic),
    ),
    Key("same_channels", FLAG, "Whether all channels have the same order."),
    Key(
        "channels",
        list_of(
            Record(
                "channel",
                "A channel of the first node.",
                Key("gpus", list_of(COUNT), "The node's GPUs, in order."),
                Key("net_in", or_null(TEXT), "The NIC before the first; null for one node."),
                Key("net_out", or_null(TEXT), "The NIC behind the last; null for one node."),
            )
        ),
        "The channels.",
    ),
)  # fmt: skip
NCCL = Document(
    "nccl",
    "`simreduce nccl --json`: what NCCL itself chooses.",
    *topology_keys("machine"),
    Key(
        "nccl_version", TEXT, "The NCCL, or RCCL, whose rules are followed.",
        lambda asked: library_of(asked.plan.facts).version_text(asked.plan.settings),
    ),
    Key("nodes", COUNT, "Machines.", "plan.facts.nodes"),
    Key("ranks", COUNT, "GPUs.", "plan.facts.n"),
    Key(
        "widest_path_gb_per_s", _GB_PER_SECOND, "The widest path of a GPU.",
        lambda asked: asked.plan.paths.widest(),
    ),
    Key("total_gb_per_s", _GB_PER_SECOND, "All paths of a GPU.", "plan.facts.boxes.0.total"),
    Key(
        "graphs", list_of(_GRAPH), "What its search found.", lambda asked: _graphs(asked.plan)
    ),
    Key("channels", COUNT, "Channels of rings and trees.", "plan.model.channels"),
    Key(
        "nvls_channels", COUNT, "Channels of NVLink SHARP; 0 without it.",
        lambda asked: asked.plan.model.running_nvls() if asked.plan.graphs.nvls else 0,
    ),
    Key(
        "rings", list_of(list_of(COUNT)), "The ranks of each ring, in order.",
        lambda asked: ring_orders(asked.plan.facts, asked.plan.settings),
    ),
    Key(
        "tree_parents", list_of(list_of(INTEGER)), "The parent of each rank; -1: the root.",
        lambda asked: tree_parents(asked.plan.facts, asked.plan.settings),
    ),
    Key(
        "p2p",
        Record(
            "p2p",
            "How it sends.",
            Key("channels", COUNT, "Channels."),
            Key("channels_per_peer", COUNT, "Channels of one send."),
            Key("chunk_bytes", BYTES, "What a channel moves at a time.", "chunk"),
        ),
        "Sends and receives.",
        lambda asked: p2p(asked.plan.facts, asked.plan.settings),
    ),
    Key(
        "tuning",
        list_of(
            Record(
                "model",
                "NCCL's model of the time of an algorithm.",
                Key("collective", one_of(*COLLECTIVES), "What is done.", "0"),
                Key("algorithm", one_of(*_ALGORITHMS), "The algorithm.", "1"),
                Key("protocol", one_of(*_PROTOCOLS), "The protocol.", "2"),
                Key("latency_us", _ROUNDED["us"], "The time of no byte.", "3"),
                Key("bandwidth_gb_per_s", _ROUNDED["GB/s"], "The rate of many bytes.", "4"),
            )
        ),
        "Its tuning table.",
        _tuning,
    ),
    Key("collective", one_of(*_COLLECTIVES), "What is asked about."),
    Key("choices", list_of(_CHOICE), "The choice for each size.", "calls"),
)  # fmt: skip
"""Of `ChosenCalls`."""
