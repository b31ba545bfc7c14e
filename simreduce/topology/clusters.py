"""Reads files of clusters: machines of one kind on a network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simreduce.errors import TopologyError, cut, quote
from simreduce.files.formats import FLAG, Faults, Format
from simreduce.files.formats.fields import refusal
from simreduce.files.textfiles import flatten
from simreduce.topology.file_formats import CLUSTER
from simreduce.topology.files import MergedFile, is_path
from simreduce.topology.generators import Inline, build_cluster
from simreduce.topology.generators.machines import FABRIC_KEYS, SETTINGS
from simreduce.topology.graph import Topology

_MOST = 1 << 63
"""Upper limit of whole numbers that are written out."""
_OWN_KEYS = ("title", "sources", "extends", "nodes", "machine", "overrides")
_OWN = Format("", "", *(replace(CLUSTER[key], required=False) for key in _OWN_KEYS))
"""The keys that are no settings of the network."""
_FLAGS = [field.key for field in CLUSTER.fields if field.kind is FLAG]


def is_cluster(tables: Mapping[str, Any]) -> bool:
    """Whether these are the tables of such a file, not of a machine."""
    return "machine" in tables or "fabric" in tables


def cluster(
    document: MergedFile,
    path: Path,
    name: str,
    overrides: Mapping[str, str | int],
    load: Callable[[str, Mapping[str, str | int]], Topology],
) -> Topology:
    """The topology of the file at `path`.

    `overrides` set keys of the file, or keys of its machine, which `load` reads. Raises
    `TopologyError` with every fault.
    """
    faults = Faults(document.shown, document.origin)
    tables = dict(document.tables)
    if "fabric" in overrides:
        tables = {key: value for key, value in tables.items() if key not in FABRIC_KEYS}
    mine = {
        key: overrides[key]
        for key in overrides
        if key in ("title", "nodes", *SETTINGS, *FABRIC_KEYS)
    }
    tables |= mine
    head = {key: tables[key] for key in _OWN_KEYS if key in tables and key != "nodes"}
    own = _OWN.read(head, faults)
    for key in ("links", "routes"):
        if key in tables:
            words = "[overrides] has keys of the machine, such as links.qpi.bandwidth"
            faults.add(key, f"is of machine files; {words}")
    if "routing" in tables:
        faults.add("routing", "is of machine files; here its keys stand beside fabric")
    settings = {
        key: _setting(faults, key, tables[key])
        for key in tables
        if key not in (*_OWN_KEYS, "links", "routes", "routing")
    }
    within = flatten(own["overrides"] or {})
    for key, value in within.items():
        if isinstance(value, bool) or not isinstance(value, str | int):
            faults.add(f"overrides.{key}", refusal("text or a whole number", value))
    within |= {key: value for key, value in overrides.items() if key not in mine}
    nodes = _setting(faults, "nodes", tables.get("nodes", "nothing"))
    if nodes and not nodes.isdecimal():
        faults.add("nodes", f"must be a whole number of machines, got {cut(nodes)}")
    nodes = nodes if nodes.isdecimal() else "1"
    if not own["machine"]:
        if "machine" not in own.faulty:
            faults.add("machine", "must name the machine")
        faults.raise_any(TopologyError)
    inline = Inline(
        document.shown, _beside(path, own["machine"]), nodes, settings, tuple(faults.problems)
    )
    made = build_cluster(inline, within, load)
    return replace(made, name=name, title=own["title"] or made.title)


def _setting(faults: Faults, key: str, value: object) -> str:
    """The value of a key, as it would be written inline."""
    if isinstance(value, bool):
        yes, no = ("yes", "no") if key in _FLAGS else ("true", "false")
        return yes if value else no
    if isinstance(value, int) and abs(value) >= _MOST:
        faults.add(key, f"{quote(value)} is more than any machine has")
        return ""
    if isinstance(value, str | int | float):
        return str(value)
    faults.add(key, refusal("text or a number", value))
    return ""


def _beside(path: Path, machine: str) -> str:
    """Return the machine that the file at `path` means by `machine`.

    It is a file beside that file, if there is one, but not the file itself.
    """
    there = path.parent / (machine if is_path(machine) else f"{machine}.toml")
    # Path.exists raises for names that no file can have.
    other = os.path.exists(there) and os.path.realpath(there) != os.path.realpath(path)  # noqa: PTH110
    return str(there) if is_path(machine) or other else machine
