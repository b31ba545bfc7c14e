"""`simreduce verify`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

import simreduce
from simreduce.cli.options import as_json, check_collective, echo_json, faithful_option, gather
from simreduce.errors import InputError
from simreduce.tune.prove import COUNTS, MOST_RANKS, RANKS, Proof, prove, prove_all


@click.command()
@click.option("--algo", multiple=True, metavar="STRATEGY", help="A strategy to prove; may be repeated.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help=f"Every algorithm, packer and mode on {RANKS[0]} to {RANKS[-1]} GPUs.",
)
@click.option(
    "--collective", default="all_reduce", metavar="NAME", help="What --algo does; default all_reduce."
)
@click.option("-r", "--root", type=int, default=0, help="Rank that broadcasts, or that a reduce ends on.")
@click.option("-g", "--ngpus", type=click.IntRange(1), default=8, show_default=True, help="GPUs in all.")
@click.option("--tasks", type=click.IntRange(1), default=1, show_default=True, help="Machines they are in.")
@click.option(
    "--count", type=click.IntRange(0), multiple=True, help=f"Elements; default {', '.join(map(str, COUNTS))}."
)
@faithful_option
@as_json
def verify(
    algo: tuple[str, ...],
    everything: bool,
    collective: str,
    root: int,
    ngpus: int,
    tasks: int,
    count: tuple[int, ...],
    faithful: bool | None,
    as_json: bool,
) -> int:
    """Prove that plans sum right: every contribution once, at every place, nothing else. Exit status 1 if not."""
    if not algo and not everything:
        raise click.UsageError("say what to prove: --algo STRATEGY, or --all")
    faults: list[str] = []
    if ngpus > MOST_RANKS:
        faults.append(f"-g {ngpus}: {ngpus} GPUs are more than the {MOST_RANKS} that can be proven")
    if ngpus % tasks:
        faults.append(f"--tasks {tasks}: {ngpus} GPUs cannot be shared evenly by {tasks} machines")
    if not 0 <= root < ngpus:
        faults.append(f"-r {root}: the ranks are 0 to {ngpus - 1}")
    gather(faults, check_collective, collective)
    if faults:
        raise InputError(faults)
    counts = count or COUNTS
    proofs = list(_told(prove_all(counts))) if everything else []
    proofs += [prove(text, ngpus, counts, tasks, faithful=bool(faithful), collective=collective, root=root)
               for text in algo]  # fmt: skip
    problems = [f"{_title(p)} on {_where(p)}: {problem}" for p in proofs for problem in p.problems]
    checked = sum(p.plans for p in proofs)
    if as_json:
        echo_json({
            "command": "verify",
            "version": simreduce.__version__,
            "checked": checked,
            "refused": [{"collective": p.collective, "strategy": p.strategy, "ranks": p.ranks, "tasks": p.tasks, "plans": p.plans, "reason": p.refused}
                        for p in proofs if p.refused],
            "problems": problems,
        })  # fmt: skip
    else:
        _print(proofs, problems, checked)
    return int(bool(problems))


def _told(proofs: Iterator[Proof]) -> Iterator[Proof]:
    """The same, with what is being proven on a terminal's stderr."""
    shown = sys.stderr.isatty()
    for proof in proofs:
        if shown:
            click.echo(f"\r\033[Kproving {_title(proof)}", nl=False, err=True)
        yield proof
    if shown:
        click.echo("\r\033[K", nl=False, err=True)


def _title(proof: Proof) -> str:
    return proof.strategy if proof.collective == "all_reduce" else f"{proof.collective} {proof.strategy}"


def _where(proof: Proof) -> str:
    return f"{proof.ranks} GPUs" + (f" in {proof.tasks} machines" if proof.tasks > 1 else "")


def _print(proofs: list[Proof], problems: list[str], checked: int) -> None:
    for title in dict.fromkeys(_title(p) for p in proofs):
        mine = [p for p in proofs if _title(p) == title]
        line = f"{title}: {sum(p.plans for p in mine)} plans"
        refused = [p for p in mine if not p.plans]
        if refused:
            where = [f"{p.ranks} in {p.tasks}" if p.tasks > 1 else str(p.ranks) for p in refused]
            line += f"; takes none on {', '.join(where)} GPUs ({refused[-1].refused})"
        click.echo(line)
    for problem in problems:
        click.echo(f"WRONG {problem}")
    click.echo(f"{checked} plans checked, {len(problems)} problems")
