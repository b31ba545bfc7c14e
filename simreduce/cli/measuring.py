"""`--measure K` of commands that rank: the best K on real devices."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from simreduce.cli.devices import DEVICES, device_options, given as typed_of
from simreduce.cli.options import options
from simreduce.formats import Faults

if TYPE_CHECKING:
    from simreduce.scenario import Scenario

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


def read_devices(
    faults: Faults, question: Scenario | None, measure: int | None, given: dict[str, Any]
) -> tuple[ModuleType | None, Any]:
    """The module that measures and the devices that `given` asks for, from which their options are
    taken; None without `--measure`, where those options are faults.
    """
    chosen = {name: given.pop(name) for name in DEVICES}
    if measure is None:
        for option in typed_of([*chosen, "iters"]):
            faults.add(option, "only --measure needs devices")
        return None, None
    # Only now, as it knows TensorFlow's side of everything, which ranking does not need.
    real = import_module("simreduce_validate.remeasure")
    devices = faults.attempt("", real.read, question, **chosen)
    if is_disturbed(given):
        why = "devices are as they are; leave out --jitter, --slow and --fault"
        faults.add("--measure", why)
    return real, devices


def is_disturbed(given: Mapping[str, Any]) -> bool:
    """Whether something is to go wrong in the simulation."""
    return bool(given["slow"] or given.get("fault") or given.get("jitter") not in (None, "0"))
