"""Everything is swapped with partners 1, 2, 4, ... away."""

from __future__ import annotations

from tests.planners.algorithms.boxes import added, compiled, sent, tasks_of
from tests.planners.algorithms.transfers import formulas, plan_for

NAME = "recursive_doubling"


def test_ranks_too_many_are_folded_into_those_before_them():
    """6 = 4 + 2: ranks 1 and 3 give all to 0 and 2; then 0, 2, 4, 5 swap; then 1 and 3 are told."""
    plan = compiled("all_reduce", NAME, tasks_of(6), 10)

    assert {0: (3, 30), 1: (1, 10), 2: (3, 30), 3: (1, 10), 4: (2, 20), 5: (2, 20)} == {
        int(name[-1]): messages for name, messages in sent(plan).items()
    }
    assert {"n0.gpu0": 30, "n0.gpu2": 30, "n0.gpu4": 20, "n0.gpu5": 20} == added(plan)


def test_the_order_of_sums():
    """Each rank adds what arrives to what it has."""
    plan = plan_for(NAME, "switch:4", 1)

    assert [
        "((x0+x1)+(x2+x3))", "((x1+x0)+(x3+x2))", "((x2+x3)+(x0+x1))", "((x3+x2)+(x1+x0))",
    ] == list(formulas(plan).values())[-4:]  # fmt: skip
