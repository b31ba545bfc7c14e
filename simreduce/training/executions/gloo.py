"""The PyTorch profiler's timeline of a job on CPUs, whose collectives gloo carries out.

A thread of Python computes and issues collectives (`c10d::allreduce_`), a few threads of gloo move
them (`gloo:all_reduce`), first issued, first begun. Seen with PyTorch 2.13:

* an operator has a collective's kind, root and sizes, the latter with `record_shapes=True`
* gloo's event has its type and its times; an operator of a list of tensors has no type
* gloo reduces and scatters by an all-reduce of everything: the operator says what the job asked for
* neither says the process group
* nothing says when the CPU waits. A gap between operators that ended about when a collective did
  was a wait for it: it ends within half the gap of that. The optimizer waits for all collectives.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from simreduce.errors import quote
from simreduce.files.formats.syntax import Faults
from simreduce.training.executions import COLLECTIVE, COMPUTE, US, ExecutionNode

OPERATOR, EVENT = "c10d::", "gloo:"
"""How the names of what issues a collective and of what carries it out begin."""
WAIT = "_c10d_functional::wait_tensor"
ON_CPU = "compute ran on CPUs, and takes as long as it took there"
GAPS = "what waits for what is inferred from gaps of the CPU"
SCATTERED = "recorded times of reduce-scatters are of all-reduces, which gloo makes of them"


class _Operator(NamedTuple):
    """What an operator issues: the collective, the place of its tensors among the inputs, of its
    root (-1: none), and whether each rank gives as much as it gets times the ranks, in so many
    events.
    """

    collective: str
    tensors: int
    root: int = -1
    by_rank: bool = False


_OPERATORS = {
    "allreduce_": _Operator("all_reduce", 0),
    "allreduce_coalesced_": _Operator("all_reduce", 0),
    "broadcast_": _Operator("broadcast", 0, 2),
    "reduce_": _Operator("reduce", 0, 3),
    "allgather_": _Operator("all_gather", 1),
    "_allgather_base_": _Operator("all_gather", 1),
    "reduce_scatter_": _Operator("reduce_scatter", 0, by_rank=True),
    "_reduce_scatter_base_": _Operator("reduce_scatter", 1),
    "alltoall_": _Operator("all_to_all", 1),
    "alltoall_base_": _Operator("all_to_all", 1),
    "barrier": _Operator("all_reduce", -1),
}
_CUT, _UPDATE, _GAP, _ISSUE = range(4)
"""What happens at a time; of several things at once, in this order."""
_BARRIER = 4
"""Bytes of the all-reduce that a barrier is."""
_TYPES = {
    "float": ("float32", 4), "double": ("float64", 8), "c10::Half": ("float16", 2),
    "c10::BFloat16": ("bfloat16", 2), "int": ("int", 4), "long int": ("long", 8),
    "short int": ("short", 2), "signed char": ("char", 1), "unsigned char": ("byte", 1),
    "bool": ("bool", 1),
}  # fmt: skip
"""Types of tensors as the profiler names them: ours and their bytes."""


class CpuEvent(NamedTuple):
    """An event of a thread; times in microseconds."""

    begin: float
    end: float
    name: str
    thread: Any
    category: str
    args: Mapping[str, Any]


@dataclass(slots=True)
class _Writer:
    """Nodes up to the time `at`, of which `last` is what the CPU computed, `open` the collectives
    that nothing waited for yet, and `waited` those that what comes next waits for.
    """

    at: float
    origin: float
    nodes: list[tuple[ExecutionNode, float]] = field(default_factory=list)
    last: int | None = None
    open: set[int] = field(default_factory=set)
    waited: set[int] = field(default_factory=set)

    @property
    def before(self) -> tuple[int, ...]:
        return tuple(sorted(self.waited | ({self.last} if self.last is not None else set())))

    def compute(self, until: float) -> None:
        """The CPU computed until then."""
        if until > self.at:
            node = ExecutionNode(
                "CPU", COMPUTE, self.before, "CPU", (until - self.at) * US,
                (self.at - self.origin) * US,
            )  # fmt: skip
            self.last, self.waited = len(self.nodes), set()
            self.nodes.append((node, (self.at + until) / 2))
            self.at = until

    def wait(self, waited: set[int]) -> None:
        self.waited |= waited
        self.open -= waited


def nodes_of(
    spans: Sequence[CpuEvent],
    cuts: Sequence[float],
    updates: Sequence[float],
    group: tuple[int, ...],
    ranks: int,
    faults: Faults,
) -> list[tuple[ExecutionNode, float]]:
    """The nodes of a rank, and when each began or was issued, in microseconds.

    Compute is cut at `cuts`, and waits for all collectives at `updates`.
    """
    issued = sorted((span for span in spans if _issues(span)), key=_order)
    threads = {span.thread for span in issued}
    mine = [span for span in spans if span.thread in threads and not span.name.startswith(EVENT)]
    if not faults.check(issued, "", f"no operator ({OPERATOR}...) issues what gloo carries out"):
        return []
    if not faults.check(
        any("Input Dims" in span.args for span in issued),
        "",
        "collectives over gloo have no sizes; profile with record_shapes=True",
    ):
        return []
    begin, end = min(span.begin for span in mine), max(span.end for span in mine)
    carried = _carried(issued, [s for s in spans if s.name.startswith(EVENT)], ranks, faults)
    ends = sorted((events[-1].end, number) for number, events in carried.items())
    gaps = ((gap, _awaited(gap, ends, issued)) for gap in _gaps(mine))
    points: list[tuple[float, int, Any]] = [
        *((time, _CUT, None) for time in cuts if begin < time < end),
        *((time, _UPDATE, None) for time in updates if begin < time < end),
        *((gap[0], _GAP, (gap, found)) for gap, found in gaps if found),
        *((issued[number].begin, _ISSUE, number) for number in carried),
    ]
    writer, places = _Writer(begin, begin), dict[int, int]()
    for time, kind, what in sorted(points, key=lambda point: point[:2]):
        writer.compute(time)
        if kind == _UPDATE:
            writer.wait(set(writer.open))
        elif kind == _GAP:
            gap, (ended, number) = what
            if places.get(number) in writer.open:
                writer.wait({places[number]})
                writer.at = max(writer.at, min(gap[1], ended))
        elif kind == _ISSUE:
            places[what] = len(writer.nodes)
            writer.open.add(places[what])
            node = _node(issued[what], carried[what], ranks)
            start = (carried[what][0].begin - begin) * US
            node = node._replace(after=writer.before, group=group, start=start)
            writer.nodes.append((node, time))
    writer.compute(end)
    return writer.nodes


def _order(span: CpuEvent) -> tuple[float, float]:
    return span.begin, span.end


def _issues(span: CpuEvent) -> bool:
    return span.category == "cpu_op" and span.name.startswith(OPERATOR)


def _carried(
    issued: Sequence[CpuEvent], events: Sequence[CpuEvent], ranks: int, faults: Faults
) -> dict[int, list[CpuEvent]]:
    """The events of each operator, by its number: the first of its size that are not another's."""
    found = dict[int, list[CpuEvent]]()
    left: dict[int, list[CpuEvent]] = defaultdict(list)
    for event in sorted(events, key=_order, reverse=True):
        left[_elements(event.args.get("Input Dims") or [[0]])].append(event)
    for number, span in enumerate(issued):
        what = _OPERATORS.get(span.name.removeprefix(OPERATOR))
        place = f"{span.name} at {span.begin:.0f} us"
        if what is None:
            known = ", ".join(OPERATOR + name for name in _OPERATORS)
            faults.add(place, f"no such collective is modelled over gloo; these are: {known}")
            continue
        size = _elements(_input(span, what.tensors)) if what.tensors >= 0 else 0
        if not faults.check(size >= 0, place, "has no sizes"):
            continue
        if not faults.check(_root(span, what) >= 0, place, "does not say its root"):
            continue
        of_size = left[size]
        while of_size and of_size[-1].begin < span.begin:
            of_size.pop()
        count = ranks if what.by_rank else 1
        mine = [of_size.pop() for _ in range(min(count, len(of_size)))]
        if not faults.check(
            len(mine) == count,
            place,
            "no event of gloo carries it out; end the profile with a step",
        ):
            continue
        mine.sort(key=lambda event: event.end)
        if what.tensors < 0 or faults.check(
            _type(mine[0]) in _TYPES, place, f"type {quote(_type(mine[0]))} is not known"
        ):
            found[number] = mine
    return found


