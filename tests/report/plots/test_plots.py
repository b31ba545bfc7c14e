"""Plots: what is declared, and what of that is drawn where."""

from __future__ import annotations

import math
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given, settings, strategies as st

from simreduce.report.plots import Facet, Plot, PlotPoint, PlotSeries, bar_plot
from simreduce.report.plots.axes import Axis
from tests.thorough import examples

SVG = "{http://www.w3.org/2000/svg}"


def marks(plot: Plot, name: str, shape: str = "circle") -> list[dict[str, str]]:
    """The shapes of a series."""
    groups = ET.fromstring(plot.svg()).iter(f"{SVG}g")  # noqa: S314
    return [
        found.attrib
        for group in groups
        if group.findtext(f"{SVG}title", "") == name
        for found in group.iter(f"{SVG}{shape}")
    ]


def texts(plot: Plot) -> list[str]:
    return [each.text or "" for each in ET.fromstring(plot.svg()).iter(f"{SVG}text")]  # noqa: S314


def curve(points, x: Axis | None = None, y: Axis | None = None, **looks) -> Plot:
    series = PlotSeries("it", [PlotPoint(*each) for each in points], **looks)
    facet = Facet(x or Axis("nodes", log=False), y or Axis("time", "seconds"), [series])
    return Plot("title", "subtitle", [facet])


