"""Which format a file has, and the ranks of several files together.

NCCL's log: `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL`.

A line of a collective has counts and no times. A replay therefore runs the collectives of a stream
one after another as fast as they go, and so the collectives of a communicator.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from simreduce.computing import once
from simreduce.errors import InputError, quote, why_no_path
from simreduce.files import read_bytes, read_text, reason
from simreduce.files.formats.syntax import Faults, read_json
from simreduce.training import executions
from simreduce.training.executions import (
    COLLECTIVE,
    COMPUTE,
    GROUPS,
    HOST_ONLY,
    RECEIVE,
    SEND,
    UNTIMED,
    Execution,
    ExecutionError,
    ExecutionNode,
    horovod,
    pytorch,
)

NO_TIMES = (
    "NCCL's log has no times: collectives of a stream or a communicator run one after another"
)
_COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
}
_TRANSFERS = {"Send": SEND, "Recv": RECEIVE}
_BY_PART = ("ReduceScatter", "AlltoAll")
"""Whose `count` is of what one rank gets in the end, or gives to one other."""
_SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes by ncclDataType_t: int8 to uint64, half, float, double, bfloat16, two of 8 bits."""

_REDUCE = ("AllReduce", "ReduceScatter", "Reduce")
"""What takes an operation; all others log 0."""
_LAST_OP = (1 << 31) - 1
"""Operations are sum, product, max, min and average. One that a program makes, as FSDP does to
divide gradients, has any number from 5 on (`ncclUserRedOpMangle`, NVIDIA/nccl src/include/comm.h).
"""
_MOST_RANKS, _MOST_ELEMENTS = 1 << 20, 1 << 48

_LINE = re.compile(
    r"(?P<gpu>\S+:\d+:\d+ \[\d+\])( \d+)? NCCL INFO (?P<name>[A-Z]\w+): opCount (?P<call>\S+) .*?"
    r"count (?P<count>\d+) datatype (?P<type>\d+) op (?P<op>\S+) root (?P<root>-?\d+) "
    r"comm (?P<comm>\S+) \[nranks=(?P<n>\d+)\] stream (?P<stream>\S+)"
    r"( task \S+ globalrank (?P<global>\d+))?"
)
_INIT = re.compile(
    r"(?P<gpu>\S+:\d+:\d+ \[\d+\]) NCCL INFO .*?comm (?P<comm>\S+) rank (?P<rank>\d+) "
    r"n[rR]anks (?P<n>\d+) .*?(parent (?P<parent>\S+) splitCount (?P<split>\d+) color "
    r"(?P<color>-?\d+) .*?)?(commId (?P<id>\S+) ?)?- Init "
)


@dataclass
class _Gpu:
    """One GPU of the log: its calls, and its rank in the communicators by pointer."""

    calls: list[re.Match[str]] = field(default_factory=list)
    ranks: dict[str, tuple[int, int, str]] = field(default_factory=dict)

    @property
    def world(self) -> tuple[int, int]:
        """Its rank in the largest communicator, and how large that is."""
        rank, n, _ = max(self.ranks.values(), key=lambda each: each[1], default=(0, 0, ""))
        return rank, n


def read(path: str, text: str) -> Execution:
    """The collectives of every rank in the log; ExecutionError with every fault."""
    gpus = _gpus(text)
    faults = Faults(path)
    called = {name: gpu for name, gpu in gpus.items() if gpu.calls}
    if not called:
        raise ExecutionError(
            f"{path}: NCCL's log has no collectives; record with NCCL_DEBUG=INFO "
            "NCCL_DEBUG_SUBSYS=INIT,COLL"
        )
    world = max(int(call["n"]) for gpu in called.values() for call in gpu.calls)
    members = _members(gpus)
    nodes: dict[int, tuple[ExecutionNode, ...]] = {}
    for name, gpu in called.items():
        said = gpu.calls[0]["global"]  # RCCL says it
        rank = int(said) if said else gpu.world[0] if gpu.ranks else len(nodes)
        faults.check(
            rank not in nodes,
            "",
            f"{name}: another GPU of the log is rank {rank}, too; one job at a time",
        )
        nodes[rank] = _nodes(gpu, world, members, faults, name)
    faults.raise_any(ExecutionError)
    return Execution(path, dict(sorted(nodes.items())), world, (NO_TIMES,))


