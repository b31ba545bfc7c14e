"""`simreduce explain SCENARIO|TOPOLOGY`: what bounds the time, and what would help."""

from __future__ import annotations

from typing import Any

from simreduce.cli.group import command
from simreduce.cli.options import echo_json, report_options
from simreduce.cli.progress import Progress
from simreduce.cli.question import question_options, read_question
from simreduce.cli.terminal import show
from simreduce.report.explain import explanation_document, explanation_text
from simreduce.tune.whatif import savings


@command(examples="simreduce explain dgx1v --algo ring -b 64M")
@question_options()
@report_options
def explain(question: str, as_json: bool, **given: Any) -> int:
    """Show what bounds the time of one reduction, and simulate what a little more of each resource
    would save.

    SCENARIO|TOPOLOGY is what `simreduce run` or `simreduce bench` takes. On Ctrl-C or SIGTERM,
    prints the savings so far and exits with status 130.
    """
    case = read_question(question, **given)
    with Progress("simulating the plan"):
        recording = case.setup.record(case.plan)
    with Progress("simulated {} of {} changes") as progress:
        found = savings(recording, case.setup, progress)
    if as_json:
        complete = progress.complete
        echo_json(explanation_document(recording, found, case.about, complete=complete))
    else:
        show(explanation_text(recording, found, case.about, case.setup.calibration.title))
        if not progress.complete:
            show("\nstopped before all changes were simulated")
    return 0 if progress.complete else 130
