"""The worked examples of CONTRIBUTING.md, a family and a planner, work as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from simreduce.plan import PlanBuilder, Values, verify
from simreduce.planners.algorithms import (
    ALGORITHMS,
    FAMILIES,
    Algorithm,
    Catalogue,
    planner as planner_types,
)
from simreduce.planners.algorithms.planner import Family, Knobs
from simreduce.planners.layouts import Layout
from tests.planners.algorithms.boxes import compiled, seconds, tasks_of
from tests.planners.algorithms.transfers import plan_for

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"
TYPES = {name: getattr(planner_types, name) for name in ("Options", "Results", "Tensors")} | {
    each.__name__: each for each in (Algorithm, Family, Knobs, Layout, PlanBuilder, Values)
}


def example(first: int) -> tuple[dict[str, object], str]:
    """What the text makes of one file, and the line that registers it."""
    file, registration = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[
        first : first + 2
    ]
    names: dict[str, object] = {}
    exec(file, {**TYPES}, names)  # noqa: S102 - the text under test
    return names, registration.strip().splitlines()[-1].strip().rstrip(",")


@pytest.fixture
def echo(monkeypatch):
    names, line = example(0)
    family = eval(line, {**TYPES, "echo": SimpleNamespace(**names)})  # noqa: S307
    monkeypatch.setitem(FAMILIES, family.name, family)
    monkeypatch.setitem(ALGORITHMS, family.name, Catalogue("all_reduce")[family.name])


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_family_is_proven_and_offered(n):
    plan = plan_for("echo+packs=2", f"full:{n}", 7, 10)

    assert [] == verify(plan)
    assert 2 * 2 * (n - 1) == plan.transfers


@pytest.mark.usefixtures("echo")
def test_the_family_takes_the_time_it_says():
    assert pytest.approx(2 * 4 * (3e-6 + 4000 / 5e9), rel=1e-9) == seconds(
        "all_reduce", "echo", "switch:5,bandwidth=5GB/s,latency=3us", 1000
    )


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize("pair", ["echo/ring", "ring/echo", "echo/echo+chunk=8"])
@pytest.mark.parametrize("sizes", [(3, 3), (2, 4, 1)])
def test_the_family_makes_pairs(pair, sizes):
    assert [] == verify(compiled("all_reduce", pair, tasks_of(*sizes), 10, 0, 31))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_planner_is_proven_and_offered(monkeypatch, n):
    names, line = example(2)
    algorithm = eval(line, {**TYPES, **names})  # noqa: S307
    monkeypatch.setitem(ALGORITHMS, algorithm.name, algorithm)
    plan = plan_for("tour+packs=2", f"full:{n}", 7, 10)

    assert [] == verify(plan)
    assert 2 * 2 * (n - 1) == plan.transfers
