"""The options that say on which real devices: of `calibrate`, `validate` and `run --measure`.

They stand here, without what they ask for: `simreduce run --help` need not know how devices are
run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import click
from click.core import ParameterSource

F = TypeVar("F", bound=Callable[..., Any])


def device_options(command: F) -> F:
    """Which devices: `--backend` and what each of them needs to know."""
    options = (
        click.option("--backend", default="inproc", metavar="NAME", help="inproc, cluster, shaped or gpu; default inproc."),
        click.option("--route", default="session", metavar="NAME", help="session or function; default session."),
        click.option("--hosts", default=None, metavar="HOST:PORT,...", help="Of a cluster: where each process listens."),
        click.option("--launch", default="", metavar="COMMAND", help="Of a cluster: starts what follows it on {host}, for worker {i}."),
        click.option("--rate", default=None, metavar="RATE", help="Of shaped: of every port, each way, such as 200mbit."),
        click.option("--delay", default=None, metavar="TIME", help="Of shaped: one way, such as 5ms; default 0."),
        click.option("--slow-port", multiple=True, metavar="PORT=RATE", help="Of shaped: one slower port, such as 2=100mbit; may be repeated."),
        click.option("--split", type=click.IntRange(1), default=1, help="Of gpu: parts of each physical GPU."),
        click.option("--pretend", is_flag=True, help="Of gpu: take CPU devices for the GPUs."),
        click.option("--timeout", type=float, default=120.0, help="Seconds for one request; default 120."),
    )  # fmt: skip
    return reduce(lambda f, option: option(f), reversed(options), command)


def typed(name: str) -> bool:
    """Whether this parameter of the command that runs was typed."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def given(names: list[str]) -> list[str]:
    """Which of these parameters were typed, as options."""
    return [f"--{name.replace('_', '-')}" for name in names if typed(name)]
