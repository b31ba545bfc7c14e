"""`--svg` and `--png` of the commands that draw."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from simreduce.cli.options import F, check_outputs, options, write_output
from simreduce.formats import Faults
from simreduce.outputs import STDOUT
from simreduce.pictures import Drawing, check_png, to_png, to_svg
from simreduce.plots import Plot, check_plot

_FORMATS = ("svg", "png")


def picture_options(what: str, extras: tuple[str, str] = ("", "png")) -> Callable[[F], F]:
    """`--svg` and `--png`; `what` says what they draw, and `extras` what each needs installed."""
    return options(
        *(
            click.option(
                f"--{form}",
                default=None,
                metavar="FILE",
                help=f"{what}, as {form.upper()}{f' (needs simreduce[{extra}])' * bool(extra)}; "
                "-: stdout.",
            )
            for form, extra in zip(_FORMATS, extras, strict=True)
        )
    )


def check_pictures(
    svg: str | None, png: str | None, *, as_json: bool = False, plot: bool = False
) -> None:
    """Raises InputError listing every reason why these files cannot be written.

    A `plot` needs matplotlib for both, a drawing needs resvg for its PNG.
    """
    faults = Faults()
    faults.attempt("", check_outputs, {"--svg": svg, "--png": png}, as_json=as_json)
    for form, path in zip(_FORMATS, (svg, png), strict=True):
        if path is None:
            continue
        other = os.path.splitext(path)[1].lower().removeprefix(".")  # noqa: PTH122 - Path raises
        if other in _FORMATS and other != form:
            why = f"the name says that it is {other.upper()}; write --{other} {path}"
            faults.add(f"--{form} {path}", why)
    if svg is not None and svg == png != STDOUT:
        faults.add(f"--svg {svg} and --png {png}", "one file cannot be both")
    for form, path in zip(_FORMATS, (svg, png), strict=True):
        if path is not None and (plot or form == "png"):
            faults.attempt(f"--{form} {path}", check_plot if plot else check_png)
    faults.raise_any()


def write_plot(plot: Plot, svg: str | None, png: str | None) -> None:
    """Write a plot to each file that is given."""
    if svg is not None:
        write_output(svg, [plot.svg()])
    if png is not None:
        write_output(png, [plot.png()])


def write_pictures(drawing: Drawing, svg: str | None, png: str | None) -> list[str]:
    """Write a drawing to each file that is given; returns a line about each, but stdout."""
    size = f"{drawing.width:.0f} x {drawing.height:.0f} pixels"
    lines = []
    if svg is not None:
        write_output(svg, [to_svg(drawing)])
        lines.append(f"{svg}: {size}, as SVG")
    if png is not None:
        write_output(png, [to_png(drawing)])
        lines.append(f"{png}: {size}, doubled, as PNG")
    return [line for line in lines if not line.startswith(f"{STDOUT}:")]
