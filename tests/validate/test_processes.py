"""Plans on several processes: no order is lost, and what crosses a border is an op."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from simreduce_validate.running.processes import across_processes

import simreduce as sr
from simreduce.plan import Contract, Executor, Kind, Plan, PlanBuilder, verify
from simreduce.plan.plan import NO_STREAM
from simreduce.testing.strategies import ANY, plans
from tests.thorough import examples

DEVICES = ("gpu0", "gpu1", "gpu2", "gpu3")


def _launch_device(plan: Plan, op: int) -> int:
    return int(
        plan.device[plan.operands_of(op)[0]] if plan.kind[op] == Kind.COPY else plan.device[op]
    )


def _waits(plan: Plan, op: int) -> list[int]:
    return [
        *plan.operands_of(op),
        *plan.controls[plan.control_start[op] : plan.control_start[op + 1]].tolist(),
    ]


def _graph(plan: Plan) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(plan)))
    graph.add_edges_from((w, op) for op in range(len(plan)) for w in _waits(plan, op))
    return graph


def _numbers(plan: Plan, again: Plan) -> list[int]:
    """Where each op of `plan` is in `again`, which has messages and holds besides."""
    found, at = [], 0
    for op in range(len(plan)):
        while not _same(plan, op, again, at):
            at += 1
        found.append(at)
        at += 1
    return found


def _same(plan: Plan, op: int, again: Plan, at: int) -> bool:
    columns = ("kind", "device", "lo", "hi", "dtype")
    if any(getattr(plan, c)[op] != getattr(again, c)[at] for c in columns):
        return False
    return not (again.kind[at] == Kind.CONCAT and plan.kind[op] != Kind.CONCAT)


def check(plan: Plan, process: list[int]) -> None:
    again = across_processes(plan, process)
    graph, place = _graph(again), _numbers(plan, again)
    assert (again.stream == NO_STREAM).all()
    for op in range(len(again)):
        for wait in again.controls[again.control_start[op] : again.control_start[op + 1]].tolist():
            assert process[again.device[wait]] == process[_launch_device(again, op)]
    before: dict[int, int] = {}
    for op, stream in enumerate(plan.stream.tolist()):
        waits = _waits(plan, op)
        if stream != NO_STREAM and Executor(plan.executor[op]) == Executor.TF:
            waits += [before[stream]] if stream in before else []
            before[stream] = op
        for wait in waits:
            if nx.has_path(graph, place[wait], place[op]):
                continue
            here, there = process[_launch_device(plan, op)], process[plan.device[wait]]
            assert plan.kind[wait] == plan.kind[op] == Kind.COPY
            assert here != there
            if process[_launch_device(plan, wait)] == here:
                (launch,) = again.operands_of(place[wait])
                assert nx.has_path(graph, launch, place[op])


@given(plans(DEVICES, ANY), st.lists(st.integers(0, 2), min_size=4, max_size=4))
@settings(max_examples=examples(150))
def test_no_order_is_lost(plan, process):
    """What an op waited for it still waits for, by ways that exist between processes; copies of one
    process for each other's launch.
    """
    if len(set(process)) > 1:
        check(plan, process)


@pytest.mark.parametrize(
    "strategy", ["ring", "halving_doubling", "double_tree", "direct", "xring#2", "pscpu", "trees"]
)
@pytest.mark.parametrize("process", [[0, 1, 2, 3, 4], [0, 0, 1, 1, 0]], ids=str)
def test_it_sums_as_before(strategy, process):
    """Messages carry nothing."""
    plan = sr.compile(
        strategy, sr.load_workload("bytes:4100"), sr.layout(sr.load_topology("full:4"))
    )
    again = across_processes(plan, process[: len(plan.devices)])

    assert [] == verify(again)
    assert plan.nbytes[plan.kind == Kind.COPY].sum() == again.nbytes[again.kind == Kind.COPY].sum()
    check(plan, process)


def test_one_process_changes_nothing():
    """The very same plan."""
    plan = sr.compile("ring", sr.load_workload("bytes:64"), sr.layout(sr.load_topology("full:4")))
    assert across_processes(plan, [0] * len(plan.devices)) is plan


def _two_copies(targets: tuple[int, int]) -> Plan:
    b = PlanBuilder(DEVICES)
    port = b.stream(0)
    for i, target in enumerate(targets):
        b.copy(b.input(0, i, i + 1), target, stream=port)
    return b.finish(Contract.of("none", ()))


@pytest.mark.parametrize("targets", [(1, 1), (1, 2)])
def test_copies_of_a_stream_are_launched_in_order_without_a_message(targets):
    """The second waits for what the first one reads."""
    again = across_processes(_two_copies(targets), [0, 1, 2, 3])

    assert 2 == np.count_nonzero(again.kind == Kind.COPY)
    second = int(np.flatnonzero(again.kind == Kind.COPY)[1])
    held = again.operands_of(second)[0]
    first = again.operands_of(int(np.flatnonzero(again.kind == Kind.COPY)[0]))[0]
    assert [first] == again.controls[
        again.control_start[held] : again.control_start[held + 1]
    ].tolist()


def test_other_order_takes_a_message():
    """What device 2 has to wait for on device 1 it learns from there."""
    b = PlanBuilder(DEVICES)
    first = b.input(1, 0, 1)
    b.copy(b.input(2, 1, 2), 3, after=[first.op])
    again = across_processes(b.finish(Contract.of("none", ())), [0, 1, 2, 3])

    copies = np.flatnonzero(again.kind == Kind.COPY).tolist()
    assert [(1, 2, 0), (2, 3, 1)] == [
        (_launch_device(again, op), int(again.device[op]), int(again.hi[op] - again.lo[op]))
        for op in copies
    ]
