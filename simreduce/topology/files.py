"""Reading machine files: TOML, `extends`, and overrides, into one document with the origin of every
key.

Files of several machines are read here too; `clusters` says what stands in them.

A machine file:

    title = "..."                      what `topo list` prints
    sources = ["...", ...]             where the figures were published
    extends = "dgx1v"                  optional: a file beside this one or a shipped machine, read first

    [nodes.GROUP]
    names = ["gpu[0-7]"]               or each by itself: "gpu0", "gpu1", ...
    kind = "gpu"                       gpu, cpu, pcie_switch, nvswitch, nic or switch
    model = "..."                      optional
    memory_bandwidth = "900 GB/s"      optional, unlimited when left out
    machine = "0"                      optional: the box; a `switch` stands in none unless this says so
    transit = false                    optional: others' traffic may not pass (GPUs never let it)
    reduces = true                     optional: a switch that can sum what passes through it
    peer = "PHB"                       optional, of GPUs: the farthest way on which they copy to each other directly: off,
                                       NV, PIX, PXB, PHB or SYS (the default); farther copies are staged through a host
    gpudirect = "PHB"                  optional, of GPUs: the farthest NIC that reads and writes their memory: off, PIX, PXB, P2C,
                                       PHB or SYS; P2C, the default, is what NCCL does: below one tree of PCIe switches, or
                                       over C2C and PCIe (Grace). PHB is NCCL_NET_GDR_LEVEL=PHB. What is farther off goes
                                       through a host on its way to a network
    network = "ib_edr"                 optional, of NICs: the class of the link by which they join the network of `MACHINExN`,
                                       unless that says `nic=`; ib_edr when left out

    [links.CLASS]
    pairs = [["gpu0", "gpu3", 2], ["gpu0", "gpu1"]]     two ends and, if not `lanes`, a count of lanes
    lanes = 1                          optional
    class = "nvlink2"                  optional: the class, when it is not the table's key
    bandwidth = "25 GB/s"              per lane and direction; these four come from the class when it is known
    achievable = "24 GB/s"             of one large copy; the same as `bandwidth` when only that is stated
    latency = "1.8 us"
    holds_lane = true                  true unless stated; false for networks
    both_ways = "16.5 GB/s"            of a class that begins with `staged`: such a link joins a GPU or a PCIe switch to
                                       itself, and staged copies take it there; out and in together reach this,
                                       and the latency counts at GPUs

    [routes.NAME]                      figures of single pairs that no link shows, taken besides those of the links
    pairs = [["gpu0", "gpu1"]]
    bandwidth = "9.2 GB/s"             per direction
    latency = "2 us"                   optional: added to that of the links

A range pairs with another in blocks: `["gpu[0-7]", "plx[0-3]"]` joins gpu0 and gpu1 to plx0, gpu2
and gpu3 to plx1, and so on; one name pairs with all of a range, two ranges of one length pair one
to one. `[0-34:2]` takes every second.

Tables of the child win over those of the parent key by key; lists are replaced. Whoever restates
`bandwidth` without `achievable` drops the older `achievable`, which was that of another wire.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simreduce.errors import TopologyError, did_you_mean
from simreduce.shipped import data_dir
from simreduce.textfiles import read_bytes, reason
from simreduce.topology.faults import type_name
from simreduce.topology.generators.machines import FABRIC_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NODE_OVERRIDES = ("model", "memory_bandwidth", "peer", "gpudirect")
_LINK_OVERRIDES = ("bandwidth", "achievable", "latency", "lanes", "both_ways")
_ROUTE_OVERRIDES = ("bandwidth", "latency")
_ROUTING_OVERRIDES = ("equal_cost", "seed")


@dataclass(frozen=True, slots=True)
class Document:
    """A merged file: its tables, how faults name it, and which file or override wrote each dotted
    path.
    """

    shown: str
    tables: Mapping[str, Any]
    origin: Mapping[str, str]


def read_document(path: Path, shown: str) -> Document:
    """The file at `path` over what it extends; raises `TopologyError` when a file cannot be read."""
    return _read(path, shown, ())


def _read(path: Path, shown: str, below: tuple[tuple[str, str], ...]) -> Document:
    here = os.path.realpath(path)
    if here in [seen for seen, _ in below]:
        chain = " -> ".join([name for _, name in below] + [shown])
        raise TopologyError(
            f"{below[0][1]}: extends: the files extend each other in a circle: {chain}"
        )
    tables = _parse(path, shown)
    child = Document(shown, tables, dict.fromkeys(_paths(tables), shown))
    if "extends" not in tables:
        return child
    if not isinstance(tables["extends"], str):
        raise TopologyError(f"{shown}: extends: must be text, not {type_name(tables['extends'])}")
    parent_path, parent_shown = _parent(path, shown, tables["extends"])
    return merged(_read(parent_path, parent_shown, (*below, (here, shown))), child)


_OF_SCENARIOS = ("topology", "workload", "replicas")
"""Keys that no machine file has."""


def _parse(path: Path, shown: str) -> dict[str, Any]:
    try:
        content = read_bytes(path)
    except OSError as error:
        raise TopologyError(f"{shown}: {reason(error)}") from None
    except ValueError as error:
        raise TopologyError(f"{shown}: cannot be read: {error}") from None
    if not content.strip():
        raise TopologyError(f"{shown}: is empty")
    try:
        tables = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise TopologyError(f"{shown}: line {line} is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TopologyError(f"{shown}: not valid TOML: {why}") from None
    if any(key in tables for key in _OF_SCENARIOS) and not any(
        key in tables for key in ("nodes", "extends", "machine")
    ):
        command = "step" if "replicas" in tables else "run"
        raise TopologyError(
            f"{shown}: is a scenario, not a machine file; try `simreduce {command} {shown}`"
        )
    return tables


def is_path(text: str) -> bool:
    """Whether a text that names a machine is the path of a file, not a name."""
    return text.endswith(".toml") or "/" in text


def _parent(path: Path, shown: str, name: str) -> tuple[Path, str]:
    """The file that `extends = name` means, and its name in faults."""
    if is_path(name):
        beside = path.parent / name
        if not os.path.exists(beside):  # noqa: PTH110 - Path.exists raises for names no file can have
            raise TopologyError(f"{shown}: extends: there is no file {name!r}")
        return beside, name
    choices = [path.parent / f"{name}.toml", data_dir("topologies") / f"{name}.toml"]
    there = [choice for choice in choices if os.path.exists(choice)]  # noqa: PTH110 - likewise
    # A file may carry the name of the shipped machine that it varies.
    other = [choice for choice in there if os.path.realpath(choice) != os.path.realpath(path)]
    if not there:
        known = [
            file.stem
            for folder in (path.parent, data_dir("topologies"))
            for file in folder.glob("*.toml")
        ]
        raise TopologyError(
            f"{shown}: extends: no machine named {name!r}{did_you_mean(name, known)}"
        )
    return (other or there)[0], f"{name}.toml"


def _paths(tables: Mapping[str, Any]) -> list[str]:
    """Dotted paths of a document, three levels deep: as far as tables merge."""
    paths = []
    for key, value in tables.items():
        paths.append(key)
        for group, fields in value.items() if isinstance(value, dict) else ():
            paths.append(f"{key}.{group}")
            if isinstance(fields, dict):
                paths += [f"{key}.{group}.{name}" for name in fields]
    return paths


def merged(parent: Document, child: Document) -> Document:
    """The child's tables over the parent's."""
    tables: dict[str, Any] = dict(parent.tables)
    if "fabric" in child.tables:
        tables = {key: value for key, value in tables.items() if key not in FABRIC_KEYS}
    for key, value in child.tables.items():
        older = tables.get(key)
        if not (isinstance(value, dict) and isinstance(older, dict)):
            tables[key] = value
            continue
        groups = tables[key] = dict(older)
        for group, fields in value.items():
            kept = groups.get(group)
            if not (isinstance(fields, dict) and isinstance(kept, dict)):
                groups[group] = fields
                continue
            stale = {"achievable"} if "bandwidth" in fields else set()
            groups[group] = {k: v for k, v in kept.items() if k not in stale} | fields
    return Document(child.shown, tables, {**parent.origin, **child.origin})


def overridden(
    document: Document, overrides: Mapping[str, str | int]
) -> tuple[Document, list[str]]:
    """The document with dotted keys replaced, and a fault for each key that it does not have."""
    known = _override_keys(document)
    tables: dict[str, Any] = {}
    problems = []
    for key, value in overrides.items():
        if key not in known:
            near = (
                did_you_mean(key, known)
                or f"; known are for example {', '.join(sorted(known)[:4])}"
            )
            problems.append(f"{document.shown}: override {key!r}: there is no such key{near}")
            continue
        section, group, name = known[key]
        if section and not group:
            tables.setdefault(section, {})[name] = value
        elif section:
            tables.setdefault(section, {}).setdefault(group, {})[name] = value
        else:
            tables[name] = value
    origin = dict.fromkeys(overrides, f"{document.shown} with overrides")
    return merged(document, Document(document.shown, tables, origin)), problems


def _override_keys(document: Document) -> dict[str, tuple[str, str, str]]:
    """What may be overridden: the figures of every group of nodes and of every class that joins
    something.
    """
    known = {"title": ("", "", "title")}
    known |= {f"routing.{name}": ("routing", "", name) for name in _ROUTING_OVERRIDES}
    sections = (
        ("nodes", _NODE_OVERRIDES),
        ("links", _LINK_OVERRIDES),
        ("routes", _ROUTE_OVERRIDES),
    )
    for section, names in sections:
        groups = document.tables.get(section)
        for group, fields in groups.items() if isinstance(groups, dict) else ():
            if isinstance(fields, dict) and (section == "nodes" or fields.get("pairs")):
                known.update(
                    {f"{section}.{group}.{name}": (section, group, name) for name in names}
                )
    return known
