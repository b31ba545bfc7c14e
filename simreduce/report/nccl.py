"""What NCCL chooses, in the words of its own log (NCCL_DEBUG=INFO with GRAPH and TUNING)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simreduce import tables, units
from simreduce.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    INTEGER,
    MICROSECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    one_of,
    or_null,
)
from simreduce.nccl import Choice, Graph, estimates, p2p, ring_orders, tree_parents
from simreduce.nccl.box import CLASSES
from simreduce.nccl.choice import SENDS, Plan, nvls_channels
from simreduce.nccl.search import Search
from simreduce.nccl.tables import COLLECTIVES, PROTOCOLS
from simreduce.report.heads import TOPOLOGY_KEYS
from simreduce.tables import Column, Table
from simreduce.topology import Folded, Topology
from simreduce.version import __version__

_PATTERN = {"tree": 1, "plain_tree": 3, "ring": 4, "nvls": 5}
_ALGORITHMS = {
    "tree": "Tree", "ring": "Ring", "nvls": "NVLS", "nvlstree": "NVLSTree", "pat": "PAT",
    "p2p": "P2P",
}  # fmt: skip
_PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
_COLLECTIVES = {
    name: "".join(word.capitalize() for word in name.split("_")) for name in (*COLLECTIVES, *SENDS)
}
_SHOWN_RANKS = 32
"""Of a longer ring the rest is left out."""
_TUNING, _CELL = 25, 17
"""Characters before the cells of a row of the tuning table, and of a cell."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a collective, what NCCL runs for it, and the seconds that we simulate, if we do."""

    nbytes: int
    choice: Choice
    simulated: float | None = None


