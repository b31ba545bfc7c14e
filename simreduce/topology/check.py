"""Everything that is wrong, or cannot well be meant, in a machine that somebody wrote down."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from simreduce.computing import group_by, grouped
from simreduce.errors import TopologyError
from simreduce.files import exists, read_text
from simreduce.files.launchers import without_marks
from simreduce.topology.elements import (
    DEFAULT_NIC_REACH,
    DEFAULT_REACH,
    OFF,
    STAGED,
    Link,
    expand_range,
    joined,
    link_classes,
    natural,
)
from simreduce.topology.graph import Topology
from simreduce.topology.importers import nccl_log
from simreduce.topology.importers.nccl_xml import read_nccl_graphs, read_nccl_topology
from simreduce.topology.importers.parts import model_in, without_nvlinks
from simreduce.topology.importers.rocm_smi import table_reader
from simreduce.topology.importers.topo_m import CONTRADICTION
from simreduce.topology.loader import find, is_cluster, load_topology
from simreduce.topology.machine import UNREAD, read_machine
from simreduce.topology.machine_files import MergedFile, is_path, read_document
from simreduce.topology.routing import HOST_XGMI, is_nvlink, links_name
from simreduce.units import and_more, format_bandwidth, format_duration

# Between these lie the links and memories of all machines there are, by an order of magnitude on
# either side.
WIRE_LIMITS = (1e7, 2e13)
MEMORY_LIMITS = (1e9, 1e14)
LATENCY_LIMIT = 1e-3
UNLIKE_CLASS = 3.0
"""A rate this many times its class's, or this part of it, is probably a slip of the unit."""
LEAST_ACHIEVABLE = 0.1
_MOST_GPUS, _FEW_GPUS = 1024, 128
"""Upper limits of GPUs for trying ways, and for trying the ways between every two of them.

Ways to a CPU are tried from this many GPUs. If there are more, no ways between them are tried; if
there are more than the second number, only one GPU's ways.
"""
_FEW_ENDS = 64
"""Most GPUs, NICs and CPUs of a machine for trying the ways between every two of them."""


class Suspicion(str):
    """A line of `check_file` about a machine that may be as it was meant."""

    __slots__ = ()


def check_file(path: str) -> list[str]:
    """The faults of a file, each with its place and what to do: a machine file, NCCL's XML or the
    graph in its log, or the tables of `nvidia-smi topo -m`, rocm-smi and amd-smi.

    `path` may also be what other commands take for a machine: a shipped name, or one written
    inline.
    """
    try:
        place = (Path(path), path) if is_path(path) or exists(path) else find(path)
        document = read_document(*place) if place and place[1].endswith(".toml") else None
        if place is None or (document and is_cluster(document.tables)):
            return [*find_faults(load_topology(path), lambda _: path)]
        if document:
            machine, first = read_machine(document, path, document.shown)
            # What is missing may be what could not be read.
            return [
                *first,
                *find_faults(
                    machine, _locate(document), _names_in_pairs(document) if first else None
                ),
            ]
        text = read_text(Path(path), TopologyError)
        if not text.strip():
            return [f"{path}: is empty"]
        if nccl_log.SYSTEM.search(text):
            text = nccl_log.to_xml(text, path)
        elif not (text.lstrip().startswith("<") or table_reader(text)):
            text = without_marks(text)
        if text.lstrip().startswith("<"):
            if "<graphs" in text:
                read_nccl_graphs(text, path)
                return []
            machine, _ = read_nccl_topology(text, path)
            first = [Suspicion(f"{path}: {doubt}") for doubt in _check_model(machine)]
        elif read := table_reader(text):
            machine, notes = read(text, path)
            first = [f"{path}: {note}" for note in notes if note.startswith(CONTRADICTION)]
        else:
            return [
                (
                    f"{path}: neither a machine file (.toml), nor NCCL's or RCCL's XML, nor the "
                    "tables of `nvidia-smi topo -m`, `rocm-smi --showtopo` or `amd-smi topology`, "
                    "nor NCCL's graph in its log"
                )
            ]
    except TopologyError as error:
        return list(error.problems)
    return [*first, *find_faults(machine, lambda _: path)]