def _input(span: CpuEvent, place: int) -> Any:
    """The dimensions of an operator's tensor or tensors; None if the file does not say them."""
    dims = span.args.get("Input Dims")
    return dims[place] if isinstance(dims, list) and place < len(dims) else None


def _type(event: CpuEvent) -> str:
    types = event.args.get("Input type")
    return str(types[0]) if isinstance(types, list) and types else ""


def _root(span: CpuEvent, what: _Operator) -> int:
    """The root's place in its group, 0 if there is none; -1 if the file does not say it."""
    if what.root < 0:
        return 0
    given = span.args.get("Concrete Inputs")
    root = str(given[what.root]) if isinstance(given, list) and what.root < len(given) else ""
    return int(root) if root.isdecimal() and len(root) < 8 else -1


def _elements(dims: Any) -> int:
    """The elements of a tensor, or of a list of them; -1 if the file does not say them."""
    if not isinstance(dims, list):
        return -1
    tensors = dims if dims and all(isinstance(each, list) for each in dims) else [dims]
    if not all(type(n) is int and 0 <= n < 1 << 48 for tensor in tensors for n in tensor):
        return -1
    return sum(map(prod, tensors))


def _node(span: CpuEvent, events: Sequence[CpuEvent], ranks: int) -> ExecutionNode:
    name = span.name.removeprefix(OPERATOR)
    what = _OPERATORS[name]
    dtype, width = _TYPES.get(_type(events[0]), ("", 0))
    size = _elements(_input(span, what.tensors)) * (ranks if what.by_rank else 1)
    return ExecutionNode(
        name, COLLECTIVE, (), "gloo", (events[-1].end - min(e.begin for e in events)) * US,
        collective=what.collective, nbytes=size * width if what.tensors >= 0 else _BARRIER,
        root=_root(span, what), dtype=dtype,
    )  # fmt: skip