def _members(gpus: Mapping[str, _Gpu]) -> dict[str, dict[int, int]]:
    """Return the ranks of each communicator, by their rank in it.

    None where two GPUs have one place, as happens if the log does not tell communicators of a size
    from each other.
    """
    members: dict[str, dict[int, int]] = defaultdict(dict)
    unclear = set()
    for gpu in gpus.values():
        for rank, _, number in gpu.ranks.values():
            if members[number].setdefault(rank, gpu.world[0]) != gpu.world[0]:
                unclear.add(number)
    return {number: known for number, known in members.items() if number not in unclear}


def _gpus(text: str) -> dict[str, _Gpu]:
    """Of threads on one GPU the first name counts; a proxy thread logs under another."""
    gpus: dict[str, _Gpu] = defaultdict(_Gpu)
    for line in text.splitlines():
        if found := _LINE.search(line):
            gpus[_name(found["gpu"])].calls.append(found)
        elif found := _INIT.search(line):
            ranks = gpus[_name(found["gpu"])].ranks
            number = found["id"] or found["n"]
            if found["parent"] and not found["id"]:  # ncclCommSplit: ranks of a color come together
                _, _, parent = ranks.get(found["parent"], (0, 0, ""))
                number = f"{parent} split {found['split']} color {found['color']}"
            ranks[found["comm"]] = int(found["rank"]), int(found["n"]), number
    return gpus


def _name(gpu: str) -> str:
    """Host, process and device, without the thread."""
    place, device = gpu.split(" ")
    return f"{place.rsplit(':', 1)[0]} {device}"


def _nodes(
    gpu: _Gpu, world: int, members: dict[str, dict[int, int]], faults: Faults, name: str
) -> tuple[ExecutionNode, ...]:
    nodes: list[ExecutionNode] = []
    last: dict[str, tuple[int, ...]] = defaultdict(tuple)  # by stream and by communicator
    grouped: dict[str, list[int]] = defaultdict(list)  # sends and receives since, which run at once
    for call in gpu.calls:
        n, kind = int(call["n"]), int(call["type"])
        if fault := _fault(call):
            faults.add("", f"{name}: {call['name']} {fault}")
            continue
        queues = f"stream {call['stream']}", f"comm {call['comm']}"
        if not faults.check(
            kind < len(_SIZES),
            "",
            f"{name}: {call['name']} of datatype {kind}, which is not known",
        ):
            continue
        group: tuple[int, ...] = ()
        if n < world:
            _, _, number = gpu.ranks.get(call["comm"], (0, 0, ""))
            known = members.get(number, {})
            if not faults.check(
                sorted(known) == list(range(n)),
                "",
                f"{name}: {call['name']} on comm {call['comm']}, of {n} ranks whose lines"
                " '- Init COMPLETE' do not say which these are",
            ):
                continue
            group = tuple(known[i] for i in range(n))
        if call["name"] in _TRANSFERS:
            before = {node for queue in queues for node in last[queue]}
            for queue in queues:
                grouped[queue].append(len(nodes))
        elif call["name"] in _COLLECTIVES:
            before = {node for queue in queues for node in grouped.pop(queue, ()) or last[queue]}
            last |= dict.fromkeys(queues, (len(nodes),))
        else:
            faults.add("", f"{name}: {call['name']} is no collective that is known")
            continue
        nodes.append(_node(call, n, _SIZES[kind], group, before))
    return tuple(nodes)


def _fault(call: re.Match[str]) -> str:
    """What is wrong with the numbers of a line, in NCCL's limits; "" if nothing is."""
    root, n, op = int(call["root"]), int(call["n"]), call["op"]
    rules = (
        (re.fullmatch(r"[0-9a-fA-F]{1,16}", call["call"]),
         f"with opCount {quote(call['call'])}, which is no number"),
        (op.isdecimal() and int(op) <= (_LAST_OP if call["name"] in _REDUCE else 0),
         f"with op {quote(op)}, which is no operation of NCCL"),
        (1 <= n <= _MOST_RANKS and root < n, f"with root {root} of {n} ranks"),
        (int(call["count"]) <= _MOST_ELEMENTS, f"of {quote(call['count'])} elements"),
    )  # fmt: skip
    return next((words for fine, words in rules if not fine), "")


