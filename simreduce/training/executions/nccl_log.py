"""NCCL's log: `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL`.

A line of a collective has counts and no times. A replay therefore runs the collectives of a stream
one after another as fast as they go, and so the collectives of a communicator.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from simreduce.errors import quote
from simreduce.files.formats import Faults
from simreduce.training.executions.execution import (
    COLLECTIVE,
    RECEIVE,
    SEND,
    Execution,
    ExecutionError,
    ExecutionNode,
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
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", call["call"]):
        return f"with opCount {quote(call['call'])}, which is no number"
    if not (op.isdecimal() and int(op) <= (_LAST_OP if call["name"] in _REDUCE else 0)):
        return f"with op {quote(op)}, which is no operation of NCCL"
    if not (1 <= n <= _MOST_RANKS and root < n):
        return f"with root {root} of {n} ranks"
    if int(call["count"]) > _MOST_ELEMENTS:
        return f"of {quote(call['count'])} elements"
    return ""


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
