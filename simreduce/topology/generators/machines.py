"""`dgx1vx4,fabric=fat_tree,nic=ib_hdr`: copies of a machine on a network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simreduce.errors import TopologyError, did_you_mean
from simreduce.topology.classes import link_classes
from simreduce.topology.faults import quoted
from simreduce.topology.generators.fat_tree import read_tree
from simreduce.topology.generators.inline import DEVICES_LIMIT, Inline, Settings
from simreduce.topology.graph import Cable, Node, Topology, build
from simreduce.topology.ways import Copies, FatTreeWays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simreduce.topology.ways import Ways

DEFAULT_NIC = "ib_edr"
FABRICS = {"switch": (), "fat_tree": ("radix", "oversubscription", "reduce")}
"""The shapes of the network, each with the settings it has."""


def machines(
    inline: Inline,
    overrides: Mapping[str, str | int],
    load: Callable[[str, Mapping[str, str | int]], Topology],
    limit: int = DEVICES_LIMIT,
) -> Topology:
    """The topology of `MACHINExN,...`; `load` reads the machine, and gets the overrides that are not settings. `limit` is
    that of devices on one switch.
    """
    known = ("fabric", "nic", *(key for keys in FABRICS.values() for key in keys))
    mine = {key: value for key, value in overrides.items() if key in known}
    settings = Settings(inline, dict(inline.settings) | mine, limit)
    faults = settings.faults
    fabric, nic = settings.values.get("fabric", "switch"), settings.values.get("nic", DEFAULT_NIC)
    settings.unknown(("fabric", "nic", *FABRICS.get(str(fabric), known)))
    if fabric not in FABRICS:
        near = did_you_mean(str(fabric), FABRICS) or f"; known are {', '.join(FABRICS)}"
        faults.add("fabric", f"unknown fabric {quoted(fabric)}{near}")
    networks = [name for name, known_class in link_classes().items() if not known_class.holds_lane]
    if nic not in networks:
        near = did_you_mean(str(nic), networks) or f"; known are {', '.join(networks)}"
        faults.add("nic", f"unknown class of network link {quoted(nic)}{near}")
    most = settings.limit if fabric == "switch" else DEVICES_LIMIT
    count = settings.size(most, "machines")
    try:
        box = load(inline.name, {key: value for key, value in overrides.items() if key not in known})
    except TopologyError as error:
        raise TopologyError([*faults.problems, *error.problems]) from None
    nics = [node.name for node in box.nodes.values() if node.kind == "nic"]
    if not nics:
        faults.add("", f"{inline.name!r} has no nic to link to the fabric")
    if len({node.machine for node in box.nodes.values()} - {""}) > 1:
        faults.add("", f"{inline.name!r} is made of several machines already")
    if count * len(box.devices) > most:
        faults.add("", f"{count * len(box.devices)} devices are more than the {most} that can be simulated")
    tree = read_tree(settings, max(count * len(nics), 1)) if fabric == "fat_tree" else None
    settings.check()

    nodes = [
        replace(node, name=f"n{i}.{node.name}", machine=str(i))
        for i in range(count)
        for node in box.nodes.values()
    ]
    cables = [_copied(box, i, link) for i in range(count) for link in range(0, len(box.links), 2)]
    title = f"{count} x {box.title}, {len(nics)} {nic} ports each, on "
    ports = [place for place, node in enumerate(nodes) if node.kind == "nic"]
    ways: Ways | Copies | None = None
    if tree is None:
        nodes.append(Node("switch0", "switch", machine=""))
        cables += [_network(str(nic), nodes[port], nodes[-1]) for port in ports]
        title += "one switch"
        hub = FatTreeWays(tuple(ports), len(ports), 1, 0, len(cables) - len(ports))
        ways = Copies(count, len(box.nodes), len(box.links) // 2, hub, (0,) * len(nics))
    else:
        switches, fabric_cables, ways = tree.wire(
            nodes, ports, len(cables), lambda a, b: _network(str(nic), a, b)
        )
        nodes += switches
        ways = Copies(count, len(box.nodes), len(box.links) // 2, ways, (0,) * len(nics))
        cables += fabric_cables
        title += f"a fat tree, {tree.title}"
    return build(inline.text, title, inline.text, nodes, cables, ways)


def _copied(box: Topology, machine: int, link: int) -> Cable:
    """The cable of machine `machine` that is `link` in the one it is a copy of."""
    one = box.links[link]
    return Cable(
        f"n{machine}.{one.source}", f"n{machine}.{one.target}", one.link_class, one.lanes,
        one.nominal, one.bandwidth, one.latency, one.holds_lane,
    )  # fmt: skip


def _network(nic: str, a: Node, b: Node) -> Cable:
    figures = link_classes()[nic]
    return Cable(
        a.name, b.name, nic, 1, figures.bandwidth, figures.achievable, figures.latency, figures.holds_lane
    )
