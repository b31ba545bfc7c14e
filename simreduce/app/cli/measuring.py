"""Options that say on which real devices plans are timed: of `calibrate`, `validate`, and of `run`
and `tune` with `--measure K`. The code that runs devices loads when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from simreduce.app.cli.options import refuse
from simreduce.app.cli.reply import Reply, options, output_paths, wants_json
from simreduce.app.cli.setups import Given
from simreduce.app.cli.terminal import show
from simreduce.files.formats import Faults

if TYPE_CHECKING:
    from simreduce.study.scenario import Scenario
    from simreduce.study.tune.rank import StrategyRanking

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
_DEVICES = (
    "backend", "route", "hosts", "launch", "rate", "delay", "slow_port", "split", "pretend",
    "timeout",
)  # fmt: skip
"""The parameters of those options."""
warmup_option = click.option(
    "-w",
    "--warmup_iters",
    "--warmup-iters",
    type=click.IntRange(0),
    default=2,
    help="Run this many steps before the first sample; default 2.",
)
measure_options = options(
    click.option(
        "--measure",
        type=click.IntRange(1),
        default=None,
        metavar="K",
        help="Then time the best K on real devices, which settles what is nearly equal.",
    ),
    click.option(
        "-n",
        "--iters",
        type=click.IntRange(1),
        default=None,
        help="With --measure: time so many steps of each; default: what some seconds have room "
        "for.",
    ),
    device_options,
)


@dataclass(frozen=True, slots=True)
class MeasurementRequest:
    """The measurement that `--measure` asks for. `module` measures on the `devices`."""

    module: ModuleType
    best: int
    devices: Any
    iters: int | None


def read_measurement(
    faults: Faults, question: Scenario | None, given: Given
) -> MeasurementRequest | None:
    """The measurement of `--measure` and the options of devices; None without `--measure`, where
    those options are faults.
    """
    if given["measure"] is None:
        refuse(faults, (*_DEVICES, "iters"), "only --measure needs devices")
        return None
    # Only now, as it knows TensorFlow's side of everything, which ranking does not need.
    real = import_module("simreduce_validate.remeasure")
    devices = faults.attempt("", real.read, question, **{name: given[name] for name in _DEVICES})
    disturbed = given["slow"] or given.get("fault") or given.get("jitter") not in (None, "0")
    why = "devices are as they are; leave out --jitter, --slow and --fault"
    faults.check(not disturbed, "--measure", why)
    return MeasurementRequest(real, given["measure"], devices, given["iters"])


def give_measured(
    reply: Reply,
    measurement: MeasurementRequest | None,
    ranking: Callable[[], StrategyRanking],
    *keys: str,
) -> int:
    """Give a reply with the measured times of the best of a ranking; `keys` are those that they add
    to the document, all of them unless given. The reply is printed even if measuring fails.
    """
    if measurement is None or not reply.complete:
        return reply.give()
    document: dict[str, Any] = {}
    if wants_json():
        document = {**reply.document(), **({} if keys else {"measured": None})}
    else:
        reply.give()
    try:
        of, real = ranking(), measurement.module
        found = real.remeasure(of, measurement.best, measurement.devices, measurement.iters)
        added = real.document(found)
        document |= {key: added[key] for key in keys or added}
        if not wants_json():
            show(real.table(found), *output_paths().values())
    finally:
        if wants_json():
            replace(reply, document=lambda: document).give()
    return int(reply.failed or any(row.faults for row in found.rows))
