"""Best-first search: the best point, and nothing simulated that its bound excludes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.study.tune.search.setting import SAME, SearchOutcome, Tried, search

costs = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20), st.integers(0, 20)), min_size=1)
"""Of each point: a bound, how much better a bound gets when it is sharpened, and the rest."""


def run(points, width=1, stop=False, enough=lambda: False):
    """Search points whose seconds are the sum of their numbers; what was simulated, in order."""
    asked, outcome = [], SearchOutcome()

    def simulate(some):
        asked.extend(some)
        found = [Tried(float(sum(points[i]))) for i in some]
        limit = outcome.best
        return [Tried(min(t.seconds, limit), 0, t.seconds <= limit) if stop else t for t in found]

    bounds = [(float(bound), i) for i, (bound, _, _) in enumerate(points)]
    search(bounds, lambda i: float(sum(points[i][:2])), simulate, outcome, width, enough)
    return outcome, asked


@given(costs, st.integers(1, 3), st.booleans())
def test_the_best_is_found_and_proven(points, width, stop):
    outcome, asked = run(points, width, stop)

    assert outcome.best == min(map(sum, points))
    assert outcome.bound >= outcome.best * (1 - SAME)
    assert outcome.bound == outcome.best
    assert len(asked) == len(set(asked))


@given(costs)
def test_no_point_but_the_first_is_simulated_whose_sharp_bound_is_above_the_best(points):
    outcome, asked = run(points)

    assert all(sum(points[i][:2]) <= outcome.best for i in asked[1:])
    assert points[asked[0]][0] == min(bound for bound, _, _ in points)


@given(costs, st.integers(1, 3))
def test_a_search_that_ends_early_says_what_may_be_left(points, most):
    calls = []
    outcome, asked = run(points, enough=lambda: calls.append(1) or len(calls) >= most)

    assert outcome.bound <= min(map(sum, points)) <= outcome.best
    assert len(asked) <= most


def test_an_interrupt_leaves_what_was_found():
    outcome = SearchOutcome()

    def simulate(some):
        if outcome.seconds:
            raise KeyboardInterrupt
        return [Tried(9.0) for _ in some]

    with pytest.raises(KeyboardInterrupt):
        search([(1.0, "a"), (2.0, "b")], lambda _: None, simulate, outcome)

    assert (outcome.best, outcome.bound) == (9.0, 2.0)
