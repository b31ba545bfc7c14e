"""Options that several commands share, and what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from math import inf

import click
from click.core import ParameterSource

from simreduce import units
from simreduce.app.cli.group import calibrations, names_or_files, strategies
from simreduce.app.cli.reply import Decorator, options
from simreduce.errors import InputError, quote
from simreduce.files.formats import Faults
from simreduce.planners.algorithms import warn_of_unloaded
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import ALL, Strategy, misplaced, parse_strategy, split_strategies
from simreduce.study.tune.sizes import sizes
from simreduce.topology import load_topology

_STEP = "1M"
_MOST_WORKERS = 4096
_MANY = 100
"""Sizes that nobody means who gives a factor of 1."""


def reading(
    read: Callable[[str], object],
) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """The callback of an option whose text is read before its command runs, with what else is wrong
    in one round; None stays None.
    """

    def callback(_: click.Context, param: click.Parameter, text: str | None) -> object:
        faults = Faults()
        found = None if text is None else faults.attempt(param.opts[0], read, text)
        faults.raise_any()
        return found

    return callback


machine_argument = click.argument(
    "machine",
    metavar="TOPOLOGY",
    callback=lambda _, __, name: load_topology(name),
    shell_complete=names_or_files("topologies"),
)
"""As `group.topology_argument`, of a command that takes the machine itself."""
all_option = click.option(
    "--all",
    "simulate_all",
    is_flag=True,
    help="Simulate all strategies to the end, also those that cannot win.",
)
workers_option = click.option(
    "--workers",
    type=click.IntRange(1, _MOST_WORKERS),
    default=None,
    callback=lambda _, __, count: count or os.cpu_count() or 1,
    metavar="N",
    help="Use N processes; default: one per core.",
)
QUICK = 5.0
"""Seconds of `--quick`."""


def budget_options(default: str = "none") -> Decorator:
    """`--budget` and `--quick`; `default` says what their absence means."""
    return options(
        click.option(
            "--budget",
            default=None,
            metavar="TIME",
            help="Stop after about this time, such as 30s, with what is known by then, which "
            f"depends on this machine's speed; default {default}.",
        ),
        click.option(
            "--quick", is_flag=True, help=f"Stop after {QUICK:g} s: as --budget {QUICK:g}s."
        ),
    )


def read_budget(faults: Faults, budget: str | None, *, quick: bool, default: float = inf) -> float:
    """The seconds that a command may take from now on."""
    if budget is None:
        seconds = QUICK if quick else default
    else:
        seconds = faults.attempt("--budget", units.duration, budget) or 0.0
        if quick:
            faults.add("--quick", f"is --budget {QUICK:g}s; give one of them")
        elif not faults.problems:
            faults.check(seconds > 0, "--budget", "must be more than 0 s")
    return seconds


gpus_options = options(
    click.option("-g", "--ngpus", type=int, default=None, help="Use the first GPUs only."),
    click.option("--gpus", default=None, metavar="I,J,...", help="Use these GPUs only."),
)


def calibration_option(
    default: str | None, words: str = "", read: Callable[[str], object] = str
) -> Decorator:
    """`--calibration`; `words` say what its absence means, and `read` makes of its text what the
    command takes.
    """
    said = words or default
    return click.option(
        "--calibration",
        default=default,
        callback=reading(read),
        shell_complete=calibrations,
        metavar="NAME|FILE",
        help=f"Use these constants, or none (nominal){f'; default {said}' if said else ''}.",
    )


def read_gpu_indices(text: str | None) -> list[int] | None:
    """`0,1,2,3` as a list; None stays None."""
    if text is None:
        return None
    try:
        return read_numbers(text)
    except ValueError as error:
        raise InputError(f"--gpu-indices {text}: {error}") from None


def shape_of(
    shape: Layout,
    ngpus: int | None,
    gpus: str | None,
    order: list[int] | None = None,
    nthreads: int | None = None,
) -> Layout:
    """The first `ngpus` GPUs, or those named in `gpus`, with rings in `order`.

    With `nthreads`, as many threads of each machine have `ngpus` each, as in nccl-tests.
    """
    if ngpus is not None and gpus is not None:
        raise InputError(f"-g {ngpus} and --gpus {gpus}: give one of the two")
    try:
        if ngpus is not None:
            shape = _of_threads(shape, nthreads, ngpus) if nthreads else shape.subset(ngpus)
        if gpus is not None:
            shape = shape.only(read_numbers(gpus))
    except ValueError as error:
        option = f"-g {ngpus}" if gpus is None else f"--gpus {gpus}"
        raise InputError(f"{option}: {error}") from None
    if order is None:
        return shape
    try:
        return shape.with_order(order)
    except InputError as error:
        raise InputError(f"--gpu-indices {str(error).removeprefix('gpu_indices ')}") from None


def _of_threads(shape: Layout, nthreads: int, ngpus: int) -> Layout:
    """The first GPUs of every machine, `ngpus` for each thread; ValueError for too many."""
    most, count = min(len(task) for task in shape.tasks), nthreads * ngpus
    if not 1 <= count <= most:
        raise ValueError(f"-t {nthreads}: {count} GPUs of a machine, which has {most}")
    if all(len(task) == count for task in shape.tasks):
        return shape
    return shape.only([rank for task in shape.tasks for rank in task[:count]])


def read_numbers(text: str) -> list[int]:
    """`0,1,2,3` as a list; raises ValueError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise ValueError("whole numbers with commas between, such as 0,1,2,3")
    return [int(part) for part in parts]