def _node(
    call: re.Match[str], n: int, size: int, group: tuple[int, ...], after: set[int]
) -> ExecutionNode:
    name, nbytes, root = call["name"], int(call["count"]) * size, max(int(call["root"]), 0)
    kind = _TRANSFERS.get(name, COLLECTIVE)
    node = ExecutionNode(name, kind, tuple(sorted(after)), nbytes=nbytes)
    if kind != COLLECTIVE:
        return node._replace(peer=group[root] if group else root)
    return node._replace(
        lane=f"stream {call['stream']}", collective=_COLLECTIVES[name], group=group, root=root,
        nbytes=nbytes * (n if name in _BY_PART else 1),
    )  # fmt: skip


_SHOWN = 5
MOST_BYTES = 2 << 30
"""A longer file is refused before it fills the memory."""


Groups = Mapping[str, tuple[int, ...]]
"""The ranks of process groups by name."""
ALONE = "a job of one rank: collectives take no time; give every rank's file, or the groups"
"""A note on a job whose other ranks no file names."""
BY_XLA = (
    "is by the profiler of JAX or TensorFlow, whose timeline has no sizes of collectives; bring"
    " NCCL's log of the job (NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL), or Horovod's timeline"
    " of a job under Horovod (HOROVOD_TIMELINE)"
)
_JSON = re.compile(rb"\s*[\[{]\s*[\[{\"\]}]")
"""How a JSON of ours begins; a launcher's prefix or a stamp may begin with a bracket, too."""
_PLANES = ("/host:", "/device:")
"""How the planes of an XSpace begin, and the processes of the timeline that is made of it."""
SUFFIXES = (".json", ".et", ".chakra", ".log", ".gz")
"""The ends of records' names."""


def is_record(text: str) -> bool:
    """Whether a text names a record, by its end; no file is looked at."""
    return Path(text).suffix in SUFFIXES and not text.startswith("bytes:")


def read_executions(paths: Sequence[str], groups: Groups | None = None) -> Execution:
    """The run that files tell of, one file per rank or one for all.

    `groups` are the ranks of process groups by name, where a trace says names only; by default
    those that `groups.json` beside it has.

    ExecutionError with every fault of every file.
    """
    faults, beside = Faults(), dict[Path, Groups]()
    found = [e for path in paths if (e := faults.attempt("", _read, path, groups or {}, beside))]
    faults.raise_any(ExecutionError)
    rows = [row for one in found for row in one.nodes.values()]
    moves = any(node.kind != COMPUTE or node.seconds for row in rows for node in row)
    if not moves and not any(UNTIMED in one.notes for one in found):
        raise ExecutionError(f"{paths[0]}: {HOST_ONLY}")
    if len(found) == 1:
        (one,) = found
        alone = one.world == 1 and any(node.kind == COLLECTIVE for node in one.nodes[0])
        return replace(one, notes=(*one.notes, ALONE)) if alone else one
    nodes = {}
    for path, one in zip(paths, found, strict=True):
        for rank, row in one.nodes.items():
            faults.check(rank not in nodes, path, f"rank {rank} is in another of these files, too")
            nodes[rank] = row
    faults.raise_any(ExecutionError)
    world = max(*(one.world for one in found), *(rank + 1 for rank in nodes))
    notes = dict.fromkeys(note for one in found for note in one.notes)
    return Execution(paths[0], dict(sorted(nodes.items())), world, tuple(notes))


def _read(path: str, groups: Groups, beside: dict[Path, Groups]) -> Execution:
    content = _content(path)
    if content[:1] == b"\n" and any(plane.encode() in content[:64] for plane in _PLANES):
        raise ExecutionError(f"{path}: {BY_XLA}")
    if b"\x00" in content[:4096] or content[:1] == b"\n" or Path(path).suffix in (".et", ".chakra"):
        folder = Path(path).parent
        return executions.read(
            path, content, groups or once(beside, folder, partial(_groups_of, folder))
        )
    if groups:
        raise ExecutionError(f"{path}: says itself which ranks take part; leave out --groups")
    bracket = content[:4096].lstrip().startswith((b"{", b"["))
    if bracket and (_JSON.match(content) or b"NCCL INFO" not in content):
        return _read_json(path, content)
    if b"NCCL INFO" in content:
        return read(path, content.decode("utf-8", "replace"))
    raise ExecutionError(
        f"{path}: is neither a Chakra trace (.et), nor JSON of the PyTorch profiler, of DDP's "
        "logging data or of Horovod's timeline, nor a log with NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_SUBSYS=COLL"
    )


def _groups_of(folder: Path) -> Groups:
    """What `simreduce step --chakra` wrote beside its traces, if this is such a folder."""
    path = folder / GROUPS
    return read_groups(str(path)) if path.is_file() else {}


