"""Looks of series: no two of a chart are alike."""

from __future__ import annotations

import itertools

import pytest

from simreduce.report.drawing import dashes
from simreduce.report.plots import Facet, PlotPoint, PlotSeries, _looks
from simreduce.report.plots.axes import Axis


@pytest.mark.parametrize("given", [(), ("best",), ("best", "today", "ink", "others")])
@pytest.mark.parametrize("count", range(1, 13))
def test_series_of_one_colour_differ_in_their_marks_and_in_their_dashes(count, given):
    """However many there are, and whatever colours are taken by roles."""
    series = [PlotSeries(f"s{k}", [PlotPoint(1, k)]) for k in range(count)]
    series += [PlotSeries(role, [PlotPoint(1, 0)], "dashed", "", role) for role in given]
    looks = _looks(Facet(Axis("x"), Axis("y"), series))

    assert count + len(given) == len(looks)
    for one, other in itertools.combinations(looks.values(), 2):
        if one.colour == other.colour:
            assert one.corners != other.corners
            assert one.dashes != other.dashes


def test_any_number_of_lines_of_one_colour_have_dashes_of_their_own():
    """As links of one family in a picture of a machine."""
    assert 40 == len({dashes(number) for number in range(40)})
    assert () == dashes(0)
