"""`simreduce trace SCENARIO|TOPOLOGY`: a timeline for trace viewers."""

from __future__ import annotations

from typing import Any

import click

from simreduce import units
from simreduce.cli.options import check_place, gather, write_pieces
from simreduce.cli.question import question_options, read_question
from simreduce.errors import InputError
from simreduce.trace import trace_text

_DEFAULT = "trace.json"


@click.command()
@question_options
@click.option(
    "-o",
    "--output",
    default=_DEFAULT,
    metavar="FILE",
    help=f"Default {_DEFAULT}; .gz: compressed; -: stdout.",
)
def trace(output: str, **options: Any) -> int:
    """Write a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    SCENARIO|TOPOLOGY is what `simreduce run` or `simreduce bench` takes.
    """
    problems: list[str] = []
    if output != "-":
        gather(problems, check_place, output)
    asked = gather(problems, read_question, **options)
    if problems or asked is None:
        raise InputError(problems)
    recording = asked.setup.record(asked.plan)
    pieces = trace_text(recording, asked.setup.topology, asked.about)
    if output == "-":
        for piece in pieces:
            click.echo(piece, nl=False)
        return 0
    write_pieces(output, pieces)
    took = units.format_duration(recording.result.seconds)
    click.echo(
        f"{output}: {asked.strategy} on {asked.setup.topology.name}, {took}; open it in ui.perfetto.dev"
    )
    return 0
