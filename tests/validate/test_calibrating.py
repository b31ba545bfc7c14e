"""Constants from micro-plans: plans that are right, a fit that finds what they were made with, and
the command before it starts.
"""

from __future__ import annotations

import json
import math
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st
from simreduce_validate.calibrate import _set_aside, calibrate
from simreduce_validate.calibrating import (
    Cores,
    FreeConstant,
    assemble,
    cores_of,
    design,
    fit_constants,
    fit_roughly,
    slow_ports,
)
from simreduce_validate.calibrating.design import WHOLE
from simreduce_validate.calibrating.session import (
    FIRST_ROUNDS,
    all_micros,
    held_out_cases,
    learn,
    measure_micros,
    measurement_of,
    open_devices,
)
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Case, Timing
from simreduce_validate.devices import RUNTIME
from simreduce_validate.running import Measurement, computer
from simreduce_validate.running.computer import Computer
from simreduce_validate.running.execution import StepCounts
from simreduce_validate.running.placement import numbers
from simreduce_validate.running.protocol import FirstStep
from simreduce_validate.validate import validate

import simreduce as sr
from simreduce.app.cli import main
from simreduce.engine import Calibration, Processor
from simreduce.engine.calibrate import load_calibration, to_toml
from simreduce.engine.setup import Setup
from simreduce.plan import Kind
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.tune.sizes import tensor
from tests.thorough import some
from tests.validate.devices import devices

ASKED = {
    "inproc of 2": ("switch:2", {}),
    "inproc of 4": ("switch:4", {}),
    "cluster of 2": ("switch:2", {"backend": "cluster"}),
    "cluster of 3": ("switch:3", {"backend": "cluster"}),
    "cluster of 2 x 2": ("rtx4090-2x2", {"backend": "cluster"}),
    "cluster of 2 + 1": ("rtx4090-2x2", {"backend": "cluster", "ngpus": 3}),
    "cluster of hosts": ("switch:3", {"backend": "cluster", "hosts": "a:1,b:1,c:1"}),
    "shaped": ("switch:3", {"backend": "shaped", "rate": "200mbit"}),
    "shaped, 2 workers": ("switch:2", {"backend": "shaped", "rate": "2mbit"}),
    "shaped with delay": (
        "switch:4",
        {"backend": "shaped", "rate": "200mbit", "delay": "5ms", "slow_port": ("1=100mbit",)},
    ),
    "DGX-1": ("dgx1v", {"backend": "gpu"}),
    "v100-pcie-4": ("v100-pcie-4", {"backend": "gpu"}),
    "DGX A100": ("dgx-a100", {"backend": "gpu"}),
    "pretended GPUs": ("dgx1v", {"backend": "gpu", "pretend": True, "ngpus": 3}),
}

CORES = Cores(4, own_cache=1 << 20)

KNOWN = {
    "step": 0.4e-3, "dispatch.input": 2e-6, "dispatch.output": 2.5e-6, "dispatch.copy": 5e-6,
    "dispatch.add": 4e-6,
    "dispatch.concat": 6e-6, "dispatch.slice": 3.5e-6, "cpu.message": 0.3e-3, "cpu.cores": 3.0,
    "cpu.moving": 2.0, "cpu.cache": 16 << 20, "cpu.memory": 20e9,
    "cpu.past_own": 40e9,
    "cpu.rates.copy": 6e9, "cpu.rates.add": 12e9, "cpu.rates.slice": 7e9, "cpu.rates.concat": 5e9,
    "cpu.rates.transfer": 0.7e9,
    "dispatch.scale": 3e-6, "dispatch.cast": 4.5e-6, "cpu.rates.scale": 9e9, "cpu.rates.cast": 4e9,
    "links.cable.bandwidth": 20e6, "links.cable.latency": 2e-3,
}  # fmt: skip


def asked(name):
    topology, options = ASKED[name]
    return devices(topology, **options)


@pytest.mark.parametrize("name", ASKED)
def test_micro_plans_are_right_also_as_they_are_run(name):
    where = asked(name)
    micros = all_micros(design(where, CORES))

    assert len({(micro.name, micro.nbytes) for micro in micros}) == len(micros) > 20
    for micro in micros:
        assert [] == sr.verify(micro.plan), micro.name
        assert [] == sr.verify(where.stage.adapt(micro.plan)), micro.name
        assert set(micro.plan.devices) <= set(where.stage.machine.nodes)


