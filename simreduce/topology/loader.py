"""From what a user types, or a file of clusters holds, to a topology.

Parts of a machine may fail: its nodes, their NICs, and the switches of the network. A part is named
(`n3`, `n0.mlx5_0`, `spine2`), or meant by its class and its place among these, from 0 (`nic 5`); a
class alone means its first part. A NIC or a switch that fails has no links; routes are searched
without them. GPUs of a node that fails take no part.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from simreduce.computing import group_by
from simreduce.errors import InputError, TopologyError, cut, did_you_mean, quote
from simreduce.files import data_dir, flatten
from simreduce.files.formats import FLAG, Format, refusal
from simreduce.files.formats.syntax import Faults
from simreduce.topology.formats import CLUSTER
from simreduce.topology.generators import (
    FABRIC_KEYS,
    FABRICS,
    GENERATORS,
    SETTINGS,
    build_cluster,
    generate,
)
from simreduce.topology.generators.inline import (
    DEVICES_LIMIT,
    FOLDED_LIMIT,
    WHOLE_LIMIT,
    Inline,
    split_inline,
    too_many,
)
from simreduce.topology.graph import Folded, Topology, fold
from simreduce.topology.machine import build_machine
from simreduce.topology.machine_files import (
    MergedFile,
    apply_overrides,
    is_path,
    merge_documents,
    read_document,
)

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
    mine = {
        key: overrides[key]
        for key in overrides
        if key in ("title", "nodes", *SETTINGS, *FABRIC_KEYS)
    }
    tables = merge_documents(document, MergedFile(document.shown, mine, {})).tables
    head = {key: tables[key] for key in _OWN_KEYS if key in tables and key != "nodes"}
    own = _OWN.read(head, faults)
    for key in ("links", "routes"):
        faults.check(
            key not in tables,
            key,
            "is of machine files; [overrides] has keys of the machine, such as links.qpi.bandwidth",
        )
    faults.check(
        "routing" not in tables, "routing", "is of machine files; here its keys stand beside fabric"
    )
    settings = {
        key: _setting(faults, key, tables[key])
        for key in tables
        if key not in (*_OWN_KEYS, "links", "routes", "routing")
    }
    within = flatten(own["overrides"] or {})
    for key, value in within.items():
        faults.check(
            not isinstance(value, bool) and isinstance(value, str | int),
            f"overrides.{key}",
            refusal("text or a whole number", value),
        )
    within |= {key: value for key, value in overrides.items() if key not in mine}
    nodes = _setting(faults, "nodes", tables.get("nodes", "nothing"))
    faults.check(
        not nodes or nodes.isdecimal(),
        "nodes",
        f"must be a whole number of machines, got {cut(nodes)}",
    )
    nodes = nodes if nodes.isdecimal() else "1"
    if not own["machine"]:
        faults.check("machine" in own.faulty, "machine", "must name the machine")
        faults.raise_any(TopologyError)
    inline = Inline(
        document.shown, _beside(path, own["machine"]), nodes, settings, tuple(faults.problems)
    )

    def read(text: str, others: Mapping[str, str | int]) -> Topology:
        if find(text) is not None:  # faults name its own file
            return load(text, others)
        of_machine = Faults(document.shown, document.origin)
        made = of_machine.attempt("machine", load, text, others)
        return of_machine.require(made, TopologyError)

    made = build_cluster(inline, within, read)
    return replace(made, name=name, title=own["title"] or made.title)


def _setting(faults: Faults, key: str, value: object) -> str:
    """The value of a key, as it would be written inline."""
    if isinstance(value, bool):
        yes, no = ("yes", "no") if key in _FLAGS else ("true", "false")
        return yes if value else no
    fine = faults.check(
        not isinstance(value, int) or abs(value) < _MOST,
        key,
        f"{quote(value)} is more than any machine has",
    ) and faults.check(
        isinstance(value, str | int | float), key, refusal("text or a number", value)
    )
    return str(value) if fine else ""


def _beside(path: Path, machine: str) -> str:
    """Return the machine that the file at `path` means by `machine`.

    It is a file beside that file, if there is one, but not the file itself.
    """
    there = path.parent / (machine if is_path(machine) else f"{machine}.toml")
    # Path.exists raises for names that no file can have.
    other = os.path.exists(there) and os.path.realpath(there) != os.path.realpath(path)  # noqa: PTH110
    return str(there) if is_path(machine) or other else machine


Overrides = Mapping[str, str | int]

FOLDED_ABOVE = 4096
"""Equal machines on one switch are folded without being asked if they have more GPUs than this."""


def load_topology(text: str, overrides: Overrides | None = None) -> Topology:
    """The topology that `text` means: a file, `./topologies/TEXT.toml`, a shipped name, or one
    written inline.

    A text that ends in `.toml` or has a slash is a path. `overrides` maps dotted keys of the
    machine file to new values, `{"links.qpi.bandwidth": "9.6 GB/s"}`; overriding a `bandwidth` also
    drops the `achievable` beside it, unless that is overridden too. For an inline topology its
    settings (`bandwidth`, `latency`; `fabric`, `nic`, and the keys of the machine) are what can be
    overridden. Raises `TopologyError` with every fault found.
    """
    return _load(text, overrides or {}, DEVICES_LIMIT)


def _load(text: str, overrides: Overrides, limit: int) -> Topology:
    machine = _file(text, overrides)
    if machine is not None:
        return machine
    inline = split_inline(text, ":")
    if inline is not None and inline.name in GENERATORS:
        return generate(inline, overrides, limit)
    copies = split_inline(text, "x")
    if copies is not None:
        return build_cluster(
            copies, overrides, partial(_machine, typed=text.partition(",")[0]), limit
        )
    raise _unknown_name(text)


def load_machine(
    text: str, overrides: Overrides | None = None, *, folded: bool = False
) -> Topology | Folded:
    """`load_topology`, but equal machines on one switch are folded if they are to be, or are many.

    TopologyError says why machines that should be folded cannot be.
    """
    overrides = overrides or {}
    fewest = _two_of(text, overrides)
    if fewest is not None:
        two, copies = fewest
        count = copies * len(two.devices) // 2
        if folded or count > FOLDED_ABOVE:
            if copies > FOLDED_LIMIT:
                raise TopologyError(f"{cut(text)}: {too_many(copies, 'machines')}")
            one = fold(two, copies)
            many = count > WHOLE_LIMIT
            whole = None if many else partial(_load, text, overrides, WHOLE_LIMIT)
            return replace(
                one, name=text, title=f"{copies} equal machines: {two.title}", whole=whole
            )
    machine = load_topology(text, overrides)
    return fold(machine) if folded else machine


def _two_of(text: str, overrides: Overrides) -> tuple[Topology, int] | None:
    """Two of the machines of `switch:N` and of `MACHINExN` on a switch, and N; else None."""
    separator = ":" if ":" in text.partition(",")[0] else "x"
    inline = None if find(text) else split_inline(text, separator)
    if inline is None or not re.fullmatch(r"[0-9]{1,9}", inline.size) or int(inline.size) < 2:
        return None
    fabric = inline.settings.get("fabric", overrides.get("fabric", "switch"))
    if (inline.name if separator == ":" else fabric) != "switch":
        return None
    two = "".join((inline.name, separator, "2", *text.partition(",")[1:]))
    try:
        return load_topology(two, overrides), int(inline.size)
    except TopologyError as error:  # in what was typed
        raise TopologyError(
            [problem.replace(cut(two), cut(text), 1) for problem in error.problems]
        ) from None


def shipped() -> list[tuple[str, str]]:
    """Name and title of every shipped machine, by name."""
    files = {path.stem: path for path in data_dir("topologies").glob("*.toml")}
    tables = {
        name: tomllib.loads(files[name].read_text(encoding="utf-8")) for name in sorted(files)
    }
    return [(name, str(table.get("title", ""))) for name, table in tables.items()]


def _machine(text: str, overrides: Overrides, typed: str = "") -> Topology:
    """A machine that must have a file. `typed` is where its name was taken from, which may be what
    was meant as a name.
    """
    machine = _file(text, overrides, whole=False)
    if machine is None:
        # Of dgx3, which is no three dg, the whole is nearer to a name; of dgx1wx2 it is not.
        raise _unknown_name(max(text, typed, key=_likeness))
    return machine


def _likeness(text: str) -> float:
    """How much `text` is like the nearest shipped name, from 0 to 1."""
    return max(SequenceMatcher(None, text, name).ratio() for name, _ in shipped())


def _file(text: str, overrides: Overrides, *, whole: bool = True) -> Topology | None:
    """The machine of a file, None when `text` means no file that is there. Several machines only if
    it may be the `whole`.
    """
    place = find(text)
    if place is None:
        return None
    path, shown = place
    document = read_document(path, shown)
    if is_cluster(document.tables):
        if not whole:
            raise TopologyError(f"{shown}: is made of several machines already")
        return cluster(document, path, text, overrides, _machine)
    document, problems = apply_overrides(document, overrides)
    return build_machine(document, name=text, source=shown, problems=problems)


def find(text: str) -> tuple[Path, str] | None:
    """The path that `text` means, and how to show it: the same wherever simreduce is installed."""
    if is_path(text):
        return (Path(text), text) if os.path.exists(text) else None  # noqa: PTH110 - never raises
    if not text or not re.fullmatch(r"[^/\\\0]+", text):
        return None
    ships = data_dir("topologies") / f"{text}.toml"
    local = Path("topologies") / f"{text}.toml"
    if os.path.exists(local) and os.path.realpath(local) != os.path.realpath(ships):  # noqa: PTH110 - likewise
        return local, local.as_posix()
    return (ships, ships.name) if os.path.exists(ships) else None  # noqa: PTH110 - likewise


_CLOUDS = re.compile(r"\b[a-z]+\d[a-z\d]*[._-][a-z\d._-]*[a-z\d]")
"""What clouds call a machine, in a title in small letters."""
_LIKE_CLOUDS = 0.93
"""As `difflib` has it: `p4dn.24xlarge` is like `p4d.24xlarge`, but `a2-highgpu-8g`, which has other
GPUs, is not like `a4-highgpu-8g`.
"""


def _unknown_name(text: str) -> TopologyError:
    if is_path(text):
        return TopologyError(f"{cut(text)}: there is no such file")
    is_file = os.path.isfile(text)  # noqa: PTH113 - never raises
    near = f"; there is a file of that name: write ./{text}" if is_file else nearest_name(text)
    return TopologyError(
        f"no topology {quote(text)}{near}; `simreduce topo list` names what is shipped; "
        f"inline are {', '.join(g.form for g in GENERATORS.values())} and MACHINExN; or give "
        "the path of a file"
    )


def nearest_name(text: str, names: Sequence[str] = ()) -> str:
    """What may be meant by `text`, which names no machine: " (did you mean 'p5'?)", or "".

    Known are the shipped machines, by their names and by those of clouds, the generators, and
    `names`. It opens nothing that `text` may be the path of.
    """
    machines = shipped()
    head = re.split(r"[:,]", text)[0]
    # Titles have what clouds call a machine, such as p5.48xlarge.
    titled = [name for name, title in machines if head.casefold() in title.casefold()]
    called = {word: name for name, title in machines for word in _CLOUDS.findall(title.casefold())}
    meant = (
        titled
        if len(titled) == 1
        else [called[word] for word in get_close_matches(head.casefold(), called, 1, _LIKE_CLOUDS)]
    )
    known = [*names, *(name for name, _ in machines), *GENERATORS]
    fabric = f"network of machines, such as dgx1vx4,fabric={head}"
    if head in GENERATORS and ":" not in text:
        also = f"; or a {fabric}" if head in FABRICS else ""
        return f"; {head} needs its size: {GENERATORS[head].form}{also}"
    if head in FABRICS:
        return f"; {head} is a {fabric}"
    if head in GENERATORS:
        return f"; {head} is a shape of GPUs, no machine"
    return did_you_mean(meant[0] if meant else head, known)


def machine_of(topology: str) -> str:
    """`abci-v` of `abci-vx32,nic=ib_hdr`."""
    head = topology.partition(",")[0]
    return head.rpartition("x")[0] if copies_of(topology) > 1 else head


@lru_cache(maxsize=1024)
def copies_of(topology: str) -> int:
    """32 of `abci-vx32,nic=ib_hdr`."""
    head = topology.partition(",")[0]
    name, _, count = head.rpartition("x")
    return int(count) if name and count.isdecimal() and head not in dict(shipped()) else 1


NONE = "none"
MOST_TRIED = 16
"""Parts of a class that are simulated without, of those that differ."""
NODE, NIC, LEAF, SPINE, CORE = CLASSES = ("node", "nic", "leaf", "spine", "core")
"""A node is one of several machines; the last three are switches of a network, by its level."""


class Failed(NamedTuple):
    """A machine without a part, and the GPUs that are gone with it."""

    topology: Topology
    gone: frozenset[str] = frozenset()


def members(topology: Topology, kind: str) -> list[str]:
    """The parts of a class by name, in the machine's order; none of what it does not have."""
    nodes = topology.nodes.values()
    if kind == NODE:
        found = dict.fromkeys(node.machine for node in nodes if node.machine)
        return [f"n{name}" for name in found] if len(found) > 1 else []
    if kind == NIC:
        return [node.name for node in nodes if node.kind == "nic"]
    switches = (node.name for node in nodes if node.kind == "switch" and not node.machine)
    return [name for name in switches if re.fullmatch(rf"{kind}\d+", name)]


