"""Writes drawings as standalone SVG, and as PNG (the extra `simreduce[png]`).

resvg renders our SVG with the fonts of a package: a machine without fonts gets the same picture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.resources import files
from xml.sax.saxutils import escape, quoteattr

from simreduce.errors import InputError
from simreduce.report.drawing.shapes import Circle, Drawing, Line, Mark, Polygon, Rect, Shape, Text

_SCALE = 2.0
"""Pixels of the PNG per pixel of the drawing, for screens and print."""
_FONTS, _FAMILY = "font_source_sans_pro", "Source Sans Pro"
_MOST = 25_000_000
"""Most pixels of a PNG; larger drawings get a smaller scale."""


def to_svg(drawing: Drawing, name: Callable[[Mark], str] = lambda _: "") -> str:
    """The drawing as SVG: the same text for the same drawing. Groups for which `name` has a text
    carry it as `data-name`.
    """
    width, height = _number(drawing.width), _number(drawing.height)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif">'
    )
    page = Rect(0, 0, drawing.width, drawing.height, stroke="", radius=0)
    return "\n".join([head, *_elements([page, *drawing.shapes], name), "</svg>", ""])


def _elements(shapes: Iterable[Shape], name: Callable[[Mark], str]) -> Iterator[str]:
    for shape in shapes:
        match shape:
            case Mark():
                kind = f" class={quoteattr(shape.kind)}" if shape.kind else ""
                count = f' data-count="{shape.count}"' if shape.count else ""
                named = f" data-name={quoteattr(text)}" if (text := name(shape)) else ""
                yield f"<g{kind}{count}{named}>"
                if shape.title:
                    yield f"<title>{_text(shape.title)}</title>"
                yield from _elements(shape.shapes, name)
                yield "</g>"
            case Rect():
                paint = _paint(shape.fill, shape.stroke, shape.stroke_width)
                place = {"x": shape.x, "y": shape.y, "width": shape.width, "height": shape.height}
                yield _begin("rect", **place, rx=shape.radius or None, **paint) + "/>"
            case Circle():
                paint = _paint(shape.fill, shape.stroke, 1)
                yield _begin("circle", cx=shape.x, cy=shape.y, r=shape.radius, **paint) + "/>"
            case Line():
                paint = _paint("", shape.stroke, shape.width)
                dashes = " ".join(map(_number, shape.dashes)) or None
                yield _begin("path", d=_path(shape), **paint, stroke_dasharray=dashes) + "/>"
            case Polygon():
                corners = " ".join(f"{_number(x)},{_number(y)}" for x, y in shape.points)
                opacity = f"{shape.opacity:g}" if shape.opacity < 1 else None
                paint = _paint(shape.fill, shape.stroke, 1)
                yield _begin("polygon", points=corners, **paint, fill_opacity=opacity) + "/>"
            case Text():
                turn = f"rotate({_number(shape.turn)} {_number(shape.x)} {_number(shape.y)})"
                begin = _begin(
                    "text", x=shape.x, y=shape.y, font_size=shape.size,
                    text_anchor=shape.anchor.removeprefix("start") or None,
                    font_weight="bold" if shape.bold else None, fill=shape.fill,
                    transform=turn if shape.turn else None,
                )  # fmt: skip
                yield f"{begin}>{_text(shape.text)}</text>"


def _begin(tag: str, **attributes: str | float | None) -> str:
    """The beginning of an element, with the attributes that are not None."""
    given = {key.replace("_", "-"): value for key, value in attributes.items() if value is not None}
    texts = {key: v if isinstance(v, str) else _number(v) for key, v in given.items()}
    return f"<{tag}" + "".join(f' {key}="{text}"' for key, text in texts.items())


def _path(line: Line) -> str:
    places = [f"{_number(x)} {_number(y)}" for x, y in line.points]
    if line.corners or len(places) < 4:
        return "M" + "L".join(places)
    return f"M{places[0]}C{' '.join(places[1:])}"


def _paint(fill: str, stroke: str, width: float) -> dict[str, str | float]:
    edge: dict[str, str | float] = {"stroke": stroke, "stroke_width": width} if stroke else {}
    return {"fill": fill or "none", **edge}


def _number(value: float) -> str:
    """Two decimals at most, so that rounding in the last place shows nowhere."""
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def _text(text: str) -> str:
    """Escaped, without the characters that XML has no way to write."""
    return escape(re.sub(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))


def check_png() -> None:
    """Raises InputError with the install command if the renderer or its fonts are missing."""
    try:
        import_module("resvg_py")
        import_module(_FONTS)
    except ImportError:
        raise InputError(
            "PNG needs resvg: pip install 'simreduce[png]'; SVG needs nothing"
        ) from None


def to_png(drawing: Drawing) -> bytes:
    """The drawing as PNG: the same bytes for the same drawing and versions of the extra."""
    check_png()
    import resvg_py  # noqa: PLC0415 - loads when a PNG is written

    fonts = files(_FONTS) / "files"
    image: bytes = resvg_py.svg_to_bytes(
        svg_string=to_svg(drawing),
        zoom=min(_SCALE, math.sqrt(_MOST / (drawing.width * drawing.height))),
        skip_system_fonts=True,
        font_files=[
            str(fonts / name) for name in ("SourceSansPro-Regular.ttf", "SourceSansPro-Bold.ttf")
        ],
        font_family=_FAMILY,
        sans_serif_family=_FAMILY,
    )
    return image
