"""Rings and trees as pictures."""

from __future__ import annotations

import math

import pytest

from simreduce.report.drawing import Circle, Line, Mark, Text, along, polyline, text_width
from simreduce.report.pictures import Panel, machine_picture, patterns_picture, ranks_picture
from simreduce.topology import load_topology
from tests.report.pictures.drawings import flat


def ring(names: list[str]) -> Panel:
    edges = [(i, (i + 1) % len(names)) for i in range(len(names))]
    return Panel("1 GB/s", edges, 1.0)


def texts(drawing) -> list[Text]:
    return [shape for shape in flat(drawing.shapes) if isinstance(shape, Text)]


def test_long_titles_and_subtitles_stay_inside():
    subtitle = "bottleneck links " + ", ".join(f"gpu{i}>nvswitch0" for i in range(40))
    drawing = patterns_picture("a long name " * 8, subtitle, ["gpu0", "gpu1"], [ring(["a", "b"])])
    at_left = [text for text in texts(drawing) if text.anchor == "start"]

    assert subtitle.split() == " ".join(text.text for text in at_left[1:]).split()
    assert len(at_left) > 3
    for text in at_left:
        assert (
            text.x + text_width(text.text, text.size) * (1.1 if text.bold else 1) <= drawing.width
        )
    assert max(text.y for text in at_left) < min(
        text.y for text in texts(drawing) if text.text == "1 GB/s"
    )


def test_ranks_that_share_switches_have_one_colour_and_the_first_its_own():
    drawing = ranks_picture([["n0", "n1", "n2"], ["h8", "n9"]], {"given": ["n1", "n9", "n0"]})
    fills = [each.fill for each in flat(drawing.shapes) if isinstance(each, Circle)]
    zero, first, two, eight, nine = fills
    assert zero == two != eight == nine
    assert first not in (zero, eight)
    assert {"A.0", "A.1", "A.2", "B.8", "B.9"} <= {text.text for text in texts(drawing)}
    assert len([each for each in flat(drawing.shapes) if isinstance(each, Line)]) > 3
    assert ranks_picture([], {"given": ["n1"]}) is None


def test_several_machines_have_names_and_stand_apart():
    names = [f"n{machine}.gpu{gpu}" for machine in range(3) for gpu in range(4)]
    drawing = patterns_picture("t", "s", names, [ring(names)])
    places = [(s.x, s.y) for s in flat(drawing.shapes) if isinstance(s, Circle)]
    apart = [math.dist(places[i], places[(i + 1) % 12]) for i in range(12)]

    assert {"n0", "n1", "n2"} <= {text.text for text in texts(drawing)}
    assert 12 == len(places)
    assert min(apart[i] for i in (3, 7, 11)) > 1.4 * max(apart[i] for i in (0, 1, 2, 4, 5, 6))


def test_one_machine_has_no_name():
    names = [f"gpu{i}" for i in range(4)]

    assert {"t", "s", "1 GB/s", *"0123"} == {
        text.text for text in texts(patterns_picture("t", "s", names, [ring(names)]))
    }


def test_spines_over_two_leaves_end_apart():
    """Eight spines over a leaf that is as wide as its hosts: eight places on its upper edge."""
    links = [
        shape.shapes[0].points
        for shape in machine_picture(load_topology("fat_tree:10,radix=8")).shapes
        for shape in ([shape] if isinstance(shape, Mark) and shape.kind == "link" else [])
    ]
    top = min(points[0][1] for points in links)
    from_spines = [points[-1] for points in links if points[0][1] == top]

    assert 16 == len(from_spines)
    assert 16 == len({round(x) for x, _ in from_spines})


@pytest.mark.parametrize("name", ["dgx-h100x32,fabric=rail_optimised"])
def test_counts_stand_where_few_lines_cross(name):
    """Under each label are its own line and at most two others."""
    shapes = machine_picture(load_topology(name)).shapes
    groups = [shape for shape in shapes if isinstance(shape, Mark)]
    links = [g.shapes[0] for g in groups if g.kind == "link"]
    paths = [[along(polyline(k.points), i / 80) for i in range(81)] for k in links]
    labels = [
        g.shapes
        for g in groups
        if len(g.shapes) == 2 and str(getattr(g.shapes[1], "text", "")).startswith("x ")
    ]

    assert 16 == len(labels)
    assert all(isinstance(link, Line) for link in links)
    for area, _ in labels:
        under = sum(
            any(area.x < x < area.x + area.width and area.y < y < area.y + 14 for x, y in path)
            for path in paths
        )
        assert 1 <= under <= 3