def _check_model(machine: Topology) -> Iterator[str]:
    """The suspicion about a file without NVLinks whose GPUs have some, as the files of clouds."""
    if any(is_nvlink(link) for link in machine.links):
        return
    for gpu in machine.devices:
        known = model_in(machine.nodes[gpu].model)
        if known and known.nvlinks:
            yield (
                f"no {links_name(known.nvlink)}, but {gpu!r} is of model {known.name}, which has "
                f"{known.nvlinks}; without "
                "them its copies take PCIe: `simreduce topo import --nvlink` adds them"
            )
            return


def find_faults(
    machine: Topology, place: Callable[[str], str], named: Container[str] | None = None
) -> Iterator[str]:
    """Yield what is probably a mistake in a topology.

    `place` names where a node or a link class is written. For a topology that could not be read
    whole, `named` are the nodes that its pairs name, and no ways are tried.
    """
    yield from _check_memories(machine, place)
    yield from _check_links(machine, place)
    yield from _check_orders(machine, place)
    linked = {name for link in machine.wires for name in (link.source, link.target)}
    yield from _check_unlinked(machine, place, linked if named is None else named)
    if named is None:
        yield from _check_islands(machine, place)
        yield from _check_lanes(machine, place)
        yield from _check_routes(machine, place)
        yield from _check_unused(machine, place)


def _locate(document: MergedFile) -> Callable[[str], str]:
    """Return a function that names the place of a node's group or a class's table."""
    paths: dict[str, str] = {}
    for group, fields in _groups(document, "nodes"):
        names = fields.get("names")
        for name in names if isinstance(names, list) else ():
            with contextlib.suppress(ValueError, TypeError):  # no names; a fault already
                paths |= dict.fromkeys(expand_range(name), f"nodes.{group}")
    for group, fields in _groups(document, "links"):
        paths.setdefault(str(fields.get("class", group)), f"links.{group}")

    def place(what: str) -> str:
        path = paths.get(what, "")
        return f"{document.origin.get(path, document.shown)}: {path}" if path else document.shown

    return place


