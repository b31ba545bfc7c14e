"""Reads machine files: TOML, `extends` and overrides, into one document.

The document has the origin of every key. `file_formats` says what the files may hold.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simreduce.errors import TopologyError, did_you_mean
from simreduce.files.formats import LINE
from simreduce.files.shipped import data_dir
from simreduce.files.textfiles import parse_toml, read_text
from simreduce.topology.generators.machines import FABRIC_KEYS
from simreduce.topology.routing.switching import KEYS as SWITCHING_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NODE_OVERRIDES = ("model", "memory", "memory_bandwidth", "peer", "gpudirect")
_LINK_OVERRIDES = ("bandwidth", "achievable", "latency", "lanes", "both_ways")
_ROUTE_OVERRIDES = ("bandwidth", "latency")


@dataclass(frozen=True, slots=True)
class MergedFile:
    """A merged file: its tables, its name in faults, and who wrote each dotted path."""

    shown: str
    tables: Mapping[str, Any]
    origin: Mapping[str, str]


def read_document(path: Path, shown: str) -> MergedFile:
    """The file at `path` over what it extends; raises TopologyError if one cannot be read."""
    return _read(path, shown, ())


def _read(path: Path, shown: str, below: tuple[tuple[str, str], ...]) -> MergedFile:
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
    return merge_documents(_read(parent_path, parent_shown, (*below, (here, shown))), child)


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


def merge_documents(parent: MergedFile, child: MergedFile) -> MergedFile:
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
    return MergedFile(child.shown, tables, {**parent.origin, **child.origin})


def apply_overrides(
    document: MergedFile, overrides: Mapping[str, str | int]
) -> tuple[MergedFile, list[str]]:
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
    return merge_documents(document, MergedFile(document.shown, tables, origin)), problems


def _override_keys(document: MergedFile) -> dict[str, tuple[str, str, str]]:
    """Keys that take overrides: figures of groups of nodes, and of links that have pairs."""
    known = {"title": ("", "", "title")}
    known |= {f"routing.{name}": ("routing", "", name) for name in SWITCHING_KEYS}
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
