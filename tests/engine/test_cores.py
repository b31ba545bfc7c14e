"""Times of ops on CPU devices: what they work, the bytes they move, and the caches and memory that
these pass.
"""

from __future__ import annotations

import numpy as np
import pytest

from simreduce.engine import TENSORFLOW, Calibration, Processor, Result
from simreduce.engine.lowering.resources import core_flow
from simreduce.plan import Kind, Plan, PlanBuilder, repeat
from simreduce.testing import cable, copy_plan, machine, node, plan_of
from tests.engine.test_closed_forms import close_to, finish
from tests.simulating import simulate


@pytest.mark.parametrize(
    ("cache", "seconds"), [(0, 4.0), (400, 2.0), (600, 1.0), (800, 1.0), (10_000, 1.0)]
)
def test_what_the_cache_does_not_hold_is_written_to_memory(cache, seconds):
    """400 bytes that become 800: a core alone takes 1 s at 400 B/s, and memory 4 s at 100 B/s for
    what is not in the cache.
    """
    topology = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 1e9))
    processor = Processor(rates={"copy": 400.0}, cache=cache, memory=100.0)

    result = simulate(
        copy_plan(topology, (0, 1)), topology, TENSORFLOW, Calibration("here", cpu=processor)
    )

    assert close_to(seconds) == result.seconds


@pytest.mark.parametrize("times", [2, 10])
def test_what_is_chained_needs_the_cache_of_one(times):
    """800 bytes, 400 of which stay in the cache, every time: 2 s for the rest of 400 (see
    above).
    """
    topology = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 1e9))
    processor = Processor(rates={"copy": 400.0}, cache=400, memory=100.0)
    chained = repeat(copy_plan(topology, (0, 1)), times)

    result = simulate(chained, topology, TENSORFLOW, Calibration("here", cpu=processor))

    assert close_to(2.0 * times) == result.seconds


@pytest.mark.parametrize(
    ("lo", "hi", "seconds"),
    [(0, 64, 0.0), (16, 32, 0.0), (16, 33, 0.34), (8, 24, 0.32), (0, 60, 1.2), (0, 100, 0.0)],
)
def test_a_slice_of_other_than_whole_blocks_of_64_bytes_is_copied(lo, hi, seconds):
    """A part of 100 elements of 4 bytes, read and written at 400 B/s; all of it is no copy."""
    topology = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 1e9))
    plan = plan_of(topology, lambda b: b.output(b.slice(b.input(0, 0, 100), lo, hi)))
    processor = Processor(rates={"slice": 400.0})

    result = simulate(plan, topology, TENSORFLOW, Calibration("here", cpu=processor))

    assert close_to(seconds) == result.seconds


@pytest.mark.parametrize(("device", "seconds"), [("gpu0", 2.5), ("cpu0", 2.0)])
def test_a_view_needs_no_cache_and_a_slice_on_a_gpu_is_none(device, seconds):
    """Of 1200 bytes, two gradients and a copy, the cache holds 600: 200 of the copy's 400 are
    written at 100 B/s. Of 1600, with the slice, 250.
    """
    topology = machine(
        node("gpu0"), node("cpu0"), node("cpu1"), cable("gpu0", "cpu0", 1e9),
        cable("cpu0", "cpu1", 1e9),
    )  # fmt: skip
    place = [*topology.devices, *topology.hosts].index

    def write(b: PlanBuilder) -> None:
        b.output(b.slice(b.input(place(device), 0, 100), 0, 100))
        b.copy(b.input(place("cpu0"), 0, 100), place("cpu1"))

    processor = Processor(rates={"copy": 400.0}, cache=600, memory=100.0)
    result = simulate(
        plan_of(topology, write), topology, TENSORFLOW, Calibration("here", cpu=processor)
    )

    assert close_to(seconds) == result.seconds


def test_memory_is_shared_by_all_cores():
    """Two copies at once, none of whose bytes stay in the cache, take twice as long."""
    topology = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 1e9))
    processor = Processor(moving=2.0, rates={"copy": 100.0}, memory=100.0)

    result = simulate(
        copy_plan(topology, (0, 1), (0, 1)),
        topology,
        TENSORFLOW,
        Calibration("here", cpu=processor),
    )

    assert close_to([8.0, 8.0]) == finish(result)
    assert {"machine 0 CPU memory": close_to(800.0)} == {
        u.name: u.nbytes for u in result.links if u.name.endswith("memory")
    }


CPUS = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 1e9))


def on_cores(plan: Plan, **constants: object) -> Result:
    """With copies of 2 s of a core and 400 B/s, adds of 1 s."""
    given = {"rates": {"copy": 400.0}, **constants}
    dispatch = {"copy": 2.0, "add": 1.0}
    return simulate(
        plan, CPUS, TENSORFLOW, Calibration("here", dispatch=dispatch, cpu=Processor(**given))
    )


@pytest.mark.parametrize(
    ("cores", "moving", "seconds"), [(1, 1, 8.0), (2, 1, 4.0), (2, 2, 4.0), (4, 2, 4.0)]
)
def test_what_an_op_works_and_moves_is_one_flow_over_the_cores(cores, moving, seconds):
    """Two copies of 800 bytes, each 2 s of work and 2 s of bytes: one core needs 8 s for both, and
    a copy has no more than one. Bytes are half of it, so one core that moves bytes is enough for
    two that work.
    """
    result = on_cores(copy_plan(CPUS, (0, 1), (0, 1), elements=200), cores=cores, moving=moving)

    assert close_to([seconds] * 2) == finish(result)


TWO_CPUS = machine(node("cpu0"), node("cpu1", machine="1"), cable("cpu0", "cpu1", 1e9))


