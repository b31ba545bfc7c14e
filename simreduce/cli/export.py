"""`simreduce export TARGET SCENARIO|TOPOLOGY`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from simreduce.cli.group import command
from simreduce.cli.progress import Progress
from simreduce.cli.question import (
    Asked,
    ask,
    question_options,
    read_question_scenario,
    read_topology_question,
)
from simreduce.errors import InputError, StrategyError, did_you_mean
from simreduce.export import TARGETS, Choice, export as files_for, find_target, why_not
from simreduce.formats import Faults
from simreduce.outputs import check_place, write_file
from simreduce.scenario import Scenario, is_scenario
from simreduce.strategy import Strategy, parse_strategy
from simreduce.training import StepQuestion
from simreduce.training.sharded import DDP, wrap
from simreduce.tune.rank import rank

_DEFAULTS = ("nccl", "nccl+ddp", "nccl+fusion", "ring", "collective", "hierarchical_copy")
"""Strategies for a topology, of which the first that the target has a setting for is taken."""


@command()
@click.argument("target", metavar="TARGET")
@question_options("Export this strategy; default: the fastest that TARGET has a setting for.")
@click.option(
    "--out",
    default=None,
    metavar="DIR",
    help="Write the files to this folder; default: print them.",
)
@click.option(
    "--method",
    default=None,
    metavar="NAME",
    help="Of a step with several methods, take this one; default: the first.",
)
def export(
    target: str,
    question: str,
    out: str | None,
    method: str | None,
    algo: str | None,
    workers: int | None,
    **given: Any,
) -> None:
    """Print the settings of another system that give a strategy: environment, arguments, flags, a
    configuration or a program.

    TARGET is nccl, pytorch, horovod, deepspeed, jax, tensorflow, tf_cnn_benchmarks, msccl or
    mscclpp. SCENARIO|TOPOLOGY is what `simreduce run` or `simreduce bench` takes. Without --algo,
    it is the fastest strategy that TARGET has a setting for.
    """
    faults = Faults()
    faults.attempt("", find_target, target)
    if out is not None:
        faults.attempt("--out", check_folder, out)
    faults.raise_any()
    files = files_for(target, _choice(target, question, algo, method, workers, given))
    if out is None:
        _print(files)
        return
    for place in write_folder(out, files):
        click.echo(place)


def write_folder(path: str, files: Mapping[str, str]) -> list[Path]:
    """Write files to a folder, which is made if it is not there. Returns their paths."""
    folder = Path(path)
    folder.mkdir(exist_ok=True)
    for name in files:
        check_place(str(folder / name))
    for name, text in files.items():
        write_file(str(folder / name), [text])
    return [folder / name for name in files]


def check_folder(path: str) -> None:
    """Raises InputError unless the folder is there, or could be made."""
    folder = Path(path)
    try:
        fine = folder.is_dir() or (not folder.exists() and folder.parent.is_dir())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    if not path or not fine:
        raise InputError(f"{path}: is no folder, and its parent is none either")


def _print(files: Mapping[str, str]) -> None:
    """One file as it is; several, each after a comment with its name."""
    for name, text in files.items():
        if len(files) > 1:
            click.echo(f"# {name}" if not name.endswith(".xml") else f"<!-- {name} -->")
        click.echo(text, nl=False)


def _choice(
    target: str,
    question: str,
    algo: str | None,
    method: str | None,
    workers: int | None,
    given: dict[str, Any],
) -> Choice:
    """What the options name; of a scenario without a strategy, the fastest with a setting."""
    if is_scenario(question):
        scenario, strategy = read_question_scenario(question, algo, **given)
        strategy = strategy or _fastest(target, scenario, method, workers)
        return _with_step(ask(scenario, strategy), scenario.step, method)
    asked = read_topology_question(question, algo or _DEFAULTS[0], **given)
    choice = _with_step(asked, None, method)
    if algo is None and asked.strategy.collective == "all_reduce":
        for text in _DEFAULTS:
            other = Choice(choice.setup, choice.workload, parse_strategy(text))
            if not why_not(target, other):
                return other
    return choice


def _with_step(asked: Asked, step: StepQuestion | None, method: str | None) -> Choice:
    """The choice, with what a training step adds; StrategyError for a method that it has not."""
    choice = Choice(asked.setup, asked.workload, asked.strategy)
    methods = step.methods if step else (DDP,)
    if method is not None and method not in methods:
        words = f"the step has {', '.join(methods)}"
        raise StrategyError(f"--method {method}: {words}{did_you_mean(method, methods)}")
    if step is None:
        return choice
    method, sharding, job = method or methods[0], step.sharding, step.job
    choice = replace(choice, cycle=step.cycle, batch=job.batch, accumulate=job.accumulate)
    if method == DDP or sharding is None:
        return choice
    units = wrap(job.model, sharding.units)
    unit = max(each.elements for each in units)
    return replace(choice, method=method, shards=sharding, unit=unit)


def _fastest(target: str, scenario: Scenario, method: str | None, workers: int | None) -> Strategy:
    """The fastest strategy of a scenario that a target has a setting for; says so on stderr."""
    with Progress("simulated {} of {} strategies") as progress:
        ranking = rank(scenario, workers or os.cpu_count() or 1, progress)
    if ranking.untried:
        raise KeyboardInterrupt
    for row in ranking.candidates:
        for each in (row, *row.also):
            asked = ask(scenario, each.strategy)
            if not each.wrong and not why_not(target, _with_step(asked, scenario.step, method)):
                click.echo(f"{each.strategy.text}: the fastest for {scenario.name}", err=True)
                return each.strategy
    title = TARGETS[target].title
    raise InputError(f"{scenario.name}: {title} has no setting for any of its strategies")