def distinct(
    topology: Topology, kinds: Iterable[str], marks: Mapping[str, object] = MappingProxyType({})
) -> dict[str, list[str]]:
    """Of each class, the first of the parts that links tell apart, by colour refinement; and the
    `marks` of devices and switches, by name.
    """
    colours = _colours(topology, marks)
    inside = group_by(topology.nodes, lambda name: f"n{topology.nodes[name].machine}")
    found: dict[str, list[str]] = {}
    for kind in kinds:
        seen: dict[object, str] = {}
        for name in members(topology, kind):
            own = inside[name] if kind == NODE else [name]
            seen.setdefault(tuple(sorted(colours[each] for each in own)), name)
        found[kind] = list(seen.values())
    return found


def fail(topology: Topology, text: str, where: str = "fails") -> Failed:
    """The machine without the part that `text` names or means.

    InputError names the nearest, or the classes that the machine has. `where` is what errors of
    routes point to.
    """
    if text == NONE:
        return Failed(topology)
    name, nodes = part_named(topology, text), topology.nodes
    if name not in members(topology, NODE):
        return Failed(topology.without(name, where))
    gone = frozenset(gpu for gpu in topology.devices if f"n{nodes[gpu].machine}" == name)
    return Failed(topology.without(name), gone)


def part_named(topology: Topology, text: str) -> str:
    """The name of the part that a text names or means, of a class the first; InputError for what
    the machine does not have.
    """
    have = {kind: names for kind in CLASSES if (names := members(topology, kind))}
    kind, _, place = text.partition(" ")
    known = ", ".join(have) or "nothing that can fail"
    if kind not in CLASSES:
        every = [*have, *(each for names in have.values() for each in names)]
        if text in every:
            return text
        near = did_you_mean(text, every) or f"; it has {known}"
        raise InputError(f"{topology.name}: no part {quote(text)} that fails{near}")
    if kind not in have:
        raise InputError(f"{topology.name}: has no {kind}; it has {known}")
    names = have[kind]
    if not place:
        return names[0]
    if not (place.isascii() and place.isdigit() and int(place[:9]) < len(names)):
        raise InputError(
            f"{topology.name}: no part {quote(text)} that fails; it has {kind} 0 ({names[0]}) to "
            f"{kind} {len(names) - 1} ({names[-1]})"
        )
    return names[int(place)]


def _colours(topology: Topology, marks: Mapping[str, object]) -> Mapping[str, int]:
    """A number for each node; equal for those whose links lead to equal ones, ever on."""
    own = {name: (node.kind, node.model, marks.get(name)) for name, node in topology.nodes.items()}
    colour = _number(own)
    while True:
        around: dict[str, list[tuple[str, float, int]]] = {name: [] for name in colour}
        for link in topology.links:
            around[link.source].append((link.link_class, link.bandwidth, colour[link.target]))
        finer = _number({name: (colour[name], tuple(sorted(around[name]))) for name in colour})
        if len(set(finer.values())) == len(set(colour.values())):
            return colour
        colour = finer


def _number(values: Mapping[str, object]) -> dict[str, int]:
    """Equal values as equal numbers, in the order in which they come."""
    seen: dict[object, int] = {}
    return {name: seen.setdefault(value, len(seen)) for name, value in values.items()}
