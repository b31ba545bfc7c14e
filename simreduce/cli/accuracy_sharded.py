"""`simreduce accuracy sharded`: published throughputs of FSDP beside predictions."""

from __future__ import annotations

import click

from simreduce.accuracy.sharded import SERIES, predict_sharded, sharded_document, sharded_lines
from simreduce.cli.group import command
from simreduce.cli.options import echo_json, report_options
from simreduce.cli.progress import until_stopped
from simreduce.cli.terminal import show

_NAMES = [series.name for series in SERIES]


@command(examples="simreduce accuracy sharded --model 760m")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(_NAMES),
    metavar="NAME",
    help=f"Compare this model only: {', '.join(_NAMES)}. Repeatable; default all.",
)
@report_options
def sharded(models: tuple[str, ...], as_json: bool) -> int:
    """Compare predicted throughputs of MPT models, trained by FSDP on 16 to 128 A100, with those
    that MosaicML published. The compute is fitted to the first number of GPUs.

    On Ctrl-C or SIGTERM, prints the rows so far and exits with status 130.
    """
    chosen = [series for series in SERIES if not models or series.name in models]
    count = sum(len(series.tokens) for series in chosen)
    coming = (point for series in chosen for point in predict_sharded(series))
    points, complete = until_stopped(coming, count, "predicted {} of {} steps")
    if as_json:
        echo_json(sharded_document(points, complete=complete))
    else:
        show("\n".join(sharded_lines(points)))
    return 0 if complete else 130
