"""Pipes: what one machine sends to another goes a value at a time, while latencies overlap."""

from __future__ import annotations

import numpy as np
import pytest

from simreduce.engine import IDEAL, TENSORFLOW, Calibration
from simreduce.engine.runtime import Runtime, no_lanes
from simreduce.errors import Deadlock
from simreduce.plan import Kind
from simreduce.testing import RATE, cable, copy_plan, machine, node, pair
from simreduce.testing.strategies import PIPED
from tests.simulating import lane_curves, read_result, record, simulate

DELAY = 3.0


def two_hosts():
    """Hosts of two machines on one cable, whose latency holds no lane."""
    return machine(
        node("cpu0", machine="0"),
        node("cpu1", machine="1"),
        cable("cpu0", "cpu1", RATE, DELAY, holds=False),
    )


def finishes(*hops, runtime=TENSORFLOW):
    """When each copy is done, in units of the time that one takes alone, after one latency."""
    topology = two_hosts()
    result = simulate(copy_plan(topology, *hops), topology, runtime)
    unit = simulate(copy_plan(topology, (0, 1)), topology, IDEAL).seconds - DELAY
    return [pytest.approx((time - DELAY) / unit) for time in result.finish[1::2].tolist()]


def test_values_for_one_machine_come_one_after_another_and_latency_is_paid_once():
    """In order of op id, as all are ready at once; with fluid sharing all would come last."""
    assert finishes((0, 1), (0, 1), (0, 1)) == [1, 2, 3]
    assert finishes((0, 1), (0, 1), (0, 1), runtime=IDEAL) == [3, 3, 3]


def test_the_other_direction_has_a_pipe_of_its_own():
    """Each way is full all the time."""
    assert finishes((0, 1), (1, 0), (0, 1)) == [1, 1, 2]


def test_the_wait_for_a_pipe_is_told_and_the_parts_add_up():
    """The second stands ready for the channel from its arrival on, while the first one's bytes
    move.
    """
    topology = two_hosts()
    plan = copy_plan(topology, (0, 1), (0, 1))
    recording = record(plan, topology, TENSORFLOW)
    result, unit = recording.result, (recording.result.seconds - DELAY) / 2
    last = recording.critical_path()[-1]

    assert last.waited == pytest.approx(unit)
    assert sum(
        part.seconds for step in recording.critical_path() for part in step.parts
    ) == pytest.approx(result.seconds)
    waits = [
        part
        for step in recording.critical_path()
        for part in step.parts
        if part.cause == "lane wait"
    ]
    assert [(part.where, part.meanwhile, part.seconds) for part in waits] == [
        ("0>1 channel", "bandwidth", pytest.approx(unit))
    ]
    assert [(lane.name, lane.share) for lane in result.lanes] == [
        ("0>1 channel", pytest.approx(2 * unit / result.seconds))
    ]
    [held] = lane_curves(recording)
    assert held.time.tolist() == pytest.approx([DELAY, DELAY + 2 * unit])
    assert result.floors.lane == pytest.approx(2 * unit)


def test_a_result_with_pipes_survives_json():
    """And one without."""
    topology = two_hosts()
    for runtime in (TENSORFLOW, IDEAL):
        result = simulate(copy_plan(topology, (0, 1), (0, 1)), topology, runtime)
        again = read_result(result.to_json())

        assert again.to_json() == result.to_json()
        assert again.critical_path() == result.critical_path()


def test_an_op_may_be_on_the_critical_path_twice():
    """The first copy frees the post at 0.5 s, which lets the second begin; that has the wire when
    the first arrives.
    """
    topology = machine(
        cable("gpu0", "gpu1", RATE, 10.0, holds=False),
        cable("gpu0", "gpu2", RATE / 10, 1.0, holds=False),
    )
    plan = copy_plan(topology, (0, 1), (0, 2))
    result = simulate(plan, topology, PIPED, Calibration("costs", dispatch={"copy": 0.5}))

    assert result.finish[[1, 3]].tolist() == [46.0, 42.0]
    assert [(step.op, step.start, step.waited) for step in result.critical_path()][-3:] == [
        (1, 0.0, 0.0), (3, 0.5, 0.5), (1, 42.0, 31.5),
    ]  # fmt: skip
    parts = [(part.cause, part.seconds) for step in result.critical_path() for part in step.parts]
    assert parts == [
        ("lane wait", 0.5),
        ("dispatch", 0.5),
        ("latency", 1.0),
        ("bandwidth", 8.5),
        ("lane wait", 31.5),
        ("bandwidth", 4.0),
    ]


WIRE = Runtime(
    "wire",
    no_lanes,
    dispatch=False,
    local=False,
    pipes=lambda call: ("wire",) if call.kind == Kind.COPY else (),
)


def test_of_those_that_wait_the_one_that_was_ready_first_comes_first():
    """Not the one with the lowest id, which here arrives at 5 s; the others have waited since 2 s
    and 3 s.
    """
    topology = machine(
        cable("gpu0", "gpu1", RATE, 4.0, holds=False), cable("gpu0", "gpu2", RATE, 2.0, holds=False)
    )
    plan = copy_plan(topology, (0, 1), (0, 2), (0, 1), (0, 2))
    result = simulate(plan, topology, WIRE, ready=np.array([1.0, 0.5, 0.25, 0.0]))

    assert result.finish[1::2].tolist() == [18.0, 14.0, 10.0, 6.0]


def test_several_pipes_are_queued_for_in_one_order():
    """Were it not so, each of two copies could be first where the other one waits: for ever."""
    topology = machine(
        cable("gpu0", "gpu1", RATE), cable("gpu0", "gpu2", RATE, 5.0), cable("gpu0", "gpu3", RATE)
    )

    def pipes(call):
        wanted = () if call.target.name == "gpu3" else ("gpu0 door",)
        return ("gpu0 wire", *wanted) if call.kind == Kind.COPY else ()

    runtime = Runtime("two pipes", no_lanes, dispatch=False, local=False, pipes=pipes)
    plan = copy_plan(topology, (0, 3), (0, 2), (0, 1), (0, 1))
    result = simulate(plan, topology, runtime, ready=np.array([5.0, 0.5, 4.0, 3.0]))

    assert result.finish[1::2].tolist() == [19.0, 11.0, 15.0, 7.0]


def test_a_deadlock_names_the_pipe():
    """A lane that is held over the flow cannot be a pipe as well."""
    topology = pair()
    runtime = Runtime("twice", WIRE.pipes, dispatch=False, local=False, pipes=WIRE.pipes)
    with pytest.raises(Deadlock, match=r"COPY gpu0 -> gpu1 .*: waits for wire"):
        simulate(copy_plan(topology, (0, 1)), topology, runtime)
