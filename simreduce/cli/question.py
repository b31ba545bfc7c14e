"""What `trace` and `explain` look at: one plan on one machine, named by a scenario or as `bench`
names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import click

from simreduce import dtypes
from simreduce.algorithms import NAMES
from simreduce.calibrate import load_calibration
from simreduce.cli.options import (
    calibration_option,
    check_collective,
    check_used,
    disturbance_options,
    faithful_option,
    gather,
    gather_of,
    gpu_indices_option,
    gpus_options,
    read_disturbance,
    read_gpu_indices,
    read_size,
    runtime_option,
    shape_of,
)
from simreduce.cli.progress import Progress
from simreduce.cli.strategies import read_strategy
from simreduce.engine import runtime_named
from simreduce.errors import InputError, did_you_mean, shown
from simreduce.layouts import layout
from simreduce.plan import Plan, repeat
from simreduce.scenario import Scenario, is_scenario, look_at_scenario, shipped as scenarios
from simreduce.setup import Setup
from simreduce.strategy import parse_strategy
from simreduce.topology import load_topology, shipped as machines
from simreduce.tune import rank
from simreduce.tune.bench import DIVIDED, tensor

F = TypeVar("F", bound=Callable[..., Any])

_ONLY_TOPOLOGY = {
    "collective": "--collective",
    "root": "-r",
    "minbytes": "-b",
    "ngpus": "-g",
    "gpus": "--gpus",
    "datatype": "-d",
}
_DEFAULTS: dict[str, Any] = {
    "collective": "all_reduce",
    "root": 0,
    "minbytes": "32M",
    "datatype": "float",
}


@dataclass(frozen=True, slots=True)
class Question:
    """One plan on one machine. `times` reductions are chained in the plan."""

    name: str
    strategy: str
    collective: str
    workload: str
    size_bytes: int
    ranks: int
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
            "ranks": self.ranks,
            "repeat": self.times,
            "disturbance": self.setup.disturbance.text,
        }


def question_options(command: F) -> F:
    """The argument and the options that say which plan on which machine."""
    options = (
        click.argument("question", metavar="SCENARIO|TOPOLOGY"),
        click.option(
            "--algo",
            default=None,
            metavar="STRATEGY",
            help="Default: ring; of a scenario, what `simreduce run` recommends.",
        ),
        click.option("--collective", default=None, metavar="NAME", help=f"{', '.join(NAMES)}; default all_reduce."),
        click.option("-r", "--root", type=int, default=None, help="Rank that broadcasts, or that a reduce ends on."),
        click.option("-b", "--minbytes", default=None, metavar="SIZE", help="Size of the tensor; default 32M."),
        gpus_options,
        click.option("-d", "--datatype", default=None, help="float, half, double, ..."),
        runtime_option(None),
        calibration_option(None),
        gpu_indices_option,
        faithful_option,
        disturbance_options,
        click.option("--workers", type=click.IntRange(1), default=None, help="Processes that rank a scenario."),
    )  # fmt: skip
    return reduce(lambda f, option: option(f), reversed(options), command)


def read_question(question: str, **options: Any) -> Question:
    """What `question_options` have read, made into a plan. InputError tells the faults of all
    options at once.
    """
    options["disturb"] = {key: options.pop(key) for key in ("jitter", "seed", "slow", "fault")}
    if is_scenario(question):
        return _of_scenario(question, **options)
    _check_name(question)
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    return _of_topology(question, **{**options, **_DEFAULTS, **given})


def _check_name(text: str) -> None:
    """InputError for what looks like a scenario's name, or like none: `load_topology` tells the
    rest.
    """
    names = scenarios()
    near = did_you_mean(text, [*names, *(name for name, _ in machines())])
    if any(near == did_you_mean(name, [name]) for name in names):
        raise InputError(f"no scenario or topology {shown(text)}{near}")


def _of_scenario(
    text: str,
    *,
    algo: str | None,
    runtime: str | None,
    calibration: str | None,
    gpu_indices: str | None,
    faithful: bool | None,
    workers: int | None,
    disturb: dict[str, Any],
    **others: Any,
) -> Question:
    problems = [
        f"{_ONLY_TOPOLOGY[key]}: {text} is a scenario, which says it itself"
        for key, value in others.items()
        if value is not None
    ]
    order = gather(problems, read_gpu_indices, gpu_indices)
    scenario, machine, faults = look_at_scenario(
        text, runtime=runtime, calibration=calibration, gpu_indices=order, faithful=faithful
    )
    problems += faults
    strategy = gather(problems, read_strategy, algo) if algo is not None else None
    disturbance = gather(problems, read_disturbance, **disturb, topology=machine)
    if problems or scenario is None or disturbance is None:
        raise InputError(problems)
    if strategy is None:
        strategy = parse_strategy(_recommended(scenario.but(disturbance=disturbance), workers))
    setup = scenario.setup.but(disturbance=disturbance)
    plan = setup.compile(strategy, scenario.workload, faithful=scenario.faithful)
    return Question(
        name=scenario.name,
        strategy=strategy.text,
        collective="all_reduce",
        workload=scenario.workload.name,
        size_bytes=scenario.workload.nbytes,
        ranks=len(setup.layout),
        times=scenario.repeat,
        plan=repeat(plan, scenario.repeat) if scenario.repeat > 1 else plan,
        setup=setup,
    )


def _recommended(scenario: Scenario, workers: int | None) -> str:
    """What `simreduce run` recommends; said on stderr."""
    if scenario.strategies and len(scenario.strategies) == 1:
        return scenario.strategies[0].text
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
    return best.strategy.text


def _of_topology(
    text: str,
    *,
    algo: str | None,
    collective: str,
    root: int,
    minbytes: str,
    ngpus: int | None,
    gpus: str | None,
    datatype: str,
    runtime: str | None,
    calibration: str | None,
    gpu_indices: str | None,
    faithful: bool | None,
    workers: int | None,  # noqa: ARG001 - nothing to rank
    disturb: dict[str, Any],
) -> Question:
    problems: list[str] = []
    machine = gather(problems, load_topology, text)
    order = gather(problems, read_gpu_indices, gpu_indices)
    shape = (
        None if machine is None else gather(problems, shape_of, layout(machine), ngpus, gpus, order)
    )
    dtype = gather_of("--datatype", problems, dtypes.code, datatype)
    size = gather(problems, read_size, "-b", minbytes)
    known = gather(problems, check_collective, collective)
    gather(problems, check_used, collective, faithful, gpu_indices)
    strategy = (
        gather(problems, read_strategy, "ring" if algo is None else algo, known) if known else None
    )
    chosen = gather_of("--runtime", problems, runtime_named, runtime or "tensorflow")
    constants = gather_of("--calibration", problems, load_calibration, calibration or "nominal")
    if shape and not 0 <= root < shape.n:
        problems.append(f"-r {root}: the ranks are 0 to {shape.n - 1}")
    if dtype is not None and size is not None and size < dtypes.SIZES[dtype]:
        problems.append(f"-b {minbytes}: less than one element of {dtypes.NAMES[dtype]}")
    disturbance = gather(problems, read_disturbance, **disturb, topology=machine)
    if (
        problems
        or not (machine and shape and strategy and size and chosen and constants)
        or dtype is None
    ):
        raise InputError(problems)
    assert disturbance is not None  # noqa: S101 - else there is a problem
    workload = tensor(size, dtype, shape.n if collective in DIVIDED else 1)
    setup = Setup(machine, chosen, constants, disturbance, shape)
    plan = setup.compile(strategy, workload, root=root, faithful=bool(faithful))
    return Question(
        name=machine.name,
        strategy=strategy.text,
        collective=collective,
        workload=workload.name,
        size_bytes=workload.nbytes,
        ranks=shape.n,
        times=1,
        plan=plan,
        setup=setup,
    )
