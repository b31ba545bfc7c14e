"""PyTorch's records: the profiler's timeline, and the logging data of DDP.

The logging data is `json.dumps(model._get_ddp_logging_data())`. Its buckets become all-reduces, one
after another, at even distances in the backward pass. Passes take `avg_forward_compute_time` and
`avg_backward_compute_time`, where DDP measured them.

It has the kernels of one rank by stream, NCCL's with their collective, elements and process group.

What waits for what is not in the file. It is taken from how PyTorch launches:

* kernels of a stream run one after another
* an NCCL kernel waits for the kernels that were launched on the computing streams before it:
  `ProcessGroupNCCL` lets its stream wait for the current one
* a kernel that began right when a collective ended, on a stream that stood still until then, waited
  for that collective
* other gaps of a stream are the CPU's: they stay as long as they were

Steps are those of `ProfilerStep#`, else they end with `Optimizer.step#`. Of a step, the autograd
engine's first and last event bound the backward pass; a kernel belongs to where it was launched.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any, NamedTuple, TypeGuard

from simreduce.computing import group_by
from simreduce.errors import quote
from simreduce.files.formats.syntax import Faults
from simreduce.training.executions import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    FORWARD,
    RECEIVE,
    SEND,
    UPDATE,
    US,
    Execution,
    ExecutionError,
    ExecutionNode,
    from_zero,
    gloo,
)
from simreduce.training.executions.gloo import CpuEvent

_NS = 1e-9
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
}  # fmt: skip


def read_ddp(path: str, data: Mapping[str, Any]) -> Execution:
    """Return one step of one rank, which represents all ranks."""
    faults = Faults(path)
    key = "rebuilt_bucket_sizes" if data.get("rebuilt_bucket_sizes") else "bucket_sizes"
    text = data.get(key)
    parts = [part.strip() for part in text.split(",")] if isinstance(text, str) else []
    sizes = [int(part) for part in parts if part.isdecimal() and len(part) < 16]
    faults.check(
        sizes and len(sizes) == len(parts) and min(sizes) != 0,
        key,
        f"must be bytes such as '1048576, 26214400', got {quote(text)}",
    )
    world, rank = data.get("world_size"), data.get("rank", 0)
    if type(world) is not int or not 2 <= world <= 1 << 20:
        faults.add("world_size", f"must be a whole number from 2, got {quote(world)}")
    elif type(rank) is not int or not 0 <= rank < world:
        faults.add("rank", f"must be a whole number below {world}, got {quote(rank)}")
    forward, backward = (
        _whole(data, f"avg_{each}_compute_time", "nanoseconds", faults)
        for each in (FORWARD, BACKWARD)
    )
    cap = _whole(data, "bucket_cap_bytes", "bytes", faults)
    faults.raise_any(ExecutionError)
    assert isinstance(world, int)  # noqa: S101 - else there is a fault
    share, dtype = backward * _NS / len(sizes), _DTYPES.get(str(data.get("dtypes")), "")
    nodes: list[ExecutionNode] = []
    if forward:
        nodes.append(ExecutionNode("forward", COMPUTE, (), "compute", forward * _NS, phase=FORWARD))
    last = tuple(range(len(nodes)))
    for number, size in enumerate(sizes):
        computed = (len(nodes),)
        nodes += [
            ExecutionNode(f"backward {number}", COMPUTE, last, "compute", share, phase=BACKWARD),
            ExecutionNode(
                f"bucket {number}", COLLECTIVE, computed, "communication", collective="all_reduce",
                nbytes=size, dtype=dtype, phase=BACKWARD,
            ),
        ]  # fmt: skip
        last = computed
    notes = () if backward else ("DDP measured no backward pass: nothing is computed",)
    return Execution(path, {rank: tuple(nodes)}, world, notes, cap)


def _whole(data: Mapping[str, Any], key: str, unit: str, faults: Faults) -> int:
    """A whole number from 0 of the data; 0 if it is not there."""
    value = data.get(key, 0)
    return from_zero(value, faults, key, f"must be {unit}, got {quote(value)}")


_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_barrier": "all_reduce",
    "barrier": "all_reduce",
    "_allgather_base": "all_gather",
    "all_gather": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all",
}
_TRANSFERS = {"send": SEND, "recv": RECEIVE}
_BARRIER = 4
"""Bytes of the all-reduce that a barrier is; the timeline says none."""
_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "int": 4, "long": 8, "short": 2, "char": 1,
    "byte": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_PROFILER_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}
_STEP, _OPTIMIZER, _AUTOGRAD = "ProfilerStep#", "Optimizer.step#", "autograd::engine::"
_ON_CPU = ("user_annotation", "cpu_op")
_LONGEST = 1e18
"""Microseconds of the latest time that is read: 30,000 years."""
_MOST_RANKS = 1 << 20
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel on a stream; times in microseconds, `launched` when the CPU asked for it."""

    name: str
    stream: Any
    begin: float
    end: float
    launched: float
    args: Mapping[str, Any]

    @property
    def by_nccl(self) -> bool:
        return self.name.startswith("nccl")


