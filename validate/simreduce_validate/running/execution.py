"""Reads what devices executed from their graphs, and compares it with the plan.

TensorFlow cuts a graph by device just before it is run, after every rewriting; the parts are what
the executors get. A value that goes to another device is a `_Send` in one part and a `_Recv` in
another. A control edge between devices is a pair of them too, which carries an empty tensor that is
in no graph of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from simreduce.plan import Kind, Plan
from simreduce_validate.running.builtin import COLLECTIVE, NCCL, NCCL_COLLECTIVE, Builtin

Transfer: TypeAlias = tuple[str, str, int]
"""Source, destination, elements."""

Sum: TypeAlias = tuple[str, int, int]
"""Device, summands, elements; a sum of one is none."""

_ADDS = {"AddN", "AddV2"}
_COLLECTIVES = {NCCL, COLLECTIVE}


@dataclass(frozen=True, slots=True)
class StepCounts:
    """How often each thing happens in a step. `messages` are control edges between devices;
    `copied` counts copies that are ops of their own (between CPU devices of one process),
    `collectives` ops of TensorFlow's own all-reduces, by device and op.
    """

    transfers: Counter[Transfer] = field(default_factory=Counter)
    sums: Counter[Sum] = field(default_factory=Counter)
    copied: int = 0
    messages: int = 0
    collectives: Counter[tuple[str, str]] = field(default_factory=Counter)


def read_execution(partitions: Iterable[Any], graph: Any) -> StepCounts:
    """Counts what the graphs of the devices do. `graph`, which they were cut from, knows shapes."""
    found = StepCounts()
    messages = copied = 0
    for node in (node for part in partitions for node in part.node):
        if node.op in {"_Send", "_HostSend"}:
            elements = _elements(graph, node.input[0])
            if elements is None:
                messages += 1
            else:
                target = node.attr["recv_device"].s.decode()
                found.transfers[node.attr["send_device"].s.decode(), target, elements] += 1
        elif node.op in _ADDS:
            terms = sum(not name.startswith("^") for name in node.input)
            found.sums[node.device, terms, _elements(graph, node.name) or 0] += 1
        elif node.op == "DeepCopy":
            copied += 1
        elif node.op in _COLLECTIVES:
            hint = node.attr["communication_hint"].s.decode()
            found.collectives[node.device, f"{node.op}:{hint}" if hint == "nccl" else node.op] += 1
    return StepCounts(found.transfers, found.sums, copied, messages, found.collectives)


def expect_execution(plan: Plan, place: Sequence[str], chained: int = 1) -> StepCounts:
    """The execution of a step that runs the plan `chained` times, without control edges between
    devices.
    """
    name = dict(zip(plan.devices, place, strict=False))
    transfers: Counter[Transfer] = Counter()
    for source, target, elements in plan.copies():
        if name[source] != name[target]:
            transfers[name[source], name[target], elements] += chained
    sums: Counter[Sum] = Counter()
    for op, terms in enumerate(plan.operand_count.tolist()):
        if plan.kind[op] == Kind.ADD and terms > 1:
            sums[place[plan.device[op]], terms, int(plan.hi[op] - plan.lo[op])] += chained
    return StepCounts(transfers, sums)


def find_departures(
    plan: Plan, place: Sequence[str], found: StepCounts, chained: int = 1
) -> list[str]:
    """The differences between execution and plan, in words; empty if there are none."""
    goal = expect_execution(plan, place, chained)
    return [
        *_differences("transfer", goal.transfers, found.transfers),
        *_differences("sum", goal.sums, found.sums),
    ]


def find_missing(work: Builtin, place: Sequence[str], found: StepCounts) -> list[str]:
    """The collectives of a builtin that were not executed, in words: one for each gradient on every
    rank. None of a builtin that is made of copies and sums.
    """
    if work.name not in (NCCL, NCCL_COLLECTIVE, COLLECTIVE):
        return []
    goal = Counter({(name, work.name): len(work.elements) for name in place[: work.ranks]})
    return list(_differences("collective", goal, found.collectives))


def _differences(what: str, ours: Counter[Any], theirs: Counter[Any]) -> Iterator[str]:
    for each in sorted(ours.keys() | theirs.keys()):
        if count := ours[each] - theirs[each]:
            where = "only in the plan" if count > 0 else "not in the plan"
            yield f"{what} {where}, {abs(count)} times: {each}"


def _elements(graph: Any, tensor: str) -> int | None:
    """The elements of a tensor by its name in a `NodeDef`, None if the graph has no such tensor."""
    node, _, output = tensor.partition(":")
    try:
        shape = graph.get_tensor_by_name(f"{node}:{output or 0}").shape
    except KeyError:
        return None
    count: int | None = shape.num_elements()
    return count
