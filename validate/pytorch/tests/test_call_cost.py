"""The cost of a call that scenarios state, beside what PyTorch needs here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from simreduce.study.scenario import CALL_COST

SCRIPT = Path(__file__).parents[1] / "call_cost.py"


def test_a_call_costs_about_what_scenarios_state():
    """Within a factor of five, as machines differ and this one may be busy."""
    spec = importlib.util.spec_from_file_location("call_cost", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    call, bucket = module.measure()
    assert CALL_COST / 5 < call + bucket < 5 * CALL_COST