class _Job(NamedTuple):
    """Whose timeline it is, of how many ranks (0 if nobody says), and groups by name."""

    rank: int
    world: int
    groups: Mapping[str, tuple[int, ...]]


class _Marks(NamedTuple):
    """When steps begin after the first, the backward pass of each, and when optimizers begin, in
    microseconds.
    """

    steps: Sequence[float]
    backward: Mapping[int, tuple[float, float]]
    updates: Sequence[float]

    @property
    def cuts(self) -> list[float]:
        """When a step, its backward pass or its update begins."""
        return sorted({*self.steps, *(time for span in self.backward.values() for time in span)})

    def put(self, node: ExecutionNode, launched: float) -> ExecutionNode:
        """The node with its step and phase."""
        step = bisect_right(self.steps, launched)
        phase = ""
        if step in self.backward:
            begin, end = self.backward[step]
            phase = FORWARD if launched < begin else UPDATE if launched > end else BACKWARD
        return node._replace(step=step if self.steps else None, phase=phase)


def read_profile(path: str, document: Mapping[str, Any]) -> Execution:
    """One rank's timeline; ExecutionError with every fault."""
    faults = Faults(path)
    job = document.get("distributedInfo")
    job = job if isinstance(job, Mapping) else {}
    rank, world = job.get("rank", 0), job.get("world_size", 0)
    if not faults.check(
        type(rank) is int and rank >= 0 and type(world) is int and world >= 0,
        "distributedInfo",
        "rank and world_size must be whole numbers",
    ):
        rank = world = 0
    events = document["traceEvents"]
    kernels, marks = _kernels(events, faults), _marks(events, faults)
    job_of = _Job(rank, world, _groups(job.get("pg_config"), world, faults))
    spans = [] if kernels else _spans(events, faults)
    if any(span.name.startswith(gloo.EVENT) for span in spans):
        nodes, notes = _of_gloo(spans, marks, job_of, faults)
    else:
        faults.check(any(kernel.by_nccl for kernel in kernels), "", _NO_COLLECTIVE)
        nodes, notes = _nodes(kernels, job_of, marks, faults), [_LAUNCHES_TELL]
    faults.raise_any(ExecutionError)
    nodes, about_first = _settled(nodes)
    notes += about_first
    sizes = [len(node.group) for node in nodes] + [node.peer + 1 for node in nodes]
    named = [k.args.get("Group size") for k in kernels if k.by_nccl]
    sizes += [size for size in named if type(size) is int]
    return Execution(path, {rank: nodes}, max(world, rank + 1, *sizes), tuple(notes))


_NO_COLLECTIVE = (
    "no collective is in this timeline, no kernel of NCCL and no event of gloo; profile a job that"
    " has a process group, over NCCL with activity CUDA"
)
_LAUNCHES_TELL = "what waits for what is inferred from the order of launches"
PERHAPS_FIRST = (
    "one step with one bucket: if it is DDP's first, later ones have others; record several"
)
ALL_AT_ONCE = (
    "left out: the first step, in which DDP reduces all gradients at once, unlike later ones"
)


