"""Nodes, links and cables, which machines are made of, with the shipped classes of links."""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, TypeVar

from simreduce import units
from simreduce.computing import breadth_first
from simreduce.errors import quote

T = TypeVar("T")

NodeKind = Literal["gpu", "cpu", "pcie_switch", "nvswitch", "nic", "switch"]
KINDS: tuple[NodeKind, ...] = ("gpu", "cpu", "pcie_switch", "nvswitch", "nic", "switch")

OFF = "off"
"""No direct copies, not even over NVLink."""
REACHES = (OFF, "NV", "PIX", "PXB", "PHB", "SYS")
"""Values of `Node.peer`, nearest first: nothing, NVLink only, below one PCIe switch, below PCIe
switches, one socket, the whole machine.
"""
NIC_REACHES = (OFF, "PIX", "PXB", "P2C", "PHB", "SYS")
"""Values of `Node.gpudirect`. P2C is C2C followed by PCIe; no NVLink leads to a NIC."""
DEFAULT_REACH = "SYS"
DEFAULT_NIC_REACH = "P2C"
"""NCCL's default too (NCCL_NET_GDR_LEVEL): below one tree of PCIe switches (PXB), or where C2C
joins the GPU to the NIC's host, as on Grace (NCCL_NET_GDR_C2C).
"""

CABLE = "cable"
"""The class of links of no product: textbooks' networks, and edges of graphs without a class."""
DEFAULT_BANDWIDTH = 25e9
"""Bytes/s of such a link, unless stated."""
DEFAULT_LATENCY = 1e-6
"""Seconds, likewise."""
ROUTE = "route"
"""The class of a toll on every copy between its two ends."""
STAGED = "staged"
"""Prefix of the classes of tolls on copies through a host."""
TCP = "tcp_"
"""Prefix of the classes of networks that send and receive in the memory of hosts only, whatever
`gpudirect` says.
"""
BOTH_WAYS = " both ways"
"""Suffix of the class of the toll that copies out of a GPU and into it share."""


@dataclass(frozen=True, slots=True)
class Node:
    """A device or a switch.

    `memory_bandwidth` is in bytes/s, infinite when unstated. `machine` names the machine that holds
    the node, "" for a switch of the fabric. `transit` says whether other nodes' traffic may pass
    through; a GPU never lets it. `reduces` says whether a switch can sum what passes through.
    `peer` is the farthest path over which a GPU copies to others of its machine directly, one of
    `REACHES`; `gpudirect` is the farthest path to a NIC that accesses its memory, one of
    `NIC_REACHES`. `network` is the class of link that a NIC has a port for, "" when unstated: it
    matters only when the machine joins a network. `memory` is a GPU's in bytes, 0 when unstated; no
    time depends on it. The digest leaves out both.
    """

    name: str
    kind: NodeKind
    model: str = ""
    memory_bandwidth: float = math.inf
    machine: str = "0"
    transit: bool = True
    reduces: bool = False
    peer: str = DEFAULT_REACH
    gpudirect: str = DEFAULT_NIC_REACH
    network: str = ""
    memory: int = 0

    @property
    def forwards(self) -> bool:
        """Whether traffic between other nodes may pass through."""
        return self.transit and self.kind != "gpu"


@dataclass(frozen=True, slots=True)
class Cable:
    """Both directions of a link, before it has a place in a topology.

    Rates are in bytes/s over all lanes: `nominal` is that of the wire, `bandwidth` what a large
    copy reaches. `latency` is in seconds. `holds_lane` says whether a transfer keeps its sender's
    queue busy for the latency.
    """

    source: str
    target: str
    link_class: str
    lanes: int
    nominal: float
    bandwidth: float
    latency: float
    holds_lane: bool


