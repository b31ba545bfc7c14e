"""`simreduce verify`: proofs of strategies, and of algorithms of MSCCL in files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import click

from simreduce import units
from simreduce.app.cli.group import command
from simreduce.app.cli.options import algo_option, refuse, strategy_texts
from simreduce.app.cli.reply import (
    Reply,
    report_options,
    show_until_stopped,
    wants_json,
)
from simreduce.app.cli.setups import (
    check_collective,
    check_root,
    check_used,
    collective_option,
    faithful_option,
    root_option,
)
from simreduce.app.cli.terminal import show
from simreduce.errors import InputError
from simreduce.files.formats import Faults
from simreduce.files.textfiles import read_text
from simreduce.planners.msccl import MscclAlgorithm, problems_of, read_algorithm
from simreduce.planners.strategy import ALL, misplaced, parse_strategy
from simreduce.report.verified import FILES, VERIFY, by_title, list_problems, list_unproved
from simreduce.study.tune.prove import (
    COUNTS,
    MOST_RANKS,
    RANKS,
    Proof,
    ProofCase,
    everything,
    prove_all,
)

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
    for fault in misplaced(texts):
        faults.add("--algo", fault)
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
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415 - takes time

    cases = everything()

    def coming() -> Iterator[tuple[int, Proof]]:
        try:
            for place, proof in prove_all(cases, counts, workers):
                yield place, proof
                for problem in () if wants_json() else list_problems([proof]):
                    show(f"WRONG {problem}")
        except BrokenProcessPool:
            click.echo(
                "simreduce: a process that proves was killed (out of memory?); try fewer --workers",
                err=True,
            )

    found, whole = show_until_stopped(
        coming(), len(cases), "proved {} of {} cases", enough=lambda _: True
    )
    return [proof for _, proof in sorted(found, key=itemgetter(0))], whole


def _kinds(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """How often each reason was given, the most frequent first: one for all that differ by numbers
    only.
    """
    given = list(reasons)
    counts = Counter(re.sub(r"\d+", "#", reason) for reason in given)
    shown = {re.sub(r"\d+", "#", reason): reason for reason in reversed(given)}
    return [(shown[kind], times) for kind, times in counts.most_common()]


def _lines(proofs: list[Proof], unprinted: list[Proof]) -> list[str]:
    """A line for each strategy, and the problems of those that are `unprinted`."""
    unproved, lines = list_unproved(proofs), []
    for title, mine in by_title(proofs):
        refused = sum(len(p.refused) for p in mine)
        plans = units.plural(sum(p.plans for p in mine), "plan")
        found = f"nothing proved: {unproved[title]}" if title in unproved else ""
        lines.append(f"{title}: {found or plans + f', {refused} refused' * bool(refused)}")
    kinds = _kinds(reason for p in proofs for reason in p.refused)
    lines += [f"refused {times}: {reason}" for reason, times in kinds]
    lines += [f"WRONG {problem}" for problem in list_problems(unprinted)]
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
