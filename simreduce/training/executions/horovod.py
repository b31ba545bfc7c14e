"""Horovod's timeline (`HOROVOD_TIMELINE=FILE`): what rank 0 reduced, tensor by tensor.

Seen with Horovod 0.28.1. The file is a list of events, which is closed whenever it is written; the
file of a killed job lacks the last of them. One without a closing bracket is read up to its last
whole event.

Each tensor is a process of its own. `NEGOTIATE_ALLREDUCE` lasts from when Horovod took the gradient
until all ranks had it; an event says when each rank had it, and is named by its number, unless
Horovod remembers the tensor. `ALLREDUCE` follows, whose end has the result's type and shape.
Tensors whose operations begin one after another, without any other beginning, are fused.

Nothing says what was computed. The time from the end of a step's last operation until Horovod took
a gradient is compute; Horovod takes gradients once a cycle (`HOROVOD_CYCLE_TIME`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from simreduce import dtypes, units
from simreduce.errors import quote
from simreduce.files.formats.syntax import Faults
from simreduce.training.executions import (
    COLLECTIVE,
    COMPUTE,
    US,
    Execution,
    ExecutionError,
    NodeList,
)

NEGOTIATE = "NEGOTIATE_"
_COLLECTIVES = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather"}
_UNSIZED = ("BROADCAST", "ALLTOALL", "REDUCESCATTER")
"""Operations whose end has no shape of what a rank gives."""
_READY = "compute is the time until Horovod took gradients, which it does once a cycle"
_FIRST = "left out: the first step, of which nothing says when it began"
_TORN = re.compile(r"\}\s*,\s*\{")


@dataclass(slots=True)
class _Operation:
    """Tensors that Horovod moved at once: from when to when, in microseconds, and when it had taken
    the last of them.
    """

    name: str
    begin: float
    ready: float = 0.0
    end: float = 0.0
    nbytes: int = 0
    dtype: str = ""
    tensors: list[Any] = field(default_factory=list)
    under_way: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all of its tensors have ended."""
        return not self.under_way


def is_timeline(document: Any) -> bool:
    """Whether a list has events of Horovod."""
    return isinstance(document, list) and any(
        isinstance(event, dict) and str(event.get("name")).startswith(NEGOTIATE)
        for event in document
    )


def closed(text: str) -> str:
    """A list without its closing bracket, closed behind its last whole event."""
    text = text.rstrip().removesuffix(",")
    if text.endswith("]"):
        return text
    if text.endswith("}") and text.count("{") == text.count("}"):
        return text + "]"
    found = [match.start() for match in _TORN.finditer(text)]
    return text[: found[-1] + 1] + "]" if found else text


def read(path: str, events: Sequence[Any]) -> Execution:
    """The run of rank 0, which stands for all; ExecutionError with every fault."""
    faults = Faults(path)
    operations, ranks = _operations(events, faults)
    world = max((rank + 1 for some in ranks for rank in some), default=0)
    faults.check(
        world,
        "",
        f"Horovod's timeline, in which no rank says that it has a tensor (events in {NEGOTIATE}... "
        "named by ranks), so how many there are; record from the job's start, by HOROVOD_TIMELINE",
    )
    parts = [some for some in ranks if len(some) < world]
    faults.check(
        not parts, "", f"{len(parts)} tensors of some ranks alone: process sets are not modelled"
    )
    unknown = sorted({op.name for op in operations} - {*_COLLECTIVES, *_UNSIZED})
    faults.check(not unknown, "", f"not modelled: {', '.join(unknown)}")
    moved = [op for op in operations if op.name in _COLLECTIVES and op.is_whole]
    faults.check(moved, "", "Horovod's timeline has no all-reduce that ended")
    faults.raise_any(ExecutionError)
    first, *later = _steps(operations)
    nodes, notes = _nodes(first, later, world), [_READY, *[_FIRST] * bool(later)]
    if torn := sum(not op.is_whole for op in operations):
        notes.append(f"left out: {units.plural(torn, 'operation')} that had not ended in the file")
    left = Counter(op.name for op in operations if op.name in _UNSIZED)
    if left:
        texts = [units.plural(count, name.lower()) for name, count in left.items()]
        notes.append(f"left out: {', '.join(texts)}, whose sizes Horovod does not write")
    return Execution(path, {0: tuple(nodes.nodes)}, world, tuple(notes))


