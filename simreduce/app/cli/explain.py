"""`simreduce explain` and `simreduce trace SCENARIO|TOPOLOGY`: one plan closely. It is a plan of a
scenario, or one that is named as `bench` names it.
"""

from __future__ import annotations

from typing import Any

import click

from simreduce import units
from simreduce.app.cli.group import command, question_argument, strategies
from simreduce.app.cli.options import read_strategy, refuse, workers_option
from simreduce.app.cli.reply import (
    Decorator,
    Progress,
    Reply,
    options,
    output_option,
    output_path,
    report_options,
    write_output,
)
from simreduce.app.cli.setups import (
    Given,
    collective_options,
    job_options,
    read_collective,
    read_scenario,
    setup_options,
)
from simreduce.app.cli.terminal import show
from simreduce.computing.workers import pass_on
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats import Faults
from simreduce.files.textfiles import STDOUT
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.report.explain import EXPLAIN, Explained, explanation_text
from simreduce.report.trace import recording_text
from simreduce.study.question import PlannedQuestion, Question, ask
from simreduce.study.scenario import Scenario
from simreduce.study.scenario_files import is_scenario, shipped as scenarios
from simreduce.study.tune.rank import rank
from simreduce.study.tune.sizes import DIVIDED, tensor
from simreduce.study.tune.whatif import few_rings, savings
from simreduce.topology import shipped as machines

_TRACE = "trace.json"
_ONLY_TOPOLOGY = ("collective", "root", "minbytes", "ngpus", "gpus", "datatype")


def question_options(
    algo: str = "Look at this strategy; default: ring, or what `simreduce run` recommends for "
    "SCENARIO.",
) -> Decorator:
    """The argument and the options that say which plan on which machine; `algo` is the help of
    `--algo`.
    """
    return options(
        question_argument,
        click.option(
            "--algo", default=None, shell_complete=strategies, metavar="STRATEGY", help=algo
        ),
        click.option(
            "-b",
            "--minbytes",
            default=None,
            metavar="SIZE",
            help="Reduce a tensor of this size; default 32M.",
        ),
        collective_options,
        job_options,
        setup_options("the scenario's, or the strategy's", "nominal, or the scenario's"),
        workers_option,
    )


@command(examples="simreduce explain dgx1v --algo ring -b 64M")
@question_options()
@report_options
def explain(faults: Faults, question: str, **given: Any) -> Reply:
    """Show what bounds the time of one reduction, and simulate what a little more of each resource
    would save.

    SCENARIO|TOPOLOGY is what `simreduce run` or `simreduce bench` takes. On Ctrl-C or SIGTERM,
    prints the savings so far and exits with status 130.
    """
    case = read_question(faults, question, **given)
    with Progress("simulating the plan"):
        recording = case.setup.record(case.plan)
    with Progress("simulated {} of {} changes") as progress:
        found = savings(recording, case.setup, progress.watch)
    complete, title = progress.complete, case.setup.calibration.title
    moved = case.setup.find_moved(case.plan, recording.result.seconds)
    limit = few_rings(case.question) if complete else None
    explained = Explained(recording, found, case.about, complete, moved, limit)
    stopped = "" if complete else "\n\nstopped before all changes were simulated"
    return Reply(
        lambda: explanation_text(explained, title) + stopped,
        lambda: EXPLAIN.write(explained),
        complete=complete,
    )


@command(examples="simreduce trace dgx1v --algo ring -b 64M -o ring.json")
@question_options()
@output_option(
    "-o",
    "--output",
    default=_TRACE,
    about=f"Write this file; .gz: compressed; -: stdout; default {_TRACE}.",
)
def trace(faults: Faults, question: str, **given: Any) -> None:
    """Write a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    SCENARIO|TOPOLOGY is what `simreduce run` or `simreduce bench` takes.
    """
    case, output = read_question(faults, question, **given), output_path("output") or _TRACE
    topology = case.setup.topology
    with Progress("simulating the plan"):
        recording = case.setup.record(case.plan)
    with Progress("writing the timeline"):
        write_output(output, recording_text(recording, topology, case.about))
    if output != STDOUT:
        took = units.format_duration(recording.result.seconds)
        strategy, calibration = case.question.strategy.text, case.setup.calibration.name
        where = f"{strategy} on {topology.name}, calibration {calibration}"
        show(f"{output}: {where}, {took}; open it in ui.perfetto.dev")


def read_question(
    faults: Faults, text: str, *, algo: str | None, workers: int, **given: Any
) -> PlannedQuestion:
    """The plan that the options name. InputError lists the faults of all of them."""
    if is_scenario(text):
        scenario, strategy = read_question_scenario(faults, text, algo, given)
        return ask(scenario, strategy or _recommend(scenario, workers)).make_case()
    return read_topology_question(faults, text, "ring" if algo is None else algo, given).make_case()


def read_topology_question(faults: Faults, text: str, algo: str, given: Given) -> Question:
    """The tensor and the strategy that the options name on a topology. InputError with all
    `faults`.
    """
    _check_name(faults, text)
    words = f"{text} is a machine, whose tensor has a size alone (-b)"
    refuse(faults, ("topology", "workload"), words)
    found = read_collective(
        faults,
        text,
        lambda collective: read_strategy(algo, collective),
        (given["minbytes"], None, None, None),
        given,
    )
    parts = found.setup.layout.n if found.name in DIVIDED else 1
    workload = tensor(found.nbytes[0], found.dtype, parts)
    setup = found.setup.running(found.strategies)
    return Question(
        found.strategies, workload, setup,
        root=found.root, faithful=found.faithful, name=setup.machine.name,
    )  # fmt: skip


def _check_name(faults: Faults, text: str) -> None:
    """InputError if `text` is nearest to a scenario's name. `load_machine` says the rest."""
    names = scenarios()
    near = did_you_mean(text, [*names, *(name for name, _ in machines())])
    if any(near == did_you_mean(name, [name]) for name in names):
        faults.add("", f"no scenario or topology {quote(text)}{near}")
        faults.raise_any()


def read_question_scenario(
    faults: Faults, text: str, algo: str | None, given: Given
) -> tuple[Scenario, Strategy | None]:
    """The scenario, and the strategy if one is given. InputError with all `faults`."""
    refuse(faults, _ONLY_TOPOLOGY, f"{text} is a scenario, which says it itself", letters=True)
    used = {key: value for key, value in given.items() if key not in _ONLY_TOPOLOGY}
    scenario = read_scenario(faults, text, used)
    strategy = None if algo is None else faults.attempt("", read_strategy, algo)
    return faults.require(scenario), strategy


def _recommend(scenario: Scenario, workers: int) -> Strategy:
    """The strategy that `simreduce run` recommends; says so on stderr."""
    if scenario.strategies and len(scenario.strategies) == 1:
        return scenario.strategies[0]
    with Progress("simulated {} of {} strategies") as progress:
        ranking = rank(scenario, workers, progress.watch)
    pass_on(ranking.untried)
    best = ranking.recommended
    if best is None:
        raise InputError(
            f"{scenario.name}: no strategy has a plan that is proven right; choose one by --algo"
        )
    click.echo(f"{best.strategy.text}: recommended for {scenario.name}", err=True)
    return parse_strategy(best.strategy.text)
