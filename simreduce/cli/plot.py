"""`simreduce plot DB`: lines, a heat map or a Pareto frontier of a sweep."""

from __future__ import annotations

import click

from simreduce.cli.group import command
from simreduce.cli.pictures import check_pictures, picture_options, write_plot
from simreduce.cli.sweep_rows import read_sweep, where_option
from simreduce.formats import Faults
from simreduce.report.sweep_plots import HEAT, KINDS, LINES, sweep_plot


@command(
    examples="""
    simreduce sweep dgx1v --over size=1M..64M*4 --over strategy=ring,nccl --db sizes.db
    simreduce plot sizes.db --kind heat --svg times.svg
    simreduce plot sizes.db --svg busbw.svg
    """
)
@click.argument("db")
@click.option("--sweep", "number", type=int, default=None, help="Draw this sweep; default: last.")
@click.option(
    "--kind", type=click.Choice(KINDS), default=LINES, help=f"Draw this; default {LINES}."
)
@click.option(
    "-x", default=None, metavar="COLUMN", help="Across; default: the numbers that vary most."
)
@click.option(
    "-y",
    default=None,
    metavar="COLUMN",
    help="Upwards; default: seconds, busbw of collectives, for heat the next key that varies.",
)
@click.option(
    "--value", default=None, metavar="COLUMN", help="What a heat map shows; default as -y of lines."
)
@where_option
@picture_options("Write the plot", ("plot", "plot"))
def plot(
    db: str,
    number: int | None,
    kind: str,
    x: str | None,
    y: str | None,
    value: str | None,
    where: str | None,
    svg: str | None,
    png: str | None,
) -> None:
    """Draw the cells of a sweep in the database DB: lines over a key, with the 80 % band of the
    calibration; a heat map over two keys; or what no other cell beats in two columns (pareto).
    """
    faults = Faults()
    faults.attempt("", check_pictures, svg, png, plot=True)
    if svg is None and png is None:
        faults.add("--svg FILE or --png FILE", "is missing; say where to write the plot")
    if value is not None and kind != HEAT:
        faults.add(f"--value {value}", f"is for --kind {HEAT}; give -y")
    faults.raise_any()
    sweep, rows = read_sweep(db, number, where)
    write_plot(sweep_plot(sweep, rows, kind, x, y, value), svg, png)