def _groups(document: MergedFile, section: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables of a section of a file that may be wrong in any way."""
    tables = document.tables.get(section)
    return (
        [(key, value) for key, value in tables.items() if isinstance(value, dict)]
        if isinstance(tables, dict)
        else []
    )


def _names_in_pairs(document: MergedFile) -> set[str]:
    """The names in all pairs, whatever else is wrong with these."""
    found: set[str] = set()
    for _, fields in _groups(document, "links"):
        pairs = fields.get("pairs")
        for pair in pairs if isinstance(pairs, list) else ():
            for name in pair if isinstance(pair, list) else ():
                with contextlib.suppress(ValueError, TypeError):
                    found.update(expand_range(name))
    return found


def _check_unlinked(
    machine: Topology, place: Callable[[str], str], linked: Container[str]
) -> Iterator[str]:
    for node in machine.nodes.values():
        if node.name not in linked and len(machine.nodes) > 1:
            yield (
                f"{place(node.name)}: {node.kind} {node.name!r} has no link; join it to "
                "something, or remove it"
            )


def _check_islands(machine: Topology, place: Callable[[str], str]) -> Iterator[str]:
    """Components that only GPUs join to the rest: CPUs of one machine, and nodes
    linked to no CPU and no GPU. GPUs forward nothing.

    C2C makes one chip of a CPU and a GPU, so that NVLink joins CPUs too.
    """
    pairs: list[list[str]] = []
    chips = {link.source for link in machine.links if link.link_class.startswith("c2c")}
    on_gpus: set[str] = set()
    for link in machine.wires:
        ends = [
            name
            for name in (link.source, link.target)
            if name in chips or machine.nodes[name].kind != "gpu"
        ]
        pairs.append([ends[0], ends[-1]] if ends else [])
        on_gpus.update(ends if len(ends) == 1 else ())
    hosts: dict[str, str] = {}
    for part in joined((), filter(None, pairs)):
        names = sorted(part, key=natural)
        mine = {
            machine.nodes[name].machine: name for name in names if machine.nodes[name].kind == "cpu"
        }
        for box, cpu in mine.items():
            if hosts.setdefault(box, cpu) != cpu:
                yield (
                    f"{place(cpu)}: cpu {cpu!r} and {hosts[box]!r} are not joined; add the "
                    "link between the sockets"
                )
        if not mine and not part & (on_gpus | chips):
            yield (
                f"{place(names[0])}: {names[0]!r}{and_more(names)} is joined to no CPU and "
                "no GPU; link it to one, or remove it"
            )


def _check_memories(machine: Topology, place: Callable[[str], str]) -> Iterator[str]:
    memories = {
        (place(n.name), n.memory_bandwidth): n.name for n in reversed(list(machine.nodes.values()))
    }
    for (where, rate), name in reversed(memories.items()):
        if math.isfinite(rate) and not MEMORY_LIMITS[0] <= rate <= MEMORY_LIMITS[1]:
            yield (
                f"{where}: {name!r} has a memory of {format_bandwidth(rate)}; "
                "is the unit right? 900 GB/s is that of a V100"
            )


def _check_links(machine: Topology, place: Callable[[str], str]) -> Iterator[str]:
    """One fault for all links of a class that have the same figures."""
    first: dict[object, Link] = {}
    for link in machine.links:
        rates = link.nominal / link.lanes, link.bandwidth / link.lanes
        first.setdefault((link.link_class, rates, link.latency), link)
    for link in first.values():
        for text in _check_figures(link):
            yield f"{place(link.link_class)}: {link.source} - {link.target}: {text}"


def _check_orders(machine: Topology, place: Callable[[str], str]) -> Iterator[str]:
    """Two classes that join the same two nodes, once in one order and once in the other: meant as
    one direction each?
    """
    first: dict[frozenset[str], Link] = {}
    for link in machine.wires[::2]:
        other = first.setdefault(frozenset((link.source, link.target)), link)
        if (other.source, other.target) == (link.target, link.source):
            yield (
                f"{place(link.link_class)}: {link.source} - {link.target} are joined by "
                f"{other.link_class} in the other order "
                "too; every link goes both ways, so these are two links: write both in one "
                "order if that is meant"
            )


def _check_figures(link: Link) -> Iterator[str]:
    nominal, bandwidth = link.nominal / link.lanes, link.bandwidth / link.lanes
    known = link_classes().get(link.link_class)
    usual = known.bandwidth if known else nominal
    of_a_wire = WIRE_LIMITS[0] <= nominal <= WIRE_LIMITS[1]
    rules = (
        (nominal != UNREAD and not of_a_wire,  # that is a fault already
         (f"{format_bandwidth(nominal)} per lane and direction is no rate of a wire; is "
          "the unit right?")),
        (of_a_wire and not 1 / UNLIKE_CLASS <= nominal / usual <= UNLIKE_CLASS,
         (f"{format_bandwidth(nominal)} per lane, but {link.link_class} has "
          f"{format_bandwidth(usual)}; give the rate of one lane and direction, or another class")),
        (UNREAD not in (nominal, bandwidth) and bandwidth < LEAST_ACHIEVABLE * nominal,
         (f"achievable {format_bandwidth(bandwidth)} is less than a tenth of nominal "
          f"{format_bandwidth(nominal)}")),
        (link.latency > LATENCY_LIMIT,
         (f"a latency of {format_duration(link.latency)}; is the unit right? 1.8 us is "
          "that of an NVLink")),
    )  # fmt: skip
    return (words for doubtful, words in rules if doubtful)


def _check_lanes(machine: Topology, place: Callable[[str], str]) -> Iterator[str]:
    """GPUs of one model that do not have the same number of NVLinks, or more than the model has.

    Of dies that spend some of their xGMI ports on their host and a NIC, some have fewer. Bridges
    join pairs of GPUs in PCIe slots, and others may be bare.
    """
    links = grouped((link.source, link) for link in machine.links if is_nvlink(link))
    lanes = {gpu: sum(link.lanes for link in links.get(gpu, ())) for gpu in machine.devices}
    uneven = {link.source for link in machine.links if link.link_class == HOST_XGMI}
    word = links_name(next((some[0].link_class for some in links.values()), "nvlink"))
    bridged = all(
        len({link.target for link in links[gpu]}) == 1 and links[gpu][0].target in lanes
        for gpu in lanes
        if gpu in links
    )
    by_model = group_by(machine.devices, lambda name: machine.nodes[name].model)
    for model, names in by_model.items():
        linked = [name for name in names if lanes[name] or not bridged] or names
        usual = statistics.mode(lanes[name] for name in linked)
        for name in linked:
            if lanes[name] != usual and name not in uneven:
                yield (
                    f"{place(name)}: {name!r} has {lanes[name]} {word}, most GPUs like it "
                    f"{usual}; "
                    "add what is missing, or give it a model of its own"
                )
        known, most = model_in(model), max(lanes[name] for name in names)
        if known and 0 < known.nvlinks < most:
            yield f"{place(names[0])}: {most} {word}, but a {known.name} has {known.nvlinks}"
        if known and not known.nvlink and most:
            yield Suspicion(f"{place(names[0])}: {without_nvlinks(known, most)}")


def _check_routes(machine: Topology, place: Callable[[str], str]) -> Iterator[str]:
    """GPUs that cannot reach each other or a host, and staged copies that cost nothing."""
    gpus = machine.devices
    for gpu in gpus[:_MOST_GPUS] if machine.hosts else ():
        if not any(machine.router.find_path(gpu, host) for host in machine.hosts):
            yield f"{place(gpu)}: {gpu!r} reaches no CPU; link it to one, or to a PCIe switch"
    if len(gpus) > _MOST_GPUS:
        return
    pairs = (
        itertools.combinations(gpus, 2)
        if len(gpus) <= _FEW_GPUS
        else ((gpus[0], b) for b in gpus[1:])
    )
    without = [pair for pair in pairs if not machine.router.find_path(*pair)]
    if without:
        a, b = without[0]
        yield (
            f"{place(a)}: {a!r} does not reach {b!r}{and_more(without, ' pairs')}: "
            "GPUs do not forward traffic; link them, or both to a switch or a CPU"
        )
    figures = {link.source for link in machine.links if link.link_class.startswith(STAGED)}
    for free in (_free_staged_copies(machine, figures), _free_network_copies(machine, figures)):
        for a, b in itertools.islice(free, 1):
            yield (
                f"{place(a)}: {a!r} and {b!r} copy through the host, but {a!r} has no link "
                "to itself "
                f"of a class that begins with {STAGED!r}, so that this costs nothing"
            )


def _check_unused(machine: Topology, place: Callable[[str], str]) -> Iterator[str]:
    """Links inside a machine that are on no route between its GPUs, NICs and CPUs: a suspicion for
    each class of them.
    """
    ends = (node for node in machine.nodes.values() if node.kind in ("gpu", "nic", "cpu"))
    boxes = group_by((node for node in ends if node.machine), lambda node: node.machine)
    used: set[int] = set()
    for nodes in boxes.values():
        if len(nodes) > _FEW_ENDS:
            return
        for a, b in itertools.permutations(nodes, 2):
            with contextlib.suppress(TopologyError):
                used.update(machine.router.route(a.name, b.name).links)
    unused = [
        link
        for link in machine.wires[::2]
        if machine.nodes[link.source].machine == machine.nodes[link.target].machine != ""
        and not used & {link.id, link.id + 1}
    ]
    for name, links in group_by(unused, lambda link: link.link_class).items():
        joins = machine.nodes[links[0].source], machine.nodes[links[0].target]
        off = is_nvlink(links[0]) and OFF in (n.peer for n in joins if n.kind == "gpu")
        why = f'; peer = "{OFF}" refuses NVLinks too, and peer = "NV" lets copies take them' * off
        yield Suspicion(
            f"{place(name)}: no copy takes {name} x{links[0].lanes} from {links[0].source!r} to "
            f"{links[0].target!r}{and_more(links)}{why}"
        )


def _free_staged_copies(machine: Topology, figures: Container[str]) -> Iterator[tuple[str, str]]:
    return (
        (a, b)
        for a in _devices_without_tolls(machine, figures)
        for b in machine.devices
        # To a peer with this reach nothing is too far.
        if {machine.nodes[a].peer, machine.nodes[b].peer} != {DEFAULT_REACH}
        and a != b
        and machine.router.find_path(a, b)
        and not machine.router.is_peer(a, b)
    )


def _devices_without_tolls(machine: Topology, figures: Container[str]) -> list[str]:
    """The GPUs whose ways are tried: of many only the first."""
    found = [name for name in machine.devices if name not in figures]
    return found if len(machine.devices) <= _FEW_GPUS else found[:1]


def _free_network_copies(machine: Topology, figures: Container[str]) -> Iterator[tuple[str, str]]:
    """GPUs whose GPUDirect does not reach any NIC of their machine, and the first of these."""
    return (
        (a, nic)
        for a in _devices_without_tolls(machine, figures)
        # By default nobody has said so, and the figures may be unknown.
        if machine.nodes[a].gpudirect != DEFAULT_NIC_REACH
        for nic in machine.router.nics_beyond(a)[:1]
    )
