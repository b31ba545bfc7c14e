"""The formats of files of machines, of several machines, and of link figures."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from simreduce import units
from simreduce.files.formats import (
    ANYTHING,
    BANDWIDTH,
    FLAG,
    LATENCY,
    LINE,
    TEXT,
    Faults,
    Field,
    FieldValues,
    Format,
    ListOf,
    MapOf,
    Scalar,
    TableOf,
    choice,
    number,
    quantity,
    text_of,
    whole,
)
from simreduce.files.names import Name
from simreduce.topology.classes import networks
from simreduce.topology.elements import (
    DEFAULT_NIC_REACH,
    DEFAULT_REACH,
    KINDS,
    NIC_REACHES,
    REACHES,
    Node,
)
from simreduce.topology.routing.switching import CHOICES, CONGESTIONS, HASHED, ISOLATED, SPLIT

LANES = whole(1, 1024, "lanes")
MEMORY = quantity(
    units.size, "a size", ("80 GB", "16 GiB"), (1e6, 1e15, "between 1 MB and 1000 TB")
)


def _machine_name(text: str) -> str:
    return Name(text) if text else text


def check_forwarding(node: FieldValues, faults: Faults, path: str) -> None:
    """Note GPUs that forward, and nodes that sum and are no switches."""
    if node["kind"] == "gpu" and node["transit"]:
        faults.add(f"{path}.transit", "GPUs never forward traffic for others")
    if node["reduces"] and node["kind"] in ("gpu", "cpu"):
        faults.add(f"{path}.reduces", "is for switches, which can sum what passes through them")


def _check_node(node: FieldValues, faults: Faults, path: str) -> None:
    """Note keys that nodes of this kind do not have."""
    check_forwarding(node, faults, path)
    for key, owner in (
        ("peer", "gpu"),
        ("gpudirect", "gpu"),
        ("network", "nic"),
        ("memory", "gpu"),
    ):
        if node["kind"] and node["kind"] != owner and key in node.given:
            faults.add(f"{path}.{key}", f"is for {owner.upper()}s: {_ABOUT[key]}")


def node_values(node: FieldValues) -> tuple[Any, ...]:
    """The fields of `Node` after its name."""
    own = {
        "memory_bandwidth": math.inf,
        "memory": 0,
        "machine": "" if node["kind"] == "switch" else "0",
        "transit": node["kind"] != "gpu",
    }
    keys = (field.name for field in fields(Node) if field.name != "name")
    return tuple(own.get(key, "") if node[key] is None else node[key] for key in keys)


_ABOUT = {
    "peer": "the farthest path over which they copy to each other directly",
    "gpudirect": "the farthest NIC that reads and writes their memory",
    "network": "the class of the link to a network that they have a port for",
    "memory": "how much memory each has for a training step",
}
NODE = Format(
    "nodes.GROUP",
    "Nodes that are alike.",
    Field("names", ListOf(Scalar("a name or a range", {"type": "string"}, lambda value: value)),
          (
              'Names, such as `"gpu0"`, or ranges of them: `"gpu[0-7]"`, `"cpu[0-34:2]"` (every '
              'second).'
          ),
          required=True),
    Field("kind", choice(KINDS, "kind"), "What they are.", required=True),
    Field("model", LINE, "The product's name."),
    Field("memory", MEMORY, "Of GPUs: the size of the memory of each, as its data sheet says. What"
          " a training step holds is compared with it.", default_words="unknown"),
    Field("memory_bandwidth", BANDWIDTH, "Rate of the memory.", default_words="unlimited"),
    Field("machine", text_of(_machine_name, "a name"), "The machine that they stand in.",
          default_words='`"0"`; a switch stands in none'),
    Field("transit", FLAG, "Whether the traffic of others may pass; never through GPUs.",
          default_words="`true`; of GPUs `false`"),
    Field("reduces", FLAG, "Whether a switch can sum what passes through it.", default=False),
    Field("peer", choice(REACHES, "reach"), "Of GPUs: the farthest path over which they copy to"
          " each other directly. Farther copies are staged through a host.", DEFAULT_REACH),
    Field("gpudirect", choice(NIC_REACHES, "reach"), "Of GPUs: the farthest NIC that reads and"
          " writes their memory; what is farther off goes through a host. P2C is what NCCL does:"
          " below one tree of PCIe switches, or over C2C and PCIe (Grace). PHB is"
          " NCCL_NET_GDR_LEVEL=PHB.", DEFAULT_NIC_REACH),
    Field("network", choice(networks(), "class of network link"), "Of NICs: the class of the link"
          " by which they join the network of `MACHINExN` without `nic=`.",
          default_words='`"ib_edr"`'),
    check=_check_node,
)  # fmt: skip
_FIGURES = (
    Field("bandwidth", BANDWIDTH, "Rate per lane and direction.", default_words="the class's"),
    Field("achievable", BANDWIDTH, "What one large copy reaches of it.",
          default_words="the class's; all of a `bandwidth` that is given"),
    Field("latency", LATENCY, "Time one way.", default_words="the class's"),
    Field("holds_lane", FLAG, "Whether a transfer keeps its sender's queue busy for the latency;"
          " false for networks.", default_words="the class's, else `true`; in a"
          " graph, `False` for edges without a class"),
    Field("both_ways", BANDWIDTH, "Of classes that begin with `staged`: what copies out and in"
          " reach together.", default_words="the class's, else unlimited"),
)  # fmt: skip
_PAIRS = ListOf(Scalar("a pair of nodes", {"type": "array"}, lambda value: value))
LINK = Format(
    "links.CLASS",
    "Links of one class. A class that begins with `staged` joins a GPU or a PCIe switch to itself:"
    " staged copies take it there, and its latency counts at GPUs.",
    Field("pairs", _PAIRS, 'The ends of each, and a count of lanes that is not `lanes`:'
          ' `["gpu0", "gpu3", 2]`. A range pairs with another in blocks: `["gpu[0-7]", "plx[0-3]"]`'
          " joins gpu0 and gpu1 to plx0, and so on; one name pairs with all of a range.",
          required=True),
    Field("lanes", LANES, "How many in parallel.", 1),
    Field("class", LINE, "The class.", default_words="the table's key"),
    *_FIGURES,
)  # fmt: skip
_ROUTE = Format(
    "routes.NAME",
    "Figures of single pairs that no link shows, besides those of the links.",
    Field("pairs", _PAIRS, "The two ends of each.", required=True),
    Field("bandwidth", BANDWIDTH, "Rate per direction.", required=True),
    Field("latency", LATENCY, "Time added to that of the links.", default_words="none"),
)
EQUAL_COST = choice(CHOICES, "rule")
SEED = whole(0, (1 << 63) - 1)


QUEUE_PAIRS = whole(1, 128)
CONGESTION = choice(CONGESTIONS, "congestion")
PART = number(0, 1)
SWITCHING: tuple[Scalar[Any], ...] = (EQUAL_COST, SEED, QUEUE_PAIRS, CONGESTION, PART)
"""The kinds of the fields of `Switching`."""
_MORE_SWITCHING = (
    Field("seed", SEED, "Of hashed paths.", 0),
    Field("queue_pairs", QUEUE_PAIRS, "Over how many hashed paths each two ends spread what they"
          " send.", 1),
    Field("congestion", CONGESTION, "What a flow that is held back does to others on its way: none"
          " (`isolated`), it stops the links that it has passed (`tree`), or it is dropped where it"
          " is held (`lossy`).", ISOLATED),
    Field("congested", PART, "The part of the time that this is so.", 1.0),
)  # fmt: skip
"""What files of one machine and of several say of switches, besides `equal_cost`."""


def _check_switching(routing: FieldValues, faults: Faults, path: str) -> None:
    for key in ("seed", "queue_pairs"):
        if key in routing.given and routing["equal_cost"] != HASHED:
            faults.add(f"{path}.{key}", "needs equal_cost = 'hashed'")
    if "congested" in routing.given and routing["congestion"] == ISOLATED:
        faults.add(f"{path}.congested", "needs congestion = 'tree' or 'lossy'")


ROUTING = Format(
    "routing",
    "What switches do with transfers.",
    Field("equal_cost", EQUAL_COST, "Which of equal paths a transfer takes.", SPLIT),
    *_MORE_SWITCHING,
    check=_check_switching,
)
_HEAD = (
    Field("title", LINE, "What `simreduce topo list` prints."),
    Field("sources", ListOf(TEXT), "Where the figures were published."),
    Field("extends", LINE, "A file beside this one, or a shipped name, that is read first: tables"
          " of this file win over its tables key by key, lists are replaced, and a `bandwidth`"
          " without `achievable` drops the older `achievable`."),
)  # fmt: skip
MACHINE = Format(
    "machine",
    "A machine: its nodes and the links between them.",
    *_HEAD,
    Field("nodes", MapOf(TableOf(NODE), key="GROUP"), "Groups of nodes."),
    Field("links", MapOf(TableOf(LINK), key="CLASS"), "Links by class."),
    Field("routes", MapOf(TableOf(_ROUTE)), "Figures of single pairs."),
    Field("routing", TableOf(ROUTING), "What switches do with transfers."),
)
LINK_FIGURES = Format(
    "link figures",
    "Figures of links for `simreduce topo import --links`.",
    Field(
        "links",
        MapOf(TableOf(Format("links.CLASS", "A class of links.", *_FIGURES)), key="CLASS"),
        "Classes; one that is not shipped needs its bandwidth and latency.",
    ),
)
_SIZE = whole(1)
CLUSTER = Format(
    "machines on a network",
    "A cluster: machines of one kind on a network.",
    *_HEAD,
    Field("nodes", whole(1), "How many machines.", required=True),
    Field("machine", LINE, "A file beside this one, or a shipped machine.", required=True),
    Field("fabric", LINE, "The shape of the network.", "switch"),
    Field(
        "nic",
        choice(networks(), "class of network link"),
        "The class of all its cables.",
        default_words="that of the machine's NICs",
    ),
    Field(
        "nics",
        whole(1),
        "How many NICs of each machine are on it, evenly spread over the machine.",
        default_words="all",
    ),
    Field(
        "equal_cost",
        EQUAL_COST,
        "Which of equal paths transfers take.",
        default_words="`split`, of a torus `first`",
    ),
    *_MORE_SWITCHING,
    Field(
        "switch_latency",
        LATENCY,
        "Latency of a cable between switches.",
        default_words='`"0.1 us"`',
    ),
    Field(
        "radix",
        _SIZE,
        "Of a fat tree: hosts under a leaf, or with three levels ports of a switch.",
        default_words="32, or all",
    ),
    Field("oversubscription", number(0), "Hosts under a leaf for each of its up-links.", 1),
    Field("levels", whole(2, 3), "Levels of switches.", 2),
    Field("pods", _SIZE, "Pods of a fat tree of three levels.", default_words="as few as hold all"),
    Field("reduce", FLAG, "Whether the switches can sum.", default=False),
    Field("unit", _SIZE, "Of rails: machines that share leaves.", default_words="32, or all"),
    Field("p", _SIZE, "Of a dragonfly: hosts of a router.", default_words="balanced"),
    Field("a", _SIZE, "Of a dragonfly: routers of a group.", default_words="balanced"),
    Field("h", _SIZE, "Of a dragonfly: global cables of a router.", default_words="balanced"),
    Field("g", _SIZE, "Of a dragonfly: groups.", default_words="as many as hosts fill"),
    Field("dims", LINE, 'Of a torus: its sizes, such as `"4x4"`.'),
    Field(
        "overrides",
        MapOf(ANYTHING, key="KEY"),
        'Keys of the machine\'s file, dotted or nested: `"links.qpi.bandwidth" = "9.6 GB/s"`.',
    ),
)
