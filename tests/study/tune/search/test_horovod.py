"""Horovod's threshold and cycle: estimates against simulations of every event."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from simreduce.engine import NCCL
from simreduce.report.ranking import tuned_text
from simreduce.study.tune.search.by_plans import CYCLES, HorovodSearch
from simreduce.study.tune.search.search import Aim, files_of
from simreduce.study.tune.search.setting import evaluate, simulating
from simreduce.study.tune.search.tune import tune
from simreduce.training import simulate_step
from tests.study.tune.search.test_methods import question


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "topology"),
    [(1, "pcie-single-root-4"), pytest.param(4, "v100-mesh-4", marks=pytest.mark.thorough)],
)
def test_no_point_is_faster_than_the_best(seed, topology):
    """Of many that are drawn, by a simulation of every event, which the recurrence equals."""
    scenario = question(seed, topology=topology).but(runtime=NCCL)
    search = HorovodSearch(Aim(scenario, "horovod", half=True, effort=10**9))
    with simulating(search.scenario) as do:
        search.first(do)
        search.run(do)
    best, answer = min(search.seconds.values()), search.answer()
    draw = Random(seed)  # noqa: S311 - no secret

    assert set(search.seconds) <= {*search.estimates, search.default}
    assert len(search.estimates) <= answer.points
    assert len(search.seconds) <= 17
    for setting in draw.sample(sorted(search.estimates, key=lambda s: s.label), 12):
        own = setting.scenario(scenario)
        method = own.step.method(setting.parsed, own.setup.layout)
        took = simulate_step(own.step.job, method, own.setup).seconds
        assert evaluate(scenario, setting).seconds == pytest.approx(took, rel=1e-9)
        assert search.estimates[setting] == pytest.approx(took, rel=0.02)
        assert answer.bound <= best <= took * 1.002


@pytest.mark.slow
def test_what_is_pasted_has_the_threshold_and_the_cycle():
    found = tune(question(4, topology="pcie-single-root-4"), "horovod")
    best = found.best.setting
    (text,) = [text for name, text in files_of(found, best).items() if name == "horovod.env"]
    cycle = best.cycle or found.scenario.step.cycle

    assert {row.setting.cycle for row in found.rows} <= {None, *CYCLES}
    assert f"HOROVOD_FUSION_THRESHOLD={best.parsed.packer.threshold}\n" in text
    assert f"HOROVOD_CYCLE_TIME={cycle * 1e3:g}\n" in text
    assert found.floor <= found.bound <= found.best.seconds <= found.default.seconds


@pytest.mark.slow
@pytest.mark.parametrize("cycle", [1e-3, 5e-3])
def test_what_is_within_a_cycle_is_not_told_apart(cycle):
    """A step waits for its last tick: by how much hangs on when gradients are ready."""
    asked = question(4, topology="v100-mesh-4")
    found = tune(replace(asked, step=replace(asked.step, cycle=cycle)), "horovod")
    best = found.best
    slower = replace(best, seconds=best.seconds + cycle * (1 + 1e-9))

    assert found.sureness is not None
    for row in found.rows:
        own = row.setting.cycle or cycle
        assert found.cycle(row) == own
        if row.seconds - best.seconds < max(own, best.setting.cycle or cycle):
            assert found.apart(row) is False
            assert found.by_tick(row)
    beyond = replace(slower, setting=found.default.setting)
    assert found.apart(beyond) is (beyond.seconds - best.seconds > found.error(beyond))
    assert not found.by_tick(beyond)
    same = found.default.setting == best.setting
    said = f"{cycle * 1e3:g} ms of the fastest, and that hangs on" in tuned_text(found)
    assert same or said is (found.default.seconds - best.seconds < cycle)