@settings(deadline=None, max_examples=examples(60, usual=15))
@example([(0.5, 0.0)], "bytes", None)  # no power of two is near
@example([(1.0, 0.5)], "bytes", None)
@given(
    st.lists(st.tuples(st.floats(1e-9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=20),
    st.sampled_from(["number", "seconds", "bytes", "bytes/s", "share"]),
    st.sampled_from([None, False, True]),
)
def test_every_mark_is_inside_the_axes_and_larger_values_are_right_and_up(points, quantity, log):
    plot = curve(points, Axis("x", quantity, log=log), Axis("y", quantity))
    drawn = [(float(mark["cx"]), float(mark["cy"])) for mark in marks(plot, "it")]

    assert len(points) == len(drawn)
    assert all(0 <= x <= plot.width and 0 <= y <= plot.drawing().height for x, y in drawn)
    for axis, sign in ((0, 1), (1, -1)):
        in_order = sorted(zip(points, drawn, strict=True), key=lambda pair: pair[0][axis])
        pixels = [sign * at[axis] for _, at in in_order]
        assert pixels == sorted(pixels)


@pytest.mark.parametrize(
    ("axis", "values", "ticks"),
    [
        (Axis("t", "seconds"), [1e-6, 2e-3, 1.0], ["1 us", "10 us", "100 us", "1 ms", "10 ms"]),
        (Axis("t", "seconds"), [1e-3, 2e-2], ["1 ms", "2 ms", "5 ms", "10 ms", "20 ms"]),
        (Axis("t", "seconds"), [1e-3, 3e-3], ["1 ms", "1.5 ms", "2 ms", "2.5 ms", "3 ms"]),
        (Axis("t", "seconds", log=False), [0.001, 0.004], ["0", "1 ms", "2 ms", "3 ms", "4 ms"]),
        (Axis("s", "bytes"), [4, 256], ["4 B", "8 B", "16 B", "32 B", "64 B", "128 B"]),
        (Axis("r", "bytes/s"), [1e9, 4e9], ["0", "1", "2", "3", "4"]),
        (Axis("r", "bytes/s", log=True), [4e10, 12e11], ["50", "100", "200", "500", "1000"]),
        (Axis("e", "share"), [0.5, 0.92], ["0%", "20%", "40%", "60%", "80%"]),
        (Axis("n", ticks=(1, 2, 4, 12), zero=False), [1, 12], ["1", "2", "4", "12"]),
        (Axis(names=["ring", "tree"]), [0, 1], ["ring", "tree"]),
        (Axis("n"), [0.0], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    ],
)
def test_values_beside_axes_are_round_and_have_units(axis, values, ticks):
    found = axis.scale(values).ticks(8)

    assert ticks == [text for _, text in found][: len(ticks)]
    assert all(0 <= at <= 1 for at, _ in found)


@given(
    st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.integers(1, 20), st.sampled_from([None, True])
)
def test_ticks_are_in_order_and_not_more_than_there_is_room_for(low, far, most, log):
    scale = Axis("x", log=log, zero=False).scale([low, low + far])
    places = [at for at, _ in scale.ticks(most)]

    assert len(places) <= most
    assert places == sorted(places)
    assert all(0 <= at <= 1 for at in places)


def test_names_below_an_axis_are_turned_where_they_need_room():
    few, many = (
        curve([(k, 1.0) for k in range(n)], Axis(names=[f"strategy number {k}" for k in range(n)]))
        for n in (2, 12)
    )

    assert "rotate" not in few.svg()
    assert 12 == many.svg().count("rotate(-30")


def test_a_line_goes_through_its_points_in_their_order():
    (line,) = marks(curve([(3, 1.0), (1, 2.0), (2, 1.5), (4, 1.0)]), "it", "path")

    assert [1, 3] == [line["d"].count(letter) for letter in "ML"]
    assert "C" not in line["d"]


@pytest.mark.parametrize(("interval", "count"), [("band", 1), ("across", 3), ("up", 3)])
def test_intervals_are_one_band_or_a_bar_for_each_point(interval, count):
    points = [(k, float(k), 0.5 * k, 2.0 * k) for k in (1, 2, 3)]

    assert count == len(marks(curve(points, interval=interval), "it", "polygon"))


def test_marks_are_hollow_where_a_point_misses_its_target():
    plot = curve([(1, 1.0), (2, 2.0, None, None, "", False)], line="")
    full, hollow = marks(plot, "it")

    assert ("#0072b2", "#ffffff") == (full["fill"], full["stroke"])
    assert ("#ffffff", "#0072b2") == (hollow["fill"], hollow["stroke"])


def test_a_dozen_series_all_look_different_and_the_others_are_grey_and_counted():
    series = [PlotSeries(f"a{k}", [PlotPoint(1, k), PlotPoint(2, k)]) for k in range(15)]
    plot = Plot("t", "", [Facet(Axis("x"), Axis("y"), series)])
    looks = [
        (marks(plot, f"a{k}", "path")[0]["stroke"], len(marks(plot, f"a{k}")),
         len(marks(plot, f"a{k}", "polygon")[0]["points"].split())
         if marks(plot, f"a{k}", "polygon") else marks(plot, f"a{k}")[0]["r"])
        for k in range(15)
    ]  # fmt: skip

    assert len(set(looks[12:])) == 1
    assert "#9a9a9a" == looks[12][0]
    assert {"a0", "a11", "3 more, in grey"} <= set(texts(plot))
    assert "a12" not in texts(plot)


def test_labels_do_not_cover_each_other():
    points = [(x, y, None, None, f"label {x} {y}") for x in range(5) for y in range(40)]
    labels = [
        (float(each.attrib["x"]), float(each.attrib["y"]))
        for each in ET.fromstring(curve(points, line="").svg()).iter(f"{SVG}text")  # noqa: S314
        if (each.text or "").startswith("label")
    ]

    assert 5 < len(labels) < 200
    assert all(
        abs(a[1] - b[1]) >= 11 or abs(a[0] - b[0]) > 30 for a in labels for b in labels if a != b
    )


def test_bars_stand_in_their_order_and_many_are_counted():
    plot = bar_plot([(f"s{k}", 1e-3 * (k + 1)) for k in range(50)], "ranking", "of all")
    bars = marks(plot, "", "rect")
    widths = [float(bar["width"]) for bar in bars]

    assert 40 == len(bars)
    assert sorted(widths) == widths
    assert [float(bar["y"]) for bar in bars] == sorted(float(bar["y"]) for bar in bars)
    assert widths[39] / widths[0] == pytest.approx(40, rel=0.05)
    words = {"ranking (the first 40 of 50)", "of all", "s0", "s39", "40 ms", "time"}
    assert words <= set(texts(plot))


def test_bars_of_factors_have_no_unit():
    plot = bar_plot([("a", 1.36)], "t", factor="slowdown")

    assert {"1.36x", "slowdown"} <= set(texts(plot))


def test_facets_with_equal_names_share_a_legend_and_others_have_their_own():
    def plot(*names):
        facets = [
            Facet(Axis("x"), Axis("y"), [PlotSeries(name, [PlotPoint(1, 1)])]) for name in names
        ]
        return texts(Plot("t", "", facets, columns=2))

    assert [1, 1, 1] == [plot("a", "a").count("a"), *map(plot("a", "b").count, "ab")]


@pytest.mark.parametrize("plot", [bar_plot([], "t"), curve([])])
def test_nothing_to_draw_is_an_empty_plot(plot):
    assert "nothing to draw" in texts(plot)
    assert "nan" not in plot.svg()


def test_hostile_and_long_names_are_escaped_and_cut():
    name = '<script>alert("x")</script> \x07\u202e $_{x} &amp; ' + "long " * 30
    plot = bar_plot([(name, 1.0)], name, name)

    assert {"\n"} == {each for each in plot.svg() if not each.isprintable()}
    assert "<script" not in plot.svg()
    assert '<script>alert("x")</script> \\x07\\u202e $_...' in texts(plot)
    assert all(len(text) < 120 for text in texts(plot))


def test_the_same_data_gives_the_same_svg():
    first, second = (curve([(1, 1.0), (2, math.pi)]).svg() for _ in range(2))

    assert first == second


def test_notebooks_show_the_svg_and_png_is_what_resvg_makes_of_it():
    pytest.importorskip("resvg_py")
    plot = curve([(1, 1.0), (2, 2.0)])

    assert plot.svg() == plot._repr_svg_()
    assert plot.png().startswith(b"\x89PNG")


def test_no_library_of_plots_is_loaded():
    code = (
        "import sys; from simreduce.report.plots import bar_plot; bar_plot([('a', 1)], 't').svg();"
        "raise SystemExit(any(name in sys.modules for name in ('matplotlib', 'resvg_py', 'PIL')))"
    )

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
