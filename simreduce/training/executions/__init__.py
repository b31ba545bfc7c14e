"""Recordings of runs by other programs: collectives, their sizes and order, and the compute.

One file per format: Chakra's execution traces, the PyTorch profiler's timelines, NCCL's log and
DDP's logging data. `read_executions` finds out which one a file is.

A recorded run: nodes of ranks, each after others of its rank.

Chakra's execution traces (MLCommons) are read and written here. The format is
`schema/protobuf/et_def.proto`, the same in versions 0.0.4 and 1.0.0: a file per rank, messages with
their length in front, first the metadata, then nodes.

`comm_size` is what one rank gives, in bytes, as ASTRA-sim reads it. A node on the CPU and one on
the GPU run at once, and each process group's collectives run one after another. A barrier is an
all-reduce of one number, as in PyTorch over NCCL.

What is written has times of compute in whole microseconds, and process groups with numbers for
names, whose ranks are in a file beside the traces: `simreduce replay --groups` and ASTRA-sim's
`--comm-group-configuration` read it.

Messages have their published field numbers; protobuf skips what is not declared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath
from typing import Any, NamedTuple

from simreduce.errors import InputError, load_extra, quote
from simreduce.files.formats.syntax import Faults

COMPUTE, COLLECTIVE, SEND, RECEIVE = "compute", "collective", "send", "receive"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


class ExecutionError(InputError):
    """A record that cannot be read, or that contradicts itself."""


class ExecutionNode(NamedTuple):
    """One thing that a rank did.

    `after` are indices of earlier nodes of the same rank, all of which it waits for, or the first
    that is done if it is `early`. Nodes of one `lane` run one at a time, those that are ready in
    their order. `seconds` is how long it took when it was recorded, None if nobody knows; a compute
    node takes that long again. `start` is when it began, in seconds.

    A collective has its name, the `nbytes` that one rank gives (all-gathers end with as much times
    the ranks), the `group` of ranks in order, empty for all, and a `root`, which counts within the
    group. A send and a receive have a `peer`. `dtype` is the type of what moves, by the name that
    `simreduce.dtypes` has for it or else by the record's, "" if nobody says.

    `step` counts training steps and `phase` is the part of one that a node belongs to (`FORWARD`,
    `BACKWARD`, `UPDATE`), where the record has marks of them.
    """

    name: str
    kind: str
    after: tuple[int, ...] = ()
    lane: str = ""
    seconds: float | None = None
    start: float | None = None
    collective: str = ""
    nbytes: int = 0
    group: tuple[int, ...] = ()
    root: int = 0
    peer: int = 0
    tag: int = 0
    dtype: str = ""
    step: int | None = None
    phase: str = ""
    early: bool = False


@dataclass(slots=True)
class NodeList:
    """The nodes of a rank while they are written, and the `last` of each lane."""

    nodes: list[ExecutionNode] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)

    def add(self, lane: str, after: Iterable[int], **facts: Any) -> int:
        """Add a node after others, and after the last of its lane; return its index."""
        before = [self.last[lane]] if lane in self.last else []
        after = tuple(dict.fromkeys((*before, *after)))
        self.nodes.append(ExecutionNode(after=after, lane=lane, **facts))
        self.last[lane] = len(self.nodes) - 1
        return self.last[lane]


@dataclass(frozen=True, slots=True)
class Execution:
    """The work of each recorded rank, out of `world` ranks.

    Ranks without a recording are taken to do what keeps the recorded ones from waiting. `notes` say
    what was left out. `cap` is DDP's `bucket_cap_mb` in bytes, 0 if the record does not say.
    """

    source: str
    nodes: Mapping[int, tuple[ExecutionNode, ...]]
    world: int
    notes: tuple[str, ...] = field(default=())
    cap: int = 0

    def members(self, node: ExecutionNode) -> tuple[int, ...]:
        """The ranks of a collective's group."""
        return node.group or tuple(range(self.world))

    @property
    def recorded(self) -> float | None:
        """Seconds from the first begin to the last end, None if the record has no times."""
        spans = [
            (node.start, node.start + node.seconds)
            for nodes in self.nodes.values()
            for node in nodes
            if node.start is not None and node.seconds is not None
        ]
        if not spans:
            return None
        return max(end for _, end in spans) - min(begin for begin, _ in spans)


