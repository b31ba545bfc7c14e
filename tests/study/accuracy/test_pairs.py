"""Differences of two predictions are as far off as is said, of tables that took part in no fit."""

from __future__ import annotations

import pytest

from simreduce.engine.calibrate.intervals import NcclCall, correlation, difference_error
from simreduce.engine.setup import Setup
from simreduce.files.published import published_tables
from tests.study.accuracy.pairs import pairs, part_inside

MIB = 1 << 20


@pytest.fixture(scope="module")
def held():
    return list(pairs(table for table in published_tables() if table.held and not table.library))


@pytest.mark.slow
def test_intervals_cover_80_percent_of_held_differences(held):
    """By one algorithm and protocol, and by two; of large calls, which most time is spent on."""
    for alike in (True, False):
        mine = [pair for pair in held if pair.alike is alike]
        large = [p for p in mine if min(p.one.nbytes, p.other.nbytes) >= MIB]
        assert 0.77 <= part_inside(mine) <= 0.88
        assert 0.75 <= part_inside(large) <= 0.88


@pytest.mark.parametrize(("least", "most"), [(1, 1), (2, 2), (3, 4), (5, 8)])
def test_intervals_cover_them_at_each_distance(held, least, most):
    near = [pair for pair in held if pair.alike and least <= pair.octaves <= most]

    assert 0.72 <= part_inside(near) <= 0.92


def test_near_sizes_of_one_choice_err_together():
    ring = [
        NcclCall("all_reduce", "ring", "simple", size * MIB, 1.0, 1.3) for size in (25, 50, 100)
    ]
    tree = ring[0]._replace(algorithm="tree")

    together = correlation([*ring, tree]).tolist()
    assert [1.0, 0.875, 0.75, 0.0] == together[0]
    errors = [difference_error(ring[:1], [other]) for other in (*ring, tree)]
    assert 0.0 == errors[0] < errors[1] < errors[2] < errors[3]
    apart = 1.3 ** (2 * 0.75) - 1  # as of two machines, if errors were not correlated
    assert errors[1] < errors[2] < apart


def test_what_two_times_have_in_common_is_off_by_the_difference_alone():
    """Ten equal calls against eight are off by what two calls are."""
    call = NcclCall("all_reduce", "ring", "simple", MIB, 1.0, 1.3)

    assert difference_error([call] * 2, []) == pytest.approx(
        difference_error([call] * 10, [call] * 8)
    )


def test_nothing_is_known_of_the_constants_of_somebody_else():
    setup = Setup("dgx-a100")
    calls = [setup.call(size * MIB) for size in (25, 100)]
    assert calls[0].seconds < calls[1].seconds

    found = setup.difference_error(calls[:1], calls[1:])
    assert found is not None
    assert 0.0 < found < calls[1].seconds
    assert ("ring", "simple") == calls[1][1:3]
