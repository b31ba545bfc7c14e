"""What RCCL is said to choose, given back: as a strategy, as an environment, and as a table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from simreduce.engine.setup import Setup
from simreduce.export import export
from simreduce.export.framework import Choice
from simreduce.export.frameworks.nccl import ENVIRONMENT, TUNER
from simreduce.files.formats.syntax import Faults
from simreduce.plan import Plan
from simreduce.planners.layouts import OPEN, layout
from simreduce.planners.layouts.rings import rules_of
from simreduce.planners.nccl import DEFAULTS, Settings, load_conf, read_settings
from simreduce.planners.nccl.choice import SENDS, Decide
from simreduce.planners.nccl.constants import COLLECTIVES, Rule, load_tuner
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.search.setting import Setting
from simreduce.study.tune.sizes import tensor
from simreduce.topology import load_topology, shipped
from tests.thorough import corners, examples, slow

COLUMNS = ("kind", "device", "lo", "hi", "stream", "executor", "operands", "controls")
ROWS = tuple(1 << power for power in range(10, 27, 2))
"""Sizes of the rows of `simreduce nccl` up to 64 MiB."""
SETTINGS = (
    DEFAULTS,
    replace(DEFAULTS, msccl=False),
    replace(DEFAULTS, version=(2, 28)),
    replace(DEFAULTS, version=(2, 28), symmetric=True),
    replace(DEFAULTS, min_channels=32),
)


def is_amd(name: str) -> bool:
    """Whether a machine runs RCCL."""
    machine = load_topology(name)
    return rules_of(machine.nodes[machine.devices[0]].model).library == "rccl"


AMD = tuple(name for name, _ in shipped() if is_amd(name))


@cache
def setup_of(name: str, n: int, settings: Settings = DEFAULTS) -> Setup:
    """The first `n` GPUs of a machine, or all."""
    machine = load_topology(name)
    part = layout(machine).only(range(n)) if n else None
    return Setup(machine, "nccl", part=part, nccl=settings)


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans do the same."""
    return all(np.array_equal(getattr(one, key), getattr(other, key)) for key in COLUMNS)


def given_back(setup: Setup, collective: str, nbytes: int) -> tuple[Plan, Plan]:
    """The plan of what RCCL chooses, and that of the strategy that `simreduce nccl` prints."""
    gpus, workload = setup.layout.ranks, tensor(nbytes, 0, setup.layout.n)
    decide = Decide(setup.machine, setup.nccl, setup.layout.rules)
    text = decide.choice(gpus, collective, workload.nbytes, OPEN).text
    return setup.compile("nccl", workload, collective), setup.compile(text, workload, collective)


def test_there_are_amd_s_machines() -> None:
    assert {"frontier", "mi300x", "mi308x", "mi325x", "mi350x", "mi355x"} <= {*AMD}


@pytest.mark.parametrize("name", corners([*AMD, "mi300xx2", "mi355xx4", "frontierx2"], 4))
@pytest.mark.parametrize("settings", corners(SETTINGS[:4], 2))
def test_rows_of_all_machines_are_the_plans_that_run(name: str, settings: Settings) -> None:
    for nbytes in ROWS:
        own, back = given_back(setup_of(name, 0, settings), "all_reduce", nbytes)
        assert same(own, back), nbytes


@hypothesis_settings(max_examples=examples(120), deadline=None)
@given(
    st.sampled_from(AMD),
    st.integers(2, 8),
    st.sampled_from((*COLLECTIVES, *SENDS)),
    st.integers(8, 1 << 24),
    st.sampled_from(SETTINGS),
)
def test_a_row_is_the_plan_that_runs(
    name: str, n: int, collective: str, elements: int, settings: Settings
) -> None:
    assert same(*given_back(setup_of(name, n, settings), collective, 4 * elements))


@pytest.mark.parametrize(("name", "n"), [("mi300x", 8), ("mi355x", 8), ("mi355x", 6)])
@pytest.mark.parametrize("strategy", ["nccl", *slow(["nccl:ring", "nccl:tree+ll"])])
def test_exported_settings_are_the_plans_of_their_strategy(
    name: str, n: int, strategy: str, tmp_path: Path
) -> None:
    setup = setup_of(name, n)
    files = export("nccl", Choice(setup, tensor(1 << 20, 0), parse_strategy(strategy)))
    for file, content in files.items():
        (tmp_path / file).write_text(content, "utf-8")
    faults = Faults()
    settings = read_settings(load_conf(str(tmp_path / ENVIRONMENT)), faults, "")
    assert not faults.problems
    table = load_tuner(str(tmp_path / TUNER))
    for nbytes in ROWS:
        workload = tensor(nbytes, 0)
        told = setup.compile(strategy, workload)
        for back in (settings, replace(settings, tuner=table, algorithms=(), protocols=())):
            assert same(told, setup.but(nccl=back).compile("nccl", workload)), nbytes


@pytest.mark.parametrize(("name", "kept"), [("mi355x", False), ("dgx-h100", True)])
def test_rules_that_tune_finds_run_in_the_place_of_msccl_s_kernels(name: str, kept: bool) -> None:
    setup = setup_of(name, 0)
    rule = Rule("all_reduce", 0, None, "ring", "simple", 8, 1, 8)
    ruled = Setting("nccl", (rule,)).setup(setup)
    assert ruled.nccl.msccl == kept
    workload = tensor(1 << 20, 0)
    told = setup.compile("nccl:ring+simple+channels=8", workload)
    assert same(told, ruled.compile("nccl", workload))