def from_zero(value: Any, faults: Faults, place: str, fault: str) -> int:
    """The whole number that a record says, from 0; else 0, and the fault is noted."""
    if type(value) is int and value >= 0:
        return value
    faults.add(place, fault)
    return 0


_PACKAGE = "ChakraProtoMsg"
_SCALARS = {
    "double": 3, "float": 5, "int32": 7, "int64": 9, "uint32": 11, "uint64": 13, "sint32": 15,
    "sint64": 17, "fixed32": 19, "fixed64": 21, "sfixed32": 23, "sfixed64": 25, "bool": 27,
    "string": 29, "bytes": 31,
}  # fmt: skip
"""Numbers of an attribute's values by type; the lists between them are not read."""
_FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "AttributeProto": {
        "name": (1, "string"),
        **{f"{kind}_val": (number, kind) for kind, number in _SCALARS.items()},
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "message")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "int32"),  # an enumeration
        "ctrl_deps": (4, "uint64"), "data_deps": (5, "uint64"), "start_time_micros": (6, "uint64"),
        "duration_micros": (7, "uint64"), "attr": (10, "message"),
    },
}  # fmt: skip
"""The fields of each message, with their numbers and types."""
_REPEATED = ("ctrl_deps", "data_deps", "attr")


class ChakraTypes(NamedTuple):
    """The classes of an attribute's message, of the first of a file, and of a node."""

    attribute: Any
    metadata: Any
    node: Any


@cache
def message_types() -> ChakraTypes:
    """The classes; InputError without protobuf."""
    need = "Chakra's traces need protobuf: pip install 'simreduce[chakra]'"
    load_extra("google.protobuf.message_factory", need)
    from google.protobuf import (  # noqa: PLC0415 - an extra
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="simreduce/chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for key, (number, kind) in fields.items():
            more: dict[str, Any] = {"oneof_index": 0} if key.endswith("_val") else {}
            if kind == "message":
                more["type_name"] = f".{_PACKAGE}.AttributeProto"
            message.field.add(
                name=key, number=number, type=getattr(field, f"TYPE_{kind.upper()}"),
                label=field.LABEL_REPEATED if key in _REPEATED else field.LABEL_OPTIONAL, **more,
            )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _FIELDS)
    return ChakraTypes(*map(message_factory.GetMessageClass, found))


VERSION = "0.0.4"
_KNOWN = ("", VERSION, "1.0.0")
"""What ASTRA-sim's traces, `chakra_generator` 1.0.0, and `chakra_converter` (nothing) write."""
HOST_ONLY = (
    "has no collective and no times, as chakra_converter makes of a host's trace alone; give it"
    " what chakra_trace_link makes of that and of a profiler's timeline of GPUs"
)
UNTIMED = "compute nodes with num_ops and without a duration take no time"

GROUP = "group"
"""Begins the lane of a process group, whose ranks may be unknown."""
_BARRIER = 9
_COLLECTIVES = {
    0: "all_reduce",
    1: "reduce",
    2: "all_gather",
    5: "broadcast",
    6: "all_to_all",
    7: "reduce_scatter",
    8: "reduce_scatter",
    _BARRIER: "all_reduce",
}
_OTHERS = {3: "GATHER", 4: "SCATTER"}
_COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7
_MEMORY = (2, 3)
_RANK = re.compile(r"\.(\d{1,7})\.(et|chakra)(\.gz)?$")
US = 1e-6
GROUPS = "groups.json"


class _Facts(NamedTuple):
    """Of the trace: its rank, the ranks of process groups by name, where faults go."""

    rank: int
    groups: Mapping[str, tuple[int, ...]]
    faults: Faults


