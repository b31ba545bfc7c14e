"""What is timed again of the plans that a calibration was learnt from: on which devices, beside
which candidates.
"""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
from simreduce_validate.calibrating import Cores, design
from simreduce_validate.calibrating.controls import choose_controls, control_plans
from simreduce_validate.calibrating.session import _control_seconds
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Case, Timing
from simreduce_validate.devices import Devices
from simreduce_validate.running import Measurement

import simreduce as sr
from simreduce.engine import Calibration, Processor
from simreduce.engine.calibrate import CONTROLS
from simreduce.plan import Kind
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import tensor
from tests.validate.devices import devices

ASKED = {
    "inproc of 2": ("switch:2", {}),
    "inproc of 4": ("switch:4", {}),
    "pretended GPUs": ("dgx1v", {"backend": "gpu", "pretend": True, "ngpus": 3}),
    "cluster of 2": ("switch:2", {"backend": "cluster"}),
    "cluster of 2 x 2": ("rtx4090-2x2", {"backend": "cluster"}),
    "shaped": ("switch:3", {"backend": "shaped", "rate": "200mbit"}),
}
IN_ONE_PROCESS = {
    ("chains", 4): 160e-6, ("copies", 1 << 20): 450e-6, ("copies", 1 << 24): 6e-3,
    ("sums", 1 << 20): 350e-6,
    ("sums", 1 << 24): 11e-3,
}  # fmt: skip


def asked(name):
    topology, options = ASKED[name]
    return devices(topology, **options)