def crossed(where, micro):
    """Of the copies of a plan, whether each goes to another process."""
    plan, process = micro.plan, numbers(where.stage.place)
    copies = np.flatnonzero(plan.kind == Kind.COPY).tolist()
    return [
        process[plan.device[plan.operands_of(op)[0]]] != process[plan.device[op]] for op in copies
    ]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("cluster of 3", {True}), ("shaped", {True}), ("cluster of 2 x 2", {True, False}),
    ("cluster of 2 + 1", {True, False})],
)  # fmt: skip
def test_a_plan_crosses_processes_or_stays_within_one(name, kinds):
    """Never both, so that what each costs is told apart; both are there where a process has several
    devices.
    """
    where = asked(name)
    each = [set(crossed(where, micro)) for micro in all_micros(design(where, CORES))]

    assert all(len(found) <= 1 for found in each)
    assert kinds == set().union(*each)


def test_transfers_over_slow_links_are_small():
    """At 2 Mbit/s the smallest there are; else none is longer than its limit."""
    largest = {
        name: max(m.nbytes for m in all_micros(design(asked(name), CORES))) for name in ASKED
    }

    assert 64 << 10 == largest["shaped, 2 workers"]
    assert 0.025 < largest["shaped"] / (200e6 / 8) <= 0.05
    assert 8 << 20 == largest["cluster of 3"]


def predictor(where, plan):
    plans = [where.stage.adapt(micro.plan) for micro in plan.micros]

    def predict(values):
        setup = Setup(where.stage.machine, RUNTIME, assemble(plan.base, values))
        return [setup.find_seconds(each) for each in plans]

    return predict


def noisy(seconds, noise):
    return np.array(seconds) * np.exp(
        noise * np.random.default_rng(1).standard_normal(len(seconds))
    )


FOUND = {
    "inproc of 2": ("step", "dispatch.copy", "cpu.rates.copy", "cpu.rates.scale", "cpu.rates.cast"),
    "cluster of 3": ("step", "cpu.message", "cpu.rates.transfer"),
    "cluster of 2 x 2": ("cpu.message", "cpu.rates.transfer", "dispatch.copy", "cpu.rates.copy"),
    "shaped": ("step", "cpu.message", "links.cable.bandwidth"),
    "shaped with delay": ("step", "links.cable.latency", "links.cable.bandwidth"),
}


SOME = (("inproc of 2", 0.0), ("shaped with delay", 0.02))
MARKS = {SOME[0]: pytest.mark.slow, SOME[1]: []}
CASES = [
    pytest.param(name, noise, marks=MARKS.get((name, noise), pytest.mark.thorough))
    for name in FOUND
    for noise in (0.0, 0.02)
]


@pytest.mark.parametrize(("name", "noise"), CASES)
def test_a_fit_finds_the_constants_that_matter(name, noise):
    """From far off, where the others are known: within 1 %. Where times scatter by 2 %, standard
    errors are below 5 %, and as large as they are said to be. Every second plan is enough.
    """
    where = asked(name)
    plan = design(where, CORES)
    if (name, noise) in SOME:
        plan = replace(plan, micros=plan.micros[::2])
    known = {c.name: KNOWN[c.name] for c in plan.constants}
    plan = replace(plan, base=assemble(plan.base, known))
    free = [c for c in plan.constants if c.name in FOUND[name]]
    predict = predictor(where, plan)
    fit = fit_constants(free, predict, noisy(predict(known), noise))
    off = 0.05 if noise else 0.01

    for n in FOUND[name]:
        assert abs(fit.values[n] - known[n]) < max(0.01 * known[n], 3 * fit.errors[n])
    assert {} == fit.vague
    assert all(error < off * fit.values[n] for n, error in fit.errors.items())
    assert len(plan.micros) == len(fit.residuals)
    assert all(abs(c.start / known[c.name] - 1) > 0.1 for c in free)


@pytest.mark.thorough
@pytest.mark.parametrize("noise", some([0.02, 0.0], 1))
@pytest.mark.parametrize("name", FOUND)
def test_a_fit_finds_them_among_all_others(name, noise):
    """What stands for other constants may take their part; these do not."""
    where = asked(name)
    plan = design(where, CORES)
    known = {c.name: KNOWN[c.name] for c in plan.constants}
    predict = predictor(where, plan)
    fit = fit_constants(plan.constants, predict, noisy(predict(known), noise))

    for n in FOUND[name]:
        # Of noisy measurements, as near as the fit itself says.
        near = 3 * fit.errors[n] if noise else 0.01 * known[n]
        assert known[n] == pytest.approx(fit.values[n], abs=near)
        assert fit.errors[n] < 0.1 * known[n] or not noise
    assert np.median(np.abs(fit.residuals)) < max(noise, 1e-3)


