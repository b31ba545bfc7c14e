"""An all-to-all in which every rank sends to one partner after another."""

from __future__ import annotations

from simreduce.plan import Kind
from tests.planners.algorithms.boxes import compiled, tasks_of


def test_every_step_is_a_ring():
    """To the next rank, then to the one after that, ...; one after another from one rank."""
    plan = compiled("all_to_all", "pairwise", tasks_of(5), 5)
    copies = plan.kind == Kind.COPY

    assert [(s, (s + d) % 5) for d in range(1, 5) for s in range(5)] == list(
        zip(plan.source[copies].tolist(), plan.device[copies].tolist(), strict=True)
    )
    assert plan.source[copies].tolist() == plan.stream[copies].tolist()