def _gaps(spans: Sequence[CpuEvent]) -> Iterator[tuple[float, float]]:
    """When no operator was at work that has no others within it; what issues collectives works."""
    stacks: dict[Any, list[tuple[CpuEvent, bool]]] = defaultdict(list)
    work: list[CpuEvent] = []
    for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
        stack = stacks[span.thread]
        while stack and stack[-1][0].end <= span.begin:
            work += (one for one, leaf in [stack.pop()] if leaf)
        if stack and not _issues(stack[-1][0]):
            stack[-1] = stack[-1][0], False
        stack.append((span, span.category == "cpu_op" and span.name != WAIT))
    work += (one for stack in stacks.values() for one, leaf in stack if leaf)
    work.sort(key=_order)
    until = work[0].begin
    for span in work:
        if span.begin > until:
            yield until, span.begin
        until = max(until, span.end)


def _awaited(
    gap: tuple[float, float], ends: Sequence[tuple[float, int]], issued: Sequence[CpuEvent]
) -> tuple[float, int] | None:
    """The collective that a gap waited for, with its end: the last that ended in the second half
    of the gap, else the first that ended less than half a gap later.
    """
    begin, end = gap
    half = (end - begin) / 2
    first, last = (bisect_right(ends, (time,)) for time in (end - half, end + half))
    near = [each for each in ends[first:last] if issued[each[1]].begin < begin]
    within = [each for each in near if each[0] <= end]
    return within[-1] if within else near[0] if near else None
