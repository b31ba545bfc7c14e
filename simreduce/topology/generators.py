"""Topologies written inline: `NAME:SIZE[,key=value...]` and `MACHINExN[,key=value...]`.

    ring:8      GPUs in a circle, each linked to its two neighbours
    full:8      a link for every pair of GPUs
    switch:64   every GPU on one switch

`bandwidth=` is per link (per port of a switch) and direction, 25 GB/s unless stated; `latency=` is from end to end of
two GPUs that are neighbours or share the switch, the alpha of the textbooks, 1 us unless stated. Memory is unlimited.
A host `cpu0` is linked to every GPU (to the switch) in the same way but passes nothing on, so that two GPUs of a ring
that are no neighbours have no route. All nodes count as one machine.

    dgx1vx4     four copies of a machine, each of its NICs linked to one switch; nodes are named n0.gpu0 and so on

`fabric=` is the shape of the network (only `switch` so far), `nic=` the link class of its cables, `ib_edr` unless
stated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simreduce.errors import TopologyError, did_you_mean
from simreduce.topology.classes import link_classes
from simreduce.topology.faults import Faults, cut, quoted
from simreduce.topology.graph import Cable, Node, Topology, build
from simreduce.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

DEFAULT_BANDWIDTH = 25e9
DEFAULT_LATENCY = 1e-6
DEFAULT_NIC = "ib_edr"
FABRICS = ("switch",)
# Ranks are kept in n x n tables by planners; `full` has n x n links as well.
DEVICES_LIMIT = 4096
_LIMITS = {"ring": DEVICES_LIMIT, "full": 512, "switch": DEVICES_LIMIT}


@dataclass(frozen=True, slots=True)
class Inline:
    """An inline topology, taken apart: the name before `:` or `x`, the size as typed, the settings."""

    text: str
    name: str
    size: str
    settings: Mapping[str, str]
    problems: tuple[str, ...]


def split_inline(text: str, separator: str) -> Inline | None:
    """The parts of `NAME:SIZE,...` (separator ":") or `MACHINExN,...` (separator "x"); None for another shape."""
    head, *fields = text.split(",")
    pattern = r"([^:]*):(.*)" if separator == ":" else r"(.+)x([0-9]+)"
    match = re.fullmatch(pattern, head.strip(), re.DOTALL)
    if match is None:
        return None
    settings: dict[str, str] = {}
    problems = []
    for field in fields:
        key, equals, value = (part.strip() for part in field.partition("="))
        if not (key and equals and value):
            problems.append(f"{cut(text)}: {quoted(field.strip())} must be key=value")
        elif key in settings:
            problems.append(f"{cut(text)}: {cut(key)} is given twice")
        else:
            settings[key] = value
    return Inline(text, match[1].strip(), match[2].strip(), settings, tuple(problems))


def _count(faults: Faults, text: str, limit: int, what: str) -> int:
    """A size from 1 to `limit`; 1 after a fault."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        faults.add("", f"{quoted(text)} is not a number of {what} from 1 to {limit}")
        return 1
    count = int(text)
    if count < 1:
        faults.add("", f"0 {what}; at least 1 is needed")
    elif count > limit:
        faults.add("", f"{count} {what} are more than the {limit} that can be simulated")
    return min(max(count, 1), limit)


def _settings(
    inline: Inline, overrides: Mapping[str, str | int], known: Iterable[str]
) -> dict[str, str | int]:
    return dict(inline.settings) | {key: value for key, value in overrides.items() if key in tuple(known)}


def generate(inline: Inline, overrides: Mapping[str, str | int]) -> Topology:
    """The topology of `NAME:SIZE,...`; overrides have the same keys as the settings and win over them."""
    faults = Faults(inline.text)
    faults.problems.extend(inline.problems)
    settings = dict(inline.settings) | dict(overrides)
    faults.unknown("", settings, ("bandwidth", "latency"))
    bandwidth: float | None = DEFAULT_BANDWIDTH
    latency: float | None = DEFAULT_LATENCY
    if "bandwidth" in settings:
        bandwidth = faults.bandwidth("bandwidth", settings["bandwidth"])
    if "latency" in settings:
        value = settings["latency"]
        # Nothing needs no unit.
        latency = 0.0 if value in ("0", 0) else faults.latency("latency", value)
    count = _count(faults, inline.size, _LIMITS[inline.name], "devices")
    faults.raise_any()
    assert bandwidth is not None  # noqa: S101 - a missing one is a fault, raised above
    assert latency is not None  # noqa: S101 - likewise
    title, nodes, cables = GENERATORS[inline.name](count, bandwidth, latency)
    title += f", {format_bandwidth(bandwidth)}, {format_duration(latency)}"
    return build(inline.text, title, inline.text, nodes, cables)