def read_groups(path: str) -> Groups:
    """Ranks by the name of a process group."""
    document = read_json(read_text(Path(path), InputError), f"{path}: is no JSON")
    faults = Faults(path)
    if not isinstance(document, dict) or not document:
        faults.add("", 'must be ranks by group, such as {"0": [0, 1]}')
        document = {}
    for name, ranks in document.items():
        numbers = isinstance(ranks, list) and all(
            type(rank) is int and 0 <= rank < _MOST_RANKS for rank in ranks
        )
        single = numbers and ranks and len(set(ranks)) == len(ranks)
        faults.check(single, name, "must be a list of ranks, each once, such as [0, 1]")
    faults.raise_any()
    return {name: tuple(ranks) for name, ranks in document.items()}


def _content(path: str) -> bytes:
    """The bytes of a file, unpacked if it is compressed; nothing is kept of what is too large."""
    try:
        content = read_bytes(Path(path), MOST_BYTES)
    except OSError as error:
        raise ExecutionError(f"{path}: {reason(error)}") from None
    except ValueError as error:
        raise ExecutionError(f"{path!r}: cannot be read: {why_no_path(path, error)}") from None
    if content.startswith(b"\x1f\x8b"):
        try:
            size = sum(map(len, _unpacked(content)))
            content = b"".join(_unpacked(content)) if size <= MOST_BYTES else b""
        except (OSError, EOFError, zlib.error) as error:
            raise ExecutionError(f"{path}: the compressed file is damaged: {error}") from None
        if size > MOST_BYTES:
            raise ExecutionError(f"{path}: more than 2 GiB; record fewer steps")
    if not content:
        raise ExecutionError(f"{path}: is empty")
    return content


def _unpacked(content: bytes) -> Iterator[bytes]:
    """The parts of a compressed file, until there is too much. EOFError if it is cut short."""
    size = 0
    with gzip.open(io.BytesIO(content)) as file:
        while size <= MOST_BYTES and (part := file.read(1 << 20)):
            size += len(part)
            yield part


def _read_json(path: str, content: bytes) -> Execution:
    # Tracers write some arguments of an event twice, and NaN where they measured nothing.
    text: str | bytes = content
    if content.lstrip().startswith(b"["):  # a list of events, which a killed job leaves open
        text = horovod.closed(content.decode("utf-8", "replace"))
    document = read_json(
        text, f"{path}: is no JSON", ExecutionError, most=MOST_BYTES, twice=True, finite=False
    )
    if horovod.is_timeline(document):
        return horovod.read(path, document)
    if isinstance(document, dict) and _is_by_xla(document.get("traceEvents")):
        raise ExecutionError(f"{path}: {BY_XLA}")
    if isinstance(document, dict) and "traceEvents" in document:
        return pytorch.read_profile(path, document)
    if isinstance(document, dict) and {"bucket_sizes", "rebuilt_bucket_sizes"} & document.keys():
        return pytorch.read_ddp(path, document)
    if isinstance(document, dict) and "nodes" in document and "schema" in document:
        raise ExecutionError(
            f"{path}: is PyTorch's execution trace {quote(document['schema'])}, without what ran "
            "on the GPU; Chakra's trace_link and converter make a .et file of it and of a "
            "profiler's timeline"
        )
    raise ExecutionError(
        f"{path}: this JSON has neither 'traceEvents' of the PyTorch profiler nor 'bucket_sizes' "
        f"of DDP's logging data nor events of Horovod's timeline, and Chakra's traces are no JSON; "
        f"it has {_found(document)}"
    )


def _is_by_xla(events: Any) -> bool:
    """Whether a timeline has processes as the profiler of JAX and TensorFlow names them."""
    return isinstance(events, list) and any(
        isinstance(event, dict)
        and event.get("name") == "process_name"
        and isinstance(args := event.get("args"), dict)
        and str(args.get("name")).startswith(_PLANES)
        for event in events
    )


def _found(document: Any) -> str:
    """What a JSON document is, in words: its keys, or its type."""
    if isinstance(document, dict):
        names = [quote(key) for key in list(document)[:_SHOWN]]
        more = ", ..." * (len(document) > _SHOWN)
        return f"the keys {', '.join(names)}{more}" if names else "no key"
    return f"a list of {len(document)}" if isinstance(document, list) else quote(document)
