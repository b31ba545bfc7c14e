"""Reads transfers, sums and packing from a TensorFlow graph and from a plan, to compare the two.

The rules for a graph, those of TensorFlow's placer and partitioner as far as they leave no choice:

* An op without a device takes that of its first input that has one (`find_devices`). Without such
  an input (a constant) it is beside whatever reads it.
* An input on another device than its reader is one transfer, once per output and destination
  however many read it
  there. Control edges carry nothing.
* Only ops that the results depend on run.
* NCCL's ops make no transfers: `NcclAllReduce` ops of one shared name are one collective over their
  devices, and
  `NcclBroadcast` is one over its own device and those of its readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from simreduce_validate.running.builders import find_devices

from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import IN_PLACE

Transfer: TypeAlias = tuple[str, str, int]
"""Source, destination, elements."""

Sum: TypeAlias = tuple[str, int, int]
"""Device, summands, elements; a sum of one is none."""

Division: TypeAlias = tuple[str, int]
"""Device, elements."""

Join: TypeAlias = tuple[str, tuple[int, ...]]
"""Device, elements of the parts; a join of one is none."""

Cut: TypeAlias = tuple[str, int, int]
"""Device, elements of the whole, elements of a part; a part that is the whole is none."""

Collective: TypeAlias = tuple[str, frozenset[str], int]
"""`all_reduce` or `broadcast`, the devices that take part, elements; among one device it is none.
"""

ADDS = frozenset({"Add", "AddV2", "AddN"})


@dataclass(frozen=True, slots=True)
class Traffic:
    """How often each thing happens."""

    transfers: Counter[Transfer] = field(default_factory=Counter)
    sums: Counter[Sum] = field(default_factory=Counter)
    divisions: Counter[Division] = field(default_factory=Counter)
    joins: Counter[Join] = field(default_factory=Counter)
    cuts: Counter[Cut] = field(default_factory=Counter)
    collectives: Counter[Collective] = field(default_factory=Counter)


def elements(tensor: Any) -> int:
    """The elements of a tensor whose shape is known; ValueError for any other."""
    count = tensor.shape.num_elements()
    if count is None:
        raise ValueError(f"{tensor.name}: its shape is not known when the graph is built")
    return int(count)


def running(results: Iterable[Any]) -> list[Any]:
    """The ops that tensors `results` depend on, in the order in which they were made."""
    found: dict[str, Any] = {}
    left = [tensor.op for tensor in results]
    while left:
        op = left.pop()
        if op.name not in found:
            found[op.name] = op
            left += [tensor.op for tensor in op.inputs]
            left += op.control_inputs
    graph = next(iter(found.values())).graph
    return [op for op in graph.get_operations() if op.name in found]


def graph_traffic(results: Iterable[Any]) -> Traffic:
    """What a graph does to compute the tensors `results`."""
    found = Traffic()
    ops = running(results)
    place = find_devices(ops)
    sent: set[tuple[str, str]] = set()
    groups: dict[str, tuple[str, set[str], int]] = {}
    for op in ops:
        here = place[op.name]
        for tensor in op.inputs:
            source = place[tensor.op.name]
            if tensor.op.type == "NcclBroadcast":
                groups.setdefault(tensor.name, ("broadcast", {source}, elements(tensor)))[1].add(
                    here
                )
            elif source not in {"", here} and (tensor.name, here) not in sent:
                sent.add((tensor.name, here))
                found.transfers[source, here, elements(tensor)] += 1
        if op.type == "NcclAllReduce":
            name = op.get_attr("shared_name").decode()
            groups.setdefault(name, ("all_reduce", set(), elements(op.outputs[0])))[1].add(here)
        elif op.type == "NcclReduce":
            raise ValueError(f"{op.name}: none of TensorFlow's builders makes an NcclReduce")
        _count(found, op, here)
    for kind, devices, count in groups.values():
        if len(devices) > 1:
            found.collectives[kind, frozenset(devices), count] += 1
    return found


def _count(found: Traffic, op: Any, here: str) -> None:
    inputs: Sequence[Any] = op.inputs
    if op.type in ADDS and len(inputs) > 1:
        found.sums[here, len(inputs), elements(op.outputs[0])] += 1
    elif op.type == "RealDiv":
        found.divisions[here, elements(op.outputs[0])] += 1
    elif op.type == "ConcatV2":
        found.joins[here, tuple(elements(tensor) for tensor in inputs[:-1])] += 1
    elif op.type in {"Split", "SplitV", "Slice"}:
        whole = elements(inputs[1] if op.type == "Split" else inputs[0])
        parts = [elements(tensor) for tensor in op.outputs]
        found.cuts.update((here, whole, part) for part in parts if part != whole)


def plan_traffic(plan: Plan) -> Traffic:
    """What a plan does. What it leaves to NCCL counts as collectives only."""
    found = Traffic()
    source = plan.source
    root: dict[int, int] = {}
    for op in range(len(plan)):
        kind, operands = Kind(int(plan.kind[op])), plan.operands_of(op)
        here, size = plan.devices[plan.device[op]], int(plan.hi[op] - plan.lo[op])
        wholes = [int(plan.hi[v] - plan.lo[v]) for v in operands]
        if plan.executor[op] != Executor.TF:
            _link(root, op, operands)
        elif kind == Kind.COPY:
            found.transfers[plan.devices[source[op]], here, size] += 1
        elif kind == Kind.ADD and len(operands) > 1:
            found.sums[here, len(operands), size] += 1
        elif kind == Kind.SCALE:
            found.divisions[here, size] += 1
        elif kind == Kind.CONCAT and plan.arg[op] != IN_PLACE:
            found.joins[here, tuple(wholes)] += 1
        elif kind == Kind.SLICE and size != wholes[0]:
            found.cuts[here, wholes[0], size] += 1
    found.collectives.update(_collectives(plan, root))
    return found


def _link(root: dict[int, int], op: int, operands: Iterable[int]) -> None:
    root[op] = op
    for value in operands:
        if value in root:
            root[_top(root, value)] = _top(root, op)


def _top(root: dict[int, int], op: int) -> int:
    while root[op] != op:
        op = root[op]
    return op


def _collectives(plan: Plan, root: dict[int, int]) -> Counter[Collective]:
    """NCCL's ops that read one another are one collective, an all-reduce if any of them adds."""
    groups: dict[int, list[int]] = {}
    for op in root:
        groups.setdefault(_top(root, op), []).append(op)
    found: Counter[Collective] = Counter()
    for ops in groups.values():
        devices = {plan.devices[d] for op in ops for d in (plan.device[op], plan.source[op])}
        kind = "all_reduce" if any(plan.kind[op] == Kind.ADD for op in ops) else "broadcast"
        if len(devices) > 1:
            found[kind, frozenset(devices), int(max(plan.hi[ops]) - min(plan.lo[ops]))] += 1
    return found
