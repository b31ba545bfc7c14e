"""`-b`, `-e`, `-i` and `-f`, as nccl-tests has them: the sizes of commands that sweep."""

from __future__ import annotations

from collections.abc import Callable

import click

from simreduce.cli.options import F, gather, read_size
from simreduce.errors import InputError
from simreduce.tune.bench import sizes


def sizes_options(smallest: str) -> Callable[[F], F]:
    """The four options; the sizes begin at `smallest` unless stated."""

    def added(command: F) -> F:
        for option in (
            click.option("-f", "--stepfactor", type=float, default=0.0, help="Factor between sizes, instead of a step."),
            click.option("-i", "--stepbytes", default="1M", metavar="SIZE", help="Step between sizes; default 1M."),
            click.option("-e", "--maxbytes", default=None, metavar="SIZE", help="Largest size; default: minbytes."),
            click.option("-b", "--minbytes", default=smallest, metavar="SIZE", help=f"Smallest size; default {smallest}."),
        ):  # fmt: skip
            command = option(command)
        return command

    return added


def read_sizes(minbytes: str, maxbytes: str | None, stepbytes: str, stepfactor: float) -> list[int]:
    """The sizes in bytes that the options mean; InputError with every fault."""
    problems: list[str] = []
    smallest = gather(problems, read_size, "-b", minbytes)
    largest = smallest if maxbytes is None else gather(problems, read_size, "-e", maxbytes)
    step = gather(problems, read_size, "-i", stepbytes)
    if smallest is None or largest is None or step is None:
        raise InputError(problems)
    return sizes(smallest, largest, step, stepfactor)
