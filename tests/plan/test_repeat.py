"""`repeat`: a reduction several times in a row, each time of its own gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import simreduce as sr
from simreduce.engine import IDEAL, TENSORFLOW
from simreduce.plan import Contract, Kind, Plan, PlanBuilder, repeat, verify
from simreduce.testing import NO_CONTRACT, cable, machine
from tests.simulating import simulate
from tests.thorough import examples

SPECS = (
    "ring",
    "xring#2",
    "hierarchical_copy",
    "pscpu",
    "psgpu#2",
    "copy_to_gpus",
    "reduce_to_one",
    "xring+packs=2+mean",
)


def compiled(spec: str, machine_name: str = "full:4", workload: str = "bytes:404") -> Plan:
    layout = sr.layout(sr.load_topology(machine_name))
    return sr.compile(spec, sr.load_workload(workload), layout)


def star() -> Plan:
    """Two GPUs sum eight elements: inputs 0 and 1, the copy 2, the add 3, the output 4, a copy back
    5, output 6.
    """
    b = PlanBuilder(("gpu0", "gpu1"))
    x = b.input(0, 0, 8), b.input(1, 0, 8)
    total = b.add([x[0], b.copy(x[1], 0)])
    for device in (0, 1):
        b.output(b.copy(total, device))
    return b.finish(Contract.all_reduce([0, 1], [(0, 8, 0)]))


def controls_of(plan: Plan, op: int) -> list[int]:
    return plan.controls[plan.control_start[op] : plan.control_start[op + 1]].tolist()


def test_once_is_the_plan_itself():
    """Nothing is added."""
    assert star().digest == repeat(star(), 1).digest


def test_a_chain_knows_how_often():
    """Also one of chains."""
    assert [1, 3, 6] == [star().times, repeat(star(), 3).times, repeat(repeat(star(), 3), 2).times]


@pytest.mark.parametrize("times", [0, -1])
def test_less_than_once_is_refused(times):
    with pytest.raises(ValueError, match=f"times: must be at least 1, got {times}"):
        repeat(star(), times)


def test_an_iteration_is_the_plan_behind_one_gate_per_device():
    """A gate is an empty INPUT: it waits for the device's results, and the device's inputs wait for
    it.
    """
    plan = repeat(star(), 3)
    gates = [7, 8, 16, 17]

    assert len(plan) == 7 + 9 + 9
    assert [Kind.INPUT] * 4 == plan.kind[gates].tolist()
    assert [0] * 4 == plan.nbytes[gates].tolist()
    assert [0, 1, 0, 1] == plan.device[gates].tolist()
    assert [[4], [6], [13], [15]] == [controls_of(plan, gate) for gate in gates]
    assert [[7], [8], [16], [17]] == [controls_of(plan, op) for op in (9, 10, 18, 19)]
    assert all(not controls_of(plan, op) for op in range(25) if op not in {*gates, 9, 10, 18, 19})


def test_each_iteration_has_addresses_of_its_own():
    """The second of three reduces [8, 16), and promises that."""
    plan = repeat(star(), 3)
    inputs = (plan.kind == Kind.INPUT) & (plan.nbytes > 0)

    assert [0, 0, 8, 8, 16, 16] == plan.lo[inputs].tolist()
    assert [8, 8, 16, 16, 24, 24] == plan.hi[inputs].tolist()
    assert [(0, 8), (0, 8), (8, 16), (8, 16), (16, 24), (16, 24)] == list(
        zip(plan.contract.lo.tolist(), plan.contract.hi.tolist(), strict=True)
    )


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("times", [2, 5])
def test_the_contract_is_proved_for_every_iteration(spec, times):
    """And the copies are those of the plan, `times` over."""
    once = compiled(spec)
    plan = repeat(once, times)

    assert not verify(plan)
    assert times * len(once.contract) == len(plan.contract)
    assert once.copies() * times == plan.copies()


def test_a_result_that_is_missing_in_one_iteration_is_found():
    """The proof looks at each iteration."""
    plan = repeat(star(), 3)
    last = int(np.flatnonzero(plan.kind == Kind.OUTPUT)[-1])
    plan.kind[last] = Kind.SLICE

    assert ["no result: gpu1 [16, 24)"] == [str(p) for p in verify(plan)]


def test_controls_of_the_plan_itself_are_kept():
    """Counted from the beginning of their iteration."""
    b = PlanBuilder(("gpu0", "gpu1"))
    x = b.input(0, 0, 4), b.input(0, 4, 8)
    first = b.copy(x[0], 1)
    second = b.copy(x[1], 1, after=[first.op])
    b.output(second)
    plan = repeat(b.finish(NO_CONTRACT), 2)

    assert [2] == controls_of(plan, 3)
    assert [first.op + 6] == controls_of(plan, second.op + 6)


# Times.


@pytest.mark.parametrize("runtime", [IDEAL, TENSORFLOW], ids=lambda r: r.name)
@pytest.mark.parametrize("times", [2, 7])
def test_iterations_that_cannot_overlap_take_their_time_each(runtime, times):
    """There and back over one cable: everything of an iteration waits for all of the one before."""
    topology = machine(cable("gpu0", "gpu1", 7e9, 3e-6))
    one = simulate(star(), topology, runtime).seconds
    many = simulate(repeat(star(), times), topology, runtime).seconds

    assert times * one == pytest.approx(many, rel=1e-12)


@pytest.mark.parametrize("n", [2, 4, 5])
def test_rings_take_their_time_each(n):
    """All devices have their results at the same instant, so nothing of the next ring can begin
    before.
    """
    plan = compiled("ring", f"ring:{n}", f"bytes:{400 * n}")
    topology = sr.load_topology(f"ring:{n}")

    assert 3 * simulate(plan, topology, IDEAL).seconds == pytest.approx(
        simulate(repeat(plan, 3), topology, IDEAL).seconds, rel=1e-12
    )


def test_devices_that_share_nothing_do_not_wait_for_each_other():
    """No barrier across devices: the quick pair has done three while the slow one does its
    first.
    """

    def exchange(b: PlanBuilder, one: int, other: int) -> None:
        x, y = b.input(one, 0, 100), b.input(other, 0, 100)
        b.output(b.add([x, b.copy(y, one)]))
        b.output(b.add([y, b.copy(x, other)]))

    b = PlanBuilder(("gpu0", "gpu1", "gpu2", "gpu3"))
    exchange(b, 0, 1)
    exchange(b, 2, 3)
    plan = repeat(b.finish(NO_CONTRACT), 3)
    topology = machine(cable("gpu0", "gpu1", 400.0), cable("gpu2", "gpu3", 100.0))
    result = simulate(plan, topology, IDEAL)
    done = {
        device: result.finish[(plan.kind == Kind.OUTPUT) & (plan.device == device)].tolist()
        for device in range(4)
    }

    assert {
        0: [1.0, 2.0, 3.0],
        1: [1.0, 2.0, 3.0],
        2: [4.0, 8.0, 12.0],
        3: [4.0, 8.0, 12.0],
    } == done


def test_a_device_begins_again_only_with_all_its_results():
    """gpu0 has one result at once and another after 4 s: its second iteration begins at 4 s."""
    b = PlanBuilder(("gpu0", "gpu1"))
    x, y = b.input(0, 0, 100), b.input(1, 100, 200)
    for value in (x, b.copy(y, 0), b.copy(x, 1)):
        b.output(value)
    plan = repeat(b.finish(NO_CONTRACT), 2)
    result = simulate(plan, machine(cable("gpu0", "gpu1")), IDEAL)
    inputs = (plan.kind == Kind.INPUT) & (plan.device == 0) & (plan.nbytes > 0)

    assert result.finish[inputs].tolist() == [0.0, 4.0]


@given(st.sampled_from(SPECS), st.integers(1, 4))
@settings(max_examples=examples(250))
def test_no_more_iterations_are_never_quicker(spec, times):
    """And at most so many times as long as one."""
    plan = compiled(spec)
    topology = sr.load_topology("full:4")
    once, fewer, more = (simulate(repeat(plan, k), topology).seconds for k in (1, times, times + 1))

    assert fewer < more <= (times + 1) * once * (1 + 1e-12)
