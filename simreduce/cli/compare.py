"""`simreduce compare A B`: which answers changed between two sweeps."""

from __future__ import annotations

import click

from simreduce.cli.group import command
from simreduce.cli.options import echo_json, report_options
from simreduce.cli.sweep_rows import read_sweep, where_option
from simreduce.cli.terminal import show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.report.compared import compared_document, compared_text
from simreduce.sweep.compare import compare as compare_sweeps


@command(
    examples="""
    simreduce sweep dgx1v --over size=1M,64M --over strategy=ring,nccl --db before.db
    simreduce sweep dgx1v --over size=1M,64M --over strategy=ring,nccl --db after.db
    simreduce compare before.db after.db
    """
)
@click.argument("a")
@click.argument("b")
@click.option(
    "--sweeps",
    default=None,
    metavar="I,J",
    help="Compare sweep I of A with sweep J of B; default: the last of each.",
)
@click.option(
    "--choose",
    default=None,
    metavar="KEY",
    help="Say where the fastest value of KEY changed; default: strategy, method or machine.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0.0),
    default=0.0,
    metavar="PART",
    help="Take times as equal that differ by no more than this part; default 0.",
)
@where_option
@report_options
def compare(
    a: str,
    b: str,
    sweeps: str | None,
    choose: str | None,
    tolerance: float,
    where: str | None,
    as_json: bool,
) -> int:
    """Compare two sweeps in the databases A and B, such as those of two versions or calibrations:
    which times changed and by how much, and which winners did. Cells are matched by the keys that
    vary. Exits with status 1 if an answer changed.
    """
    numbers = _numbers(sweeps)
    faults = Faults()
    found = [
        faults.attempt("", read_sweep, path, number, where)
        for path, number in zip((a, b), numbers, strict=True)
    ]
    if faults.problems or found[0] is None or found[1] is None:
        raise InputError(faults.problems)
    result = compare_sweeps(found[0], found[1], choose, tolerance)
    both = found[0][0], found[1][0]
    if as_json:
        echo_json(compared_document(result, both, (a, b)))
    else:
        show(compared_text(result, both, (a, b)))
    return int(bool(result.changed))


def _numbers(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise InputError(f"--sweeps {text}: two numbers with a comma between, such as 1,2")
    return int(parts[0]), int(parts[1])
