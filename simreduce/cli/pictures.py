"""`--svg` and `--png` of the commands that draw."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from simreduce.cli.options import F, check_place, gather, write_bytes, write_text
from simreduce.errors import InputError
from simreduce.pictures import Drawing, check_png, to_png, to_svg

_FORMATS = ("svg", "png")


def picture_options(what: str) -> Callable[[F], F]:
    """`--svg` and `--png`; `what` says what they draw."""

    def added(command: F) -> F:
        for form in reversed(_FORMATS):
            text = f"{what}, as {form.upper()}" + (
                " (needs simreduce[png])." if form == "png" else "."
            )
            command = click.option(f"--{form}", default=None, metavar="FILE", help=text)(command)
        return command

    return added


def check_pictures(svg: str | None, png: str | None) -> None:
    """InputError with every reason why these files could not be written: told before the work, not
    after.
    """
    problems: list[str] = []
    for form, path in zip(_FORMATS, (svg, png), strict=True):
        if path is None:
            continue
        gather(problems, check_place, path)
        other = os.path.splitext(path)[1].lower().removeprefix(".")  # noqa: PTH122 - Path raises for some names
        if other in _FORMATS and other != form:
            problems.append(
                f"--{form} {path}: the name says that it is {other.upper()}; write --{other} {path}"
            )
    if svg is not None and svg == png:
        problems.append(f"--svg {svg} and --png {png}: one file cannot be both")
    if png is not None:
        gather(problems, _check_png, png)
    if problems:
        raise InputError(problems)


def _check_png(path: str) -> None:
    try:
        check_png()
    except InputError as error:
        raise InputError(f"--png {path}: {error}") from None


def write_pictures(drawing: Drawing, svg: str | None, png: str | None) -> list[str]:
    """The files of a drawing that are asked for; a line about each."""
    size = f"{drawing.width:.0f} x {drawing.height:.0f} pixels"
    lines = []
    if svg is not None:
        write_text(svg, to_svg(drawing))
        lines.append(f"{svg}: {size}, as SVG")
    if png is not None:
        write_bytes(png, to_png(drawing))
        lines.append(f"{png}: {size}, doubled, as PNG")
    return lines