@dataclass(frozen=True, slots=True)
class Link(Cable):
    """One direction of a cable in a topology; the other direction is a link of its own.

    `parallel` counts the links of other classes between the same two nodes that come before this
    one. `built` is the bandwidth that the link was built with, where it has another now.
    """

    id: int
    parallel: int = 0
    built: float | None = None

    @property
    def width(self) -> float:
        """Bytes/s by which routes are chosen: a network does not see that a link is slow."""
        return self.bandwidth if self.built is None else self.built

    @property
    def left(self) -> float:
        """The part of its width that the link has left."""
        return self.bandwidth / self.width

    @property
    def name(self) -> str:
        """`gpu0>gpu1`, with `#1` at the end for a second link between the two, and so on.

        Of the two links of a node to itself, `gpu0>gpu0` is out of it and `gpu0<gpu0` into it.
        """
        arrow = "<" if self.source == self.target and self.id % 2 else ">"
        return f"{self.source}{arrow}{self.target}" + (f"#{self.parallel}" if self.parallel else "")

    @property
    def is_toll(self) -> bool:
        """Whether this is a toll: a rate and a latency that certain copies pay besides their wires.

        No route is searched over it. Tolls are the links of a node to itself and the links of class
        `route`.
        """
        return self.source == self.target or self.link_class == ROUTE


DIRECTIONS = ("d2h", "h2d")
"""Directions of links between GPUs and their host, as CUDA names them."""

_HEIGHT = {"gpu": 0, "pcie_switch": 1, "cpu": 2}
"""From a GPU up to its host, by kind of node."""


def direction(source: Node, target: Node) -> str:
    """The direction of a link: `d2h` from GPUs to their host, `h2d` back, "" elsewhere."""
    a, b = (_HEIGHT.get(node.kind, -1) for node in (source, target))
    return "" if a == b or min(a, b) < 0 else DIRECTIONS[a > b]


MOST_NAMES = 4096
"""Upper limit of the names of a range."""

_RANGE = re.compile(
    r"(?P<head>[^\[\]]*)\[(?P<first>[0-9]{1,18})-(?P<last>[0-9]{1,18})(:(?P<step>[0-9]{1,"
    r"18}))?\](?P<tail>[^\[\]]*)"
)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts gpu2 before gpu10; distinct names have distinct keys."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return (*((int(p), "") if p[0] in "0123456789" else (-1, p) for p in parts), (-2, name))


def expand_range(text: str) -> list[str]:
    """Return the names in `gpu[0-7]` or `cpu[0-34:2]` (every second).

    A text without brackets is one name. Raises `ValueError` when the brackets hold anything else,
    or too many names.
    """
    if "[" not in text and "]" not in text:
        return [text]
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"{quote(text)}: a range is written like gpu[0-7] or cpu[0-34:2]")
    first, last, step = int(match["first"]), int(match["last"]), int(match["step"] or 1)
    if last < first or step < 1:
        raise ValueError(
            f"{quote(text)} stands for no names: a range goes from the lower number to the higher"
        )
    numbers = range(first, last + 1, step)
    if len(numbers) > MOST_NAMES:
        raise ValueError(
            f"{quote(text)} stands for {len(numbers)} names, and a range for {MOST_NAMES} at most"
        )
    return [f"{match['head']}{number}{match['tail']}" for number in numbers]


