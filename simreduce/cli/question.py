"""The plan that `trace` and `explain` look at: a scenario's, or one named as `bench` names it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import click

from simreduce.cli.options import options, workers_option
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
from simreduce.plan import Plan, repeat
from simreduce.scenario import Scenario, is_scenario, shipped as scenarios
from simreduce.setup import Setup
from simreduce.strategy import Strategy, parse_strategy
from simreduce.topology import shipped as machines
from simreduce.tune.rank import rank

_ONLY_TOPOLOGY = {
    "collective": "--collective",
    "root": "-r",
    "minbytes": "-b",
    "ngpus": "-g",
    "gpus": "--gpus",
    "datatype": "-d",
}


@dataclass(frozen=True, slots=True)
class Question:
    """One plan on one machine. The plan chains `times` reductions."""

    name: str
    strategy: str
    collective: str
    workload: str
    size_bytes: int
    times: int
    plan: Plan
    setup: Setup

    @property
    def about(self) -> dict[str, Any]:
        """What documents say of it."""
        return {
            "question": self.name,
            "strategy": self.strategy,
            "collective": self.collective,
            "workload": self.workload,
            "size_bytes": self.size_bytes,
            "ranks": len(self.setup.layout),
            "repeat": self.times,
            "disturbance": self.setup.disturbance.text,
        }


question_options = options(
    click.argument("question", metavar="SCENARIO|TOPOLOGY"),
    click.option(
        "--algo",
        default=None,
        metavar="STRATEGY",
        help="Look at this strategy; default: ring, or what `simreduce run` recommends for "
        "SCENARIO.",
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
"""The argument and the options that say which plan on which machine."""


def read_question(text: str, *, algo: str | None, workers: int | None, **given: Any) -> Question:
    """The plan that the options name. InputError lists the faults of all of them."""
    faults = Faults()
    if is_scenario(text):
        return _of_scenario(faults, text, algo, workers, **given)
    _check_name(text)
    size = given.pop("minbytes")
    found = read_collective(
        faults,
        text,
        lambda collective: read_strategy("ring" if algo is None else algo, collective),
        (size, None, None, None),
        **given,
    )
    if found is None:
        raise InputError(faults.problems)
    [workload] = found.workloads
    strategy = found.strategies
    setup = found.setup.running(strategy)
    plan = setup.compile(strategy, workload, root=found.root, faithful=found.faithful)
    return Question(
        name=setup.machine.name,
        strategy=strategy.text,
        collective=found.name,
        workload=workload.name,
        size_bytes=workload.nbytes,
        times=1,
        plan=plan,
        setup=setup,
    )


def _check_name(text: str) -> None:
    """Raises InputError if `text` is nearest to a scenario's name. `load_machine` says the rest."""
    names = scenarios()
    near = did_you_mean(text, [*names, *(name for name, _ in machines())])
    if any(near == did_you_mean(name, [name]) for name in names):
        raise InputError(f"no scenario or topology {quote(text)}{near}")


def _of_scenario(
    faults: Faults, text: str, algo: str | None, workers: int | None, **given: Any
) -> Question:
    for key, option in _ONLY_TOPOLOGY.items():
        if given.pop(key) is not None:
            faults.add(option, f"{text} is a scenario, which says it itself")
    scenario = read_scenario(faults, text, **given)
    strategy = None if algo is None else faults.attempt("", read_strategy, algo)
    if faults.problems or scenario is None:
        raise InputError(faults.problems)
    strategy = strategy or _recommend(scenario, workers)
    setup = scenario.setup.running(strategy)
    plan = setup.compile(strategy, scenario.workload, faithful=scenario.faithful)
    return Question(
        name=scenario.name,
        strategy=strategy.text,
        collective="all_reduce",
        workload=scenario.workload.name,
        size_bytes=scenario.workload.nbytes,
        times=scenario.repeat,
        plan=repeat(plan, scenario.repeat) if scenario.repeat > 1 else plan,
        setup=setup,
    )


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
