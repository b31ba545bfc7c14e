"""`simreduce run SCENARIO`, and with `--measure K` the best of it on real devices."""

from __future__ import annotations

import os
from typing import Any

from simreduce.cli.completion import scenario_argument
from simreduce.cli.devices import DEVICES
from simreduce.cli.group import command
from simreduce.cli.measuring import measure_options, read_devices
from simreduce.cli.options import all_option, echo_json, report_options, workers_option
from simreduce.cli.progress import Progress
from simreduce.cli.setups import read_scenario, setup_options
from simreduce.cli.strategies import algo_option, strategy_texts
from simreduce.cli.terminal import rows_shown, show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.report.ranking import preview_lines, ranking_document, ranking_table
from simreduce.tune.rank import Row, rank


@command(
    examples="""
    simreduce run dgx1v-resnet50
    simreduce run dgx1v-resnet50 --algo ring,nccl+packs=2 --json
    """
)
@scenario_argument
@algo_option("Rank these instead of the scenario's.")
@setup_options("the scenario's", "the scenario's")
@workers_option
@all_option
@measure_options
@report_options
def run(
    scenario: str,
    algo: tuple[str, ...],
    workers: int | None,
    simulate_all: bool,
    measure: int | None,
    iters: int | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Rank every strategy of SCENARIO (a file, or a shipped name) and recommend one.

    Strategies that take long to simulate are simulated only as far as they may be among the first
    ten, or recommended; their rows then say what they take at least.

    On Ctrl-C or SIGTERM, prints the strategies so far and exits with status 130.
    """
    faults = Faults()
    texts = strategy_texts(faults, algo)
    chosen = {name: given.pop(name) for name in DEVICES}
    question = read_scenario(faults, scenario, strategies=texts, **given)
    real, devices = read_devices(faults, question, measure, {**given, **chosen})
    if faults.problems or question is None:
        raise InputError(faults.problems)
    known: list[Row] = []
    with Progress("simulated {} of {} strategies", lambda: preview_lines(known)) as progress:
        ranking = rank(
            question,
            workers or os.cpu_count() or 1,
            progress,
            simulate_all=simulate_all,
            seen=known.append,
        )
    wrong = any(c.wrong for c in ranking.candidates)
    document: dict[str, Any] = {}
    if as_json:
        document = ranking_document(ranking)
    else:
        show(ranking_table(ranking, rows_shown(everything=simulate_all)))
    # What was simulated is shown even if measuring fails.
    try:
        if real is not None and not ranking.untried:
            document["measured"] = None
            found = real.remeasure(ranking, measure, devices, iters)
            wrong |= any(row.faults for row in found.rows)
            document |= real.document(found)
            if not as_json:
                show(real.table(found))
    finally:
        if as_json:
            echo_json(document)
    return 130 if ranking.untried else int(wrong)
