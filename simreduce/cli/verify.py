"""`simreduce verify`."""

from __future__ import annotations

import click

import simreduce
from simreduce.cli.options import as_json, echo_json
from simreduce.tune.prove import COUNTS, RANKS, Proof, prove, prove_all


@click.command()
@click.option("--algo", multiple=True, metavar="STRATEGY", help="A strategy to prove; may be repeated.")
@click.option("--all", "everything", is_flag=True, help=f"Every algorithm on {RANKS[0]} to {RANKS[-1]} GPUs.")
@click.option(
    "-g", "--ngpus", type=click.IntRange(1), default=8, show_default=True, help="GPUs, on one machine."
)
@click.option(
    "--count", type=click.IntRange(0), multiple=True, help=f"Elements; default {', '.join(map(str, COUNTS))}."
)
@as_json
def verify(algo: tuple[str, ...], everything: bool, ngpus: int, count: tuple[int, ...], as_json: bool) -> int:
    """Prove that plans sum right: every contribution once, at every place, nothing else. Exit status 1 if not."""
    if not algo and not everything:
        raise click.UsageError("say what to prove: --algo STRATEGY, or --all")
    counts = count or COUNTS
    proofs = list(prove_all(counts)) if everything else []
    proofs += [prove(text, ngpus, counts) for text in algo]
    problems = [f"{p.strategy} on {p.ranks} GPUs: {problem}" for p in proofs for problem in p.problems]
    checked = sum(p.plans for p in proofs)
    if as_json:
        echo_json({
            "command": "verify",
            "version": simreduce.__version__,
            "checked": checked,
            "refused": [{"strategy": p.strategy, "ranks": p.ranks, "reason": p.refused} for p in proofs if p.refused],
            "problems": problems,
        })  # fmt: skip
    else:
        _print(proofs, problems, checked)
    return int(bool(problems))


def _print(proofs: list[Proof], problems: list[str], checked: int) -> None:
    for strategy in dict.fromkeys(p.strategy for p in proofs):
        mine = [p for p in proofs if p.strategy == strategy]
        done = sum(p.plans for p in mine)
        refused = [p for p in mine if p.refused]
        note = (
            f", refused on {', '.join(str(p.ranks) for p in refused)} GPUs ({refused[-1].refused})"
            if refused
            else ""
        )
        click.echo(f"{strategy}: {done} plans{note}")
    for problem in problems:
        click.echo(f"WRONG {problem}")
    click.echo(f"{checked} plans checked, {len(problems)} problems")
