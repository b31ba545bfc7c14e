"""The slowest of several workers."""

from __future__ import annotations

import pytest

from simreduce.study.capacity import GPU, NODE, Stragglers
from simreduce.training.distributions import Constant, Exponential, Uniform


@pytest.mark.parametrize(
    ("times", "of", "factor"),
    [
        (Constant(0.3), GPU, 1.0),
        (Exponential(2.0), NODE, 1 + 1 / 2 + 1 / 3 + 1 / 4),
        (Uniform(0.0, 5.0), NODE, 2 * 4 / 5),
        (Uniform(0.0, 5.0), GPU, 2 * 8 / 9),
    ],
)
def test_the_slowest_of_four_nodes_with_two_gpus(times, of, factor):
    """Closed forms of the largest of n over the mean, whatever the unit of the times."""
    assert Stragglers(times, of).factor(4, 8) == pytest.approx(factor, rel=1e-6)
