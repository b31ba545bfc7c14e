"""`simreduce export TARGET SCENARIO|TOPOLOGY`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from simreduce import units
from simreduce.app.cli import command
from simreduce.app.cli.explain import (
    question_options,
    read_question_scenario,
    read_topology_question,
)
from simreduce.app.cli.reply import Progress, say
from simreduce.app.cli.setups import Given, read_meshes, reading
from simreduce.app.cli.terminal import show
from simreduce.computing import grouped
from simreduce.computing.workers import pass_on
from simreduce.errors import InputError, StrategyError, did_you_mean, escape
from simreduce.export import check_mesh_target, export as files_for, find_target, why_not
from simreduce.export.framework import Choice
from simreduce.export.frameworks import (
    FRAMEWORKS,
    LAUNCHERS,
    MESH_VERSIONS,
    VERSIONS,
    find_version,
)
from simreduce.files import write_folder
from simreduce.files.formats.syntax import Faults
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.report.drawing import to_svg
from simreduce.report.headings import ADVICE, sentence
from simreduce.report.ranking import files_text
from simreduce.study.ranking import ask, choice_of
from simreduce.study.scenario import Scenario, in_cycles, with_step
from simreduce.study.scenario_files import asks_for_meshes, is_scenario
from simreduce.study.tune.meshes import files_of_mesh, rank_meshes, why_no_files
from simreduce.study.tune.rank import rank
from simreduce.study.tune.search.search import files_of, why_nothing
from simreduce.study.tune.search.setting import Setting, least_fit
from simreduce.study.tune.search.targets import times_of
from simreduce.study.tune.search.tune import advice_of, tune
from simreduce.study.tune.steps import Pair, first_fit, rank_steps
from simreduce.topology import Folded
from simreduce.training import StepQuestion
from simreduce.training.sharded import DDP, SAME_METHODS
from simreduce.training.simulation import MemoryFit

_DEFAULTS = ("nccl", "nccl+ddp", "nccl+fusion", "ring", "collective", "hierarchical_copy")
"""Strategies for a topology, of which the first that the target has a setting for is taken."""

_VERSIONS = ", ".join(version for each in FRAMEWORKS.values() for version in each.versions)

_REASONS = 3
"""Why strategies have no setting, shown at most."""


def _check_folder(path: str) -> str:
    """The folder if it is there, or could be made; else InputError."""
    folder = Path(path)
    try:
        fine = folder.is_dir() or (not folder.exists() and folder.parent.is_dir())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    if not path or not fine:
        why = "is no folder" if path and folder.exists() else "is in no folder that is there"
        raise InputError(f"{path}: {why}")
    return path


def folder_option(name: str, about: str) -> Callable[[Any], Any]:
    """An option that names a folder to write to."""
    return click.option(
        name, default=None, callback=reading(_check_folder), metavar="DIR", help=about
    )


@command(
    examples="""
    simreduce export nccl dgx-a100 --algo nccl:ring+channels=8 -b 64M
    simreduce export pytorch dgx1v-resnet50
    """
)
@click.argument("target", metavar="TARGET")
@question_options("Export this strategy; default: what simreduce tune finds for TARGET.")
@folder_option("--out", "Write the files to this folder; default: print them.")
@click.option(
    "--method",
    default=None,
    metavar="NAME",
    help="Of a step with several methods, take this one; default: the first.",
)
@click.option(
    "--for",
    "version",
    default=None,
    metavar="PROGRAM=VERSION",
    help=f"Write the files for a version: {_VERSIONS}; default: the first of a program.",
)
def export(
    faults: Faults,
    target: str,
    question: str,
    out: str | None,
    method: str | None,
    version: str | None,
    algo: str | None,
    workers: int,
    **given: Any,
) -> None:
    """Print the settings of another system that give a strategy: environment, arguments, flags, a
    configuration or a program.

    TARGET is nccl, pytorch, horovod, deepspeed, jax, tensorflow, tf_cnn_benchmarks, vllm,
    tensorrt_llm, flashinfer, msccl or mscclpp; or openmpi, mpich, slurm, kubernetes or torchrun,
    which start ranks on the nodes in their order. SCENARIO|TOPOLOGY is what `simreduce run` or
    `simreduce bench` takes. Without --algo, it is what `simreduce tune SCENARIO --target TARGET`
    finds. Where SCENARIO names its strategies, and for vllm, tensorrt_llm, flashinfer, msccl and
    mscclpp, it is the fastest of them that TARGET has a setting for. Of a step on a mesh, TARGET is
    megatron, nemo, torchtitan or deepspeed. Files are for the newest version asked, unless --for
    names another.
    """
    method = SAME_METHODS.get(method or "", method)
    meshes = is_scenario(question) and asks_for_meshes(question)
    check = check_mesh_target if meshes else _check_target
    known = faults.attempt("", check, target)
    if known and version is not None:
        target = faults.attempt("", find_version, known, version) or known

    if meshes:
        files = _files_of_mesh(faults, known, target, question, given, workers)
    elif is_scenario(question):
        scenario, strategy = read_question_scenario(faults, question, algo, given)
        files = _files_of_scenario(target, scenario, strategy, method, workers)
    else:
        files = _files_on_topology(faults, target, question, algo, method, given, workers)
    if out is None:
        _print(files)
    else:
        show("\n".join(write_folder(out, files)))


def _check_target(name: str) -> str:
    """The name of what takes strategies or an order of nodes; StrategyError names the nearest."""
    return find_target(name).name


def _asked() -> str:
    """The lines of the help that name the programs that read files, by target."""
    asked = {name: "; ".join(each.asked) for name, each in FRAMEWORKS.items() if each.asked}
    width = max(map(len, asked))
    return "\n".join(f"{name:{width}}  {words}" for name, words in asked.items())


export.help = f"{inspect.cleandoc(export.help or '')}\n\nAsked what they read:\n\n\b\n{_asked()}"


def hand_over(out: str | None, files: Mapping[str, str]) -> str:
    """Lines with the places of files, which are written to a folder; without one, the files."""
    if out is None:
        return files_text(files)
    return "".join(f"{place}\n" for place in write_folder(out, files))


def _print(files: Mapping[str, str]) -> None:
    """One file as it is; several, each after a comment with its name. No pictures."""
    shown = {name: text for name, text in files.items() if not name.endswith(".svg")}
    for name, text in shown.items():
        if len(shown) > 1:
            click.echo(f"# {name}" if not name.endswith(".xml") else f"<!-- {name} -->")
        click.echo(escape(text, "\n\t"), nl=False)


def _files_on_topology(
    faults: Faults,
    target: str,
    question: str,
    algo: str | None,
    method: str | None,
    given: Given,
    workers: int,
) -> Mapping[str, str]:
    """The files of the choice that the options name for a topology; for NCCL without one, of what
    `tune` finds, as its own choice may be slower. InputError with all `faults`.
    """
    choice = _choice(faults, target, question, algo, method, given)
    own = algo is None and target == "nccl" and choice.strategy.collective == "all_reduce"
    if not own or isinstance(choice.setup.machine, Folded) or choice.setup.layout.n == 1:
        return _with_picture(target, choice)
    machine = choice.setup.machine
    scenario = Scenario(machine.name, machine.title, choice.setup, choice.workload, None)
    return _best_files(target, scenario, method, workers)


def _choice(
    faults: Faults,
    target: str,
    question: str,
    algo: str | None,
    method: str | None,
    given: Given,
) -> Choice:
    """The choice that the options name for a topology. InputError with all `faults`."""
    faults.attempt("", _method, None, method)
    asked = read_topology_question(faults, question, algo or _DEFAULTS[0], given)
    choice = choice_of(asked, None, DDP)
    if algo is None and asked.strategy.collective == "all_reduce":
        if fastest := _fastest_tried(target, choice):
            return fastest
        for text in _DEFAULTS:
            other = replace(choice, strategy=parse_strategy(text))
            if not why_not(target, other):
                return other
    _say_nominal(choice, [choice.strategy])
    return choice


def _fastest_tried(target: str, choice: Choice) -> Choice | None:
    """The fastest strategy of those that a target has tried and has a setting for; says so on
    stderr. None if there is none.
    """
    if not find_target(target).tried or not (took := times_of(target, choice)):
        return None
    best = min(took, key=took.__getitem__)
    words = ", ".join(f"{text} {units.format_duration(took[text])}" for text in took)
    say(f"{best}: the fastest that {FRAMEWORKS[target].title} has here ({words})")
    _say_nominal(choice, [parse_strategy(text) for text in took])
    return replace(choice, strategy=parse_strategy(best))


def _files_of(target: str, choice: Choice) -> Mapping[str, str]:
    """The files of a choice; says on stderr which of its times rest on no measurement."""
    files = _with_picture(target, choice)
    _say_nominal(choice, [choice.strategy])
    return files


def _with_picture(target: str, choice: Choice) -> Mapping[str, str]:
    """The files of a choice; of an order of nodes with its picture."""
    files = files_for(target, choice)
    if target not in LAUNCHERS:
        return files
    groups = grouped(zip(choice.groups, choice.hosts, strict=False))  # one node has no group
    switches = [groups[group] for group in sorted(groups)]
    return {**files, **draw_orders(choice.setup.machine.name, switches, {"order": choice.hosts})}


def draw_orders(
    title: str, switches: Sequence[Sequence[str]], orders: Mapping[str, Sequence[str]]
) -> Mapping[str, str]:
    """The file of a picture of orders of nodes, which share `switches`; none without switches."""
    from simreduce.report.pictures import RANKS_WORDS, ranks_picture  # noqa: PLC0415 - with networkx

    drawing = ranks_picture(switches, orders, title, RANKS_WORDS)
    return {"ranks.svg": to_svg(drawing)} if drawing else {}


def _say_nominal(choice: Choice, strategies: Sequence[Strategy]) -> None:
    setup = choice.setup
    calls = [call for each in strategies for call in setup.calls_of(each, choice.workload)]
    if said := setup.nominal((each.text for each in strategies), calls):
        say(said)


def _files_of_scenario(
    target: str, scenario: Scenario, strategy: Strategy | None, method: str | None, workers: int
) -> Mapping[str, str]:
    """The files of a strategy of a scenario, or of the best setting without one."""
    if target in LAUNCHERS:
        strategy = strategy or next(iter(scenario.strategies or ()), parse_strategy("nccl"))
        return _files_of(target, choice_of(ask(scenario, strategy), None))
    named = _method(scenario.step, method)
    given = strategy
    if strategy is None:
        if scenario.strategies is None:
            tried = tuple(map(parse_strategy, find_target(target).tried))
            scenario = replace(scenario, strategies=tried or None)
        if scenario.strategies is None and FRAMEWORKS[target].searched:
            return _best_files(target, scenario, method, workers)
        strategy, named = _fastest(target, scenario, method, workers)
    files = _files_of(target, choice_of(ask(scenario, strategy), scenario.step, named))
    if given:
        _check_fit(target, scenario, None, (named, strategy), given.text)
    return files


def _best_files(
    target: str, scenario: Scenario, method: str | None, workers: int
) -> Mapping[str, str]:
    """The files of what `simreduce tune` finds, of this method if one is named; says on stderr
    which setting that is, and what is advised if that is another.
    """
    with Progress("simulated or excluded {} of {} settings") as progress:
        found = tune(scenario, target, workers=workers, progress=progress)
    pass_on(found.stopped)
    advises = f"simreduce tune {scenario.name} --target {target} advises"
    if target in VERSIONS or scenario.name == scenario.setup.machine.name:
        advises = f"a search for {target} advises"
    words = f"what {advises}"
    if method not in (None, found.advised.setting.method):
        rows = tuple(row for row in found.rows if row.setting.method == method)
        if not rows:
            raise InputError(f"--method {method}: {FRAMEWORKS[target].title} has no setting for it")
        advice = sentence(ADVICE.write(advice_of(found), None), "a step")
        words = f"the fastest by --method {method}; {advises}: {advice}"
        found = replace(found, rows=rows, chosen=None)
    if why := why_nothing(found):
        raise InputError([f"{scenario.name}: {each}" for each in why])
    setting = found.advised.setting
    _check_fit(target, scenario, found.advised.fit, (setting.method, setting.parsed), method)
    say(f"{found.advised.setting.label}: {words}")
    if found.nominal:
        say(found.nominal)
    return files_of(found)


def _files_of_mesh(
    faults: Faults, known: str | None, target: str, question: str, given: Given, workers: int
) -> Mapping[str, str]:
    """The files of the fastest mesh that a `known` program can run, in the version of the target;
    says on stderr which that is.
    """
    scenario = read_meshes(faults, question, given, ("algo", "method", "minbytes"), known)
    scenario = replace(scenario, framework=target)
    with Progress("simulated or excluded {} of {} meshes", spares=True) as progress:
        ranking = rank_meshes(scenario, workers, progress.watch)
    pass_on(ranking.untried)
    if why := why_no_files(ranking):
        raise InputError(why)
    job, title = ranking.job, MESH_VERSIONS[target].title
    say(f"{job.text}: the fastest that {title} can run")
    return files_of_mesh(ranking)


def _check_fit(
    target: str,
    scenario: Scenario,
    fit: MemoryFit | None,
    pair: Pair,
    named: str | None,
) -> None:
    """Raises InputError for a step that needs more memory than a GPU has, with the nearest change
    that fits. What is `named` is written all the same, with a warning on stderr.

    Without the `fit` of a simulated step, the least that it needs counts.
    """
    step, setup, used = scenario.step, scenario.setup, pair[0]
    if step is None or step.mode:
        return
    others = [each for each in step.methods if each != used]
    least = {each: least_fit(step, setup, Setting("", method=each)) for each in (used, *others)}
    fits = {**least, used: fit or least[used]}
    if fits[used].fits is not False:
        return
    near = first_fit(with_step(scenario), pair, target)
    lines = [f"{each} {found.words}" for each, found in fits.items() if found.fits is False]
    none = f"nothing that {FRAMEWORKS[target].title} has a setting for fits, whatever the batch"
    lines.append(f"the nearest that fits: {near}" if near else none)
    if named is None:
        raise InputError([f"{scenario.name}: {line}" for line in lines])
    for line in lines:
        say(f"warning: {scenario.name}: {line}")


def _method(step: StepQuestion | None, method: str | None) -> str:
    """The method of a step that is meant; StrategyError for one that it has not."""
    if method is not None and step is None:
        raise StrategyError(f"--method {method}: only a scenario with a [step] has methods")
    methods = step.methods if step else (DDP,)
    if method is not None and method not in methods:
        words = f"the step has {', '.join(methods)}"
        raise StrategyError(f"--method {method}: {words}{did_you_mean(method, methods)}")
    return method or methods[0]


def _fastest(
    target: str, scenario: Scenario, method: str | None, workers: int
) -> tuple[Strategy, str]:
    """The strategy and the method that a scenario advises for a target; says so on stderr.

    For a target that has no advice, it is the fastest that it has a setting for. If a `method` is
    given, it is the fastest of that, and what is advised is said.
    """
    title, reasons, step = FRAMEWORKS[target].title, [], scenario.step
    named, methods = scenario.strategies, step.methods if step else (DDP,)
    if named:
        wanted = (method,) if method else methods
        refused = {each: _refusals(target, scenario, wanted, each) for each in named}
        reasons = [f"{each.text}: {why}" for each, whys in refused.items() for why in whys]
        able = any(not why for why in refused.values())
        named = tuple(s for s in named if able and not _refusals(target, scenario, methods, s))
    framework = target if FRAMEWORKS[target].trains else ""
    asked = replace(scenario, strategies=named, framework=framework)
    if step and framework:
        asked = replace(asked, step=in_cycles(step, framework))
    found = _recommend(target, asked, methods, method, workers)
    if found is None:
        fault = f"{scenario.name}: {title} has no setting for any of its strategies"
        raise InputError([fault, *reasons[:_REASONS]])
    strategy, used, fit, advice = found
    _check_fit(target, scenario, fit, (used, strategy), method)
    words = strategy.text if len(methods) == 1 else f"{used}, {strategy.text}"
    what = f"advised for {title} by {scenario.name}"
    if advice:
        what = f"the fastest by --method {used}; {scenario.name} advises for {title}: {advice}"
    say(f"{words}: {what}")
    return strategy, used


def _refusals(
    target: str, scenario: Scenario, methods: Sequence[str], strategy: Strategy
) -> tuple[str, ...]:
    """Why a target has no setting for a strategy of a scenario, by any of these methods."""
    found: tuple[str, ...] = ()
    for method in methods:
        try:
            why = why_not(target, choice_of(ask(scenario, strategy), scenario.step, method))
        except StrategyError as error:
            why = error.problems
        if not why:
            return ()
        found = found or why
    return found


def _recommend(
    target: str, scenario: Scenario, methods: Sequence[str], method: str | None, workers: int
) -> tuple[Strategy, str, MemoryFit | None, str] | None:
    """The strategy of a scenario to export, its method and its memory, by the advice for its
    framework.

    If it names none, the fastest that the target has a setting for; with a `method`, the fastest of
    that, and in words what is advised if that is another. One that is alone is not simulated.
    """
    strategies, step = scenario.strategies, scenario.step
    if strategies is not None and len(strategies) * len(methods) < 2:
        return (strategies[0], methods[0], None, "") if strategies else None
    fits: dict[str, MemoryFit | None] = {}
    with Progress("simulated {} of {} strategies") as progress:
        if step is None or step.mode:
            ranking = rank(scenario, workers, progress.watch, with_today=False)
            pass_on(ranking.untried)
            advice = ranking.advice
            names = [row.strategy.text for row in ranking.candidates if not row.wrong]
        else:
            steps = rank_steps(with_step(scenario), workers, progress.watch, with_today=False)
            pass_on(steps.untried)
            advice = steps.advice
            fits = {name: row.fit for row in steps.candidates for name in row.names}
            names = [name for row in steps.candidates if not row.wrong for name in row.names]
    ours = [each for each in advice if each.framework] if scenario.framework else []
    advised = [each.option.name for each in ours]
    for name in [*advised, *names] if method or not ours else advised:
        used, _, text = name.rpartition(", ")
        used, strategy = used or methods[0], parse_strategy(text)
        if method in (None, used) and not _refusals(target, scenario, (used,), strategy):
            other = [ADVICE.write(each, None) for each in ours if each.option.name != name]
            return strategy, used, fits.get(name), sentence(other[0], "a step") if other else ""
    return None
