"""Options and outputs that several commands share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, ParamSpec, TypeVar

import click

from simreduce import units
from simreduce.algorithms import NAMES
from simreduce.algorithms.families import IN_RANK_ORDER
from simreduce.engine import Disturbance, Fault
from simreduce.engine.disturbance import SLOWEST
from simreduce.errors import InputError, did_you_mean
from simreduce.layouts import Layout
from simreduce.outputs import STDOUT, check_place, write_file
from simreduce.topology import Topology

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")

MOST_SHARE = 1_000_000
"""Percent of its bandwidth that a link may be given: what is beyond is a slip."""

as_json = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout instead of the table."
)


def runtime_option(default: str | None) -> Callable[[F], F]:
    """`--runtime`."""
    return click.option("--runtime", default=default, metavar="NAME", help="tensorflow or ideal.")


def calibration_option(default: str | None) -> Callable[[F], F]:
    """`--calibration`."""
    return click.option(
        "--calibration",
        default=default,
        metavar="NAME|FILE",
        help="Constants to use; nominal: none.",
    )


faithful_option = click.option(
    "--faithful",
    is_flag=True,
    default=None,
    help="Upstream's quirks instead of what a user intends.",
)
gpu_indices_option = click.option(
    "--gpu-indices",
    "--gpu_indices",
    default=None,
    metavar="I,J,...",
    help="Order of GPUs in the rings of xring, ring and collective, per machine.",
)


def disturbance_options(command: F) -> F:
    """What goes wrong on the machine: `--jitter`, `--seed`, `--slow`, `--fault`."""
    options = (
        click.option("--jitter", default="0", metavar="PART", help="Scatter every latency and what ops cost whatever their size; 0.1: +-10%."),
        click.option("--seed", type=int, default=0, help="Of the jitter; default 0."),
        click.option("--slow", multiple=True, metavar="DEVICE=FACTOR", help="So many times as slow, its links too; may be repeated."),
        click.option("--fault", multiple=True, metavar="LINK@TIME=BANDWIDTH", help="A link, node or link class carries that from then on: 0, 5GB/s or 50%; may be repeated; =100% mends."),
    )  # fmt: skip
    return reduce(lambda f, option: option(f), reversed(options), command)


def read_disturbance(
    jitter: str,
    seed: int,
    slow: Sequence[str],
    fault: Sequence[str],
    topology: Topology | None = None,
) -> Disturbance:
    """What `disturbance_options` have read. InputError tells all that is wrong, with it what
    `topology` lacks.
    """
    problems: list[str] = []
    slower = dict(pair for text in slow if (pair := gather(problems, _slow, text)))
    faults = tuple(found for text in fault if (found := gather(problems, _fault, text)))
    part = _number(jitter)
    if part is None or not 0.0 <= part <= 1.0:
        problems.append(f"--jitter {jitter}: needs a part between 0 and 1")
        part = 0.0
    disturbance = Disturbance(slower, part, seed, faults)
    if topology is not None:
        gather(problems, disturbance.check, topology)
    if problems:
        raise InputError(problems)
    return disturbance


def _slow(text: str) -> tuple[str, float]:
    """`gpu3=1.5`."""
    name, _, number = text.rpartition("=")
    factor = _number(number)
    if not name or factor is None or factor <= 0.0:
        raise InputError(f"--slow {text}: a device and a factor above 0, such as gpu3=1.5")
    if not 1 / SLOWEST <= factor <= SLOWEST:
        raise InputError(
            f"--slow {text}: the factor must be between {1 / SLOWEST:g} and {SLOWEST:g}"
        )
    return name, factor


def _fault(text: str) -> Fault:
    """`gpu0>gpu3@1ms=0`, `nvlink2@0=5GB/s`, `gpu3@2ms=50%`."""
    place, _, rate = text.rpartition("=")
    link, _, when = place.rpartition("@")
    if not link or not when or not rate:
        raise InputError(
            f"--fault {text}: needs LINK@TIME=BANDWIDTH, such as gpu0>gpu3@1ms=0 or gpu3@2ms=50%"
        )
    try:
        time = 0.0 if when == "0" else units.duration(when)
        if rate.endswith("%"):
            part = _number(rate[:-1])
            if part is None or not 0.0 <= part <= MOST_SHARE:
                raise InputError(
                    f"--fault {text}: {rate!r} is not a share of a bandwidth, from 0% to {MOST_SHARE:,}%; write for example 50%"
                )
            return Fault(time, link, factor=part / 100)
        return Fault(time, link, 0.0 if rate == "0" else units.bandwidth(rate))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--fault {text}: {error}") from None


def _number(text: str) -> float | None:
    """None for what is no finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def read_gpu_indices(text: str | None) -> list[int] | None:
    """`0,1,2,3` as a list; None stays None."""
    if text is None:
        return None
    try:
        return _numbers(text)
    except ValueError as error:
        raise InputError(f"--gpu-indices {text}: {error}") from None


