"""Cells of sweeps as tables show them."""

from __future__ import annotations

import pytest

from simreduce.report.sweeps import pivot, rows_table


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("seconds", 0.0125, "12.5"),
        ("busbw", 2.5e9, "2.5"),
        ("memory", 16e9, "16"),
        ("memory", 3_812_323_200, "3.812"),  # as a database returns it
        ("efficiency", 0.875, "87.5%"),
        ("size", 4096, "4096"),
        ("chosen", "ring", "ring"),
        ("seconds", None, ""),
    ],
)
def test_cells_are_in_the_units_of_their_columns(name, value, shown):
    """Times in ms, rates in GB/s, memory in GB."""
    assert ((shown,),) == rows_table([name], [{name: value}]).rows


def test_of_several_rows_a_pivot_has_the_first():
    rows = [{"nodes": 1, "strategy": "ring", "seconds": seconds} for seconds in (1.0, 2.0)]

    assert (["nodes", "ring"], [{"nodes": 1, "ring": 1.0}]) == pivot(
        rows, "nodes", "strategy", "seconds"
    )
