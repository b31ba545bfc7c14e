"""How busy links, memories and lanes were over time: nothing lost, nothing above capacity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import simreduce as sr
from simreduce.engine import IDEAL, TENSORFLOW, Calibration
from simreduce.engine.recording import replay
from simreduce.errors import InternalError
from simreduce.testing import RATE, cable, copy_plan, machine, plan_of
from simreduce.testing.strategies import either_scenes
from tests.simulating import lane_curves, record
from tests.thorough import examples


def curves(recording):
    return {
        curve.name: list(zip(curve.time.tolist(), curve.value.tolist(), strict=True))
        for curve in recording
    }


def bytes_through(recording):
    """Bytes that the plan sends through every resource that it uses."""
    lowered = recording.lowered
    user = np.repeat(np.arange(len(lowered.amount)), np.diff(lowered.by_op.use_start))
    load = np.bincount(
        lowered.by_op.uses,
        lowered.amount[user] * lowered.by_op.weight,
        minlength=len(recording.resources.names),
    )
    return {
        name: n for name, n in zip(recording.resources.names, load.tolist(), strict=True) if n > 0
    }


@given(either_scenes)
@settings(max_examples=examples(100))
def test_laws_of_every_recording(scene):
    """On random plans and machines."""
    recording = record(scene.plan, scene.topology, scene.runtime, scene.calibration, scene.ready)

    _check_resources(recording)
    _check_flows(recording)
    _check_lanes(recording)


def _check_resources(recording):
    """Bytes in are bytes out, and no resource is ever above its capacity."""
    found = recording.resource_curves()

    assert bytes_through(recording) == pytest.approx({c.name: c.total for c in found}, rel=1e-9)
    for curve in found:
        assert np.all(curve.value >= 0.0)
        assert np.all(curve.value <= curve.capacity * (1 + 1e-12))
        assert np.all(np.diff(curve.time) > 0)
        assert curve.value[-1] == 0.0
        assert curve.time[-1] <= recording.result.seconds * (1 + 1e-15)


def _check_flows(recording):
    """The stretches of constant rate, put together, move the bytes of every flow."""
    rates, amount = recording.rates, recording.lowered.amount
    moved = np.bincount(rates.op, rates.rate * (rates.end - rates.begin), minlength=len(amount))

    assert moved == pytest.approx(amount, rel=1e-9)
    assert np.all(rates.end > rates.begin)


def _check_lanes(recording):
    """They are held as long as the result says, by one op at a time."""
    result = recording.result
    held = {use.name: use.share * result.seconds for use in result.lanes if use.share > 0}

    assert held == pytest.approx(
        {c.name: c.total for c in lane_curves(recording)}, rel=1e-9, abs=1e-15
    )
    for curve in lane_curves(recording):
        assert np.all(np.diff(curve.time) > 0)
        assert curve.value.tolist() == [1.0, 0.0] * (len(curve.time) // 2)


def test_flows_share_a_cable_until_one_ends():
    """400 and 800 bytes at 50 B/s each; the longer has the cable alone from second 8 on."""
    topology = machine(cable("gpu0", "cpu0"), cable("cpu0", "gpu1"), cable("cpu0", "gpu2"))

    def write(b):
        b.copy(b.input(0, 0, 100), 1)
        b.copy(b.input(0, 100, 300), 2)

    recording = record(plan_of(topology, write), topology, IDEAL)

    assert curves(recording.resource_curves()) == {
        "gpu0>cpu0 wire": [(0.0, 100.0), (12.0, 0.0)],
        "cpu0>gpu1 wire": [(0.0, 50.0), (8.0, 0.0)],
        "cpu0>gpu2 wire": [(0.0, 50.0), (8.0, 100.0), (12.0, 0.0)],
    }


def test_a_cable_that_rests_between_two_flows():
    topology = machine(cable("gpu0", "gpu1", latency=1.0))
    recording = record(
        copy_plan(topology, (0, 1), (0, 1)), topology, TENSORFLOW, Calibration("none")
    )

    assert curves(recording.resource_curves()) == {
        "gpu0>gpu1 wire": [(1.0, RATE), (5.0, 0.0), (6.0, RATE), (10.0, 0.0)]
    }
    assert curves(lane_curves(recording)) == {"gpu0 device-to-device": [(0.0, 1.0), (10.0, 0.0)]}


def test_rates_that_do_not_explain_the_end_are_a_fault_of_ours():
    topology = machine(cable("gpu0", "gpu1"))
    recording = record(copy_plan(topology, (0, 1)), topology, IDEAL)
    late = replace(recording.result.timeline, finish=recording.result.finish * 2)

    with pytest.raises(InternalError, match="the rates of 1 flows do not explain when they ended"):
        replay(recording.lowered, recording.resources, late)


def test_a_recording_holds_the_result_of_simulate():
    topology = sr.load_topology("dgx1v")
    plan = sr.compile("xring", sr.load_workload("bytes:1M"), sr.layout(topology))

    assert sr.simulate(plan, topology).to_json() == record(plan, topology).result.to_json()


@pytest.mark.parametrize("spec", ["xring#2", "psgpu#8", "nccl", "copy_to_gpus"])
def test_real_machines(spec):
    """Thousands of flows in step."""
    topology = sr.load_topology("dgx1vx2")
    plan = sr.compile(spec, sr.load_workload("bytes:8M"), sr.layout(topology))
    recording = record(plan, topology)
    found = recording.resource_curves()

    assert bytes_through(recording) == pytest.approx({c.name: c.total for c in found}, rel=1e-9)
    assert all(c.value.max() <= c.capacity * (1 + 1e-12) for c in found)
