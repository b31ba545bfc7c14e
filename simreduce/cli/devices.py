"""The options of `calibrate`, `validate` and `run --measure` that say on which real devices.

They stand apart from the code that runs devices, which `simreduce run --help` does not load.
"""

from __future__ import annotations

import click
from click.core import ParameterSource

from simreduce.cli.options import options

DEVICES = (
    "backend",
    "route",
    "hosts",
    "launch",
    "rate",
    "delay",
    "slow_port",
    "split",
    "pretend",
    "timeout",
)
"""The parameters of `device_options`."""

device_options = options(
    click.option(
        "--backend",
        default="inproc",
        metavar="NAME",
        help="Run on inproc, cluster, shaped or gpu; default inproc.",
    ),
    click.option(
        "--route",
        default="session",
        metavar="NAME",
        help="Execute through session or function; default session.",
    ),
    click.option(
        "--hosts",
        default=None,
        metavar="HOST:PORT,...",
        help="Let each process of a cluster listen here; default: all on this machine.",
    ),
    click.option(
        "--launch",
        default="",
        metavar="COMMAND",
        help="Start processes of a cluster with this before their command; {host}, {i}: worker i.",
    ),
    click.option(
        "--rate",
        default=None,
        metavar="RATE",
        help="Shape every port to this, each way, such as 200mbit.",
    ),
    click.option(
        "--delay",
        default=None,
        metavar="TIME",
        help="Delay what every shaped port sends, such as 5ms; default 0.",
    ),
    click.option(
        "--slow-port",
        multiple=True,
        metavar="PORT=RATE",
        help="Shape one port to a lower rate, such as 2=100mbit. Repeatable.",
    ),
    click.option(
        "--split",
        type=click.IntRange(1),
        default=1,
        help="Split each physical GPU into so many devices; default 1.",
    ),
    click.option("--pretend", is_flag=True, help="Take CPU devices for the GPUs of gpu."),
    click.option(
        "--timeout",
        type=float,
        default=120.0,
        help="Give up a request after so many seconds; default 120.",
    ),
)


def typed(name: str) -> bool:
    """Whether this parameter of the command that runs was typed."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def given(names: list[str]) -> list[str]:
    """Which of these parameters were typed, as options."""
    return [f"--{name.replace('_', '-')}" for name in names if typed(name)]


warmup_option = click.option(
    "-w",
    "--warmup_iters",
    "--warmup-iters",
    type=click.IntRange(0),
    default=2,
    help="Run this many steps before the first sample; default 2.",
)
