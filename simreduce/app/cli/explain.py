"""`simreduce explain`, `trace` and `verify`: plans, looked at closely; `schema`.

`explain` and `trace SCENARIO|TOPOLOGY` take a plan of a scenario, or one that is named as `bench`
names it. `verify` proves strategies, and algorithms of MSCCL in files. `schema` prints JSON Schemas
of documents and files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import click

from simreduce import units
from simreduce.app.cli import command, completes, question_argument, strategies
from simreduce.app.cli.reply import (
    Decorator,
    Progress,
    Reply,
    options,
    output_option,
    output_path,
    report_options,
    say,
    show_until_stopped,
    wants_json,
    write_output,
)
from simreduce.app.cli.setups import (
    Given,
    algo_option,
    check_collective,
    check_root,
    check_used,
    collective_option,
    collective_options,
    faithful_option,
    job_options,
    read_collective,
    read_scenario,
    read_strategy,
    refuse,
    root_option,
    setup_options,
    strategy_texts,
    workers_option,
)
from simreduce.app.cli.terminal import show
from simreduce.computing import group_by
from simreduce.computing.workers import pass_on
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files import STDOUT, read_text
from simreduce.files.formats.syntax import Faults
from simreduce.plan import Plan
from simreduce.planners.msccl import MscclAlgorithm, read_algorithm
from simreduce.planners.msccl.interpreter import problems_of
from simreduce.planners.strategy import ALL, Strategy, misplaced, parse_strategy
from simreduce.report.explain import EXPLAIN, Explained, explanation_text
from simreduce.report.ranking import FILES, VERIFY, list_problems, list_unproved, title_of
from simreduce.report.trace import recording_text
from simreduce.study.ranking import Question, ask
from simreduce.study.scenario import Scenario
from simreduce.study.scenario_files import is_scenario, shipped as scenarios
from simreduce.study.tune.prove import (
    COUNTS,
    MOST_RANKS,
    RANKS,
    Proof,
    ProofCase,
    everything,
    prove_all,
)
from simreduce.study.tune.rank import rank
from simreduce.study.tune.sizes import parts_of, tensor
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
    asked, plan = read_question(faults, question, **given)
    with Progress("simulating the plan"):
        recording = asked.setup.record(plan)
    with Progress("simulated {} of {} changes") as progress:
        found = savings(recording, asked.setup, progress.watch)
    complete, title = progress.complete, asked.setup.calibration.title
    moved = asked.setup.find_moved(plan, recording.result.seconds)
    limit = few_rings(asked) if complete else None
    explained = Explained(recording, found, asked.about, complete, moved, limit)
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
    asked, plan = read_question(faults, question, **given)
    output, topology = output_path("output") or _TRACE, asked.setup.topology
    with Progress("simulating the plan"):
        recording = asked.setup.record(plan)
    with Progress("writing the timeline"):
        write_output(output, recording_text(recording, topology, asked.about))
    if output != STDOUT:
        took = units.format_duration(recording.result.seconds)
        strategy, calibration = asked.strategy.text, asked.setup.calibration.name
        where = f"{strategy} on {topology.name}, calibration {calibration}"
        show(f"{output}: {where}, {took}; open it in ui.perfetto.dev")


def read_question(
    faults: Faults, text: str, *, algo: str | None, workers: int, **given: Any
) -> tuple[Question, Plan]:
    """The question that the options name, and its plan. InputError lists the faults of all of
    them.
    """
    if is_scenario(text):
        scenario, strategy = read_question_scenario(faults, text, algo, given)
        asked = ask(scenario, strategy or _recommend(scenario, workers))
    else:
        asked = read_topology_question(faults, text, "ring" if algo is None else algo, given)
    return asked, asked.compile_all()


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
    workload = tensor(found.nbytes[0], found.dtype, parts_of(found.name, found.setup.layout.n))
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
    say(f"{best.strategy.text}: recommended for {scenario.name}")
    return parse_strategy(best.strategy.text)


_ONLY_ALGO = ("algo", "collective", "root", "ngpus", "tasks")
_OPTIONS = (*_ONLY_ALGO, "prove_everything", "count", "workers", "faithful")


@command(
    examples="""
    simreduce verify --algo ring,nccl:tree -g 8 --tasks 2
    """
)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@algo_option("Prove these.")
@click.option(
    "--all",
    "prove_everything",
    is_flag=True,
    help=f"Prove every algorithm, packer and mode on {RANKS[0]} to {RANKS[-1]} GPUs.",
)
@collective_option
@root_option
@click.option(
    "-g",
    "--ngpus",
    type=click.IntRange(1),
    default=None,
    help="Take so many GPUs in all; default 8.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1),
    default=None,
    help="Divide the GPUs among so many machines; default 1.",
)
@click.option(
    "--count",
    type=click.IntRange(0),
    multiple=True,
    help=f"Reduce so many elements; default {', '.join(map(str, COUNTS))}. Repeatable.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Use so many processes for --all; default: one per core.",
)
@faithful_option
@report_options
def verify(
    faults: Faults,
    files: tuple[str, ...],
    algo: tuple[str, ...],
    prove_everything: bool,
    count: tuple[int, ...],
    workers: int | None,
    faithful: bool | None,
    **given: Any,
) -> Reply:
    """Prove that plans sum right: every contribution once, at every place, nothing else.

    FILE is an algorithm of MSCCL, such as `simreduce export msccl` writes: its XML is run step by
    step, and must leave the right sums, without races or deadlock.

    Exit status 1 if one does not, or if nothing of an algorithm could be proved because it takes
    none of the cases. With --all, problems are printed as they are found. On Ctrl-C or SIGTERM,
    prints the proofs so far and exits with status 130.
    """
    if files:
        refuse(faults, _OPTIONS, "files are proved by themselves; leave it out")
        return _verify_files(faults, files)
    counts, whole = count or COUNTS, True
    if prove_everything:
        refuse(faults, _ONLY_ALGO, "--all proves everything on every number of GPUs; leave it out")
        faults.raise_any()
        proofs, whole = _everything(counts, workers or os.cpu_count() or 1)
    else:
        refuse(faults, ["workers"], "for --all only")
        faults.check(algo, "", "say what to prove: --algo STRATEGY, --all, or a file of MSCCL")
        proofs = _select(faults, algo, counts, faithful=faithful, **given)
    stopped = [] if whole else ["stopped before all was proved"]
    complete = {"complete": whole} if prove_everything else {}
    return Reply(
        lambda: [*_lines(proofs, [] if prove_everything else proofs), *stopped],
        lambda: VERIFY.write(proofs) | complete,
        failed=bool(list_problems(proofs) or list_unproved(proofs)),
        complete=whole,
    )


def _select(
    faults: Faults,
    algo: tuple[str, ...],
    counts: Sequence[int],
    *,
    faithful: bool | None,
    collective: str | None,
    root: int | None,
    ngpus: int | None,
    tasks: int | None,
) -> list[Proof]:
    """Prove the strategies of `--algo`."""
    name, ranks, machines = collective or "all_reduce", ngpus or 8, tasks or 1
    words = f"{ranks} GPUs are more than the {MOST_RANKS} that can be proven"
    faults.check(ranks <= MOST_RANKS, f"-g {ranks}", words)
    shares = f"cannot be shared evenly by {units.plural(machines, 'machine')}"
    words = f"{units.plural(ranks, 'GPU')} {shares}"
    faults.check(ranks % machines == 0, f"--tasks {machines}", words)
    known = faults.attempt("--collective", check_collective, name)
    if known:
        check_root(faults, root, name, ranks)
    texts = strategy_texts(faults, algo, known) if known else []
    faults.check(ALL not in texts, f"--algo {ALL}", "--all proves everything")
    texts = [text for text in texts if text != ALL]
    faults.add("--algo", *misplaced(texts))
    check_used(faults, name, faithful, None)
    if faults.problems:  # nothing can be proved, but the names can be read
        for text in texts:
            faults.attempt("", parse_strategy, text, name)
    else:
        cases = [
            ProofCase(text, ranks, machines, name, root or 0, faithful=bool(faithful))
            for text in texts
        ]
        proofs = [faults.attempt("", case.prove, counts) for case in cases]
    faults.raise_any()
    return [proof for proof in proofs if proof]


def _everything(counts: Sequence[int], workers: int) -> tuple[list[Proof], bool]:
    """The proofs, and whether these are all; says what is wrong as it is found."""
    cases = everything()

    def coming() -> Iterator[tuple[int, Proof]]:
        for place, proof in prove_all(cases, counts, workers):
            yield place, proof
            for problem in () if wants_json() else list_problems([proof]):
                show(f"WRONG {problem}")

    found, whole = show_until_stopped(
        coming(), len(cases), "proved {} of {} cases", enough=lambda _: True
    )
    return [proof for _, proof in sorted(found, key=itemgetter(0))], whole


def _lines(proofs: list[Proof], unprinted: list[Proof]) -> list[str]:
    """A line for each strategy, and the problems of those that are `unprinted`."""
    unproved, lines = list_unproved(proofs), []
    for title, mine in group_by(proofs, title_of).items():
        refused = sum(len(p.refused) for p in mine)
        plans = units.plural(sum(p.plans for p in mine), "plan")
        found = f"nothing proved: {unproved[title]}" if title in unproved else ""
        lines.append(f"{title}: {found or plans + f', {refused} refused' * bool(refused)}")
    # One for all that differ by numbers only, the most frequent first.
    reasons = (reason for proof in proofs for reason in proof.refused)
    kinds = group_by(reasons, lambda reason: re.sub(r"\d+", "#", reason)).values()
    lines += [
        *(f"refused {len(k)}: {k[0]}" for k in sorted(kinds, key=len, reverse=True)),
        *(f"WRONG {problem}" for problem in list_problems(unprinted)),
    ]
    refused, problems = sum(len(p.refused) for p in proofs), len(list_problems(proofs))
    plans = units.plural(sum(p.plans for p in proofs), "plan")
    return [
        *lines, f"{plans} checked, {refused} refused, {units.plural(problems, 'problem')}"
    ]  # fmt: skip


def _verify_files(faults: Faults, files: Sequence[str]) -> Reply:
    """Prove the algorithms in files of MSCCL."""
    texts = [(file, faults.attempt("", read_text, Path(file), InputError)) for file in files]
    read = [(file, text and faults.attempt("", read_algorithm, text, file)) for file, text in texts]
    faults.raise_any()
    found = [(file, made, problems_of(made)) for file, made in read if made]
    return Reply(
        lambda: [line for each in found for line in _file_lines(*each)],
        lambda: FILES.write(found),
        failed=any(problems for _, _, problems in found),
    )


def _file_lines(file: str, made: MscclAlgorithm, problems: Sequence[str]) -> list[str]:
    parts = (
        units.plural(len(made.gpus), "GPU"),
        units.plural(made.chunks, "chunk"),
        units.plural(made.channels, "channel"),
        units.plural(made.steps, "step"),
    )
    proved = f"{file}: {made.collective} of {', '.join(parts)}: proved"
    return [f"WRONG {file}: {problem}" for problem in problems] or [proved]


def _schemas() -> dict[str, Any]:
    """Every schema by its name."""
    from simreduce.report.schemas import schemas  # noqa: PLC0415 - it loads every report

    return schemas()


@command(
    examples="""
    simreduce schema
    simreduce schema run
    simreduce schema scenario.toml
    """
)
@click.argument("name", required=False, shell_complete=completes(_schemas))
def schema(name: str | None) -> None:
    """Print the JSON Schema (draft 2020-12) NAME: every key with its type, its unit and what it
    means. Without NAME, list all.

    A document of --json names its schema: run/1 is the first version of run. Names in .toml are
    those of files that simreduce reads.
    """
    from simreduce.report.schemas import schema_text  # noqa: PLC0415 - as above

    known = _schemas()
    if name is None:
        width = max(map(len, known))
        first = {each: found["description"].partition(". ")[0] for each, found in known.items()}
        show("\n".join(f"{each:{width}}  {text.removesuffix('.')}" for each, text in first.items()))
        return
    stem = name.partition("/")[0]
    if stem not in known:
        near = did_you_mean(stem, known) or "; simreduce schema lists all"
        raise InputError(f"unknown schema {quote(name)}{near}")
    click.echo(schema_text(known[stem]), nl=False)
