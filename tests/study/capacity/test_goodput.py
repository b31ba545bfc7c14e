"""Goodput against Daly's published optima, against a simulation of failures, and its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import minimize_scalar

from simreduce.study.capacity import Failures


def best_interval(mtbf, checkpoint):
    return Failures(mtbf, checkpoint, 0.0).best_interval(1)


def goodput(mtbf, checkpoint, restart, interval):
    return Failures(mtbf, checkpoint, restart, interval).goodput(1)


@pytest.mark.parametrize(("mtbf", "best"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_best_interval_is_that_of_daly(mtbf, best):
    """Figures 3 to 5 of Daly 2006, in minutes, with dumps of 5 min and restarts of 10 min."""
    assert best == pytest.approx(best_interval(mtbf, 5.0), rel=0.01)


times = st.floats(1e-3, 1e4)


@given(st.floats(1.0, 1e9), times)
def test_no_other_interval_is_better(mtbf, checkpoint):
    """A numeric search finds nothing above the closed form."""
    best = best_interval(mtbf, checkpoint)
    found = minimize_scalar(
        lambda log: -goodput(mtbf, checkpoint, 0.0, math.exp(log)),
        bounds=(math.log(best) - 3, math.log(best) + 3),
        method="bounded",
    )

    assert goodput(mtbf, checkpoint, 0.0, best) >= -found.fun * (1 - 1e-9)


@given(st.floats(1e-12, 1e-5))
def test_the_interval_is_smooth_where_its_series_takes_over(ratio):
    """Young's to first order, less a third of the checkpoint to second: digits do not get lost."""
    young = math.sqrt(2.0 * ratio)

    assert best_interval(1.0, ratio) == pytest.approx(young - 2.0 * ratio / 3.0, rel=3e-6)


def test_goodput_is_what_a_simulation_of_failures_gives():
    """Segments of 50 s and checkpoints of 5 s, repeated until no failure falls into one."""
    mtbf, checkpoint, restart, interval = 100.0, 5.0, 20.0, 50.0
    random = np.random.default_rng(1)
    clock, segments = 0.0, 10_000
    for _ in range(segments):
        need = interval + checkpoint
        while (fails := random.exponential(mtbf)) < need:
            clock += fails
            while (again := random.exponential(mtbf)) < restart:
                clock += again
            clock += restart
        clock += need

    assert segments * interval / clock == pytest.approx(
        goodput(mtbf, checkpoint, restart, interval), rel=0.02
    )


failures = st.builds(
    Failures, mtbf=st.floats(10.0, 1e8), checkpoint=st.floats(0.0, 1e3), restart=st.floats(0.0, 1e4)
)


@given(failures, st.integers(1, 100_000))
def test_more_nodes_never_progress_more(found, nodes):
    """And goodput is a part of the time."""
    few, many = found.goodput(nodes), found.goodput(nodes + 1)

    assert 0.0 <= many <= few <= 1.0


def test_without_checkpoints_to_write_only_restarts_cost():
    """The limit of ever shorter intervals."""
    free = Failures(mtbf=1000.0, checkpoint=0.0, restart=10.0)

    assert 0.0 == free.best_interval(4)
    assert free.goodput(4) == pytest.approx(math.exp(-10.0 / 250.0))
    assert free.goodput(4) == pytest.approx(goodput(250.0, 1e-9, 10.0, 1e-4), rel=1e-4)


def test_the_interval_that_is_given_counts():
    """Also where another would be better."""
    fixed = Failures(mtbf=1000.0, checkpoint=1.0, restart=0.0, interval=500.0)

    assert 500.0 == fixed.best_interval(10)
    assert fixed.goodput(10) == goodput(100.0, 1.0, 0.0, 500.0)
    assert fixed.goodput(10) < Failures(1000.0, 1.0, 0.0).goodput(10)