@pytest.mark.parametrize(
    ("shared", "rates", "seconds"),
    [(True, {"transfer": 400.0}, 8.0), (False, {"transfer": 400.0}, 4.0), (True, {}, 4.0 + 800e-9)],
)
def test_messages_within_one_computer_are_one_flow_over_its_cores(shared, rates, seconds):
    """There and back at once, each 2 s of work and 800 bytes at 400 B/s: the one core of one
    computer needs 8 s, a core of each machine 4 s. Where cores move no bytes, one takes its turn
    after the other, and then the link moves them.
    """
    processor = Processor(message=2.0, shared=shared, rates=rates)
    plan = copy_plan(TWO_CPUS, (0, 1), (1, 0), elements=200)

    result = simulate(plan, TWO_CPUS, TENSORFLOW, Calibration("here", cpu=processor))

    assert close_to(seconds) == max(finish(result))


def test_a_core_that_moves_bytes_does_nothing_else_meanwhile():
    """A copy of 800 bytes, 4 s of one core, and three adds of 1 s in a row beside it: they share
    the core until the last add ends at 6 s, when the copy has had 3 s.
    """

    def write(b: PlanBuilder) -> None:
        b.copy(b.input(0, 0, 200), 1)
        total = b.input(0, 200, 300)
        for _ in range(3):
            total = b.add([total, b.input(0, 200, 300)])

    result = on_cores(plan_of(CPUS, write))

    assert close_to([7.0]) == finish(result)
    assert close_to([2.0, 4.0, 6.0]) == finish(result, Kind.ADD)


def test_bytes_past_a_core_s_own_cache_are_moved_like_others():
    """Two copies, each 2 s of work and 12 s of bytes, 8 of these past the cache: of two cores only
    one moves bytes.
    """
    plan = copy_plan(CPUS, (0, 1), (0, 1), elements=400)

    assert close_to([24.0, 24.0]) == finish(
        on_cores(plan, cores=2, moving=1, own_cache=1600, past_own=200.0)
    )


def test_messages_of_one_pair_come_one_after_another_also_at_the_cores():
    """On loopback the channel between two is held while a message is worked on: three of 2 s, and
    three of different pairs.
    """
    links = [cable(f"cpu{i}", f"cpu{j}", 1e9) for i in range(4) for j in range(i)]
    cpus = machine(*(node(f"cpu{i}", machine=str(i)) for i in range(4)), *links)
    processor = Processor(cores=4, message=2.0, shared=True, rates={"transfer": 400e9})
    alike, apart = ([(0, 1)] * 3, [2.0, 4.0, 6.0]), ([(0, 1), (2, 3), (1, 0)], [2.0, 2.0, 2.0])

    for hops, seconds in (alike, apart):
        plan = copy_plan(cpus, *hops, elements=0)
        assert close_to(seconds) == finish(
            simulate(plan, cpus, TENSORFLOW, Calibration("here", cpu=processor))
        )


def test_the_critical_path_of_a_full_link_is_the_link_s():
    """2 s of work go on while 400 bytes take 4 s on a wire of 100 B/s."""
    cpus = machine(node("cpu0"), node("cpu1"), cable("cpu0", "cpu1", 100.0))
    calibration = Calibration("here", dispatch={"copy": 2.0}, cpu=Processor())
    result = simulate(copy_plan(cpus, (0, 1)), cpus, TENSORFLOW, calibration)
    [_, copy] = result.critical_path()

    assert close_to([4.0]) == finish(result)
    assert [("bandwidth", close_to(4.0))] == [(part.cause, part.seconds) for part in copy.parts]


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [(400, 3.0), (800, 4.0), (1600, 6.0 + 8.0), (2000, 7.0 + 12.0)]
)
def test_what_a_core_reads_and_writes_past_its_own_cache_takes_it_longer(nbytes, seconds):
    """A copy touches two bytes for one. Of its own cache a core has 1600 bytes, and past it 200 B/s
    beside 400 for what is copied.
    """
    plan = copy_plan(CPUS, (0, 1), elements=nbytes // 4)

    assert close_to([seconds]) == finish(on_cores(plan, own_cache=1600, past_own=200.0))


def test_an_empty_value_costs_what_does_not_depend_on_its_size():
    """2 s of a core each, and nothing on the way."""
    result = on_cores(copy_plan(CPUS, (0, 1), (0, 1), elements=0), moving=2, memory=1.0)

    assert close_to([4.0, 4.0]) == finish(result)
    assert {"machine 0 CPU cores": 0.0} == {use.name: use.nbytes for use in result.links}


def test_the_critical_path_tells_work_from_bytes_and_from_what_others_took():
    """Of 8 s for two copies of 2 s of work and 2 s of bytes, the cores were shared for 4."""
    [read, copy] = on_cores(copy_plan(CPUS, (0, 1), (0, 1), elements=200)).critical_path()

    assert [(part.cause, part.where) for part in copy.parts] == [
        ("dispatch", "copy"),
        ("bandwidth", "machine 0 CPU cores"),
        ("bandwidth share", "machine 0 CPU cores"),
    ]
    assert [part.seconds for part in copy.parts] == close_to([2.0, 2.0, 4.0])
    assert read.parts == ()


def test_the_worked_example_of_a_core_flow():
    """100 us of work, 1 MB moved in 100 us, on a core of 10 GB/s: see the docstring."""
    work, moving, demand = np.array([100e-6]), np.array([100e-6]), np.array([1e6, 0.0])
    amount, weight = core_flow(work, moving, demand, np.array([2]), 10e9)

    assert [2e6] == pytest.approx(amount.tolist())
    assert [0.5, 1e-10] == pytest.approx(weight.tolist())
