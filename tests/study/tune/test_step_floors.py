"""Floors of steps: no simulated step is below its own, and what they leave out is not missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from simreduce.errors import StrategyError
from simreduce.study.scenario import StepScenario, with_step
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.rank import FIRST, candidates_of
from simreduce.study.tune.step_floors import floor_of_step
from simreduce.study.tune.steps import DDP, predict_step, rank_steps


def _scenario(folder: Path, machine: str, workload: str = "alexnet") -> StepScenario:
    file = folder / "scenario.toml"
    file.write_text(
        f'topology = "{machine}"\nworkload = "{workload}"\n[step]\nbatch = 32\ntime = "20 ms"\n'
    )
    return with_step(load_scenario(str(file)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "many"),
    [("dgx1v", 256), ("dgx1v", 2), ("pcie-dual-root-4", 256), ("pcie-dual-root-4x2", 2)],
)
def test_no_step_is_faster_than_its_floor(
    machine: str, many: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where GPUs are not alike: tensors that come last may be at other places in a plan. And
    where there are so many that one plan stands for those of all sizes.
    """
    monkeypatch.setattr("simreduce.study.tune.step_floors._MANY", many)
    scenario, found = _scenario(tmp_path, machine), 0
    for strategy in candidates_of(scenario):
        try:
            floor = floor_of_step(scenario, DDP, strategy).seconds
            seconds = predict_step(scenario, (DDP, strategy)).seconds
        except StrategyError:
            continue
        assert floor <= seconds * (1 + 1e-9), strategy.text
        found += floor > 20e-3
    assert found > 20


@pytest.mark.slow
def test_the_first_rows_and_the_advice_are_those_of_all(tmp_path: Path) -> None:
    scenario = _scenario(tmp_path, "rtx4090-2")
    some, every = rank_steps(scenario), rank_steps(scenario, simulate_all=True)
    assert some.candidates[:FIRST] == every.candidates[:FIRST]
    assert [each.do for each in some.advice] == [each.do for each in every.advice]
    assert len(some.bounded) >= 10
    assert not every.bounded
    took = {
        name.partition("+chunk")[0]: row.seconds for row in every.candidates for name in row.names
    }
    limit = every.candidates[FIRST - 1].seconds
    for name, least in some.bounded:
        assert limit < least.seconds <= took[name] * (1 + 1e-9)
