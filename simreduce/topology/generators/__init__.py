"""Topologies written inline: `NAME:SIZE[,key=value...]` and `MACHINExN[,key=value...]`.

    ring:8         GPUs in a circle, each linked to its two neighbours
    full:8         a link for every pair of GPUs
    switch:64      every GPU on one switch; `reduce=yes`: the switch can sum
    fat_tree:1024  two levels: `radix=` GPUs under each leaf (32, or all when they are fewer), and
                   radix / `oversubscription=` up-links of each leaf (as many as GPUs unless
                   stated), one to each spine. Traffic between two leaves takes the spine of number
                   d mod spines, where d is the place of its destination. `levels=3`: leaves,
                   spines and cores are switches with `radix=` ports (as few as hold all GPUs
                   unless stated), half of them down and half up, in `pods=` pods;
                   `oversubscription=` is that of the leaves. `reduce=yes`: the switches can sum
    dragonfly:1056 `a=` routers in a group, each with `p=` GPUs and `h=` global cables, in `g=`
                   groups; balanced, a = 2p = 2h, unless stated. Traffic takes the fewest global
                   cables: one
    torus:8x8      or 4x4x4: a router for every GPU, linked to its neighbours in each dimension and
                   round the ends; traffic goes along x first, then y, then z, the shorter way
                   round, forwards when both are as long

`bandwidth=` is per cable (per port of a switch) and direction, 25 GB/s unless stated; the cable
from a GPU to its router in a torus carries as much as all the router's others together. `latency=`
is from end to end of two GPUs that are neighbours or share the switch or leaf, the alpha of the
textbooks, 1 us unless stated: half of it on each cable of a switch, fat tree or dragonfly, all of
it on a cable between GPUs or the routers of a torus. Memory is unlimited, unless `full` has
`memory=`, the rate of each GPU's; it also takes `host=`, that of links of a class `host` of their
own between GPUs and the host. All nodes count as one machine. `shuffle=SEED`, of networks but a
switch, seats the GPUs in a random order instead of by
number.

A host `cpu0` is linked to every GPU (to the switch, the last leaf or router, the first router of a
torus) in the same way but passes nothing on, so that two GPUs of a ring that are no neighbours have
no route.

    dgx1vx4        four copies of a machine, each of its NICs linked to the network; nodes are
                   named n0.gpu0 and so on

`fabric=` is the shape of the network over the NICs, machine by machine: `switch`, `fat_tree` and
`dragonfly` with the settings above; `torus`, a router for every machine, `dims=4x4`;
`rail_optimised`, where the i-th NICs of `unit=` machines share a leaf, with `oversubscription=`,
`levels=` and `reduce=`; `rail_only`, a switch for all i-th NICs and nothing between those. `nic=`
is the link class of all cables, that of the machine's NICs unless stated; a cable between switches
has `switch_latency=` instead, 0.1 us unless stated. `nics=` is how many NICs of each machine are on
the network: those nearest to a GPU, evenly spread; all unless stated. The module of each shape says
how many switches and cables it has.

`equal_cost=split`, `hashed` (with a `seed=`) or `first` says what transfers do that have several
equal paths (`topology.routing.switching`). A torus takes the first unless stated, all others split.
`queue_pairs=` of hashed paths, `congestion=` and `congested=` are in `topology.routing.switching`.

`dgx1vx4,fabric=fat_tree,nic=ib_hdr`: copies of a machine on a network.

`dgx-h100x128,fabric=rail_optimised` and `fabric=rail_only`: the i-th NICs of all machines are a
rail.

Rail-optimised (NVIDIA DGX SuperPOD reference architecture): `unit` machines, 32 unless stated, and
r leaves, one for each NIC of a machine, are a scalable unit. Leaf i of a unit has the i-th NIC of
each of its machines, and unit / oversubscription up-links, one to each spine. Over N machines: r
ceil(N / unit) leaves; bisection, between halves of whole units, r N / 2 / oversubscription cables.
Where only NVLink joins the boards of a machine, as the trays of a GB200 NVL72, each board counts as
a machine: it has 4 rails, not 72. With `levels=3` the units whose leaves are at most `unit` share
spines, a pod, and every spine has as many cables to cores as leaves under it.

Rail-only (Wang et al. 2023): a switch for each rail, and nothing between them.

Between rails, a rail-optimised network carries traffic over its spines. On a rail-only one, a
transfer changes the rail inside a machine, from one GPU or host to the NIC of another over PCIe and
host bridges, as GPUDirect RDMA can. NVLink is no way to change the rail: it ends at GPUs, and these
do not forward. (NCCL's PXN does store and forward, in another GPU's memory: those are two
transfers, and algorithms such as `blueconnect` or `ring/ring` make them.) Where a machine's PCIe
does not join its NICs, such a transfer is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from simreduce.computing import grouped
from simreduce.errors import TopologyError, did_you_mean
from simreduce.files.formats import choice
from simreduce.topology.elements import Cable, Node, joined, link_classes, networks as link_networks
from simreduce.topology.generators.inline import (
    DEVICES_LIMIT,
    WHOLE_LIMIT,
    Inline,
    InlineSettings,
    Join,
    Read,
    check_cables,
    split_inline,
    textbook,
    too_many,
)
from simreduce.topology.generators.networks import (
    DRAGONFLY_KEYS,
    FULL_LIMIT,
    PLUS_KEYS,
    TORUS_KEYS,
    TREE_KEYS,
    FatTree,
    dragonfly_plus,
    linked,
    neighbours,
    read_dragonfly,
    read_switch,
    read_torus,
    read_tree,
    torus,
    up_links,
)
from simreduce.topology.graph import Topology, build
from simreduce.topology.routing import is_nvlink
from simreduce.topology.routing.rules import EqualMachines
from simreduce.topology.routing.switching import DEFAULT, FIRST, KEYS, Switching
from simreduce.units import format_bandwidth, format_duration, noun

if TYPE_CHECKING:
    from simreduce.topology.generators.inline import Shape


UNIT = 32
RAIL_KEYS = ("unit", "oversubscription", "levels", "reduce")


def read_rails(settings: InlineSettings, machines: int, nics: int) -> FatTree:
    """The rails of `machines` machines with `nics` NICs each, joined by spines."""
    unit = settings.whole("unit", min(UNIT, machines), 1, DEVICES_LIMIT)
    up, reduces = up_links(settings, unit), settings.flag("reduce")
    pod = max(unit // nics, 1) * nics if settings.whole("levels", 2, 2, 3) == 3 else 0
    leaves = -(-machines // unit) * nics
    if leaves == 1:
        up = 0
    if leaves <= pod:
        pod = 0
    return FatTree(machines * nics, unit, up, reduces, rails=nics, pod=pod, cores=pod)


def read_rails_only(settings: InlineSettings, machines: int, nics: int) -> FatTree:
    """A switch for each rail."""
    return FatTree(machines * nics, machines, 0, settings.flag("reduce"), rails=nics)


DEFAULT_NIC = "ib_edr"
DEFAULT_SWITCH_LATENCY = 0.1e-6
"""Seconds of one InfiniBand switch: the customary figure that the link classes use too."""


@dataclass(frozen=True, slots=True)
class FabricType:
    """A shape of the network, and the settings it has. `railed` says that it joins the i-th NICs of
    all boards, `apart` that these have a network of their own. `equal_cost` is its choice unless
    the machine or the user says another.
    """

    read: Read
    keys: tuple[str, ...] = ()
    railed: bool = False
    apart: bool = False
    switching: Switching = DEFAULT


FABRICS = {
    "switch": FabricType(read_switch, ("reduce",)),
    "fat_tree": FabricType(read_tree, TREE_KEYS),
    "rail_optimised": FabricType(read_rails, RAIL_KEYS, railed=True),
    "rail_only": FabricType(read_rails_only, ("reduce",), railed=True, apart=True),
    "dragonfly": FabricType(read_dragonfly, DRAGONFLY_KEYS),
    "torus": FabricType(read_torus, TORUS_KEYS, switching=Switching(FIRST)),
}

SETTINGS = ("fabric", "nic", "nics", "switch_latency", *KEYS)
"""Settings of every network; one switch has no cable between switches."""


FABRIC_KEYS = tuple(dict.fromkeys(key for fabric in FABRICS.values() for key in fabric.keys))
"""The settings that single fabrics have."""


def build_cluster(
    inline: Inline,
    overrides: Mapping[str, str | int],
    load: Callable[[str, Mapping[str, str | int]], Topology],
    limit: int = DEVICES_LIMIT,
) -> Topology:
    """The topology of `MACHINExN,...`.

    `load` reads the machine, and gets the overrides that are not settings. `limit` is the most
    devices on one switch.
    """
    known = (*SETTINGS, *FABRIC_KEYS)
    mine = {key: value for key, value in overrides.items() if key in known}
    settings = InlineSettings(inline, dict(inline.settings) | mine, limit)
    shape = str(settings.values.get("fabric", "switch"))
    keys = (*SETTINGS, *FABRICS[shape].keys) if shape in FABRICS else known
    settings.faults.unknown("", settings.values, keys)
    fabric = FABRICS[settings.read("fabric", choice(tuple(FABRICS), "fabric"), "switch")]
    known_nics = choice(link_networks(), "class of network link")
    nic = settings.read("nic", known_nics, DEFAULT_NIC) if "nic" in settings.values else ""
    trunk = settings.latency("switch_latency", DEFAULT_SWITCH_LATENCY)
    most = settings.limit if shape == "switch" else DEVICES_LIMIT
    count = settings.size(most, "machines")
    others = {key: value for key, value in overrides.items() if key not in known}
    try:
        machine = load(inline.name, others)
    except TopologyError as error:
        raise TopologyError([*settings.faults.problems, *error.problems]) from None
    own = machine.router.switching
    switching = settings.switching(fabric.switching if own == DEFAULT else own)
    machine = _with_nics(settings, machine)
    nic = _nic_class(settings, inline.name, machine, nic)
    nics = sum(node.kind == "nic" for node in machine.nodes.values())
    settings.faults.check(
        len({node.machine for node in machine.nodes.values()} - {""}) <= 1,
        "",
        f"{inline.name!r} is made of several machines already",
    )
    settings.faults.check(
        count * len(machine.devices) <= most, "", too_many(count * len(machine.devices), "devices")
    )
    boards = _boards(machine) if fabric.railed else 1
    network = fabric.read(settings, count * boards, max(nics, 1) // boards)
    check_cables(settings, network)
    settings.check()
    nodes, cables = _copies(machine, count)
    places = [place for place, node in enumerate(nodes) if node.kind == "nic"]
    wired = network.wire(nodes, places, len(cables), _join(nic, trunk))
    parts = tuple(i % (nics // boards) if fabric.apart else 0 for i in range(nics))
    rule = EqualMachines(count, len(machine.nodes), len(machine.links) // 2, wired.rule, parts)
    title = f"{count} x {machine.title}, {nics} {nic} {noun(nics, 'port')} each, on {network.title}"
    everything = [*nodes, *wired.switches], [*cables, *wired.cables]
    return build(inline.text, title, inline.text, *everything, rule, switching)


def _nic_class(settings: InlineSettings, name: str, machine: Topology, nic: str) -> str:
    """The link class of the network: `nic`, else the class of all NICs of the machine."""
    ports = [n.network or DEFAULT_NIC for n in machine.nodes.values() if n.kind == "nic"]
    own = list(dict.fromkeys(ports))
    settings.faults.check(
        nic or len(own) <= 1,
        "nic",
        f"{name!r} has NICs for {' and for '.join(own)}; say which all are to be taken for",
    )
    settings.faults.check(own, "", f"{name!r} has no nic to link to the fabric")
    return nic or own[0] if own else DEFAULT_NIC


def _with_nics(settings: InlineSettings, machine: Topology) -> Topology:
    """The machine with as many of its NICs as `nics` says, those that are nearest to a GPU; of such
    as are as near every second, if that is half of them.
    """
    names = [node.name for node in machine.nodes.values() if node.kind == "nic"]
    count = settings.whole("nics", len(names), 1, len(names)) if names else 0
    if count == len(names):
        return machine
    near, kept = _links_to_gpus(machine), set[str]()
    for _, alike in sorted(grouped((near[name], name) for name in names).items()):
        more = min(count - len(kept), len(alike))
        kept |= {alike[i * len(alike) // more] for i in range(more)}
    gone = {*names} - kept
    return build(
        machine.name,
        machine.title,
        machine.source,
        [node for node in machine.nodes.values() if node.name not in gone],
        [link for link in machine.links[::2] if not gone & {link.source, link.target}],
        machine.router.rule,
        machine.router.switching,
    )


def _links_to_gpus(machine: Topology) -> dict[str, int]:
    """Links from the nearest GPU to each node, without NVLinks."""
    wires = ((link.source, link.target) for link in machine.links if not is_nvlink(link))
    beside = grouped(wires)
    reached = dict.fromkeys(machine.devices, 0)
    ends = [*reached]
    while ends:
        found = {other: reached[end] + 1 for end in ends for other in beside.get(end, ())}
        ends = [name for name in found if name not in reached]
        reached |= {name: found[name] for name in ends}
    return {name: reached.get(name, len(machine.nodes)) for name in machine.nodes}


def _copies(machine: Topology, count: int) -> tuple[list[Node], list[Cable]]:
    """The nodes and cables of `count` copies of a machine, named n0.gpu0 and so on."""
    nodes = [
        replace(node, name=f"n{i}.{node.name}", machine=str(i))
        for i in range(count)
        for node in machine.nodes.values()
    ]
    cables: list[Cable] = [
        replace(link, source=f"n{i}.{link.source}", target=f"n{i}.{link.target}")
        for i in range(count)
        for link in machine.links[::2]
    ]
    return nodes, cables


def _join(nic: str, trunk: float) -> Join:
    """Cables of a class; those between switches have the latency `trunk` of one more switch."""
    port = link_classes()[nic]
    between = replace(port, latency=trunk)
    return lambda a, b: (between if a.kind == "switch" else port).cable(a, b)


def _boards(box: Topology) -> int:
    """The number of parts of a machine that only NVLink joins, such as the trays of a rack.

    It is 1 unless each part has a CPU and equally many NICs, which come in order.
    """
    wires = ((link.source, link.target) for link in box.links if not is_nvlink(link))
    board = {name: i for i, names in enumerate(joined(box.nodes, wires)) for name in names}
    of_nics = [board[node.name] for node in box.nodes.values() if node.kind == "nic"]
    runs = [len(list(run)) for _, run in itertools.groupby(of_nics)]
    with_cpu = {board[host] for host in box.hosts}
    alike = len(set(runs)) == 1 and len(runs) == len(set(of_nics)) and with_cpu >= set(of_nics)
    return len(runs) if alike else 1


_COMMON = ("bandwidth", "latency", *KEYS)


@dataclass(frozen=True, slots=True)
class Generator:
    """A family of shapes: what makes one, how its size is written, the settings it has besides the
    figures, and what it does with equal paths.
    """

    shape: Callable[[InlineSettings], Shape]
    form: str
    keys: tuple[str, ...] = ()
    switching: Switching = DEFAULT


GENERATORS: dict[str, Generator] = {
    "dragonfly": Generator(
        partial(textbook, read=read_dragonfly), "dragonfly:N", (*DRAGONFLY_KEYS, "shuffle")
    ),
    "dragonfly_plus": Generator(dragonfly_plus, "dragonfly_plus:N", (*PLUS_KEYS, "shuffle")),
    "fat_tree": Generator(
        partial(textbook, read=read_tree, limit=WHOLE_LIMIT), "fat_tree:N", (*TREE_KEYS, "shuffle")
    ),
    "full": Generator(
        partial(
            linked,
            limit=FULL_LIMIT,
            words=", every pair linked",
            pairs=lambda count: itertools.combinations(range(count), 2),
        ),
        "full:N",
        ("host", "memory"),
    ),
    "ring": Generator(
        partial(linked, limit=DEVICES_LIMIT, words=" in a ring", pairs=neighbours), "ring:N"
    ),
    "switch": Generator(partial(textbook, read=read_switch), "switch:N", ("reduce",)),
    "torus": Generator(torus, "torus:AxB", ("shuffle",), Switching(FIRST)),
}


def is_shape(text: str) -> bool:
    """Whether a text is a textbook shape, `NAME:SIZE`, with a name that is known or like one."""
    inline = split_inline(text, ":")
    return inline is not None and bool(
        inline.name in GENERATORS or did_you_mean(inline.name, GENERATORS)
    )


def generate(
    inline: Inline, overrides: Mapping[str, str | int], limit: int = DEVICES_LIMIT
) -> Topology:
    """The topology of `NAME:SIZE,...`; overrides have the keys of the settings and win over them.

    `limit` is the most devices on one switch.
    """
    generator = GENERATORS[inline.name]
    settings = InlineSettings(inline, dict(inline.settings) | dict(overrides), limit)
    settings.faults.unknown("", settings.values, (*_COMMON, *generator.keys))
    switching = settings.switching(generator.switching)
    shape = generator.shape(settings)
    return build(
        inline.text,
        f"{shape.title}, {format_bandwidth(settings.bandwidth())}, "
        f"{format_duration(settings.latency())}",
        inline.text,
        shape.nodes,
        shape.cables,
        shape.rule,
        switching,
    )