def _of_gloo(
    spans: Sequence[CpuEvent], marks: _Marks, job: _Job, faults: Faults
) -> tuple[tuple[ExecutionNode, ...], list[str]]:
    """The nodes of a job on CPUs, and notes on them."""
    groups = {ranks for ranks in job.groups.values() if len(ranks) > 1}
    if not faults.check(
        len(groups) <= 1,
        "distributedInfo.pg_config",
        f"{len(groups)} process groups: which of them a collective over gloo had is not recorded; "
        "profile a job of one group, or over NCCL",
    ):
        return (), []
    group = next(iter(groups), ())
    ranks = len(group) or job.world
    if not faults.check(ranks, "distributedInfo", "must say world_size, the ranks of the job"):
        return (), []
    group = group if ranks < job.world else ()
    found = gloo.nodes_of(spans, marks.cuts, marks.updates, group, ranks, faults)
    nodes = tuple(marks.put(node, time) for node, time in found)
    scattered = any(node.collective == "reduce_scatter" for node in nodes)
    return nodes, [gloo.GAPS, gloo.ON_CPU, *[gloo.SCATTERED] * scattered]


def _spans(events: Any, faults: Faults) -> list[CpuEvent]:
    """What threads of the CPU did."""
    found = []
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, dict) or event.get("cat") not in _ON_CPU:
            continue
        args, thread = event.get("args"), event.get("tid")
        if event.get("ph") != "X" or not _is_id(thread):
            continue
        if (span := _span(event, faults)) is not None:
            args = args if isinstance(args, Mapping) else {}
            name = str(event.get("name", ""))
            found.append(CpuEvent(span[0], sum(span), name, thread, str(event["cat"]), args))
    return found


def _settled(
    nodes: tuple[ExecutionNode, ...],
) -> tuple[tuple[ExecutionNode, ...], tuple[str, ...]]:
    """The nodes without those of a first step whose buckets are not yet DDP's, and a note on it.

    DDP learns in its first step in which order gradients are ready, and reduces them in one bucket.
    """
    sums: dict[int, list[int]] = {}
    for node in nodes:
        if node.collective == "all_reduce" and node.phase == BACKWARD and node.step is not None:
            sums.setdefault(node.step, []).append(node.nbytes)
    first, *rest = sums.values() or [[]]
    if len(first) != 1:
        return nodes, ()
    if not rest:
        return nodes, (PERHAPS_FIRST,)
    if not any(len(row) > 1 and sum(row) == first[0] for row in rest):
        return nodes, ()
    step = next(iter(sums))
    kept = [i for i, node in enumerate(nodes) if node.step is not None and node.step > step]
    places = {i: place for place, i in enumerate(kept)}
    after = ((i, tuple(places[j] for j in nodes[i].after if j in places)) for i in kept)
    return tuple(nodes[i]._replace(after=before) for i, before in after), (ALL_AT_ONCE,)


def _groups(config: Any, world: int, faults: Faults) -> dict[str, tuple[int, ...]]:
    """The ranks of process groups by name; none of a group that the file does not state whole."""
    found = {}
    for i, each in enumerate(config if isinstance(config, list) else []):
        ranks = each.get("ranks") if isinstance(each, Mapping) else None
        if isinstance(ranks, list) and ranks and all(type(rank) is int for rank in ranks):
            fault = _wrong_ranks(ranks, world)
            faults.check(not fault, f"distributedInfo.pg_config[{i}].ranks", fault)
            found[str(each.get("pg_name"))] = tuple(ranks)
    return found


def _wrong_ranks(ranks: Sequence[int], world: int) -> str:
    """What is wrong with the ranks of a group; "" if nothing is. A world of 0 has any number."""
    most = world or _MOST_RANKS
    for rank in ranks:
        if not 0 <= rank < most:
            return f"rank {quote(rank)} is not from 0 to {most - 1}"
    return f"has a rank twice: {quote(ranks)}" if len(set(ranks)) < len(ranks) else ""


