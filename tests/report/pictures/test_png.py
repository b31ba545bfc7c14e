"""A drawing as PNG."""

from __future__ import annotations

import io
import sys

import pytest
from PIL import Image

from simreduce.errors import InputError
from simreduce.report.drawing import Circle, Drawing, Line, Polygon, Rect, Text, to_png
from simreduce.report.pictures import machine_picture
from simreduce.topology import load_topology


def painted(*shapes, width=100.0, height=50.0) -> Image.Image:
    return Image.open(io.BytesIO(to_png(Drawing(width, height, shapes)))).convert("RGB")


def test_a_png_has_twice_the_pixels_of_the_drawing_and_equal_bytes_each_time():
    drawing = machine_picture(load_topology("dgx1v"))
    content = to_png(drawing)
    image = Image.open(io.BytesIO(content))

    assert "PNG" == image.format
    assert all(
        abs(2 * side - pixels) <= 1
        for side, pixels in zip((drawing.width, drawing.height), image.size, strict=True)
    )
    assert content == to_png(drawing)


def test_every_shape_is_painted_where_it_is():
    """Colours at places that are inside, and white outside."""
    image = painted(
        Rect(10, 10, 20, 20, "#ff0000", ""),
        Circle(60, 20, 8, "#00ff00", "#00ff00"),
        Polygon(((80, 10), (96, 10), (88, 30)), "#0000ff"),
        Line(((10, 40), (90, 40)), "#ff00ff", 4),
    )
    seen = [
        image.getpixel((2 * x, 2 * y))
        for x, y in ((20, 20), (60, 20), (88, 15), (50, 40), (45, 30))
    ]

    assert [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 0, 255), (255, 255, 255)] == seen


def test_curves_and_dashes_are_painted():
    """An arch from (10, 40) to (90, 40) has its top at y = 10; dashes of 10 leave gaps of 10."""
    arch = painted(Line(((10, 40), (10, 0), (90, 0), (90, 40)), "#000000", 2))
    dashed = painted(Line(((0, 25), (100, 25)), "#000000", 2, (10, 10)))

    assert (0, 0, 0) == arch.getpixel((100, 20))
    assert (255, 255, 255) == arch.getpixel((100, 80))
    assert [0, 255, 0, 255] == [dashed.getpixel((2 * x, 50))[0] for x in (5, 15, 25, 35)]


@pytest.mark.parametrize(("anchor", "inked"), [("start", "right"), ("end", "left")])
def test_texts_are_painted_beside_their_anchor(anchor, inked):
    image = painted(Text(50, 30, "mlx5_0", 14, anchor)).convert("L")
    left, right = (
        image.crop(half).getextrema()[0] for half in ((0, 0, 98, 100), (102, 0, 200, 100))
    )

    assert inked == ("left" if left < right else "right")


def test_huge_drawings_are_painted_smaller_instead_of_filling_the_memory():
    image = painted(Rect(0, 0, 20_000, 40_000, "#ff0000"), width=20_000.0, height=40_000.0)

    assert image.width * image.height <= 30_000_000
    assert 2 == pytest.approx(image.height / image.width, rel=0.01)


@pytest.mark.parametrize("missing", ["resvg_py", "font_source_sans_pro"])
def test_without_its_extra_it_says_what_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(InputError, match=r"PNG needs resvg: pip install 'simreduce\[png\]'"):
        to_png(Drawing(1, 1, ()))