Parts = tuple[str, list[Node], list[Cable]]


def _ends(count: int) -> tuple[list[Node], Node]:
    return [Node(f"gpu{i}", "gpu", transit=False) for i in range(count)], Node("cpu0", "cpu", transit=False)


def _cable(a: Node, b: Node, bandwidth: float, latency: float) -> Cable:
    # Textbook links are networks: a sender is free once its message is on the wire.
    return Cable(a.name, b.name, "cable", 1, bandwidth, bandwidth, latency, holds_lane=False)


def _ring(count: int, bandwidth: float, latency: float) -> Parts:
    gpus, cpu = _ends(count)
    steps = {1: 0, 2: 1}.get(count, count)
    cables = [_cable(gpus[i], gpus[(i + 1) % count], bandwidth, latency) for i in range(steps)]
    cables += [_cable(gpu, cpu, bandwidth, latency) for gpu in gpus]
    return f"{count} devices in a ring", [*gpus, cpu], cables


def _full(count: int, bandwidth: float, latency: float) -> Parts:
    gpus, cpu = _ends(count)
    cables = [_cable(a, b, bandwidth, latency) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    cables += [_cable(gpu, cpu, bandwidth, latency) for gpu in gpus]
    return f"{count} devices, every pair linked", [*gpus, cpu], cables


def _switch(count: int, bandwidth: float, latency: float) -> Parts:
    gpus, cpu = _ends(count)
    switch = Node("switch0", "switch", machine="")
    cables = [_cable(node, switch, bandwidth, latency / 2) for node in (*gpus, cpu)]
    return f"{count} devices on one switch", [*gpus, cpu, switch], cables


GENERATORS: dict[str, Callable[[int, float, float], Parts]] = {
    "full": _full,
    "ring": _ring,
    "switch": _switch,
}


def machines(
    inline: Inline,
    overrides: Mapping[str, str | int],
    load: Callable[[str, Mapping[str, str | int]], Topology],
) -> Topology:
    """The topology of `MACHINExN,...`; `load` reads the machine, and gets the overrides that are not settings."""
    faults = Faults(inline.text)
    faults.problems.extend(inline.problems)
    keys = ("fabric", "nic")
    faults.unknown("", inline.settings, keys)
    settings = dict(inline.settings) | {key: value for key, value in overrides.items() if key in keys}
    fabric, nic = settings.get("fabric", "switch"), settings.get("nic", DEFAULT_NIC)
    if fabric not in FABRICS:
        faults.add("fabric", f"unknown fabric {quoted(fabric)}; known are {', '.join(FABRICS)}")
    networks = [name for name, known in link_classes().items() if not known.holds_lane]
    if nic not in networks:
        near = did_you_mean(str(nic), networks) or f"; known are {', '.join(networks)}"
        faults.add("nic", f"unknown class of network link {quoted(nic)}{near}")
    count = _count(faults, inline.size, DEVICES_LIMIT, "machines")
    try:
        box = load(inline.name, {key: value for key, value in overrides.items() if key not in keys})
    except TopologyError as error:
        raise TopologyError([*faults.problems, *error.problems]) from None
    nics = [node.name for node in box.nodes.values() if node.kind == "nic"]
    if not nics:
        faults.add("", f"{inline.name!r} has no nic to link to the fabric")
    if len({node.machine for node in box.nodes.values()} - {""}) > 1:
        faults.add("", f"{inline.name!r} is made of several machines already")
    if count * len(box.devices) > DEVICES_LIMIT:
        faults.add(
            "", f"{count * len(box.devices)} devices are more than the {DEVICES_LIMIT} that can be simulated"
        )
    faults.raise_any()
    return _replicate(inline.text, box, count, nics, str(nic))


def _replicate(text: str, box: Topology, count: int, nics: list[str], nic: str) -> Topology:
    figures = link_classes()[nic]
    switch = Node("switch0", "switch", machine="")
    nodes = [
        replace(node, name=f"n{i}.{node.name}", machine=str(i))
        for i in range(count)
        for node in box.nodes.values()
    ]
    cables = [
        Cable(
            f"n{i}.{link.source}",
            f"n{i}.{link.target}",
            link.link_class,
            link.lanes,
            link.nominal,
            link.bandwidth,
            link.latency,
            link.holds_lane,
        )
        for i in range(count)
        for link in box.links[::2]
    ]
    cables += [
        Cable(
            f"n{i}.{port}",
            switch.name,
            nic,
            1,
            figures.bandwidth,
            figures.achievable,
            figures.latency,
            figures.holds_lane,
        )
        for i in range(count)
        for port in nics
    ]
    title = f"{count} x {box.title}, {len(nics)} {nic} ports each, on one switch"
    return build(text, title, text, [*nodes, switch], cables)
