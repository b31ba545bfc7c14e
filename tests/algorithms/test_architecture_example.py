"""The worked example of ARCHITECTURE.md is a planner that works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from simreduce.algorithms import ALGORITHMS, Algorithm, planner as planner_types
from simreduce.layouts import Layout
from simreduce.plan import PlanBuilder, verify
from tests.algorithms.transfers import plan_for

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"


def test_the_example_planner_is_proven_and_offered(monkeypatch):
    planner, registration = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[:2]
    names = {name: getattr(planner_types, name) for name in ("Options", "Results", "Tensors")}
    names |= {"Algorithm": Algorithm, "Layout": Layout, "PlanBuilder": PlanBuilder}
    exec(planner, names)  # noqa: S102 - the text under test
    algorithm = eval(registration.strip().splitlines()[-1].strip().rstrip(","), names)  # noqa: S307
    monkeypatch.setattr("simreduce.algorithms.ALGORITHMS", {**ALGORITHMS, algorithm.name: algorithm})
    for module in ("simreduce.strategy.text", "simreduce.strategy.compile"):
        monkeypatch.setattr(f"{module}.ALGORITHMS", {**ALGORITHMS, algorithm.name: algorithm})

    for n in (1, 2, 5):
        plan = plan_for("chain+packs=2", f"full:{n}", 7, 10)
        assert verify(plan) == []
        assert 2 * 2 * (n - 1) == plan.transfers
