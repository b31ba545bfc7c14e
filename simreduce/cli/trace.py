"""`simreduce trace SCENARIO|TOPOLOGY`: a timeline for trace viewers."""

from __future__ import annotations

from typing import Any

import click

from simreduce import units
from simreduce.cli.options import gather, write_output
from simreduce.cli.progress import Progress
from simreduce.cli.question import question_options, read_question
from simreduce.errors import InputError
from simreduce.outputs import STDOUT, check_place
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
    gather(problems, check_place, output)
    asked = gather(problems, read_question, **options)
    if problems or asked is None:
        raise InputError(problems)
    with Progress("simulating the plan"):
        recording = asked.setup.record(asked.plan)
    with Progress("writing the timeline"):
        write_output(output, trace_text(recording, asked.setup.topology, asked.about))
    if output != STDOUT:
        took = units.format_duration(recording.result.seconds)
        where = f"{asked.strategy} on {asked.setup.topology.name}"
        click.echo(f"{output}: {where}, {took}; open it in ui.perfetto.dev")
    return 0
