"""Horovod's threshold and cycle: estimates against simulations of every event."""

from __future__ import annotations

from random import Random

import pytest

from simreduce.engine import NCCL
from simreduce.training import simulate_step
from simreduce.tune.search.by_horovod import CYCLES, HorovodSearch
from simreduce.tune.search.hand_over import files_of
from simreduce.tune.search.setting import evaluate
from simreduce.tune.search.spaces import nccl_space
from simreduce.tune.search.tune import tune
from tests.tune.search.test_methods import question


@pytest.mark.parametrize("seed", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_no_point_is_faster_than_the_best(seed):
    """Of many that are drawn, by a simulation of every event, which the recurrence equals."""
    scenario = question(seed).but(runtime=NCCL)
    search = HorovodSearch(scenario, nccl_space("horovod", scenario, half=True).packings, 10**9)
    search.first(1)
    search.run(1, lambda _done, _all: None)
    best = min(search.seconds.values())
    draw = Random(seed)  # noqa: S311 - no secret

    assert set(search.seconds) <= {*search.estimates, search.default}
    assert len(search.estimates) <= search.points
    assert len(search.seconds) <= 17
    for setting in draw.sample(sorted(search.estimates, key=lambda s: s.label), 12):
        own = setting.scenario(scenario)
        method = own.step.method(setting.parsed, own.setup.layout)
        took = simulate_step(own.step.job, method, own.setup).seconds
        assert evaluate(scenario, "step", setting).seconds == pytest.approx(took, rel=1e-9)
        assert search.estimates[setting] == pytest.approx(took, rel=0.02)
        assert search.bound <= best <= took * 1.002


def test_what_is_pasted_has_the_threshold_and_the_cycle():
    found = tune(question(4), "horovod")
    best = found.best.setting
    (text,) = [text for name, text in files_of(found).items() if name == "horovod.env"]
    cycle = best.cycle or found.scenario.step.cycle

    assert {row.setting.cycle for row in found.rows} <= {None, *CYCLES}
    assert f"HOROVOD_FUSION_THRESHOLD={best.parsed.packer.threshold}\n" in text
    assert f"HOROVOD_CYCLE_TIME={cycle * 1e3:g}\n" in text
    assert found.floor <= found.bound <= found.best.seconds <= found.default.seconds
