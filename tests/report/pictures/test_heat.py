"""Machines under load: colours say how busy links are, titles say it in words."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from simreduce.report.drawing import Line, Mark, text_width, to_svg
from simreduce.report.pictures import (
    LEVELS,
    UNUSED,
    draw_scale,
    heat,
    heat_picture,
    machine_picture,
)
from simreduce.topology import load_topology


def _marks(shapes):
    for shape in shapes:
        if isinstance(shape, Mark):
            yield shape
            yield from _marks(shape.shapes)


def test_a_line_has_the_colour_of_its_busier_direction():
    """And its title names both; links without a load are grey."""
    loads = {"gpu0>gpu1 nvlink2": 0.1, "gpu1>gpu0 nvlink2": 0.6, "gpu0 memory": 0.9}
    marks = [*_marks(heat_picture(load_topology("dgx1v"), loads).shapes)]

    [busy] = [mark for mark in marks if "gpu0>gpu1 nvlink2" in mark.resources]
    [line] = [shape for shape in busy.shapes if isinstance(shape, Line)]
    assert line.stroke == heat(0.6)
    assert "gpu1>gpu0 nvlink2: busy 60%\ngpu0>gpu1 nvlink2: busy 10%" in busy.title
    others = [mark for mark in marks if mark.kind == "link" and mark is not busy]
    assert {shape.stroke for mark in others for shape in mark.shapes} == {UNUSED}
    [gpu] = [mark for mark in marks if "gpu0 memory" in mark.resources]
    assert gpu.shapes[0].stroke == heat(0.9)


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_load_is_never_a_lighter_colour(one, other):
    """Grey is for links that are never used."""
    order = [UNUSED, *(colour for _, colour, _ in LEVELS)]
    low, high = sorted([one, other])

    assert order.index(heat(low)) <= order.index(heat(high))
    assert (heat(low) == UNUSED) == (low == 0)


def test_the_words_and_the_colours_of_the_key_stand_side_by_side():
    """In one row, with room between them; the note has a row of its own."""
    *row, note = draw_scale().shapes
    ends = [
        (shape.points[0][0], shape.points[1][0])
        if isinstance(shape, Line)
        else (shape.x, shape.x + text_width(shape.text, shape.size))
        for shape in row
    ]

    assert 2 * (1 + len(LEVELS)) + 1 == len(row)
    assert all(last < first for (_, last), (first, _) in pairwise(ends))
    assert note.y > max(shape.y for shape in row if not isinstance(shape, Line))


def test_every_link_of_a_result_is_a_line_of_the_picture():
    """Names of results find their line, in machines and between them."""
    machine = load_topology("dgx1vx2")
    drawn = {name for m in _marks(machine_picture(machine).shapes) for name in m.resources}
    links = {f"{link.name} {link.link_class}" for link in machine.links if not link.is_toll}
    outside = {name for name in links if "switch" in name or name.startswith("n0.")}

    assert outside <= drawn


def test_the_picture_without_loads_is_as_before():
    """The same machine gives the same bytes, and heat does not change them."""
    machine = load_topology("dgx1v")
    before = to_svg(machine_picture(machine))
    heat_picture(machine, {"gpu0>gpu1 nvlink2": 1.0})

    assert to_svg(machine_picture(machine)) == before