def kept(where):
    """What a calibration on these devices keeps, if the n-th plan takes n seconds."""
    plan = design(where, Cores(2))
    rows = [
        Timing(
            Case(micro.name, where.stage.adapt(micro.plan), micro.nbytes // 4, 0, "sum", math.nan),
            Measurement(np.array([float(number)]), (), (), None),
        )
        for number, micro in enumerate(plan.micros, 1)
    ]
    return plan.micros, _control_seconds(plan, where, rows)


@pytest.mark.parametrize("name", ASKED)
def test_controls_are_among_what_is_measured(name):
    """Few, of fixed costs and of bytes; and each has the time of its own plan."""
    where = asked(name)
    micros, found = kept(where)
    again = control_plans(where, found)

    assert 3 <= len(found) <= 6
    assert {"chains", "sums"} < {kind for kind, _ in found} <= set(CONTROLS)
    for key, seconds in found.items():
        assert again[key].plan.digest == micros[int(seconds) - 1].plan.digest
        assert again[key].nbytes == key[1] == micros[int(seconds) - 1].nbytes


@pytest.mark.parametrize(
    ("name", "hops"),
    [
        ("inproc of 4", {"chains": 48, "copies": 4}),
        ("cluster of 2 x 2", {"chains": 11, "transfers": 3}),
    ],
)
def test_a_kind_is_always_the_same_plan(name, hops):
    """Calibrations of then hold what these took: another plan needs another name."""
    where = asked(name)
    again = control_plans(where, [(kind, 64) for kind in (*hops, "sums")])
    ops = {key[0]: micro.plan.kind.tolist() for key, micro in again.items()}

    assert hops == {kind: ops[kind].count(Kind.COPY) for kind in hops}
    assert (0, 8) == (ops["sums"].count(Kind.COPY), ops["sums"].count(Kind.ADD))
    assert {0} == set(again["sums", 64].plan.device.tolist())


def test_real_gpus_keep_none():
    assert () == design(devices("dgx1v", backend="gpu"), Cores(2)).controls


@pytest.mark.parametrize(
    ("learnt", "tried", "same"),
    [
        ("inproc of 4", "inproc of 2", True),
        ("inproc of 2", "pretended GPUs", True),
        ("cluster of 2 x 2", "cluster of 2", True),
        ("cluster of 2", "cluster of 2 x 2", True),
        ("inproc of 2", "cluster of 2", False),
        ("cluster of 2", "inproc of 4", False),
    ],
)
def test_any_number_of_devices_of_that_kind_repeats_them(learnt, tried, same):
    """Others have something else between two devices, and repeat none."""
    where = asked(tried)
    _, found = kept(asked(learnt))
    again = control_plans(where, found)

    assert set(again) == (set(found) if same else set())
    for micro in again.values():
        assert [] == sr.verify(where.stage.adapt(micro.plan))
        assert set(micro.plan.devices) <= set(where.stage.machine.nodes)


def test_controls_are_like_the_candidates_they_are_beside():
    """Of three, the nearest in time; none of far larger values, none that takes much longer than
    all of them or far less than most.
    """
    assert [("chains", 4)] == choose_controls(IN_ONE_PROCESS, 1 << 10, [200e-6, math.nan, 150e-6])
    assert [("chains", 4), ("sums", 1 << 20), ("copies", 1 << 20)] == choose_controls(
        IN_ONE_PROCESS, 1 << 18, [230e-6]
    )
    assert [("chains", 4)] == choose_controls(IN_ONE_PROCESS, 1 << 10, [20e-6])
    assert [("copies", 1 << 20)] == choose_controls(
        {("copies", 1 << 20): 11e-3, ("sums", 1 << 20): 13e-3}, 1 << 20, [6e-3]
    )
    assert [("sums", 1 << 24), ("copies", 1 << 24)] == choose_controls(
        IN_ONE_PROCESS, 1 << 26, [50e-3, 60e-3, 80e-3]
    )
    assert [("sums", 1 << 24)] == choose_controls(IN_ONE_PROCESS, 1 << 24, [3e-3, 100e-3, 200e-3])
    assert [] == choose_controls(IN_ONE_PROCESS, 1 << 26, [1.0])
    assert (
        []
        == choose_controls(IN_ONE_PROCESS, 1 << 26, [math.nan])
        == choose_controls({}, 1 << 26, [1.0])
    )


def question(controls, backend="inproc"):
    where = devices("switch:3", backend=backend)
    calibration = Calibration("c", step=1e-4, cpu=Processor(), controls=controls)
    return Campaign(where, where.setup(calibration))


def group(asking, *sizes):
    return [
        case
        for nbytes in sizes
        for case in asking.cases(
            tensor(nbytes, 0), [parse_strategy("ring"), parse_strategy("direct")], twice=True
        )
    ]


def test_a_group_is_timed_beside_its_controls():
    """What they took is on record before anything is measured; sizes of one group may have them in
    common.
    """
    asking = question(IN_ONE_PROCESS)
    cases = group(asking, 1 << 10, 1 << 14)
    found = asking.with_controls(cases)
    added = found[len(cases) :]

    assert cases == found[: len(cases)]
    assert {("chains", 1): (1 << 10, 1 << 14)} == {
        (case.algorithm, case.count): case.control.beside for case in added
    }
    for case in added:
        key = case.algorithm, case.nbytes
        assert IN_ONE_PROCESS[key] == case.control.then
        assert (None, IN_ONE_PROCESS[key] * 1e6, case.control.beside) == (
            case.forecast.predicted_us, case.forecast.then_us, case.forecast.beside
        )  # fmt: skip
        assert math.isnan(case.predicted)
    assert all(case.forecast.then_us is None for case in cases)


def test_progress_counts_plans(monkeypatch):
    """Of which controls are some, and no candidates."""
    asking, told = question(IN_ONE_PROCESS), []
    cases = asking.with_controls(group(asking, 1 << 10))
    monkeypatch.setattr(
        "simreduce_validate.campaign.Progress",
        lambda text: contextlib.nullcontext(lambda *counts: told.append(text.format(*counts))),
    )
    monkeypatch.setattr(
        Devices, "open", lambda _self, _used: contextlib.nullcontext(SimpleNamespace(provenance={}))
    )
    monkeypatch.setattr(Campaign, "_time_group", lambda _self, _backend, here, *_: list(here))
    asking.measure([cases])

    assert any(case.control for case in cases)
    assert [f"measured {many} of {len(cases)} plans" for many in (0, len(cases))] == told


@pytest.mark.parametrize("asking", [question({}), question(IN_ONE_PROCESS, "cluster")])
def test_without_controls_candidates_are_alone(asking):
    cases = group(asking, 1 << 10)

    assert cases == asking.with_controls(cases)