def _kernels(events: Any, faults: Faults) -> list[_Kernel]:
    """In order of their begin."""
    if not faults.check(isinstance(events, list), "traceEvents", "must be a list"):
        return []
    launched: dict[Any, float] = {}
    rows = []
    for event in events:
        whole = isinstance(event, dict) and event.get("ph") == "X"  # with its begin and its end
        if not whole or not isinstance(args := event.get("args"), dict):
            continue
        launch = event.get("cat") in _LAUNCHES and "correlation" in args
        if not launch and str(event.get("cat")).lower() not in _DEVICE:
            continue
        if (span := _span(event, faults)) is None:
            continue
        begin, took = span
        name = str(event.get("name", ""))
        wrong = [key for key in ("correlation", "stream") if not _is_id(args.get(key, 0))]
        for key in wrong:
            faults.add("traceEvents", f"{quote(name)} has {key} {quote(args[key])}")
        if wrong:
            continue
        if launch:
            launched[args["correlation"]] = begin
        else:
            rows.append((name, args, begin, took))
    kernels = [
        _Kernel(
            name,
            args.get("stream", 0),
            begin,
            begin + took,
            launched.get(args.get("correlation"), begin),
            args,
        )
        for name, args, begin, took in rows
    ]
    return sorted(kernels, key=lambda kernel: (kernel.begin, kernel.end))


def _span(event: Mapping[str, Any], faults: Faults) -> tuple[float, float] | None:
    """When an event begins and how long it takes, in microseconds; None without such numbers.

    Notes times that no clock shows.
    """
    begin, took = event.get("ts"), event.get("dur", 0)
    if begin is None:
        return None
    known = _is_number(begin) and _is_number(took)
    if known and 0 <= begin <= _LONGEST and 0 <= took <= _LONGEST:
        return float(begin), float(took)
    begin, took = (each if known else quote(each) for each in (begin, took))
    name = quote(event.get("name", ""))
    faults.add("traceEvents", f"{name} begins at {begin} us and takes {took} us")
    return None


def _marks(events: Any, faults: Faults) -> _Marks:
    """The marks that PyTorch puts on the timeline of the CPU."""
    found: dict[str, list[tuple[float, float]]] = {_STEP: [], _OPTIMIZER: [], _AUTOGRAD: []}
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, dict) or event.get("cat") not in _ON_CPU:
            continue
        name = event.get("name")
        for mark in (mark for mark in found if isinstance(name, str) and name.startswith(mark)):
            if (span := _span(event, faults)) is not None:
                found[mark].append((span[0], sum(span)))
    steps = sorted(begin for begin, _ in found[_STEP])
    steps = steps or sorted(end for _, end in found[_OPTIMIZER])
    passes = group_by(found[_AUTOGRAD], lambda span: bisect_right(steps, span[0]))
    backward = {
        step: (min(begin for begin, _ in spans), max(end for _, end in spans))
        for step, spans in passes.items()
    }
    return _Marks(steps, backward, [begin for begin, _ in found[_OPTIMIZER]])


def _is_id(value: Any) -> bool:
    """Whether a value may name a stream or a launch: text, or a finite number."""
    return isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nodes(
    kernels: Sequence[_Kernel], job: _Job, marks: _Marks, faults: Faults
) -> tuple[ExecutionNode, ...]:
    """Nodes in the order of begin, gaps of the CPU in front of what they delay."""
    first = kernels[0].begin if kernels else 0.0
    nodes: list[ExecutionNode] = []
    last: dict[Any, int] = {}  # by stream, the index of its last node
    until: dict[Any, float] = {}
    ended: list[tuple[float, int]] = []  # NCCL's kernels: end, node
    computed: dict[Any, list[tuple[float, int]]] = {}  # the others by stream: launched, node
    for kernel in kernels:
        after = {last[kernel.stream]} if kernel.stream in last else set()
        if kernel.by_nccl:
            for stream in computed.values():  # of each the last that was launched before it
                before = (node for at, node in reversed(stream) if at < kernel.launched)
                after |= {*islice(before, 1)}
        else:
            idle = until.get(kernel.stream, first)
            # Those of NCCL's kernels that ended since the stream fell idle.
            waited = [each for each in ended[-64:] if idle < each[0] <= kernel.begin]
            if waited:
                after.add(max(waited)[1])
            elif kernel.begin > idle:
                lane, gap = f"stream {kernel.stream}", (kernel.begin - idle) * US
                pause = ExecutionNode("CPU", COMPUTE, tuple(sorted(after)), lane, gap)
                nodes.append(marks.put(pause, kernel.launched))
                after = {len(nodes) - 1}
        node = _node(kernel, job, tuple(sorted(after)), first, faults)
        if kernel.by_nccl:
            ended.append((kernel.end, len(nodes)))
        else:
            computed.setdefault(kernel.stream, []).append((kernel.launched, len(nodes)))
        last[kernel.stream], until[kernel.stream] = len(nodes), kernel.end
        nodes.append(marks.put(node, kernel.launched))
    return tuple(nodes)