def read(path: str, content: bytes, groups: Mapping[str, tuple[int, ...]]) -> Execution:
    """The trace of one rank, whose number ends the file's name: `trace.3.et`.

    The world is as large as the largest group, or as what is recorded.
    """
    faults, kinds = Faults(path), message_types()
    found = _RANK.search(PurePath(path).name)
    facts = _Facts(int(found[1]) if found else 0, groups, faults)
    first, *messages = _messages(path, content)
    fault = f"{path}: begins with no metadata of a Chakra trace"
    head = _parsed(kinds.metadata, first, fault)
    if not head.version and not head.attr:
        raise ExecutionError(fault)
    raw = [
        _parsed(kinds.node, message, f"{path}: message {number} is no node: {{}}")
        for number, message in enumerate(messages, 1)
    ]
    if not raw:
        raise ExecutionError(f"{path}: has no nodes")
    nodes, notes = _nodes(raw, facts)
    faults.raise_any(ExecutionError)
    if head.version not in _KNOWN:
        said = (
            f"version {quote(head.version)} of Chakra's format is not known, and read as {VERSION}"
        )
        notes = (said, *notes)
    ranks = {facts.rank, *(rank for group in groups.values() for rank in group)}
    ranks |= {node.peer for node in nodes if node.kind in (SEND, RECEIVE)}
    return Execution(path, {facts.rank: nodes}, max(ranks) + 1, notes)


def _messages(path: str, content: bytes) -> Iterator[bytes]:
    """Each behind its length, a varint."""
    place = 0
    while place < len(content):
        size = shift = 0
        while True:
            if place >= len(content) or shift > 56:  # more bits than a length has
                raise ExecutionError(f"{path}: byte {place}: no Chakra trace, or cut off")
            byte = content[place]
            place, size, shift = place + 1, size | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        if size > len(content) - place:
            raise ExecutionError(f"{path}: byte {place}: no Chakra trace, or cut off")
        yield content[place : place + size]
        place += size


def _parsed(kind: Any, message: bytes, fault: str) -> Any:
    """A message of that kind; ExecutionError with the `fault` if it is none."""
    one = kind()
    try:
        one.ParseFromString(message)
    except Exception as error:  # noqa: BLE001 - protobuf's own error is not public everywhere
        raise ExecutionError(fault.replace("{}", str(error))) from None
    return one


def _nodes(raw: list[Any], facts: _Facts) -> tuple[tuple[ExecutionNode, ...], tuple[str, ...]]:
    faults = facts.faults
    places = {one.id: place for place, one in enumerate(raw)}
    for place, one in enumerate(raw):
        faults.check(places[one.id] == place, f"node {one.id}", "another node has this id, too")
    unknown, notes, nodes = 0, dict[str, bool](), list[ExecutionNode]()
    for one in raw:
        before = [*one.data_deps, *one.ctrl_deps]
        unknown += sum(each not in places for each in before)
        after = tuple(sorted({places[each] for each in before if each in places}))
        kinds = ((attr, attr.WhichOneof("value")) for attr in one.attr)
        values = {attr.name: None if kind is None else getattr(attr, kind) for attr, kind in kinds}
        nodes.append(_node(one, values, after, facts, notes))
    if unknown:
        notes[f"{unknown:,} dependencies on nodes that are not in the trace"] = True
    return tuple(nodes), tuple(notes)


def _node(
    one: Any,
    values: Mapping[str, Any],
    after: tuple[int, ...],
    facts: _Facts,
    notes: dict[str, bool],
) -> ExecutionNode:
    seconds = one.duration_micros * US
    start = one.start_time_micros * US if one.start_time_micros else None
    took = seconds or None
    if one.type == _COLLECTIVE:
        return _collective(one, values, after, facts)._replace(seconds=took, start=start)
    if one.type in (_SEND, _RECEIVE):
        kind = SEND if one.type == _SEND else RECEIVE
        peer = values.get("comm_dst" if kind == SEND else "comm_src", -1)
        peer = from_zero(
            peer, facts.faults, f"node {one.id}", f"a {kind} needs the rank of its peer"
        )
        nbytes, tag = _size(one, values, facts), int(values.get("comm_tag") or 0)
        return ExecutionNode(
            one.name, kind, after, "", took, start, nbytes=nbytes, peer=peer, tag=tag
        )
    if one.type in _MEMORY and not seconds:
        notes["loads and stores of memory without a duration take no time"] = True
    elif not seconds and values.get("num_ops"):
        notes[UNTIMED] = True
    lane = "CPU" if values.get("is_cpu_op") else f"GPU {values.get('stream') or ''}".strip()
    return ExecutionNode(one.name, COMPUTE, after, lane, seconds, start)


