"""What NCCL chooses, in the words of its own log (NCCL_DEBUG=INFO with GRAPH and TUNING)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simreduce import units
from simreduce.files import tables
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    INTEGER,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    number_in,
    one_of,
    or_null,
)
from simreduce.files.tables import Column
from simreduce.planners.nccl import Graph, NcclChoice, estimates, p2p, ring_orders, tree_parents
from simreduce.planners.nccl.choice import BY_ENGINE, SENDS, SYMMETRIC, NcclPlan, nvls_channels
from simreduce.planners.nccl.constants import ALL_PAIRS, COLLECTIVES, KERNELS, PROTOCOLS
from simreduce.planners.nccl.library import library_of
from simreduce.planners.nccl.node import CLASSES
from simreduce.report.topo import ROUNDED_US, topology_keys
from simreduce.topology import Folded, Topology
from simreduce.version import __version__

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


def _widest(at: NcclPlan) -> float:
    """GB/s of the widest path of a GPU."""
    return library_of(at.facts).search(at.facts, at.facts.boxes[0], at.settings).reach


def _graph_lines(at: NcclPlan) -> Iterator[str]:
    box = at.facts.boxes[0]
    yield f"NCCL INFO === System : maxBw {_widest(at):.1f} totalBw {box.total:.1f} ==="
    devs = {nic.name: dev for dev, nic in enumerate(box.nics)}
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


def _graphs(at: NcclPlan) -> list[Graph]:
    found = at.graphs
    return [found.ring, found.tree, *([found.nvls] if found.nvls else [])]


def _channel_lines(document: Mapping[str, Any]) -> Iterator[str]:
    rings, found, n = document["rings"], document["p2p"], document["ranks"]
    for i, ring in enumerate(rings):
        start = ring.index(0)
        order = (*ring[start:], *ring[:start])
        more = " ..." if len(order) > _SHOWN_RANKS else ""
        ranks = "".join(f" {rank:3}" for rank in order[:_SHOWN_RANKS])
        yield f"NCCL INFO Channel {i:02}/{len(rings):02} :{ranks}{more}"
    shown = [f"[{i}] {_tree(parents)}" for i, parents in enumerate(document["tree_parents"])]
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
        lambda asked: _widest(asked.plan),
    ),
    Key("total_gb_per_s", _GB_PER_SECOND, "All paths of a GPU.", "plan.facts.boxes.0.total"),
    Key(
        "graphs", list_of(_GRAPH), "What its search found.", lambda asked: _graphs(asked.plan)
    ),
    Key("channels", COUNT, "Channels of rings and trees.", "plan.model.channels"),
    Key(
        "nvls_channels", COUNT, "Channels of NVLink SHARP; 0 without it.",
        lambda asked: nvls_channels(asked.plan) if asked.plan.graphs.nvls else 0,
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