@pytest.mark.parametrize(
    ("computers", "cores"),
    [
        ([("a", 8)] * 4, Cores(8)),
        ([("a", 8), ("a", 4)], Cores(4)),
        ([("a", 8), ("b", 16), ("c", 12)], Cores(8, shared=False)),
        ([("a", 8), ("a", 8), ("b", 6)], Cores(4, shared=False)),
        ([("a", 1), ("a", 1), ("b", 1)], Cores(1, shared=False)),
    ],
    ids=["one", "one, not all of it", "three", "two on one", "few"],
)
def test_cores_are_those_of_the_workers(computers, cores):
    assert cores == cores_of([Computer(*each) for each in computers])


@pytest.mark.parametrize(
    ("files", "size"),
    [
        (
            {"index0": ("1", "Data", "32K", "1"), "index2": ("2", "Unified", "1280K", "1")},
            1280 << 10,
        ),
        ({"index2": ("2", "Unified", "1280K", "0000001f,00000001")}, 1280 * 1024 // 6),
        (
            {
                "index1": ("2", "Instruction", "512K", "1"),
                "index3": ("3", "Unified", "32768K", "3"),
            },
            0,
        ),
        ({"index2": ("2", "Unified", "much", "1")}, 0),
        ({}, 0),
    ],
)
def test_a_core_s_own_cache_is_its_second(files, size, tmp_path, monkeypatch):
    for name, fields in files.items():
        (tmp_path / name).mkdir()
        for field, text in zip(("level", "type", "size", "shared_cpu_map"), fields, strict=True):
            (tmp_path / name / field).write_text(f"{text}\n")
    monkeypatch.setattr(computer, "_CACHES", tmp_path)

    assert size == computer.own_cache()
    assert size == cores_of([]).own_cache
    assert 0 == cores_of([Computer("a", 2)]).own_cache


def test_what_is_measured_does_not_depend_on_cores():
    """So that workers can say how many they have when they are there. Of several computers, a wire
    has a latency.
    """
    one, several = (
        design(asked("cluster of hosts"), Cores(8, shared=shared)) for shared in (True, False)
    )

    assert [m.plan.digest for m in one.micros] == [m.plan.digest for m in several.micros]
    assert (True, False) == (one.base.cpu.shared, several.base.cpu.shared)
    assert {"links.cable.latency"} == {c.name for c in several.constants} - {
        c.name for c in one.constants
    }


def measured(where, plan, known, noise):
    """Rows of all micro-plans, as if devices of these constants had been measured."""
    rows, setup = [], Setup(where.stage.machine, RUNTIME, known)
    for micro in all_micros(plan):
        adapted = where.stage.adapt(micro.plan)
        seconds = setup.find_seconds(adapted)
        rows.append((Case(micro.name, adapted, micro.nbytes // 4, 0, "sum", math.nan), seconds))
    found = noisy([seconds for _, seconds in rows], noise)
    return [
        Timing(case, Measurement(np.array([seconds]), (), (), None))
        for (case, _), seconds in zip(rows, found.tolist(), strict=True)
    ]


def near(known, found, times=3.0):
    """Whether constants are as near to the known ones as their standard errors say."""
    return {
        name: abs(found.values[name] - value) <= times * found.errors[name]
        for name, value in known.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "slow",
    [
        pytest.param({"worker1>switch0": 0.5}, id="out"),
        pytest.param({"switch0>worker2": 0.7}, id="in", marks=pytest.mark.slow),
        pytest.param(
            {"worker0>switch0": 0.6, "switch0>worker0": 0.8}, id="both", marks=pytest.mark.slow
        ),
        pytest.param({}, id="none", marks=pytest.mark.slow),
    ],
)
def test_a_port_that_differs_in_one_direction_is_found_in_that_direction(slow):
    """And in no other, as near as its standard error says, where the constants of ops are known.
    Every second plan is enough, with those of the pairs.
    """
    where = asked("shaped with delay")
    whole = design(where, CORES)
    plan = replace(whole, micros=whole.micros[::2], controls=())
    known = {c.name: KNOWN[c.name] for c in plan.constants}
    free = [
        c
        for c in plan.constants
        if c.name.startswith("links.") or c.name in ("step", "cpu.message")
    ]
    plan = replace(plan, base=assemble(plan.base, known), constants=tuple(free))
    usual = known["links.cable.bandwidth"]
    ports = {f"links.{name}.bandwidth": usual * part for name, part in slow.items()}
    session = learn(plan, where, measured(where, plan, assemble(plan.base, ports), 0.005))
    found, fit = session.calibration, session.fit
    expected = {**{c.name: known[c.name] for c in free}, **ports}

    assert {"cable", *slow} == set(found.links)
    assert dict.fromkeys(expected, True) == near(expected, fit)
    assert all(fit.errors[name] < 0.1 * value for name, value in expected.items())
    assert all(
        found.links[name].bandwidth == fit.values[f"links.{name}.bandwidth"] for name in slow
    )
    assert "rates of each port" in plan.directions


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("DGX-1", marks=pytest.mark.thorough), "v100-pcie-4"])
def test_ways_to_the_host_and_back_have_constants_of_their_own(name):
    """Of GPUs whose links to the host are slower one way, and later the other."""
    where = asked(name)
    plan = design(where, CORES)
    known = {
        c.name: c.start * (0.8 if ":d2h.bandwidth" in c.name else 1.3 if ":h2d" in c.name else 1.1)
        for c in plan.constants
    }
    rows = measured(where, plan, assemble(plan.base, known), 0.01)
    fit = learn(plan, where, rows).fit
    aside = {
        n: value
        for n, value in known.items()
        if ":" in n and n not in fit.vague and n.endswith("bandwidth")
    }

    assert {":d2h", ":h2d"} == {n[n.index(":") : n.rindex(".")] for n in aside}
    assert dict.fromkeys(aside, True) == near(aside, fit)
    assert all(fit.errors[n] < 0.1 * value for n, value in aside.items())


def linear(values, small=1.0):
    """Made-up times of two constants."""
    return [
        values["a"] * x + small * values.get("b", 0.0) * y
        for x, y in ((1, 1), (2, 1), (3, 5), (10, 1))
    ]


def test_what_nothing_depends_on_has_no_value():
    constants = [FreeConstant.about("a", 1.0), FreeConstant.about("idle", 1.0)]
    fit = fit_constants(constants, linear, linear({"a": 3.0}))

    assert {"a": 3.0} == pytest.approx(dict(fit.values), rel=1e-3)
    assert {"idle": "nothing that was measured depends on it"} == fit.vague
    assert set(fit.values) == set(fit.errors)


def test_a_bound_is_a_value_only_where_it_is_hard():
    away = [FreeConstant.about("a", 1.0), FreeConstant("b", 10.0, 1.0, 100.0)]
    hard = [away[0], replace(away[1], hard=True)]
    measured = linear({"a": 3.0, "b": 0.0})

    assert {"b": "no value from 1 to 100 fits best"} == fit_constants(away, linear, measured).vague
    assert fit_constants(away, linear, measured).values["a"] == pytest.approx(3.0, rel=1e-3)
    assert fit_constants(hard, linear, measured).values["b"] == pytest.approx(1.0, rel=0.01)


def test_a_guess_far_from_what_was_measured_gives_way():
    """The bounds are moved where measurements depend on the constant."""
    constants = [FreeConstant.about("a", 1.0), FreeConstant.about("b", 1e4, 30.0)]
    measured = linear({"a": 3.0, "b": 2.0})
    fit = fit_constants(constants, linear, measured)

    assert {} == fit.vague
    assert {"a": 3.0, "b": 2.0} == pytest.approx(dict(fit.values), rel=0.05)


def test_a_guess_gives_way_up_to_a_million_times():
    constants = [FreeConstant.about(name, 1.0, pull=0.0) for name in "ab"]

    def fit(a):
        times = lambda values: [values.get("a", 1.0)] * 3 + [values["b"]] * 3  # noqa: E731
        return fit_constants(constants, times, times({"a": a, "b": 1.0}))

    assert fit(9e5).values["a"] == pytest.approx(9e5, rel=0.01)
    assert {"a": "no value from 1e-06 to 1e+06 fits best"} == fit(5e6).vague


def scattered(known):
    """A fit of two constants, of which only the first is told: times scatter by 10 %."""
    measured = np.array(linear({"a": 3.0, "b": 2.0}, 0.01)) * [1.1, 0.9, 1.0, 1.0]
    constants = [FreeConstant.about("a", 1.0), FreeConstant.about("b", 4.0, known=known)]
    return fit_constants(constants, lambda values: linear(values, 0.01), measured)


def test_a_known_constant_that_times_hardly_tell_keeps_its_usual_value():
    """The fit says so, and the others are surer."""
    free, held = scattered(known=False), scattered(known=True)

    assert free.vague["b"].startswith("standard error")
    assert held.vague["b"] == f"{free.vague['b']}, so it keeps its usual value"
    assert held.values["b"] == 4.0 != free.values["b"]
    assert {"a"} == set(held.errors)
    assert held.errors["a"] < 0.7 * free.errors["a"]
    assert "a" not in held.vague


PARTS = [(1, 0), (1, 1), (1, 2), (2, 1), (3, 0), (1, 8)]


def far_below(known):
    """A fit of two constants, the second a hundredth of its start: times scatter by 3 %."""

    def predict(values):
        return [x * values["a"] + y * values["b"] for x, y in PARTS]

    constants = [FreeConstant.about("a", 10.0), FreeConstant.about("b", 3.0, known=known)]
    return fit_constants(constants, predict, noisy(predict({"a": 10.0, "b": 0.03}), 0.03))


def test_a_usual_value_that_a_time_contradicts_gives_way():
    """However little the others tell of a constant: 8 times the usual value is 24 of 10."""
    free, known = far_below(known=False), far_below(known=True)

    assert free.vague["b"].startswith("standard error")
    assert free == known
    assert np.abs(known.residuals).max() < 0.1


def test_known_constants_that_no_time_tells_all_keep_their_usual_values():
    """Each can stand for the other, and neither is left to fit."""
    constants = [FreeConstant.about(name, 1.0, known=True) for name in "ab"]
    found = fit_constants(
        constants, lambda values: [values["a"] + values["b"]] * 4, [1.0, 2.0, 4.0, 8.0]
    )

    assert {"a": 1.0, "b": 1.0} == found.values
    assert {} == found.errors
    assert {"a", "b"} == set(found.vague)
    assert found.residuals == pytest.approx(np.log([2.0, 1.0, 0.5, 0.25]))


def test_a_known_constant_that_times_tell_is_fitted():
    constants = [FreeConstant.about(name, 1.0, known=True) for name in "ab"]
    fit = fit_constants(constants, linear, linear({"a": 3.0, "b": 2.0}))

    assert {} == fit.vague
    assert {"a": 3.0, "b": 2.0} == pytest.approx(dict(fit.values), rel=0.01)


def test_a_rough_fit_asks_for_few_predictions():
    """And comes nearer than the start."""
    constants = [FreeConstant.about(name, 1.0) for name in "ab"]
    measured, asked_for = linear({"a": 30.0, "b": 20.0}), []

    def predict(values):
        asked_for.append(values)
        return linear(values)

    found = fit_roughly(constants, predict, measured)
    rough = len(asked_for)
    start = np.log(linear({"a": 1.0, "b": 1.0})) - np.log(measured)
    fit_constants(constants, predict, measured)

    assert rough < (len(asked_for) - rough) / 2
    assert rough <= 8 * (1 + len(constants)) + 1
    assert np.abs(found.residuals).max() < 0.2 * np.abs(start).max()


class Rounds(Campaign):
    """A campaign on no device, whose samples are the number of their round."""

    fault = ""

    def measure(self, groups, _out, _opened):
        cases = [case for group in groups for case in group]
        step = FirstStep((), (self.fault,) if self.fault else (), StepCounts(), 0.0)
        for number in range(self.repetitions):
            for place in range(len(cases)):
                self.watch(place, number + 1.0, step)
        taken = measurement_of(np.arange(self.repetitions) + 1.0)
        return [Timing(case, taken) for case in cases], {}


@pytest.mark.parametrize(("rounds", "first"), [(20, [2.0]), (2 * FIRST_ROUNDS, [])])
def test_the_first_rounds_of_all_plans_are_handed_over_early(rounds, first):
    """Once, in the order of the design; not where all rounds are as soon done."""
    where = asked("inproc of 2")
    plan = design(where, CORES)
    early = []
    campaign = Rounds(where, where.setup(Calibration("none")), rounds)
    timings, _ = measure_micros(campaign, plan, None, None, early.append)

    assert first == [each[0].measured.median for each in early]
    for each in early:
        assert [t.case.plan.digest for t in timings] == [t.case.plan.digest for t in each]
        assert {(1.0, 2.0, 3.0)} == {tuple(t.measured.seconds) for t in each}


def test_nothing_is_handed_over_where_a_first_step_had_a_fault(monkeypatch):
    """Constants of what does not run as planned would mean nothing."""
    monkeypatch.setattr(Rounds, "fault", "3 transfers instead of 2")
    where, early = asked("inproc of 2"), []
    campaign = Rounds(where, where.setup(Calibration("none")), 20)
    measure_micros(campaign, design(where, CORES), None, None, early.append)

    assert [] == early


def test_messages_of_a_micro_plan_are_issued_each():
    where = asked("DGX-1")
    plan = next(micro for micro in design(where, CORES).micros if "messages" in micro.name).plan

    def seconds(message):
        issue = {"copy": 1e-6, "add": 1e-6, "message": message}
        return where.setup(Calibration("some", issue=issue)).find_seconds(where.stage.adapt(plan))

    assert 32e-3 == pytest.approx(seconds(1e-3) - seconds(0.0), rel=0.05)


GPU = {
    "step": 95e-6, "issue.device": 12e-6, "issue.copy": 14e-6, "issue.add": 4e-6,
    "issue.input": 5e-6, "issue.slice": 7e-6, "issue.message": 9e-6,
    "links.cable.bandwidth": 400e9, "links.cable:d2h.bandwidth": 48e9,
    "links.cable:h2d.bandwidth": 6.8e9, "links.cable.latency": 17e-6,
    "links.cable:d2h.latency": 27e-6, "links.cable:h2d.latency": 3e-6,
}  # fmt: skip


@pytest.mark.slow
def test_micro_plans_of_gpus_tell_what_the_host_issues_from_noise_of_3_percent():
    """Copies, sums, reads, slices and messages, each from the others; what a device costs is told
    worst, as two plans with another number of devices differ in other things too.
    """
    where = devices("full:4,bandwidth=2400GB/s,memory=4800GB/s", backend="gpu")
    plan = design(where, CORES)
    rows = measured(where, plan, assemble(plan.base, GPU), 0.03)
    fit = learn(plan, where, rows).fit
    told = [f"issue.{what}" for what in ("copy", "add", "input", "slice", "message")]

    for name in told:
        assert abs(fit.values[name] - GPU[name]) < 3 * fit.errors[name]
        assert fit.errors[name] < 0.25 * GPU[name]
    assert not set(told) & set(fit.vague)


def test_one_false_time_pulls_little():
    """One of twelve is four times what it should be: least squares would be off by 12 %."""
    constants = [FreeConstant.about("a", 1.0)]
    measured = np.full(12, 3.0)
    measured[4] *= 4
    fit = fit_constants(constants, lambda values: [values["a"]] * 12, measured)

    assert fit.values["a"] == pytest.approx(3.0, rel=0.02)


def test_what_scatters_widely_is_told_to_be_vague():
    """`b` is a part of the time in a thousand, and the times scatter by five."""
    constants = [FreeConstant.about("a", 1.0), FreeConstant.about("b", 1.0)]
    little = partial(linear, small=0.001)
    fit = fit_constants(
        constants, little, little({"a": 3.0, "b": 1.0}) * np.array([1.05, 0.95, 1.05, 0.97])
    )

    assert "a" not in fit.vague
    assert "b" in fit.vague


PORTS = st.integers(3, 8).flatmap(
    lambda n: st.tuples(
        st.just(n), st.integers(0, n - 1), st.sampled_from([0, 1]), st.floats(0.1, 0.9)
    )
)


def pair_seconds(n, rate_out, rate_in, nbytes):
    """Every device to the next and to the one after, as the design has them."""
    return {
        (a, b): nbytes / min(rate_out[a], rate_in[b])
        for a in range(n)
        for step in (1, 2)
        if (b := (a + step) % n) != a
    }


@given(port=PORTS, wobble=st.floats(-0.01, 0.01))
def test_one_slow_port_is_found(port, wobble):
    n, slow, direction, part = port
    rates = [dict.fromkeys(range(n), 25e6), dict.fromkeys(range(n), 25e6)]
    rates[direction][slow] *= part
    seconds = pair_seconds(n, *rates, 1 << 20)
    first = next(iter(seconds))
    seconds[first] *= 1 + wobble
    found = slow_ports(seconds, 1 << 20)

    assert [] == list(found[1 - direction])
    assert {slow: part * 25e6} == pytest.approx(found[direction], rel=0.02)


@given(n=st.integers(3, 8), scatter=st.integers(0, 1 << 30))
def test_ports_that_are_alike_are_left_alone(n, scatter):
    alike = dict.fromkeys(range(n), 25e6)
    noise = np.random.default_rng(scatter)
    seconds = {
        pair: taken * noise.uniform(0.99, 1.01)
        for pair, taken in pair_seconds(n, alike, alike, 1 << 20).items()
    }

    assert ({}, {}) == slow_ports(seconds, 1 << 20)


@pytest.mark.parametrize("name", ASKED)
def test_every_constant_of_a_design_is_one_of_a_calibration(name, tmp_path):
    """It changes the value, and a file keeps it."""
    plan = design(asked(name), CORES)
    values = {c.name: c.start * 1.5 for c in plan.constants}
    found = assemble(plan.base, values)
    (tmp_path / "found.toml").write_text(to_toml(found), "utf-8")
    read = load_calibration(str(tmp_path / "found.toml"))

    assert len(values) == len(plan.constants)
    assert assemble(found, values) == found
    assert all(assemble(found, {n: value * 1.1}) != found for n, value in values.items())
    assert replace(read, name=found.name, title=found.title) == replace(found, errors=read.errors)
    assert all(c.low <= c.start <= c.high for c in plan.constants)


def test_constants_of_links_may_have_dots():
    found = assemble(
        Calibration("c"), {"links.eth0.1.latency": 1e-3, "links.eth0.1.bandwidth": 2e9}
    )

    assert (1e-3, 2e9) == (found.links["eth0.1"].latency, found.links["eth0.1"].bandwidth)


@pytest.mark.parametrize(
    "name",
    ["", "stp", "step.more", "dispatch", "dispatch.cpy", "dispatch.copy.more", "links",
    "links.bandwidth", "links..latency",
     "links.cable.latnecy", "links.cable", "cpu", "cpu.core", "cpu.shared", "cpu.rates",
     "cpu.rates.input", "cpu.rates.copy.more",
     "title", "provenance.date"],
)  # fmt: skip
def test_no_other_name_is_a_constant(name):
    with pytest.raises(KeyError, match=re.escape(repr(name))):
        assemble(Calibration("c"), {name: 1.0})


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Status, stdout and lines of stderr of a command that may start no device."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    started = []

    def ask(which, *arguments):
        monkeypatch.setattr(
            "simreduce_validate.devices.open_backend", lambda *_, **__: started.append(1)
        )
        monkeypatch.setattr(sys, "argv", ["simreduce", *arguments])
        with pytest.raises(SystemExit) as end:
            main(which)
        assert [] == started
        out, err = capsys.readouterr()
        return end.value.code, out, err.splitlines()

    return ask


def told(lines, *parts):
    """Every line is the command's own, and every part is in one."""
    assert all(line.startswith("simreduce: ") for line in lines), lines
    for part in parts:
        assert any(part in line for line in lines), part


def test_calibrate_tells_every_fault_at_once(command):
    status, out, lines = command(
        calibrate, "swich:4", "--backend", "inprc", "--route", "sesion", "--rate", "5mbit",
        "--launch", "ssh", "--timeout", "0",
        "--name", "a", "--out", "b.toml",
    )  # fmt: skip

    assert (2, "") == (status, out)
    told(
        lines,
        "swich",
        "'inproc'",
        "'session'",
        "--rate",
        "--launch",
        "--timeout 0",
        "give one of the two",
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [(("switch:1",), ("two devices or more",)),
     (("switch:4", "-g", "1", "--out", "x.tml"), ("two devices or more", "ends in .toml")),
     (("switch:4", "--name", "a/b"), ("letters, digits",)),
     (("switch:4", "--out", "nowhere/x.toml"), ("nowhere",)),
     (("mesh:4", "--backend", "shaped", "--delay", "fast", "-g", "2"),
     ("write switch:N", "--rate is missing", "--delay", "-g")),
     (("dgx1v", "--slow-port", "1=5mbit"), ("--slow-port",))],
)  # fmt: skip
def test_calibrate_takes_no_nonsense(command, arguments, parts):
    status, out, lines = command(calibrate, *arguments)

    assert (2, "") == (status, out)
    told(lines, *parts)


def test_options_of_devices_and_logs_are_not_dropped_beside_samples(command):
    status, out, lines = command(
        calibrate, "--from-samples", "a.fit.jsonl", "--from-nccl-tests", "--topology", "dgx1v",
        "--collective", "all_reduce", "--split", "4", "--backend", "gpu", "-n", "5",
    )  # fmt: skip

    assert (2, "") == (status, out)
    assert 6 == len(lines)
    told(
        lines, "--from-nccl-tests", "--topology", "--collective", "--split", "--backend", "--iters"
    )


def test_calibrate_overwrites_nothing(command, tmp_path):
    (tmp_path / "x.toml").write_text("kept", "utf-8")
    status, _, lines = command(calibrate, "switch:2", "--out", "x.toml")

    assert 2 == status
    told(lines, "x.toml: exists")
    assert "kept" == (tmp_path / "x.toml").read_text("utf-8")


def test_samples_of_a_run_that_came_to_nothing_are_put_aside(tmp_path):
    (tmp_path / "x.fit.jsonl").write_text("samples", "utf-8")

    assert tmp_path / "x.fit.jsonl" == _set_aside(tmp_path / "x.fit.jsonl")
    assert "samples" == (tmp_path / "x.fit.jsonl.old").read_text("utf-8")


def test_calibrate_overwrites_no_calibration_of_that_name(command, tmp_path):
    own = tmp_path / "own" / "simreduce" / "calibrations"
    own.mkdir(parents=True)
    (own / "inproc.toml").write_text("", "utf-8")

    assert 2 == command(calibrate, "switch:2")[0]
    assert "" == (own / "inproc.toml").read_text("utf-8")


def test_validate_tells_every_fault_at_once(command, tmp_path):
    (tmp_path / "there.jsonl").write_text("kept", "utf-8")
    status, out, lines = command(
        validate, "--algo", "rng", "--calibration", "nowhere", "-b", "1", "--dtype", "double",
        "--out", "there.jsonl",
        "--svg", "nowhere/p.svg", "--builtin", "NcclReduce",
    )  # fmt: skip

    assert (2, "") == (status, out)
    told(
        lines,
        "TOPOLOGY is missing",
        "rng",
        "nowhere",
        "one element of",
        "there.jsonl",
        "p.svg",
        "'NcclAllReduce'",
    )
    assert "kept" == (tmp_path / "there.jsonl").read_text("utf-8")


def test_validate_takes_a_scenario_or_strategies(command):
    status, out, lines = command(validate, "--scenario", "nosuch", "--algo", "ring", "-e", "1M")

    assert (2, "") == (status, out)
    told(lines, "nosuch", "--algo: the --scenario", "-e: the --scenario")


def test_devices_run_a_scenario_that_names_no_runtime(command, tmp_path):
    """Theirs is TensorFlow's. A scenario for another one is refused."""
    path = tmp_path / "mine.toml"
    text = 'topology = "full:2"\nworkload = "bytes:64K"\nstrategies = ["ring"]\n'
    for runtime, refused in (("", False), ('runtime = "ideal"\n', True)):
        path.write_text(text + runtime, "utf-8")
        _, _, lines = command(validate, "--scenario", str(path), "--route", "nowhere")

        assert refused == any("devices have tensorflow's only" in line for line in lines)


def test_the_design_is_the_same_each_time():
    """Records of two calibrations of one machine can be compared."""
    first, again = (
        json.dumps([m.plan.digest for m in all_micros(design(asked("shaped"), CORES))])
        for _ in range(2)
    )

    assert first == again


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 14])
def test_what_is_held_out_is_not_in_the_fit(ranks, nbytes):
    """By its plan, whatever its name; and enough is left."""
    where = devices(f"switch:{ranks}")
    found = held_out_cases(Campaign(where, where.setup(Calibration("c", cpu=Processor()))), nbytes)
    learnt = [
        where.stage.adapt(compile_plan(name, tensor(nbytes, 0), where.layout)) for name in WHOLE
    ]

    assert {plan.digest for plan in learnt}.isdisjoint(case.plan.digest for case in found)
    assert len(found) >= 3


def test_between_processes_no_whole_all_reduce_is_in_the_fit():
    """So all strategies are held out, chains by other names too."""
    where = devices("switch:2", backend="cluster")
    asking = Campaign(where, where.setup(Calibration("c", cpu=Processor())))

    assert {"reduce_to_one", "hierarchical_copy"} < {
        case.algorithm for case in held_out_cases(asking, 1 << 10)
    }


def test_a_kernel_that_cannot_be_compiled_ends_the_session(monkeypatch):
    """It is compiled beside the devices' start, in a thread of its own."""

    def fail():
        raise OSError("no room for the kernel")

    @contextmanager
    def no_devices(*_, **__):
        yield None

    monkeypatch.setattr("simreduce_validate.calibrating.session.make_kernel", fail)
    monkeypatch.setattr("simreduce_validate.devices.open_backend", no_devices)
    where = asked("inproc of 2")
    campaign = Campaign(where, where.setup(Calibration("none")))
    opened = open_devices(campaign, design(where, CORES), held_out=False)
    with pytest.raises(OSError, match="no room for the kernel"), opened:
        pass