def pair_names(ends: list[str], others: list[str]) -> list[tuple[str, str]]:
    """Pairs of the names of two ranges: each of the longer with its share of the shorter, in
    blocks.

    gpu[0-7] and plx[0-3] pair gpu0 and gpu1 with plx0, gpu2 and gpu3 with plx1, and so on; one name
    pairs with all. Raises `ValueError` unless one length divides the other.
    """
    longer = max(len(ends), len(others))
    if longer % len(ends) or longer % len(others):
        raise ValueError(
            f"{len(ends)} and {len(others)} names do not pair: one must be a multiple of the other"
        )
    share, other_share = longer // len(ends), longer // len(others)
    return [(ends[i // share], others[i // other_share]) for i in range(longer)]


_PLACES = re.compile(r"(?P<head>[^\[\],]*)(\[(?P<numbers>[0-9,-]+)\](?P<tail>[^\[\],]*))?(?:,|$)")


def expand_hosts(text: str) -> list[str]:
    """The names in a host list as Slurm writes it, `n[0-3,07],login`, in the order given.

    Leading zeros stay. Raises `ValueError` for other brackets, empty names, and too many names.
    """
    found: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _PLACES.match(text, at)
        if match is None or not match[0].rstrip(",").strip():
            raise ValueError(f"{quote(text)}: hosts are written like n[0-3,7],n12")
        at = match.end()
        head, numbers, tail = match["head"].strip(), match["numbers"], match["tail"] or ""
        for part in numbers.split(",") if numbers else ():
            first, dash, last = part.partition("-")
            ends = (first, last) if dash else (first, first)
            if not all(end.isdecimal() and len(end) < 10 for end in ends):
                raise ValueError(f"{quote(text)}: {quote(part)} is no number or range")
            low, high = map(int, ends)
            if not 0 <= high - low < MOST_NAMES - len(found):
                raise ValueError(f"{quote(text)}: {part} stands for no names, or for too many")
            found += [f"{head}{n:0{len(first)}}{tail}" for n in range(low, high + 1)]
        if not numbers:
            found.append(head)
    return found


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Figures per lane and direction: bytes/s on the wire and reached by a large copy, and seconds
    one way.

    `both_ways` is what copies out of a device and into it reach together, infinite when unstated:
    only for classes of self-links, which copies through the host take at each end.
    """

    name: str
    bandwidth: float
    achievable: float
    latency: float
    holds_lane: bool
    source: str
    both_ways: float = math.inf

    def cable(self, a: Node, b: Node, lanes: int = 1) -> Cable:
        """A cable of this class."""
        # A staged copy waits at its two ends, not in between.
        latency = 0.0 if a == b and a.kind != "gpu" else self.latency
        return Cable(
            a.name, b.name, self.name, lanes, self.bandwidth * lanes, self.achievable * lanes,
            latency, self.holds_lane,
        )  # fmt: skip

    def tolls(self, node: Node, lanes: int = 1) -> list[Cable]:
        """The tolls of copies at a node: of each direction, and of both together if they share."""
        tolls = [self.cable(node, node, lanes)]
        if math.isfinite(self.both_ways):
            both, name = self.both_ways * lanes, self.name + BOTH_WAYS
            tolls.append(
                replace(tolls[0], link_class=name, nominal=both, bandwidth=both, latency=0.0)
            )
        return tolls


def networks() -> tuple[str, ...]:
    """The classes of links between machines."""
    return tuple(name for name, figures in link_classes().items() if not figures.holds_lane)


@functools.cache
def link_classes() -> Mapping[str, LinkClass]:
    """Every shipped class by name, in the order of `link_classes.toml`."""
    text = (files("simreduce.topology") / "link_classes.toml").read_text(encoding="utf-8")
    return MappingProxyType(
        {
            name: LinkClass(
                name=name,
                bandwidth=units.bandwidth(figures["bandwidth"]),
                achievable=units.bandwidth(figures.get("achievable", figures["bandwidth"])),
                latency=units.duration(figures["latency"]),
                holds_lane=figures["holds_lane"],
                source=figures["source"],
                both_ways=units.bandwidth(figures["both_ways"])
                if "both_ways" in figures
                else math.inf,
            )
            for name, figures in tomllib.loads(text).items()
        }
    )


def joined(names: Iterable[T], pairs: Iterable[Iterable[T]]) -> list[set[T]]:
    """The connected parts of `names` and of what the pairs name, in the order of their firsts."""
    # Not networkx's: it takes long to load, and most machines do without.
    near: dict[T, list[T]] = {name: [] for name in names}
    for a, b in pairs:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    parts: list[set[T]] = []
    seen: set[T] = set()
    for name in near:
        if name not in seen:
            parts.append({*breadth_first(name, near.__getitem__)})
            seen |= parts[-1]
    return parts
