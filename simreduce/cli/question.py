"""The plan that `trace` and `explain` look at: a scenario's, or one named as `bench` names it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from simreduce.cli.completion import question_argument, strategies
from simreduce.cli.options import F, options, workers_option
from simreduce.cli.progress import Progress
from simreduce.cli.setups import (
    collective_options,
    read_collective,
    read_scenario,
    setup_options,
)
from simreduce.cli.strategies import read_strategy
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.formats import Faults
from simreduce.scenario import Scenario, is_scenario, shipped as scenarios
from simreduce.strategy import Strategy, parse_strategy
from simreduce.topology import shipped as machines
from simreduce.tune.asked import Asked, Question, ask
from simreduce.tune.rank import rank

_ONLY_TOPOLOGY = {
    "collective": "--collective",
    "root": "-r",
    "minbytes": "-b",
    "ngpus": "-g",
    "gpus": "--gpus",
    "datatype": "-d",
}


def question_options(
    algo: str = "Look at this strategy; default: ring, or what `simreduce run` recommends for "
    "SCENARIO.",
) -> Callable[[F], F]:
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
        setup_options("the scenario's, or the strategy's", "nominal, or the scenario's"),
        workers_option,
    )


def read_question(text: str, *, algo: str | None, workers: int | None, **given: Any) -> Question:
    """The plan that the options name. InputError lists the faults of all of them."""
    if is_scenario(text):
        scenario, strategy = read_question_scenario(text, algo, **given)
        return ask(scenario, strategy or _recommend(scenario, workers)).compile()
    return read_topology_question(text, "ring" if algo is None else algo, **given).compile()


def read_topology_question(text: str, algo: str, **given: Any) -> Asked:
    """The tensor and the strategy that the options name on a topology."""
    faults = Faults()
    _check_name(text)
    size = given.pop("minbytes")
    found = read_collective(
        faults,
        text,
        lambda collective: read_strategy(algo, collective),
        (size, None, None, None),
        **given,
    )
    if found is None:
        raise InputError(faults.problems)
    [workload] = found.workloads
    setup = found.setup.running(found.strategies)
    return Asked(
        setup.machine.name, found.strategies, workload, setup,
        root=found.root, faithful=found.faithful,
    )  # fmt: skip


def _check_name(text: str) -> None:
    """Raises InputError if `text` is nearest to a scenario's name. `load_machine` says the rest."""
    names = scenarios()
    near = did_you_mean(text, [*names, *(name for name, _ in machines())])
    if any(near == did_you_mean(name, [name]) for name in names):
        raise InputError(f"no scenario or topology {quote(text)}{near}")


def read_question_scenario(
    text: str, algo: str | None, **given: Any
) -> tuple[Scenario, Strategy | None]:
    """The scenario, and the strategy if one is given."""
    faults = Faults()
    for key, option in _ONLY_TOPOLOGY.items():
        if given.pop(key) is not None:
            faults.add(option, f"{text} is a scenario, which says it itself")
    scenario = read_scenario(faults, text, **given)
    strategy = None if algo is None else faults.attempt("", read_strategy, algo)
    if faults.problems or scenario is None:
        raise InputError(faults.problems)
    return scenario, strategy


def _recommend(scenario: Scenario, workers: int | None) -> Strategy:
    """What `simreduce run` recommends; says so on stderr."""
    if scenario.strategies and len(scenario.strategies) == 1:
        return scenario.strategies[0]
    with Progress("simulated {} of {} strategies") as progress:
        ranking = rank(scenario, workers or os.cpu_count() or 1, progress)
    if ranking.untried:
        raise KeyboardInterrupt
    best = ranking.recommended
    if best is None:
        raise InputError(
            f"{scenario.name}: no strategy has a plan that is proven right; choose one by --algo"
        )
    click.echo(f"{best.strategy.text}: recommended for {scenario.name}", err=True)
    return parse_strategy(best.strategy.text)
