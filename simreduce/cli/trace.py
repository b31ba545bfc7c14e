"""`simreduce trace SCENARIO|TOPOLOGY`: a timeline for trace viewers."""

from __future__ import annotations

from typing import Any

import click

from simreduce import units
from simreduce.cli.group import command
from simreduce.cli.options import write_output
from simreduce.cli.progress import Progress
from simreduce.cli.question import question_options, read_question
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.outputs import STDOUT, check_place
from simreduce.trace import trace_text

_DEFAULT = "trace.json"


@command(examples="simreduce trace dgx1v --algo ring -b 64M -o ring.json")
@question_options()
@click.option(
    "-o",
    "--output",
    default=_DEFAULT,
    metavar="FILE",
    help=f"Write this file; .gz: compressed; -: stdout; default {_DEFAULT}.",
)
def trace(question: str, output: str, **given: Any) -> int:
    """Write a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    SCENARIO|TOPOLOGY is what `simreduce run` or `simreduce bench` takes.
    """
    faults = Faults()
    faults.attempt("", check_place, output)
    case = faults.attempt("", read_question, question, **given)
    if faults.problems or case is None:
        raise InputError(faults.problems)
    with Progress("simulating the plan"):
        recording = case.setup.record(case.plan)
    topology = case.setup.topology
    with Progress("writing the timeline"):
        write_output(output, trace_text(recording, topology, case.about))
    if output != STDOUT:
        took = units.format_duration(recording.result.seconds)
        where = f"{case.strategy} on {topology.name}, calibration {case.setup.calibration.name}"
        click.echo(f"{output}: {where}, {took}; open it in ui.perfetto.dev")
    return 0