def sizes_options(smallest: str) -> Decorator:
    """The four options; the sizes begin at `smallest` unless stated."""
    return options(
        _size("-b", "--minbytes", smallest, f"Begin with this size; default {smallest}."),
        _size("-e", "--maxbytes", None, "End with this size; default: minbytes."),
        _size("-i", "--stepbytes", _STEP, f"Add this from size to size; default {_STEP}."),
        click.option(
            "-f",
            "--stepfactor",
            type=float,
            default=None,
            help="Multiply by this from size to size instead of adding; 1 adds.",
        ),
    )


def _size(letter: str, name: str, default: str | None, about: str) -> Decorator:
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
    step = faults.attempt("-i", units.cli_size, _STEP if stepbytes is None else stepbytes)
    faults.check(stepfactor != 0, "-f 0", "the factor must be above 1 (or give -i, a step)")
    step = faults.require(step)
    found = sizes(faults.require(smallest), faults.require(largest), step, stepfactor or 0.0)
    if stepfactor == 1 and len(found) >= _MANY:
        added = f"-f 1 adds {units.exact_size(step)} (-i) from size to size"
        click.echo(f"simreduce: {added}: {len(found):,} sizes", err=True)
    return found


def algo_option(what: str) -> Decorator:
    """`--algo`; `what` says what is done with them."""
    return click.option(
        "--algo",
        multiple=True,
        shell_complete=strategies,
        metavar="A[,B...]",
        help=f"{what} Repeatable.",
    )


def strategy_texts(
    faults: Faults, given: Iterable[str], collective: str = "all_reduce"
) -> list[str]:
    """Every strategy that was given, as a text of its own; notes empty ones."""
    found: list[str] = []
    for text in given:
        parts = [part.strip() for part in split_strategies(text, collective)]
        faults.check("" not in parts, "--algo", f"an empty strategy in {quote(text)}")
        found += filter(None, parts)
    return found


def read_strategies(
    given: Iterable[str], every: Sequence[str], collective: str = "all_reduce"
) -> list[tuple[Strategy, bool]]:
    """The strategies that were given, and whether each was given by name; `all` means
    `every` name.
    """
    found: list[tuple[Strategy, bool]] = []
    faults = Faults()
    texts = strategy_texts(faults, given, collective)
    for problem in misplaced(texts):
        faults.add("--algo", problem)
    for text in texts:
        if text == ALL:
            warn_of_unloaded()
            found += [(parse_strategy(name, collective), False) for name in every]
        elif strategy := faults.attempt("", parse_strategy, text, collective):
            found.append((strategy, True))
    faults.raise_any()
    return found


def read_strategy(text: str, collective: str = "all_reduce") -> Strategy:
    """The one strategy that was given."""
    faults = Faults()
    texts = strategy_texts(faults, [text], collective)
    faults.check(ALL not in texts and len(texts) < 2, f"--algo {text}", "one strategy at a time")
    faults.raise_any()
    return parse_strategy(text, collective)


def is_typed(name: str) -> bool:
    """Whether this parameter of the command at hand was typed."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def long_option(param: click.Parameter) -> str:
    """An option by its long name."""
    return next((each for each in param.opts if each.startswith("--")), param.opts[0])


def refuse(faults: Faults, names: Iterable[str], words: str, *, letters: bool = False) -> None:
    """Note those of these parameters that were typed, by long options or by `letters`; words say
    why there is no use for them.
    """
    params = {param.name: param for param in click.get_current_context().command.params}
    for name in names:
        if name in params and is_typed(name):
            faults.add(params[name].opts[0] if letters else long_option(params[name]), words)


def details_option(about: str) -> Decorator:
    """`--details`, which prints more."""
    return click.option("--details", is_flag=True, help=about)
