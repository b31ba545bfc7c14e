"""Writes drawings as PNG (the extra `simreduce[png]`).

resvg renders our SVG with matplotlib's fonts: a machine without fonts gets the same picture.
"""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path

from simreduce.errors import InputError
from simreduce.pictures.shapes import Drawing
from simreduce.pictures.svg import to_svg

_SCALE = 2.0
"""Pixels of the PNG per pixel of the drawing, for screens and print."""
_MOST = 25_000_000
"""Most pixels of a PNG; larger drawings get a smaller scale."""


def check_png() -> None:
    """Raises InputError with the install command if the renderer or its fonts are missing."""
    try:
        import_module("resvg_py")
        import_module("matplotlib")
    except ImportError:
        raise InputError(
            "PNG needs resvg: pip install 'simreduce[png]'; SVG needs nothing"
        ) from None


def to_png(drawing: Drawing) -> bytes:
    """The drawing as PNG: the same bytes for the same drawing and versions of the extra."""
    check_png()
    import matplotlib as mpl  # noqa: PLC0415 - loads when a PNG is written
    import resvg_py  # noqa: PLC0415 - likewise

    fonts = Path(mpl.get_data_path(), "fonts", "ttf")
    image: bytes = resvg_py.svg_to_bytes(
        svg_string=to_svg(drawing),
        zoom=min(_SCALE, math.sqrt(_MOST / (drawing.width * drawing.height))),
        skip_system_fonts=True,
        font_files=[str(fonts / name) for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")],
        font_family="DejaVu Sans",
        sans_serif_family="DejaVu Sans",
    )
    return image