def _node(
    kernel: _Kernel, job: _Job, after: tuple[int, ...], first: float, faults: Faults
) -> ExecutionNode:
    lane = f"stream {kernel.stream}"
    seconds, start = (kernel.end - kernel.begin) * US, (kernel.begin - first) * US
    if not kernel.by_nccl:
        return ExecutionNode(kernel.name, COMPUTE, after, lane, seconds, start)
    args, place = kernel.args, f"{kernel.name} at {kernel.begin:.0f} us"
    name = str(args.get("Collective name", ""))
    if name not in _NAMES and name not in _TRANSFERS:
        what = quote(name) if name else "no 'Collective name' (PyTorch 2.4 and later write it)"
        faults.add(place, f"{what}: which collective it was is not known")
        return ExecutionNode(kernel.name, COMPUTE, after, lane, seconds, start)
    dtype = str(args.get("dtype", "")).lower()
    elements, width = args.get("In msg nelems"), _BYTES.get(dtype)
    if type(elements) is not int or elements < 0 or width is None:
        faults.add(
            place,
            f"needs 'In msg nelems' and a known dtype, got {quote(elements)}, "
            f"{quote(args.get('dtype'))}",
        )
        elements = width = 0
    nbytes = max(elements * width, _BARRIER if "barrier" in name else 0)
    if name in _TRANSFERS:
        peer = args.get("Dst Rank" if name == "send" else "Src Rank")
        if type(peer) is not int or peer < 0 or peer == job.rank:
            faults.add(place, f"the rank of the peer must be another, got {quote(peer)}")
            peer = 0
        return ExecutionNode(
            name, _TRANSFERS[name], after, lane, seconds, start, nbytes=nbytes, peer=peer
        )
    return ExecutionNode(
        name,
        COLLECTIVE,
        after,
        lane,
        seconds,
        start,
        collective=_NAMES[name],
        nbytes=nbytes,
        group=_group(args, job, faults, place),
        dtype=_PROFILER_DTYPES.get(dtype, dtype),
    )


def _group(args: Mapping[str, Any], job: _Job, faults: Faults, place: str) -> tuple[int, ...]:
    """The ranks of a group; empty for all, and if the file does not say them.

    Kineto cuts off the list of a large group, which `pg_config` has whole.
    """
    text, size = str(args.get("Process Group Ranks") or ""), args.get("Group size")
    found = tuple(int(each) for each in re.findall(r"\d{1,7}", text))
    if "..." in text or not found:
        if job.world and size == job.world:
            return ()
        found = job.groups.get(str(args.get("Process Group Name")), ())
        if not faults.check(
            found or "..." not in text,
            place,
            "the ranks of its process group are cut off ('...') in the file",
        ):
            return ()
        if job.world and type(size) is int and size < job.world and not found:
            faults.add(place, f"which {size} of {job.world} ranks its group has is not said")
            return ()
    if found and (job.rank not in found or len(set(found)) != len(found)):
        faults.add(place, f"rank {job.rank} must be once among its process group's ranks {found}")
    elif fault := _wrong_ranks(found, job.world):
        faults.add(place, fault)
    faults.check(
        not found or type(size) is not int or size == len(found),
        place,
        f"its group has {size} ranks, and lists {len(found)}",
    )
    return found