def _operations(events: Sequence[Any], faults: Faults) -> tuple[list[_Operation], list[set[int]]]:
    """What Horovod moved in order, and which ranks had a tensor, for each time that it asked."""
    found, ranks = list[_Operation](), list[set[int]]()
    open_: dict[Any, list[str]] = defaultdict(list)
    ready, mine, asked = dict[Any, float](), dict[Any, _Operation](), dict[Any, set[int]]()
    joins = False
    for event in events:
        kind = event.get("ph") if isinstance(event, dict) else None
        if kind not in ("B", "E", "X"):
            continue
        time, tensor, name = event.get("ts"), event.get("pid"), str(event.get("name", ""))
        if type(time) not in (int, float) or not 0 <= time < 1e18 or type(tensor) is not int:
            faults.add("", f"event {quote(name)} of {quote(tensor)} at {quote(time)}: no such time")
            continue
        stack = open_[tensor]
        if kind == "X" and name.isdecimal() and len(name) < 8 and tensor in asked:
            asked[tensor].add(int(name))
            if name == "0":
                ready[tensor] = time
        elif kind == "B":
            outer = not stack
            stack.append(name)
            if outer and name.startswith(NEGOTIATE):
                ready[tensor], asked[tensor] = time, set()
            elif outer:
                if not joins or found[-1].name != name:
                    found.append(_Operation(name, time))
                mine[tensor] = found[-1]
                found[-1].tensors.append(tensor)
                found[-1].under_way += 1
                found[-1].ready = max(found[-1].ready, ready.get(tensor, time))
            joins = outer and not name.startswith(NEGOTIATE)
        elif kind == "E" and stack:
            name = stack.pop()
            if name.startswith(NEGOTIATE):
                ranks += [some for some in [asked.pop(tensor, set())] if some]
            elif not stack and tensor in mine:
                _end(mine.pop(tensor), time, event.get("args"), faults)
    return found, ranks


def _end(operation: _Operation, time: float, args: Any, faults: Faults) -> None:
    operation.end, operation.under_way = max(operation.end, time), operation.under_way - 1
    if operation.name not in _COLLECTIVES:
        return
    args = args if isinstance(args, Mapping) else {}
    dtype, shape = str(args.get("dtype")), str(args.get("shape"))
    sizes = [int(each) for each in re.findall(r"\d{1,12}", shape)]
    width = re.fullmatch(r"(?:b?float|u?int)(8|16|32|64)|bool", dtype)
    if not faults.check(
        width and shape.startswith("["),
        operation.name,
        f"must end with a type and a shape, got {quote(dtype)}, {quote(shape)}",
    ):
        return
    assert width is not None  # noqa: S101 - else there is a fault
    operation.nbytes += prod(sizes) * (int(width[1] or 8) // 8)
    operation.dtype = dtype


def _steps(operations: Sequence[_Operation]) -> list[list[_Operation]]:
    """What ended, by steps: one is over when a tensor comes again."""
    steps: list[list[_Operation]] = []
    seen: set[Any] = set()
    for operation in (each for each in operations if each.is_whole):
        if not steps or not seen.isdisjoint(operation.tensors):
            steps.append([])
            seen = set()
        steps[-1].append(operation)
        seen.update(operation.tensors)
    return steps


def _nodes(
    first: Sequence[_Operation], later: Sequence[Sequence[_Operation]], world: int
) -> NodeList:
    """The steps after the first, or that one alone; each computes when the last one has ended."""
    nodes, before = NodeList(), list[int]()
    origin = at = max(each.end for each in first) if later else min(each.ready for each in first)
    for number, step in enumerate(later or [first]):
        moved = []
        for operation in (each for each in step if each.name in _COLLECTIVES):
            if operation.ready > at:
                last = nodes.add(
                    "compute", before, name="compute", kind=COMPUTE, step=number,
                    seconds=(operation.ready - at) * US, start=(at - origin) * US,
                )  # fmt: skip
                before, at = [last], operation.ready
            gathers, dtype = operation.name == "ALLGATHER", operation.dtype
            moved.append(nodes.add(
                "horovod", before, name=operation.name, kind=COLLECTIVE, step=number,
                collective=_COLLECTIVES[operation.name],
                nbytes=-(-operation.nbytes // world) if gathers else operation.nbytes,
                dtype=dtype if dtype in dtypes.NAMES else "",
                seconds=(operation.end - operation.begin) * US,
                start=(operation.begin - origin) * US,
            ))  # fmt: skip
        before, at = [*before, *moved], max(at, *(each.end for each in step))
    return nodes
