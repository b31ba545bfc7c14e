"""`-b`, `-e`, `-i` and `-f`, as nccl-tests has them: the sizes of commands that sweep."""

from __future__ import annotations

from collections.abc import Callable

import click

from simreduce import units
from simreduce.cli.options import F, options
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.tune.sizes import sizes

STEP = "1M"
MANY = 100
"""Sizes that nobody means who gives a factor of 1."""


def sizes_options(smallest: str) -> Callable[[F], F]:
    """The four options; the sizes begin at `smallest` unless stated."""
    return options(
        _size("-b", "--minbytes", smallest, f"Begin with this size; default {smallest}."),
        _size("-e", "--maxbytes", None, "End with this size; default: minbytes."),
        _size("-i", "--stepbytes", STEP, f"Add this from size to size; default {STEP}."),
        click.option(
            "-f",
            "--stepfactor",
            type=float,
            default=None,
            help="Multiply by this from size to size instead of adding; 1 adds.",
        ),
    )


def _size(letter: str, name: str, default: str | None, about: str) -> Callable[[F], F]:
    return click.option(letter, name, default=default, metavar="SIZE", help=about)


def read_sizes(
    minbytes: str | None, maxbytes: str | None, stepbytes: str | None, stepfactor: float | None
) -> list[int]:
    """The sizes in bytes that the options mean; InputError with every fault. A factor of 1 adds
    the step, as nccl-tests does; stderr says so of many sizes.
    """
    faults = Faults()
    smallest = faults.attempt("-b", units.cli_size, "32M" if minbytes is None else minbytes)
    largest = smallest if maxbytes is None else faults.attempt("-e", units.cli_size, maxbytes)
    step = faults.attempt("-i", units.cli_size, STEP if stepbytes is None else stepbytes)
    if stepfactor == 0:
        faults.add("-f 0", "the factor must be above 1 (or give -i, a step)")
    if faults.problems or smallest is None or largest is None or step is None:
        raise InputError(faults.problems)
    found = sizes(smallest, largest, step, stepfactor or 0.0)
    if stepfactor == 1 and len(found) >= MANY:
        added = f"-f 1 adds {units.exact_size(step)} (-i) from size to size"
        click.echo(f"simreduce: {added}: {len(found):,} sizes", err=True)
    return found
