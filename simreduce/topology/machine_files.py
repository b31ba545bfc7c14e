"""Machine files: TOML with `extends` and overrides, read into one document, and written.

The document has the origin of every key. `formats` says what the files may hold. Reading a written
topology gives the same nodes and links.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from simreduce.errors import TopologyError, did_you_mean
from simreduce.files import data_dir, parse_toml, read_text
from simreduce.files.formats import LINE
from simreduce.files.formats.syntax import toml_text
from simreduce.topology.elements import (
    BOTH_WAYS,
    DEFAULT_NIC_REACH,
    DEFAULT_REACH,
    MOST_NAMES,
    ROUTE,
    Link,
    LinkClass,
    Node,
    link_classes,
)
from simreduce.topology.generators import FABRIC_KEYS
from simreduce.topology.graph import Topology
from simreduce.topology.routing.switching import DEFAULT, KEYS as SWITCHING_KEYS
from simreduce.units import exact_bandwidth, exact_duration, exact_size

_NODE_OVERRIDES = ("model", "memory", "memory_bandwidth", "peer", "gpudirect")
_LINK_OVERRIDES = ("bandwidth", "achievable", "latency", "lanes", "both_ways")
_ROUTE_OVERRIDES = ("bandwidth", "latency")


@dataclass(frozen=True, slots=True)
class MergedFile:
    """A merged file: its tables, its name in faults, and who wrote each dotted path."""

    shown: str
    tables: Mapping[str, Any]
    origin: Mapping[str, str]


def read_document(path: Path, shown: str, below: tuple[tuple[str, str], ...] = ()) -> MergedFile:
    """The file at `path` over what it extends; raises TopologyError if one cannot be read.

    `below` are the real paths of files that extend it, each with its name in faults.
    """
    here = os.path.realpath(path)
    if here in [seen for seen, _ in below]:
        chain = " -> ".join([name for _, name in below] + [shown])
        raise TopologyError(
            f"{below[0][1]}: extends: the files extend each other in a circle: {chain}"
        )
    tables = _parse(path, shown)
    child = MergedFile(shown, tables, dict.fromkeys(_paths(tables), shown))
    if "extends" not in tables:
        return child
    try:
        parent = LINE.read(tables["extends"])
    except ValueError as error:
        raise TopologyError(f"{shown}: extends: {error}") from None
    parent_path, parent_shown = _parent(path, shown, parent)
    return merge_documents(read_document(parent_path, parent_shown, (*below, (here, shown))), child)


_OF_SCENARIOS = ("topology", "workload", "replicas")
"""Keys that no machine file has."""


def _parse(path: Path, shown: str) -> dict[str, Any]:
    content = read_text(path, TopologyError, shown)
    if not content.strip():
        raise TopologyError(f"{shown}: is empty")
    tables = parse_toml(shown, content, TopologyError)
    if any(key in tables for key in _OF_SCENARIOS) and not any(
        key in tables for key in ("nodes", "extends", "machine")
    ):
        raise TopologyError(
            f"{shown}: is a scenario, not a machine file; try `simreduce "
            f"{'step' if 'replicas' in tables else 'run'} {shown}`"
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


def _paths(tables: Mapping[str, Any], depth: int = 3) -> list[str]:
    """Dotted paths of a document, three levels deep: as far as tables merge."""
    paths = [*tables]
    for key, value in tables.items():
        if isinstance(value, dict) and depth > 1:
            paths += [f"{key}.{inner}" for inner in _paths(value, depth - 1)]
    return paths


def merge_documents(parent: MergedFile, child: MergedFile) -> MergedFile:
    """The child's tables over the parent's."""
    tables: dict[str, Any] = dict(parent.tables)
    if "fabric" in child.tables:
        tables = {key: value for key, value in tables.items() if key not in FABRIC_KEYS}
    return MergedFile(child.shown, _merge(tables, child.tables), {**parent.origin, **child.origin})


def _merge(older: Mapping[str, Any], newer: Mapping[str, Any], depth: int = 3) -> dict[str, Any]:
    """The newer tables over the older ones, three levels deep."""
    found = dict(older)
    for key, value in newer.items():
        kept = older.get(key)
        deeper = isinstance(value, dict) and isinstance(kept, dict) and depth > 1
        found[key] = _merge(kept or {}, value, depth - 1) if deeper else value
    if depth == 1 and "bandwidth" in newer and "achievable" not in newer:
        found.pop("achievable", None)
    return found


def apply_overrides(
    document: MergedFile, overrides: Mapping[str, str | int]
) -> tuple[MergedFile, list[str]]:
    """The document with dotted keys replaced, and a fault for each key that it does not have."""
    known = override_keys(document)
    tables: dict[str, Any] = {}
    problems = []
    for key, value in overrides.items():
        if key not in known:
            last = key.rpartition(".")[2]
            same = [each for each in sorted(known) if each.rpartition(".")[2] == last]
            names = same or sorted(known)
            near = did_you_mean(key, names) or f"; known are for example {', '.join(names[:4])}"
            problems.append(f"{document.shown}: override {key!r}: there is no such key{near}")
            continue
        *outer, name = known[key]
        table = tables
        for part in outer:
            table = table.setdefault(part, {})
        table[name] = value
    origin = dict.fromkeys(overrides, f"{document.shown} with overrides")
    return merge_documents(document, MergedFile(document.shown, tables, origin)), problems


def override_keys(document: MergedFile) -> dict[str, tuple[str, ...]]:
    """Keys that take overrides: figures of groups of nodes, and of links that have pairs."""
    known: list[tuple[str, ...]] = [("title",), *(("routing", name) for name in SWITCHING_KEYS)]
    sections = (
        ("nodes", _NODE_OVERRIDES),
        ("links", _LINK_OVERRIDES),
        ("routes", _ROUTE_OVERRIDES),
    )
    for section, names in sections:
        groups = document.tables.get(section)
        for group, fields in groups.items() if isinstance(groups, dict) else ():
            if isinstance(fields, dict) and (section == "nodes" or fields.get("pairs")):
                known += [(section, group, name) for name in names]
    return {".".join(path): path for path in known}


_NUMBER = re.compile(r"(.*?)(0|[1-9][0-9]{0,4})")
"""A name that ends in a number."""


def to_toml(topology: Topology, comments: Sequence[str] = ()) -> str:
    """The text of the file, `comments` first.

    It leaves out figures that equal the class's, and uses ranges of names.
    """
    document: dict[str, Any] = {"title": topology.title, "sources": [topology.source]}
    taken: dict[tuple[str, str], int] = {}
    for fields, nodes in itertools.groupby(topology.nodes.values(), _node_fields):
        names = [name for name, _, _ in _runs([(node.name, node.name, 1) for node in nodes])]
        group = {"names": names, **_node_values(fields)}
        document.setdefault("nodes", {})[_key("nodes", fields["kind"], taken)] = group
    rows = sorted(_rows(topology.links), key=lambda row: row.wire.name == ROUTE)
    for wire, run in itertools.groupby(rows, lambda row: row.wire):
        section, name = ("routes", "pair") if wire.name == ROUTE else ("links", wire.name)
        key = _key(section, name, taken)
        values = _route_values(wire) if wire.name == ROUTE else _wire_values(wire, key)
        table = {**values, **_pairs([(row.a, row.b, row.lanes) for row in run])}
        document.setdefault(section, {})[key] = table
    if topology.router.switching != DEFAULT:
        document["routing"] = topology.router.switching.stated
    return toml_text(document, [" ".join(comment.split()) for comment in comments])


class _Row(NamedTuple):
    """A cable of a table. Its class has the figures that the whole table shares."""

    a: str
    b: str
    lanes: int
    wire: LinkClass


def _rows(links: Sequence[Link]) -> list[_Row]:
    """A row for every cable; the toll of both directions belongs to the row before it."""
    found: list[_Row] = []
    latency: dict[str, float] = {}
    for link in links[::2]:
        loop = link.source == link.target
        rate = link.bandwidth / link.lanes
        if loop and link.link_class.endswith(BOTH_WAYS):
            last = found[-1]
            both = link.bandwidth / last.lanes
            found[-1] = last._replace(wire=replace(last.wire, both_ways=both))
            continue
        wire = LinkClass(
            link.link_class, link.nominal / link.lanes, rate, link.latency, link.holds_lane, ""
        )
        found.append(_Row(link.source, link.target, link.lanes, wire))
        if loop and link.latency:
            latency.setdefault(link.link_class, link.latency)
    # A switch's toll has no latency, whatever its class says: the table of the GPUs holds it.
    return [
        row._replace(wire=replace(row.wire, latency=latency.get(row.wire.name, 0.0)))
        if row.a == row.b and not row.wire.latency
        else row
        for row in found
    ]


def _node_fields(node: Node) -> dict[str, object]:
    return {key: getattr(node, key) for key in Node.__slots__ if key != "name"}


def _node_values(fields: dict[str, Any]) -> dict[str, object]:
    """The kind, and the fields that are not what their absence means."""
    kind = fields["kind"]
    usual = {
        "model": "",
        "memory": 0,
        "memory_bandwidth": math.inf,
        "machine": "" if kind == "switch" else "0",
        "transit": kind != "gpu" or fields["transit"],
        "reduces": False,
        "peer": DEFAULT_REACH,
        "gpudirect": DEFAULT_NIC_REACH,
        "network": "",
    }
    texts = {"memory": _memory_text, "memory_bandwidth": exact_bandwidth}
    return {"kind": kind} | {
        key: texts[key](fields[key]) if key in texts else fields[key]
        for key, value in usual.items()
        if fields[key] != value
    }


def _memory_text(nbytes: int) -> str:
    """Bytes as data sheets write them, if that is exact."""
    return f"{nbytes // 10**9} GB" if nbytes % 10**9 == 0 else exact_size(nbytes)


def _route_values(wire: LinkClass) -> dict[str, Any]:
    values = {"bandwidth": exact_bandwidth(wire.achievable)}
    return values | ({"latency": exact_duration(wire.latency)} if wire.latency else {})


def _wire_values(wire: LinkClass, key: str) -> dict[str, Any]:
    """The class unless it is the table's `key`, and the figures that differ from the class's."""
    values: dict[str, Any] = {} if key == wire.name else {"class": wire.name}
    known = link_classes().get(wire.name)
    both = math.inf
    if known is None or (wire.bandwidth, wire.achievable) != (known.bandwidth, known.achievable):
        values["bandwidth"] = exact_bandwidth(wire.bandwidth)
        if wire.achievable != wire.bandwidth:
            values["achievable"] = exact_bandwidth(wire.achievable)
    else:
        both = known.both_ways
    if math.isfinite(wire.both_ways) and wire.both_ways != both:
        values["both_ways"] = exact_bandwidth(wire.both_ways)
    if known is None or wire.latency != known.latency:
        values["latency"] = exact_duration(wire.latency)
    if wire.holds_lane != (known.holds_lane if known else True):
        values["holds_lane"] = wire.holds_lane
    return values


def _pairs(cables: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
    """All pairs; `lanes` first if they are all alike and not 1."""
    counts = {lanes for _, _, lanes in cables}
    shared = counts.pop() if len(counts) == 1 else 1
    pairs = [[a, b] if lanes == shared else [a, b, lanes] for a, b, lanes in _runs(cables)]
    return {**({"lanes": shared} if shared != 1 else {}), "pairs": pairs}


def _runs(cables: Sequence[tuple[str, str, int]]) -> Iterator[tuple[str, str, int]]:
    """Pairs with ranges for those that follow each other by number: on both sides, or on one while
    the other stays.
    """
    at = 0
    while at < len(cables):
        a, b, lanes = cables[at]
        best, chosen = 1, (0, 0)
        for steps in ((1, 1), (1, 0), (0, 1)):
            count = 1
            while count < MOST_NAMES and cables[at + count : at + count + 1] == [
                (_after(a, count * steps[0]), _after(b, count * steps[1]), lanes)
            ]:
                count += 1
            if count > best:
                best, chosen = count, steps
        yield _range(a, best * chosen[0]), _range(b, best * chosen[1]), lanes
        at += best


def _after(name: str, steps: int) -> str | None:
    """The name `steps` numbers later; None if the name has no number to count."""
    if steps == 0:
        return name
    match = _NUMBER.fullmatch(name)
    return match and f"{match[1]}{int(match[2]) + steps}"


def _range(name: str, count: int) -> str:
    """`gpu[0-7]` for gpu0 and 8."""
    if count < 2:
        return name
    match = _NUMBER.fullmatch(name)
    return f"{match[1]}[{match[2]}-{int(match[2]) + count - 1}]" if match else name


def _key(section: str, name: object, taken: dict[tuple[str, str], int]) -> str:
    """The first key of a section that no table has: nvlink2, then nvlink2-2, and so on.

    Letters, digits, - and _ of the name need no quotes in TOML, and others are left out.
    """
    key = bare = re.sub(r"[^A-Za-z0-9_-]", "_", str(name)) or "_"
    while (section, key) in taken:
        taken[section, bare] += 1
        key = f"{bare}-{taken[section, bare]}"
    taken[section, key] = 1
    return key