def _collective(
    one: Any,
    values: Mapping[str, Any],
    after: tuple[int, ...],
    facts: _Facts,
) -> ExecutionNode:
    place, number = f"node {one.id}", values.get("comm_type")
    name = _COLLECTIVES.get(number, "") if isinstance(number, int) else ""
    which = _OTHERS.get(number, number) if isinstance(number, int) else None
    facts.faults.check(name, place, f"comm_type {which}: no such collective is modelled")
    pg = str(values.get("pg_name") or "")
    group = facts.groups.get(pg, ())
    if pg and facts.groups and not group:
        facts.faults.add(
            place,
            f"process group {quote(pg)} is not among the groups: {', '.join(facts.groups)}",
        )
    nbytes = 4 if number == _BARRIER else _size(one, values, facts)
    return ExecutionNode(
        one.name,
        COLLECTIVE,
        after,
        f"{GROUP} {pg}".strip(),
        collective=name,
        nbytes=nbytes,
        group=group,
        root=int(values.get("root_rank") or 0),
    )


def _size(one: Any, values: Mapping[str, Any], facts: _Facts) -> int:
    size = values.get("comm_size")
    words = f"comm_size must be bytes, got {quote(size)}"
    return from_zero(size, facts.faults, f"node {one.id}", words)


def write(execution: Execution, stem: str) -> dict[str, bytes]:
    """The content of a trace for each recorded rank, `STEM.RANK.et`, and of the ranks of groups."""
    groups, files = dict[tuple[int, ...], str](), dict[str, bytes]()
    for rank, nodes in execution.nodes.items():
        messages = [message_types().metadata(version=VERSION)]
        for number, node in enumerate(nodes):
            members = execution.members(node) if node.kind == COLLECTIVE else ()
            name = groups.setdefault(members, str(len(groups))) if members else ""
            messages.append(_written(number, rank, node, name))
        texts = [message.SerializeToString() for message in messages]
        files[f"{stem}.{rank}.et"] = b"".join(_length(len(text)) + text for text in texts)
    if groups:
        ranks = {name: list(members) for members, name in groups.items()}
        files[GROUPS] = (json.dumps(ranks) + "\n").encode()
    return files


def _length(size: int) -> bytes:
    """A varint."""
    found = bytearray()
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    return bytes([*found, size])


def _written(number: int, rank: int, node: ExecutionNode, group: str) -> Any:
    """A node with the attributes, and their types, that Chakra's feeder reads."""
    kinds = {COMPUTE: _COMPUTE, COLLECTIVE: _COLLECTIVE, SEND: _SEND, RECEIVE: _RECEIVE}
    micros = round((node.seconds or 0.0) / US)
    one = message_types().node(
        id=number, name=node.name, type=kinds[node.kind], data_deps=node.after,
        duration_micros=micros,
    )  # fmt: skip

    def add(name: str, **value: Any) -> None:
        one.attr.append(message_types().attribute(name=name, **value))

    add("is_cpu_op", bool_val=False)
    if node.kind == COMPUTE:
        return one
    add("comm_size", int64_val=node.nbytes)
    if node.kind == COLLECTIVE:
        kind = next((each for each, name in _COLLECTIVES.items() if name == node.collective), None)
        if kind is None:
            raise InputError(f"{node.name}: Chakra has no {node.collective}")
        add("comm_type", int64_val=kind)
        add("pg_name", string_val=group)
        if node.root:
            add("root_rank", int64_val=node.root)
        return one
    ends = (rank, node.peer) if node.kind == SEND else (node.peer, rank)
    for name, value in zip(("comm_src", "comm_dst", "comm_tag"), (*ends, node.tag), strict=True):
        add(name, int32_val=value)
    return one
