"""The picture of a validation, read as a person reads it: by the labels of its axes."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings, strategies as st

from simreduce import units
from simreduce.errors import InputError
from simreduce.pictures import Drawing, Measured, to_png, to_svg, validation_picture
from simreduce.pictures.shapes import Circle, Group, Line, Polygon, Rect, Text, flat, text_width


def row(
    algorithm: str, size: int = 2**20, measured: float = 1e-3, predicted: float | None = 1.1e-3
) -> Measured:
    return Measured(algorithm, size, measured, 0.9 * measured, 1.2 * measured, predicted)


def panels(drawing: Drawing) -> tuple[Group, Group]:
    left, right = (
        shape for shape in drawing.shapes if isinstance(shape, Group) and shape.kind == "panel"
    )
    return left, right


def of_kind(panel: Group, kind: str) -> list[Group]:
    return [shape for shape in panel.shapes if isinstance(shape, Group) and shape.kind == kind]


def labels(panel: Group) -> dict[str, list[str]]:
    return {
        side: [tick.title for tick in of_kind(panel, f"tick {side}")] for side in ("across", "up")
    }


def places(panel: Group, side: str) -> list[tuple[str, float]]:
    """The labels of an axis with the pixels of their lines."""
    return [
        (tick.title, tick.shapes[0].points[0][side == "up"])
        for tick in of_kind(panel, f"tick {side}")
    ]


def read(ticks: list[tuple[str, float]], unit, pixel: float) -> float:
    """The value that a person reads at a pixel, between the outermost labels of a logarithmic axis."""
    (first, start), (last, end) = ticks[0], ticks[-1]
    low, high = math.log(unit(first)), math.log(unit(last))
    return math.exp(low + (pixel - start) / (end - start) * (high - low))


def centre(shape) -> tuple[float, float]:
    """Of a mark: the middle of its corners, of the last shape in it that has an area."""
    *_, body = (s for s in flat(shape.shapes) if isinstance(s, Circle | Polygon))
    if isinstance(body, Circle):
        return body.x, body.y
    return tuple(sum(axis) / len(body.points) for axis in zip(*body.points, strict=True))


def area(shape) -> tuple[float, float, float, float]:
    """Left, top, right, bottom."""
    match shape:
        case Text():
            width = text_width(shape.text, shape.size) * (1.1 if shape.bold else 1)
            left = shape.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor] * width
            return left, shape.y - 0.75 * shape.size, left + width, shape.y + 0.2 * shape.size
        case Rect():
            return shape.x, shape.y, shape.x + shape.width, shape.y + shape.height
        case Circle():
            return (
                shape.x - shape.radius,
                shape.y - shape.radius,
                shape.x + shape.radius,
                shape.y + shape.radius,
            )
    across, up = zip(*shape.points, strict=True)
    return min(across), min(up), max(across), max(up)


def frame(panel: Group) -> tuple[float, float, float, float]:
    (found,) = (shape for shape in panel.shapes if isinstance(shape, Rect))
    return area(found)


def within(inner, outer) -> bool:
    slack = 1e-6
    return all(a >= b - slack for a, b in zip(inner[:2], outer[:2], strict=True)) and all(
        a <= b + slack for a, b in zip(inner[2:], outer[2:], strict=True)
    )


def drawn(rows: list[Measured], title: str = "Title", notes: tuple[str, ...] = ()) -> Drawing:
    """What is true of every picture, and the picture."""
    drawing = validation_picture(rows, title, notes)
    left, right = panels(drawing)
    predicted = [each for each in rows if each.predicted is not None]
    marks, times = of_kind(left, "mark"), of_kind(right, "time")
    shapes = list(flat(drawing.shapes))

    assert sorted(mark.title for mark in marks) == sorted(each.words for each in predicted)
    assert sorted(mark.title for mark in times) == sorted(each.words for each in rows)
    for mark in marks:
        (each, *_) = (e for e in predicted if e.words == mark.title)
        x, y = centre(mark)
        assert read(places(left, "across"), units.duration, x) == pytest.approx(
            each.measured, rel=1e-3
        )
        assert read(places(left, "up"), units.duration, y) == pytest.approx(
            each.predicted, rel=1e-3
        )
    for mark in times:
        (each, *_) = (e for e in rows if e.words == mark.title)
        x, y = centre(mark)
        assert read(places(right, "up"), units.duration, y) == pytest.approx(
            each.measured, rel=1e-3
        )
        if places(right, "across"):
            assert read(places(right, "across"), units.size, x) == pytest.approx(
                each.size_bytes, rel=1e-3
            )
    for panel in (left, right):
        inside = [shape for shape in flat(panel.shapes) if not isinstance(shape, Text)]
        assert all(within(area(shape), frame(panel)) for shape in inside)
        for side in ("across", "up"):
            assert len(labels(panel)[side]) >= 2 or (panel is right and side == "across")
    texts = [area(shape) for shape in shapes if isinstance(shape, Text)]
    assert not any(
        a[0] < b[2] - 1e-6 and b[0] < a[2] - 1e-6 and a[1] < b[3] - 1e-6 and b[1] < a[3] - 1e-6
        for a, b in itertools.combinations(texts, 2)
    )
    assert all(within(area(shape), (0, 0, drawing.width, drawing.height)) for shape in shapes)
    return drawing


def texts(drawing: Drawing) -> list[str]:
    return [shape.text for shape in flat(drawing.shapes) if isinstance(shape, Text)]


# Times from 1 us to 100 s, in figures that titles tell apart.
TIMES = st.tuples(st.integers(1000, 9999), st.integers(-9, -2)).map(lambda t: t[0] * 10.0 ** t[1])


@st.composite
def any_rows(draw) -> list[Measured]:
    names = [f"algorithm_{i}" for i in range(draw(st.integers(1, 40)))]
    sizes = draw(st.lists(st.integers(1, 2**40), min_size=1, max_size=5, unique=True))
    found = []
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=50)):
        low, measured, high = sorted(draw(st.tuples(TIMES, TIMES, TIMES)))
        size = draw(st.sampled_from(sizes))
        found.append(Measured(name, size, measured, low, high, draw(st.none() | TIMES)))
    return found


@settings(max_examples=60, deadline=None)
@given(any_rows())
def test_every_row_is_where_the_axes_say_and_nothing_overlaps_or_leaves_its_place(rows):
    drawn(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [row("one")],
        [row("one"), row("one")],
        [row("one", predicted=None), row("two", 2**22, predicted=None)],
        [row("one", 1, 1e-6, 1e-6), row("one", 2**40, 100.0, 100.0)],
        [row("one", 1000), row("one", 1001)],
        [row(f"algorithm_{i}", 2**k) for i in range(40) for k in (10, 20, 30)],
        [row(f"algorithm_{i}") for i in range(40)],
    ],
)
def test_few_equal_and_extreme_rows_are_drawn_by_the_same_rules(rows):
    drawn(rows)


def test_axes_have_units():
    """Times and sizes over many decades, and over less than one."""
    wide = panels(drawn([row("a", 2**10, 1e-6, 1e-6), row("a", 2**20, 1.0, 1.0)]))
    narrow = panels(drawn([row("a", 2**22, 3e-3, 3e-3), row("a", 2**23, 6e-3, 6e-3)]))

    assert ["1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s"] == labels(wide[0])["up"]
    assert ["1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB"] == labels(wide[1])["across"]
    assert ["2 ms", "3 ms", "5 ms", "7 ms", "10 ms"] == labels(narrow[0])["across"]
    assert ["4 MiB", "8 MiB"] == labels(narrow[1])["across"]


def test_the_axes_of_the_scatter_are_equal_and_its_line_is_where_both_agree():
    left, _ = panels(drawn([row("a", 2**10, 1e-5, 3e-5), row("b", 2**20, 2e-2, 1e-2)]))
    x, y, right, bottom = frame(left)
    (equality,) = of_kind(left, "equality")

    assert right - x == bottom - y
    assert [(label, p - x) for label, p in places(left, "across")] == [
        (label, pytest.approx(bottom - p)) for label, p in places(left, "up")
    ]
    assert ((x, bottom), (right, y)) == equality.shapes[0].points


@pytest.mark.parametrize(("error", "inside"), [(-0.21, 0), (-0.19, 1), (0.19, 1), (0.21, 0)])
def test_the_band_holds_what_is_off_by_a_fifth_of_the_measured_time(error, inside):
    """The middle of the mark lies in the polygon, or not."""
    left, _ = panels(drawn([row("a", 2**10, 2e-3, 2e-3 * (1 + error)), row("b", 2**10, 1e-2)]))
    band = next(shape for shape in left.shapes if isinstance(shape, Polygon))
    mark = next(mark for mark in of_kind(left, "mark") if mark.title.startswith("a,"))
    x, y = centre(mark)
    crossed = [
        (a, b)
        for a, b in zip(band.points, (*band.points[1:], band.points[0]), strict=True)
        if (a[1] > y) != (b[1] > y) and x < a[0] + (y - a[1]) / (b[1] - a[1]) * (b[0] - a[0])
    ]

    assert inside == len(crossed) % 2


def test_intervals_are_bars_from_low_to_high():
    """Across in the scatter, upright beside the sizes."""
    left, right = panels(drawn([row("a", 2**10, 2e-3), row("a", 2**12, 5e-3)]))
    across = [s for s in left.shapes if isinstance(s, Line)]
    up = [line for mark in of_kind(right, "time") for line in mark.shapes if isinstance(line, Line)]
    read_across = [
        [read(places(left, "across"), units.duration, x) for x, _ in s.points] for s in across
    ]
    read_up = [[read(places(right, "up"), units.duration, y) for _, y in s.points] for s in up]
    expected = [pytest.approx([1.8e-3, 2.4e-3], rel=1e-3), pytest.approx([4.5e-3, 6e-3], rel=1e-3)]

    assert expected == sorted(read_across)
    assert expected == sorted(read_up)


def test_lines_join_the_sizes_in_their_order_measured_solid_and_predicted_dashed():
    rows = [row("a", 2**k, 1e-3 * k, None if k == 12 else 2e-3 * k) for k in (12, 10, 14)]
    _, right = panels(drawn(rows))
    (curve,) = of_kind(right, "curve")
    solid, dashed = curve.shapes

    def through(line: Line) -> list[tuple[float, float]]:
        return [
            (
                read(places(right, "across"), units.size, x),
                read(places(right, "up"), units.duration, y),
            )
            for x, y in line.points[::3]
        ]

    assert not solid.dashes
    assert dashed.dashes
    assert solid.stroke == dashed.stroke
    assert [pytest.approx((2**k, 1e-3 * k), rel=1e-3) for k in (10, 12, 14)] == through(solid)
    assert [(2**10, 2e-2), (2**14, 2.8e-2)] == [pytest.approx(p, rel=1e-3) for p in through(dashed)]


def test_one_size_stands_side_by_side_in_the_order_of_the_legend():
    drawing = drawn([row("slow", measured=9e-3), row("fast"), row("slow", measured=8e-3)])
    _, right = panels(drawing)
    x = {mark.title.split(",")[0]: centre(mark)[0] for mark in of_kind(right, "time")}

    assert "Time at 1 MiB" == right.title
    assert x["slow"] < x["fast"]
    assert not labels(right)["across"]
    assert texts(drawing).index("slow") < texts(drawing).index("fast")


def test_a_dozen_algorithms_all_look_different_and_the_others_are_grey_and_named():
    drawing = drawn([row(f"a{i}", 2**k) for i in range(15) for k in (10, 12)])
    left, _ = panels(drawing)
    seen: dict[str, tuple] = {}
    for mark in of_kind(left, "mark"):
        *_, body = flat(mark.shapes)
        x, y = centre(mark)
        corners = (
            ()
            if isinstance(body, Circle)
            else tuple((round(a - x), round(b - y)) for a, b in body.points)
        )
        seen[mark.title.split(",")[0]] = body.fill, corners

    assert 13 == len(set(seen.values()))
    assert seen["a12"] == seen["a13"] == seen["a14"]
    assert [f"a{i}" for i in range(12)] == [
        text for text in texts(drawing) if text.startswith("a")
    ][-12:]
    assert "3 more, in grey: a12, a13, a14" in texts(drawing)


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_colour_is_seen_on_white():
    """A contrast of 2 or more; yellow has 1.3."""
    left, _ = panels(drawn([row(f"a{i}") for i in range(13)]))
    colours = {list(flat(mark.shapes))[-1].fill for mark in of_kind(left, "mark")}

    assert 8 == len(colours)
    assert all(1.05 / (luminance(colour) + 0.05) > 2 for colour in colours)


def test_rows_without_prediction_are_in_the_right_panel_only():
    both = drawn([row("a"), row("b", predicted=None)])
    none = drawn([row("a", predicted=None)])

    assert [1, 2] == [
        len(of_kind(p, k)) for p, k in zip(panels(both), ("mark", "time"), strict=True)
    ]
    assert "No row has a prediction." in texts(none)
    assert "no error" in texts(both)
    assert "no error" not in texts(none)


def test_titles_say_figures_and_the_error():
    left, _ = panels(drawn([row("ring", 2**20, 1e-3, 1.1e-3)]))

    assert [
        "ring, 1 MiB: measured 1 ms (900 us to 1.2 ms), predicted 1.1 ms (+10.0%)"
    ] == [mark.title for mark in of_kind(left, "mark")]  # fmt: skip


def test_long_titles_notes_and_names_are_broken_or_cut():
    notes = ("Median error 4 %, " * 30, "x" * 500)
    rows = [row("long name " * 30, 2**k) for k in (1, 2)] + [row("y" * 300)]
    drawing = drawn(rows, "A title that is longer than a line, " * 6, notes)

    assert sum(text.count("Median") for text in texts(drawing)) == 30
    assert drawing.width == drawn([row("a")]).width


def test_the_picture_is_valid_svg_and_png_and_the_same_each_time():
    rows = [row(f"<a & {i}>\n", 2**k) for i in range(14) for k in (10, 12)]
    first, again = (validation_picture(rows, "<title>", ["a & b"]) for _ in range(2))
    root = ET.fromstring(to_svg(first))  # noqa: S314 - our own

    assert {"<title>", "a & b", "<a & 0>"} <= {
        e.text for e in root.iter("{http://www.w3.org/2000/svg}text")
    }
    assert to_svg(first) == to_svg(again)
    assert to_png(first) == to_png(again)


def test_rows_without_a_place_on_the_axes_are_all_named():
    with pytest.raises(InputError) as fault:
        validation_picture([
            Measured("ring", 0, 1.0, 1.0, 1.0, None),
            Measured("tree", 8, math.nan, 1.0, math.inf, -1.0),
            Measured("copy", 8, 1.0, 2.0, 1.0, None),
        ], "")  # fmt: skip

    assert (
        "ring, 0 B: the size must be at least 1 B",
        "tree, 8 B: measured: nan s; must be more than 0 s and finite",
        "tree, 8 B: high: inf s; must be more than 0 s and finite",
        "tree, 8 B: predicted: -1.0 s; must be more than 0 s and finite",
        "copy, 8 B: low: 2.0 s is more than high: 1.0 s",
    ) == fault.value.problems


def test_without_rows_there_is_nothing_to_draw():
    with pytest.raises(InputError, match="nothing was measured"):
        validation_picture([], "Title")
