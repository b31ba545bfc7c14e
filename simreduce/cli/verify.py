"""`simreduce verify`."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import click

import simreduce
from simreduce import units
from simreduce.cli.options import (
    as_json,
    check_collective,
    check_used,
    echo_json,
    faithful_option,
    gather,
)
from simreduce.cli.progress import Progress
from simreduce.cli.strategies import algo_option, strategy_texts
from simreduce.errors import InputError
from simreduce.strategy import ALL, misplaced, parse_strategy
from simreduce.tune.prove import COUNTS, MOST_RANKS, RANKS, Proof, everything, prove, prove_all

_OF_ALGO = {"collective": "--collective", "root": "-r", "ngpus": "-g", "tasks": "--tasks"}
"""Options that say nothing of `--all`."""


@click.command()
@algo_option("Strategies to prove")
@click.option(
    "--all",
    "prove_everything",
    is_flag=True,
    help=f"Every algorithm, packer and mode on {RANKS[0]} to {RANKS[-1]} GPUs.",
)
@click.option(
    "--collective",
    default="all_reduce",
    metavar="NAME",
    help="What --algo does; default all_reduce.",
)
@click.option(
    "-r", "--root", type=int, default=0, help="Rank that broadcasts, or that a reduce ends on."
)
@click.option(
    "-g", "--ngpus", type=click.IntRange(1), default=8, show_default=True, help="GPUs in all."
)
@click.option(
    "--tasks", type=click.IntRange(1), default=1, show_default=True, help="Machines they are in."
)
@click.option(
    "--count",
    type=click.IntRange(0),
    multiple=True,
    help=f"Elements; default {', '.join(map(str, COUNTS))}.",
)
@click.option(
    "--workers", type=click.IntRange(1), help="Processes for --all; default: one per core."
)
@faithful_option
@as_json
def verify(
    algo: tuple[str, ...],
    prove_everything: bool,
    collective: str,
    root: int,
    ngpus: int,
    tasks: int,
    count: tuple[int, ...],
    workers: int | None,
    faithful: bool | None,
    as_json: bool,
) -> int:
    """Prove that plans sum right: every contribution once, at every place, nothing else.

    Exit status 1 if one does not, or if nothing of an algorithm could be proved as it takes none of
    what was asked. With --all, problems are printed as they are found; what is stopped (Ctrl-C,
    SIGTERM) tells what it has proved until then, with status 130.
    """
    if not algo and not prove_everything:
        raise click.UsageError("say what to prove: --algo STRATEGY, or --all")
    if workers and not prove_everything:
        raise click.UsageError("--workers: for --all only")
    context = click.get_current_context()
    given = [
        name
        for name in _OF_ALGO
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given and not algo:
        options = ", ".join(_OF_ALGO[name] for name in given)
        raise click.UsageError(
            f"{options}: for --algo only; --all proves everything on every number of GPUs"
        )
    faults: list[str] = []
    if ngpus > MOST_RANKS:
        faults.append(f"-g {ngpus}: {ngpus} GPUs are more than the {MOST_RANKS} that can be proven")
    if ngpus % tasks:
        faults.append(
            f"--tasks {tasks}: {units.counted(ngpus, 'GPU')} cannot be shared evenly by {units.counted(tasks, 'machine')}"
        )
    if not 0 <= root < ngpus:
        faults.append(f"-r {root}: the ranks are 0 to {ngpus - 1}")
    known, counts = gather(faults, check_collective, collective), count or COUNTS
    texts = strategy_texts(faults, algo, known) if known else []
    if ALL in texts:
        faults.append(f"--algo {ALL}: --all proves everything")
    faults += [f"--algo: {fault}" for fault in misplaced(text for text in texts if text != ALL)]
    gather(faults, check_used, collective, faithful, None)
    if faults:  # nothing can be proved, but the names can be read
        for text in [each for each in texts if each != ALL]:
            gather(faults, parse_strategy, text, collective)
        raise InputError(faults)
    named = [gather(faults, prove, text, ngpus, counts, tasks, faithful=bool(faithful), collective=collective, root=root)
             for text in texts]  # fmt: skip
    if faults:
        raise InputError(faults)
    proofs: list[Proof] = []
    whole = True
    if prove_everything:
        proofs, whole = _everything(
            counts, workers or os.cpu_count() or 1, (lambda _: None) if as_json else _print_problems
        )
    proofs += filter(None, named)
    if as_json:
        echo_json(_document(proofs) | ({"complete": whole} if prove_everything else {}))
    else:
        _print(proofs, [proof for proof in named if proof])
        if not whole:
            click.echo("stopped before all was proved")
    return 130 if not whole else int(bool(_problems(proofs) or _unproved(proofs)))


def _everything(
    counts: Sequence[int], workers: int, tell: Callable[[Proof], None]
) -> tuple[list[Proof], bool]:
    """The proofs that were made, and whether nobody stopped them; `tell` is given each as it comes."""
    cases = everything()
    proofs: dict[int, Proof] = {}
    try:
        with (
            Progress("proved {} of {} cases") as progress,
            contextlib.closing(prove_all(cases, counts, workers)) as coming,
        ):
            for place, proof in coming:
                proofs[place] = proof
                tell(proof)
                progress(len(proofs), len(cases))
    except KeyboardInterrupt:
        pass
    except BrokenProcessPool:
        click.echo(
            "simreduce: a process that proves was killed (out of memory?); try fewer --workers",
            err=True,
        )
    return [proofs[place] for place in sorted(proofs)], len(proofs) == len(cases)


def _problems(proofs: Iterable[Proof]) -> list[str]:
    return [f"{_title(p)} on {_where(p)}: {problem}" for p in proofs for problem in p.problems]


def _print_problems(proof: Proof) -> None:
    for problem in _problems([proof]):
        click.echo(f"WRONG {problem}")


def _title(proof: Proof) -> str:
    return (
        proof.strategy
        if proof.collective == "all_reduce"
        else f"{proof.collective} {proof.strategy}"
    )


def _where(proof: Proof) -> str:
    return units.counted(proof.ranks, "GPU") + (
        f" in {units.counted(proof.tasks, 'machine')}" if proof.tasks > 1 else ""
    )


def _by_title(proofs: Iterable[Proof]) -> list[tuple[str, list[Proof]]]:
    """The proofs of every strategy of every collective."""
    found: dict[str, list[Proof]] = {}
    for proof in proofs:
        found.setdefault(_title(proof), []).append(proof)
    return list(found.items())


def _unproved(proofs: Iterable[Proof]) -> dict[str, str]:
    """By title, why nothing of it could be proved."""
    return {
        title: mine[-1].refused[-1]
        for title, mine in _by_title(proofs)
        if not any(p.plans for p in mine)
    }


def _kinds(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """How often each reason was given, the most frequent first: one for all that differ by numbers
    only.
    """
    given = list(reasons)
    counts = Counter(re.sub(r"\d+", "#", reason) for reason in given)
    shown = {re.sub(r"\d+", "#", reason): reason for reason in reversed(given)}
    return [(shown[kind], times) for kind, times in counts.most_common()]


def _document(proofs: list[Proof]) -> dict[str, Any]:
    return {
        "command": "verify",
        "version": simreduce.__version__,
        "checked": sum(p.plans for p in proofs),
        "refused": [
            {
                "collective": p.collective,
                "strategy": p.strategy,
                "ranks": p.ranks,
                "tasks": p.tasks,
                "plans": p.plans,
                "refused": len(p.refused),
                "reason": p.refused[-1],
            }
            for p in proofs
            if p.refused
        ],
        "unproved": [
            {"strategy": title, "reason": reason} for title, reason in _unproved(proofs).items()
        ],
        "problems": _problems(proofs),
    }


def _print(proofs: list[Proof], untold: list[Proof]) -> None:
    """What came of all; the problems of `untold` only, as the others have been printed."""
    unproved = _unproved(proofs)
    for title, mine in _by_title(proofs):
        refused = sum(len(p.refused) for p in mine)
        if title in unproved:
            click.echo(f"{title}: nothing proved: {unproved[title]}")
        else:
            click.echo(
                f"{title}: {units.counted(sum(p.plans for p in mine), 'plan')}"
                + f", {refused} refused" * bool(refused)
            )
    for reason, times in _kinds(reason for p in proofs for reason in p.refused):
        click.echo(f"refused {times}: {reason}")
    for proof in untold:
        _print_problems(proof)
    refused, problems = sum(len(p.refused) for p in proofs), len(_problems(proofs))
    plans = units.counted(sum(p.plans for p in proofs), "plan")
    click.echo(f"{plans} checked, {refused} refused, {units.counted(problems, 'problem')}")
