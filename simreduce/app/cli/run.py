"""`simreduce run SCENARIO` and `tune SCENARIO`, both with `--measure K` on real devices.

The code that runs devices loads when it is needed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from simreduce.app.cli.group import command, scenario_argument
from simreduce.app.cli.measuring import give_measured, measure_options, read_measurement
from simreduce.app.cli.options import (
    algo_option,
    all_option,
    budget_options,
    details_option,
    read_budget,
    strategy_texts,
    workers_option,
)
from simreduce.app.cli.reply import Progress, Reply, report_options
from simreduce.app.cli.setups import job_options, read_scenario, setup_options
from simreduce.app.cli.terminal import rows_shown
from simreduce.computing.watching import within
from simreduce.files.formats import Faults
from simreduce.report.ranking import preview_lines, ranking_document, ranking_table
from simreduce.study.tune.rank import rank


@command(
    examples="""
    simreduce run dgx1v-resnet50
    simreduce run dgx1v-resnet50 --algo ring,nccl+packs=2 --json
    """
)
@scenario_argument
@algo_option("Rank these instead of the scenario's.")
@job_options
@setup_options("the scenario's", "the scenario's")
@budget_options()
@workers_option
@all_option
@details_option("Also print other names of plans, and why strategies are not possible.")
@measure_options
@report_options
def run(
    faults: Faults,
    scenario: str,
    algo: tuple[str, ...],
    budget: str | None,
    quick: bool,
    workers: int,
    simulate_all: bool,
    details: bool,
    **given: Any,
) -> int:
    """Rank every strategy of SCENARIO (a file, a shipped name, or a recorded job); recommend one.

    Strategies that take long to simulate are simulated only as far as they may be among the first
    ten, or recommended; their rows then say what they take at least.

    On Ctrl-C or SIGTERM, prints the strategies so far and exits with status 130.
    """
    found = read_scenario(faults, scenario, given, strategy_texts(faults, algo))
    measurement = read_measurement(faults, found, given)
    seconds = read_budget(faults, budget, quick=quick)
    question = faults.require(found)
    with within(seconds), Progress("simulated {} of {} strategies", preview_lines) as progress:
        ranking = rank(question, workers, progress.watch, simulate_all=simulate_all)
    reply = Reply(
        lambda: ranking_table(ranking, rows_shown(everything=simulate_all), details=details),
        partial(ranking_document, ranking),
        failed=any(c.wrong for c in ranking.candidates),
        complete=not ranking.interrupted,
    )
    return give_measured(reply, measurement, lambda: ranking)