def nccl_text(
    machine: Topology | Folded, at: Plan, collective: str, calls: Sequence[Call], about: str
) -> str:
    """Graphs, channels, tuning table and choices."""
    parts = [
        [f"# {line}" for line in _about(machine, at, about)],
        list(_graph_lines(at)),
        list(_channel_lines(at)),
        list(_tuning_lines(at)),
        _choice_lines(collective, calls),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _about(machine: Topology | Folded, at: Plan, about: str) -> list[str]:
    known, version = at.facts, ".".join(map(str, at.settings.version))
    hardware = f"compute capability {known.capability / 10:.1f}, {known.vendor} hosts"
    shape = f"{units.plural(known.n, 'rank')} on {units.plural(known.nodes, 'node')}"
    return [
        f"simreduce {__version__}: what NCCL {version} chooses",
        f"topology {machine.name} ({machine.digest}), {shape}, {hardware}",
        *([about] if about else []),
    ]


def _system(at: Plan) -> tuple[float, float]:
    box = at.facts.boxes[0]
    return Search(at.facts, box, at.settings).reach, box.total


def _graph_lines(at: Plan) -> Iterator[str]:
    most, total = _system(at)
    yield f"NCCL INFO === System : maxBw {most:.1f} totalBw {total:.1f} ==="
    devs = {nic.name: dev for dev, nic in enumerate(at.facts.boxes[0].nics)}
    for graph in _graphs(at):
        yield (
            f"NCCL INFO Pattern {_PATTERN[graph.pattern]}, crossNic {int(graph.cross_nic) * 2}, "
            f"nChannels {graph.count}, bw {graph.speed_intra:f}/{graph.speed_inter:f}, "
            f"type {graph.types}, sameChannels {int(graph.same_channels)}"
        )
        for i, channel in enumerate(graph.channels):
            nets = channel.net_in, channel.net_out
            ends = [[f"NET/{devs[net]}"] if net else [] for net in nets]
            gpus = [f"GPU/{gpu}" for gpu in channel.gpus]
            yield f"NCCL INFO {i:2} : {' '.join([*ends[0], *gpus, *ends[1]])}"


def _graphs(at: Plan) -> list[Graph]:
    found = at.graphs
    return [found.ring, found.tree, *([found.nvls] if found.nvls else [])]


def _channel_lines(at: Plan) -> Iterator[str]:
    rings = ring_orders(at.facts, at.settings)
    for i, ring in enumerate(rings):
        start = ring.index(0)
        order = (*ring[start:], *ring[:start])
        more = " ..." if len(order) > _SHOWN_RANKS else ""
        ranks = "".join(f" {rank:3}" for rank in order[:_SHOWN_RANKS])
        yield f"NCCL INFO Channel {i:02}/{len(rings):02} :{ranks}{more}"
    shown = [
        f"[{i}] {_tree(parents)}" for i, parents in enumerate(tree_parents(at.facts, at.settings))
    ]
    yield f"NCCL INFO Trees {' '.join(shown)}"
    found, n = p2p(at.facts, at.settings), at.facts.n
    yield f"NCCL INFO P2P Chunksize set to {found.chunk}"
    yield f"NCCL INFO threadThresholds 8/8/64 | {8 * n}/8/64 | 512 | 512"
    nvls = nvls_channels(at) if at.graphs.nvls else 0
    yield (
        f"NCCL INFO {at.model.channels} coll channels, 0 collnet channels, {nvls} nvls channels, "
        f"{found.channels} p2p channels, {found.channels_per_peer} p2p channels per peer"
    )


def _tree(parents: Sequence[int]) -> str:
    """Rank 0 in a tree: its children, itself, its parent."""
    children = [rank for rank, parent in enumerate(parents) if parent == 0]
    down = [*children, -1, -1, -1][:3]
    return f"{'/'.join(map(str, down))}->0->{parents[0]}"


def _tuning_lines(at: Plan) -> Iterator[str]:
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


_SIMULATED = Column("simulated", "(us)")
_COLUMNS = (
    Column("size", "(B)"), Column("algorithm", left=True, spare=1),
    Column("protocol", left=True, spare=2), Column("channels", spare=3),
    Column("threads", spare=5), Column("estimate", "(us)"),
    Column("strategy", left=True), Column("why", left=True, spare=4),
)  # fmt: skip


def _choice_lines(collective: str, calls: Sequence[Call]) -> list[str]:
    simulated = any(call.simulated is not None for call in calls)
    columns = [*_COLUMNS[:6], *([_SIMULATED] if simulated else []), *_COLUMNS[6:]]
    rows = []
    for call in calls:
        found = call.choice
        row = [
            str(call.nbytes), _ALGORITHMS[found.algorithm], _PROTOCOLS[found.protocol],
            str(found.channels), str(found.threads), _microseconds(found.seconds),
            *([_microseconds(call.simulated)] if simulated else []),
            found.text, found.why,
        ]  # fmt: skip
        rows.append(tuple(row))
    title = f"# {collective}, NCCL's own estimate"
    return [title, *Table(tuple(columns), tuple(rows)).lines(comment=True)]


def _microseconds(seconds: float | None) -> str:
    return "-" if seconds is None or math.isnan(seconds) else f"{seconds * 1e6:.1f}"


_CHOICE = Record(
    "choice",
    "What NCCL runs for a call.",
    Key("nbytes", BYTES, "The tensor."),
    Key("algorithm", one_of(*_ALGORITHMS), "The algorithm."),
    Key("protocol", one_of(*_PROTOCOLS), "The protocol."),
    Key("channels", COUNT, "Channels that run."),
    Key("threads", COUNT, "Threads of a channel."),
    Key("estimate_us", or_null(MICROSECONDS), "NCCL's own estimate; null if it makes none."),
    Key("simulated_us", or_null(MICROSECONDS), "What we simulate; null if we do not."),
    Key("strategy", TEXT, "The strategy that carries the choice."),
    Key("why", TEXT, "How it was decided."),
    Key(
        "estimates_us",
        map_of(or_null(MICROSECONDS)),
        "NCCL's estimates of each `algorithm+protocol`.",
    ),
)
_GRAPH = Record(
    "graph",
    "A result of NCCL's search.",
    Key("pattern", one_of(*_PATTERN), "What it searched for."),
    Key("speed_intra_gb_per_s", GB_PER_SECOND, "A channel inside a node."),
    Key("speed_inter_gb_per_s", GB_PER_SECOND, "A channel between nodes."),
    Key("type_intra", one_of(*CLASSES), "The class of the paths inside a node."),
    Key("type_inter", one_of(*CLASSES), "The class of the paths between nodes."),
    Key("cross_nic", FLAG, "Whether a channel uses different NICs to send and to receive."),
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
)
NCCL = Document(
    "nccl",
    "`simreduce nccl --json`: what NCCL itself chooses.",
    *TOPOLOGY_KEYS,
    Key("nccl_version", TEXT, "The NCCL whose rules are followed."),
    Key("nodes", COUNT, "Machines."),
    Key("ranks", COUNT, "GPUs."),
    Key("widest_path_gb_per_s", GB_PER_SECOND, "The widest path of a GPU."),
    Key("total_gb_per_s", GB_PER_SECOND, "All paths of a GPU."),
    Key("graphs", list_of(_GRAPH), "What its search found."),
    Key("channels", COUNT, "Channels of rings and trees."),
    Key("nvls_channels", COUNT, "Channels of NVLink SHARP; 0 without it."),
    Key("rings", list_of(list_of(COUNT)), "The ranks of each ring, in order."),
    Key("tree_parents", list_of(list_of(INTEGER)), "The parent of each rank; -1: the root."),
    Key(
        "p2p",
        Record(
            "p2p",
            "How it sends.",
            Key("channels", COUNT, "Channels."),
            Key("channels_per_peer", COUNT, "Channels of one send."),
            Key("chunk_bytes", BYTES, "What a channel moves at a time."),
        ),
        "Sends and receives.",
    ),
    Key(
        "tuning",
        list_of(
            Record(
                "model",
                "NCCL's model of the time of an algorithm.",
                Key("collective", one_of(*COLLECTIVES), "What is done."),
                Key("algorithm", one_of(*_ALGORITHMS), "The algorithm."),
                Key("protocol", one_of(*_PROTOCOLS), "The protocol."),
                Key("latency_us", MICROSECONDS, "The time of no byte."),
                Key("bandwidth_gb_per_s", GB_PER_SECOND, "The rate of many bytes."),
            )
        ),
        "Its tuning table.",
    ),
    Key("collective", one_of(*_COLLECTIVES), "What is asked about."),
    Key("choices", list_of(_CHOICE), "The choice for each size."),
)


def nccl_document(
    machine: Topology | Folded, at: Plan, collective: str, calls: Sequence[Call]
) -> dict[str, Any]:
    """The document of `nccl --json`: `NCCL`."""
    most, total = _system(at)
    found = p2p(at.facts, at.settings)
    return {
        **NCCL.head(),
        "topology": machine.name,
        "topology_digest": machine.digest,
        "nccl_version": ".".join(map(str, at.settings.version)),
        "nodes": at.facts.nodes,
        "ranks": at.facts.n,
        "widest_path_gb_per_s": most,
        "total_gb_per_s": total,
        "graphs": [_graph(graph) for graph in _graphs(at)],
        "channels": at.model.channels,
        "nvls_channels": nvls_channels(at) if at.graphs.nvls else 0,
        "rings": [list(ring) for ring in ring_orders(at.facts, at.settings)],
        "tree_parents": [list(tree) for tree in tree_parents(at.facts, at.settings)],
        "p2p": {
            "channels": found.channels,
            "channels_per_peer": found.channels_per_peer,
            "chunk_bytes": found.chunk,
        },
        "tuning": [
            {
                "collective": key[0],
                "algorithm": key[1],
                "protocol": key[2],
                "latency_us": round(latency, 6),
                "bandwidth_gb_per_s": round(at.model.bandwidth[key], 6),
            }
            for key, latency in at.model.latency.items()
        ],
        "collective": collective,
        "choices": [_call(at, collective, call) for call in calls],
    }


def _graph(graph: Graph) -> dict[str, Any]:
    return {
        "pattern": graph.pattern,
        "speed_intra_gb_per_s": graph.speed_intra,
        "speed_inter_gb_per_s": graph.speed_inter,
        "type_intra": CLASSES[graph.type_intra],
        "type_inter": CLASSES[graph.type_inter],
        "cross_nic": graph.cross_nic,
        "same_channels": graph.same_channels,
        "channels": [
            {"gpus": list(each.gpus), "net_in": each.net_in, "net_out": each.net_out}
            for each in graph.channels
        ],
    }


def _call(at: Plan, collective: str, call: Call) -> dict[str, Any]:
    found = call.choice
    others = {} if collective in SENDS else estimates(at, collective, call.nbytes)
    return {
        "nbytes": call.nbytes,
        "algorithm": found.algorithm,
        "protocol": found.protocol,
        "channels": found.channels,
        "threads": found.threads,
        "estimate_us": _round(found.seconds),
        "simulated_us": _round(call.simulated),
        "strategy": found.text,
        "why": found.why,
        "estimates_us": {"+".join(pair): _round(t) for pair, t in others.items()},
    }


def _round(seconds: float | None) -> float | None:
    return None if seconds is None or math.isnan(seconds) else round(seconds * 1e6, 6)