def read_size(option: str, text: str) -> int:
    """Bytes in nccl-tests' spelling; InputError names the option."""
    try:
        return units.cli_size(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def gpus_options(command: F) -> F:
    """`-g` and `--gpus`."""
    command = click.option("--gpus", default=None, metavar="I,J,...", help="Use these GPUs only.")(
        command
    )
    return click.option("-g", "--ngpus", type=int, default=None, help="Use the first GPUs only.")(
        command
    )


def shape_of(
    shape: Layout, ngpus: int | None, gpus: str | None, order: list[int] | None = None
) -> Layout:
    """The first `ngpus` GPUs, or those named in `gpus`, with rings in `order`."""
    if ngpus is not None and gpus is not None:
        raise InputError(f"-g {ngpus} and --gpus {gpus}: give one of the two")
    try:
        if ngpus is not None:
            shape = shape.subset(ngpus)
        if gpus is not None:
            shape = shape.only(_numbers(gpus))
    except ValueError as error:
        raise InputError(
            f"-g {ngpus}: {error}" if gpus is None else f"--gpus {gpus}: {error}"
        ) from None
    if order is None:
        return shape
    try:
        return shape.ordered(order)
    except InputError as error:
        raise InputError(f"--gpu-indices {str(error).removeprefix('gpu_indices ')}") from None


def _numbers(text: str) -> list[int]:
    """`0,1,2,3` as a list; ValueError if it is none."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise ValueError("whole numbers with commas between, such as 0,1,2,3")
    return [int(part) for part in parts]


def gather(
    problems: list[str], load: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """What `load` gives, or None and its faults in `problems`: so that one run tells the faults of
    all options.
    """
    try:
        return load(*args, **kwargs)
    except InputError as error:
        problems += error.problems
        return None


def gather_of(option: str, problems: list[str], load: Callable[[str], T], given: str) -> T | None:
    """As `gather`, for what says nothing of the option that it was given with."""
    faults: list[str] = []
    found = gather(faults, load, given)
    problems += [f"{option}: {fault}" for fault in faults]
    return found


def echo_json(document: dict[str, Any]) -> None:
    """The one document that `--json` promises."""
    click.echo(json.dumps(document, indent=2))


def check_collective(name: str) -> str:
    """The name of a collective; InputError names the nearest."""
    if name not in NAMES:
        raise InputError(
            f"--collective: unknown {name!r}{did_you_mean(name, NAMES)}; one of {', '.join(NAMES)}"
        )
    return name


def check_used(collective: str, faithful: bool | None, gpu_indices: str | None) -> None:
    """InputError for options that the collective would ignore."""
    problems = []
    if faithful and collective != "all_reduce":
        problems.append(
            f"--faithful: upstream's quirks are in its all-reduces, and this is {collective}"
        )
    if gpu_indices is not None and collective in IN_RANK_ORDER:
        problems.append(
            f"--gpu-indices: {collective} says which rank holds which part, so its ranks keep their order"
        )
    if problems:
        raise InputError(problems)


def check_outputs(paths: Mapping[str, str | None], *, as_json: bool) -> None:
    """Raises InputError if a file, by the option that names it, cannot be written, or if stdout
    would get two documents.
    """
    problems: list[str] = []
    for path in paths.values():
        if path is not None:
            gather(problems, check_place, path)
    printed = ["--json"] * as_json + [f"{option} -" for option in paths if paths[option] == STDOUT]
    if len(printed) > 1:
        problems.append(f"{' and '.join(printed)}: stdout takes one of them")
    if problems:
        raise InputError(problems)


def write_output(path: str, pieces: Iterable[str | bytes]) -> None:
    """Write a file of the user's, or stdout for `-`."""
    if path != STDOUT:
        write_file(path, pieces)
        return
    for piece in pieces:
        click.echo(piece, nl=False)


def echo_beside(text: str, *paths: str | None) -> None:
    """Print a text: on stderr if a file of `paths` takes stdout."""
    click.echo(text, err=STDOUT in paths)
