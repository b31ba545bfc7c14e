"""Steps of GPUs that differ by chance: all wait for the slowest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simreduce.errors import ScenarioError
from simreduce.study.scenario import StepScenario
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.steps import rank_steps
from simreduce.study.tune.whatif_steps import percentiles_of_step
from simreduce.training.gpus import PERCENTILES, slowest_of
from tests.thorough import slow

TEXT = """
topology = "dgx1vx2,fabric=switch"
workload = "resnet50"
strategies = ["{strategy}"]
[step]
batch = 64
time = "50 ms"
"""


@pytest.fixture
def ask(tmp_path):
    """The scenario with these keys in `[step]`."""

    def load(more: str, strategy: str = "nccl+ddp") -> StepScenario:
        file = tmp_path / "step.toml"
        file.write_text(TEXT.format(strategy=strategy) + more)
        found = load_scenario(str(file))
        assert isinstance(found, StepScenario)
        return found

    return load


@pytest.mark.parametrize("count", [1, 2, 16, 512])
def test_the_slowest_of_many_is_as_slow_as_draws_say(count):
    draws = 1.0 + 0.02 * np.random.default_rng(1).standard_normal((4000, count))
    slowest = draws.max(axis=1)
    assert slowest_of(count, 0.02) == pytest.approx(slowest.mean(), abs=2e-3)
    for part in PERCENTILES.values():
        assert slowest_of(count, 0.02, part) == pytest.approx(np.quantile(slowest, part), abs=3e-3)


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("nccl+ddp", ""),
        ("ring+ddp", 'consistency = "relaxed"\n'),
        *slow([("nccl", 'method = "fsdp"\n')]),
    ],
)
def test_a_step_is_that_of_gpus_which_are_all_as_slow_as_the_slowest(ask, strategy, more):
    found = rank_steps(ask(f"{more}spread = 0.03", strategy))
    plain = ask(more, strategy)
    factor, ranks = slowest_of(16, 0.03), plain.setup.layout.ranks
    job = replace(plain.step.job, slow=dict.fromkeys(ranks, factor))
    slow = rank_steps(replace(plain, step=replace(plain.step, job=job)))
    assert found.recommended.step.seconds == pytest.approx(slow.recommended.step.seconds, rel=1e-12)
    assert found.recommended.step.waiting == pytest.approx(0.05 * (factor - 1.0))
    assert found.recommended.efficiency < slow.recommended.efficiency
    late = percentiles_of_step(found)
    assert late["p50"] < late["p90"] < late["p99"]
    # Half of all draws are a little better than the mean of all, by the long tail.
    assert late["p50"] == pytest.approx(found.recommended.step.seconds, rel=5e-3)


def test_gpus_that_do_not_differ_have_no_percentiles(ask):
    assert percentiles_of_step(rank_steps(ask(""))) == {}


def test_gpus_that_wait_for_nobody_have_no_slowest(ask):
    with pytest.raises(ScenarioError, match=r"step\.spread: needs GPUs that wait for each other"):
        ask('spread = 0.03\nvariable_update = "independent"')
