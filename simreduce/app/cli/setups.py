"""The options that say on which machine something is simulated, and how; what they mean.

Others say on which real devices plans are timed, by `calibrate`, `validate`, and by `run` and
`tune` with `--measure K`. The code that runs devices loads when it is needed.

Options that several commands share, and what they mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from simreduce import dtypes, units
from simreduce.app.cli import calibrations, names_or_files, strategies
from simreduce.app.cli.reply import Decorator, Reply, note, options, output_paths, wants_json
from simreduce.app.cli.terminal import show
from simreduce.engine import CALM, NOMINAL, RUNTIMES, Disturbance
from simreduce.engine.calibrate import load_calibration
from simreduce.engine.disturbance import parse_disturbance
from simreduce.engine.setup import BY_STRATEGY, Setup, read_runtime
from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import ITERATIONS
from simreduce.planners.algorithms import NAMES, warn_of_unloaded
from simreduce.planners.algorithms.families import IN_RANK_ORDER
from simreduce.planners.layouts import Layout, layout
from simreduce.planners.nccl import DEFAULTS, SETTINGS, Settings, read_settings
from simreduce.planners.nccl.environment import read_assignments
from simreduce.planners.nccl.nics import with_nics
from simreduce.planners.strategy import ALL, Strategy, misplaced, parse_strategy, split_strategies
from simreduce.study.tune.sizes import BY_DEFAULT, ROOTED, BenchCalls, parts_of, sizes
from simreduce.topology import Topology, load_machine, load_topology

if TYPE_CHECKING:
    from simreduce.study.scenario import Meshes, Scenario
    from simreduce.study.tune.rank import StrategyRanking

T = TypeVar("T")


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
        note(f"{added}: {len(found):,} sizes")
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
    faults.add("--algo", *misplaced(texts))
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


faithful_option = click.option(
    "--faithful",
    is_flag=True,
    default=None,
    help="Reproduce upstream's quirks; default: what a user intends.",
)
slow_option = click.option(
    "--slow",
    multiple=True,
    metavar="DEVICE=FACTOR",
    help="Slow DEVICE down by FACTOR, its links included. Repeatable.",
)


job_options = options(
    click.option(
        "--topology",
        default=None,
        metavar="MACHINE",
        help="Run it on this machine, which a recorded job does not name; default: the scenario's.",
    ),
    click.option(
        "--workload",
        default=None,
        metavar="NAME|FILE",
        help="Reduce these gradients, as a recorded job has its buckets only; default: the "
        "scenario's.",
    ),
)
"""What a recorded job lacks, and replaces keys of other scenarios."""
nodes_option = click.option(
    "--nodes",
    default=None,
    metavar="HOSTS",
    help="Run on these nodes in this order, such as n[0-3,8]; default: the scenario's, or all.",
)


def nccl_option(about: str = "this, such as NCCL_ALGO=Ring or version=2.18") -> Decorator:
    """`--nccl`; `about` ends its help."""
    return click.option(
        "--nccl", multiple=True, metavar="NAME=VALUE", help=f"Tell NCCL {about}. Repeatable."
    )


collective_option = click.option(
    "--collective",
    default=None,
    metavar="NAME",
    help=f"Choose the collective: {', '.join(NAMES)}; default all_reduce.",
)
root_option = click.option(
    "-r",
    "--root",
    type=int,
    default=None,
    help="Broadcast from this rank, or reduce to it; default 0.",
)
collective_options = options(
    collective_option,
    root_option,
    gpus_options,
    click.option(
        "-d",
        "--datatype",
        default=None,
        metavar="TYPE",
        help="Use elements of this type: half, double, bfloat16, int32, ...; default float.",
    ),
)


def setup_options(runtime: str = "the strategy's", calibration: str = "nominal") -> Decorator:
    """How a machine is simulated; the arguments say what the defaults are."""
    return options(
        click.option(
            "--runtime",
            default=None,
            metavar="NAME",
            help=f"Simulate this runtime: {', '.join(RUNTIMES)}; default {runtime}.",
        ),
        calibration_option(None, calibration),
        click.option(
            "--gpu-indices",
            "--gpu_indices",
            default=None,
            metavar="I,J,...",
            help="Order the GPUs of each machine in the rings of xring, ring and collective.",
        ),
        faithful_option,
        nccl_option(),
        click.option(
            "--jitter",
            default=None,
            metavar="PART",
            help="Scatter latencies and the fixed cost of ops; 0.1: +-10%; default 0.",
        ),
        click.option(
            "--seed", type=int, default=None, help="Draw the jitter from this seed; default 0."
        ),
        click.option(
            "--tolerance",
            default=None,
            metavar="PART",
            help="Let the total be off by this part, such as 0.1%, where that saves work: where no "
            "message queues (--runtime ideal), and chains have two at most; default 0: exact.",
        ),
        slow_option,
        click.option(
            "--fault",
            multiple=True,
            metavar="LINK@TIME=BANDWIDTH",
            help="Give a link, node or link class this bandwidth from TIME on: 0, 5GB/s or 50%; "
            "=100% mends. Repeatable.",
        ),
    )


Given: TypeAlias = Mapping[str, Any]
"""What was typed of a command's options, by parameter; None, or nothing, where it was not."""
_REPLACED = (
    "topology", "workload", "runtime", "calibration", "nodes", "worth", "tune.placement",
    "tune.free",
)  # fmt: skip
"""Keys of scenarios that options replace, whose parameters have the last part as their name."""


def _replaced(given: Given) -> dict[str, object]:
    return {key: given.get(key.rpartition(".")[2]) for key in _REPLACED}


def read_disturbance(given: Given, machine: object, *, exactly: bool = False) -> Disturbance:
    """What goes wrong on a machine; with `exactly`, no total is off. InputError lists every fault,
    and names that a topology lacks.
    """
    faults = Faults()
    disturbance = parse_disturbance(
        faults, "--", given.get("jitter"), given.get("seed"), given.get("slow", ()),
        given.get("fault", ()), None if exactly else given.get("tolerance"),
    )  # fmt: skip
    if isinstance(machine, Topology):
        faults.attempt("", disturbance.check, machine)
    faults.raise_any()
    return disturbance


@dataclass(frozen=True, slots=True)
class Collective(Generic[T]):
    """One collective of one tensor, of several sizes, on a machine. `strategies` are what the
    command's `--algo` means.
    """

    setup: Setup
    name: str
    strategies: T
    root: int
    dtype: int
    nbytes: Sequence[int]
    faithful: bool
    calls: BenchCalls


def read_setup(faults: Faults, text: str, given: Given, *, folded: bool = False) -> Setup | None:
    """How the machine `text` is simulated; None if the machine or the choice of its GPUs has a
    fault. Other faulty options count as not given.
    """
    attempt, name = faults.attempt, given.get("calibration")
    settings = read_nccl(faults, given["nccl"])
    machine = attempt("", load_machine, text, folded=folded)
    machine = machine and attempt("", with_nics, machine, settings)
    order = attempt("", read_gpu_indices, given.get("gpu_indices"))
    whole = layout(machine) if machine else None
    gpus = given.get("ngpus"), given.get("gpus"), order, given.get("nthreads")
    shape = attempt("", shape_of, whole, *gpus) if whole else None
    runtime = attempt("--runtime", read_runtime, given.get("runtime") or BY_STRATEGY)
    constants = attempt("--calibration", load_calibration, "nominal" if name is None else name)
    disturbance = attempt("", read_disturbance, given, machine)
    if not (machine and shape):
        return None
    known = runtime or BY_STRATEGY, constants or NOMINAL, disturbance or CALM
    return Setup(machine, *known, shape, settings)


def read_collective(
    faults: Faults,
    text: str,
    read_algo: Callable[[str], T],
    sizes: tuple[str | None, str | None, str | None, float | None],
    given: Given,
    *,
    folded: bool = False,
    iters: int = ITERATIONS,
) -> Collective[T]:
    """The collective that the options name on the machine `text`. `read_algo` reads the strategies
    of a collective; `sizes` are `-b`, `-e`, `-i` and `-f`, and NCCL makes `iters` calls in a row.
    InputError with every fault.
    """
    name = "all_reduce" if given.get("collective") is None else given["collective"]
    attempt = faults.attempt
    setup = read_setup(faults, text, given, folded=folded)
    elements = "float" if given.get("datatype") is None else given["datatype"]
    dtype = attempt("--datatype", dtypes.code, elements)
    nbytes = attempt("", read_sizes, *sizes)
    known = attempt("--collective", check_collective, name)
    check_used(faults, name, given["faithful"], given["gpu_indices"])
    strategies = attempt("", read_algo, name) if known else None
    ranks = setup.layout.n if setup else None
    calls = setup and attempt(
        "-t", BenchCalls.by_threads, given.get("nthreads"), setup.layout, iters, setup.nccl.release
    )
    if known:
        check_root(faults, given.get("root"), name, ranks)
    if dtype is not None and nbytes:
        parts = parts_of(name, ranks or 1)
        unit = dtypes.SIZES[dtype] * parts
        if nbytes[0] < unit:
            each = f" for each of {parts} ranks" if parts > 1 else ""
            faults.add(f"-b {sizes[0]}", f"less than one element of {dtypes.NAMES[dtype]}{each}")
        else:
            nbytes = _whole_elements(nbytes, unit)
    return Collective(
        faults.require(setup), name, faults.require(strategies), given.get("root") or 0,
        faults.require(dtype), faults.require(nbytes), bool(given.get("faithful")),
        calls or BY_DEFAULT,
    )  # fmt: skip


def read_nccl(faults: Faults, texts: Sequence[str], base: Settings = DEFAULTS) -> Settings:
    """NCCL's settings by `--nccl NAME=VALUE`, over `base`."""
    own = Faults("--nccl")
    table = read_assignments([("", text) for text in texts], own)
    say_idle(table)
    found = read_settings(table, own, "", base)
    faults.problems += own.problems
    return found


def say_idle(names: Iterable[str]) -> None:
    """Say of variables of NCCL on which no prediction depends that they change none."""
    for name in names:
        if why := SETTINGS.idle.get(name):
            note(f"{name} changes no prediction: {why}")


def _whole_elements(nbytes: Sequence[int], unit: int) -> list[int]:
    """The sizes rounded down to multiples of `unit` bytes, each once; stderr says so of the
    first size.
    """
    rounded = list(dict.fromkeys(size // unit * unit for size in nbytes))
    if rounded[0] != nbytes[0]:
        why = f"the nearest multiple of {unit} bytes below {nbytes[0]}"
        note(f"sizes begin with {rounded[0]} bytes, {why}")
    return rounded


def read_scenario(
    faults: Faults,
    text: str,
    given: Given,
    strategies: Sequence[str] = (),
    batch: int | None = None,
) -> Scenario | None:
    """The scenario with what the options say instead; None if there is a fault."""
    from simreduce.study.scenario import OPTIONS  # noqa: PLC0415 - other commands do without
    from simreduce.study.scenario_files import look_at_scenario  # noqa: PLC0415 - other commands do without

    some = len(list(filter(None, (given.get("gpus") or "").split(","))))
    scenario, machine, found = look_at_scenario(
        text,
        batch,
        OPTIONS,
        given.get("ngpus") or some,
        gpu_indices=faults.attempt("", read_gpu_indices, given.get("gpu_indices")),
        faithful=given.get("faithful"),
        strategies=list(strategies) or None,
        **_replaced(given),
    )
    faults.problems += found
    whole = scenario.setup.layout if scenario else layout(machine) if machine else None
    shape = (
        faults.attempt("", shape_of, whole, given.get("ngpus"), given.get("gpus"))
        if whole
        else None
    )
    disturbance = faults.attempt("", read_disturbance, given, machine)
    settings = read_nccl(faults, given["nccl"], scenario.setup.nccl if scenario else DEFAULTS)
    if faults.problems or scenario is None:
        return None
    part = shape if (given.get("ngpus"), given.get("gpus")) != (None, None) else ...
    return scenario.but(disturbance=disturbance, part=part, nccl=settings)


def read_meshes(
    faults: Faults,
    text: str,
    given: Given,
    unused: Sequence[str] = (),
    framework: str | None = None,
) -> Meshes:
    """The question of a scenario with `step.mesh`, with what the options say instead.

    Parameters that meshes have no use for are faults if they are typed, and so are the `unused`
    ones of the command. InputError has every fault.
    """
    from simreduce.study.scenario_files import load_meshes  # noqa: PLC0415 - other commands do without

    refuse(faults, (*_NOT_OF_MESHES, *unused), "a scenario with step.mesh does not use it")
    order = faults.attempt("", read_gpu_indices, given.get("gpu_indices"))
    meshes = faults.attempt(
        "", load_meshes, text, gpu_indices=order, framework=framework, **_replaced(given)
    )
    settings = read_nccl(faults, given["nccl"], meshes.setup.nccl if meshes else DEFAULTS)
    meshes = faults.require(meshes)
    return replace(meshes, setup=meshes.setup.but(nccl=settings))


_NOT_OF_MESHES = (
    "collective", "root", "ngpus", "gpus", "datatype", "faithful", "jitter", "seed", "tolerance",
    "slow", "fault",
)  # fmt: skip


def check_collective(name: str) -> str:
    """The name of a collective; InputError names the nearest."""
    if name not in NAMES:
        raise InputError(f"unknown {name!r}{did_you_mean(name, NAMES)}; one of {', '.join(NAMES)}")
    return name


def check_used(
    faults: Faults, collective: str, faithful: bool | None, gpu_indices: str | None
) -> None:
    """Note the options that the collective would ignore."""
    why = f"upstream's quirks are in its all-reduces, and this is {collective}"
    faults.check(not faithful or collective == "all_reduce", "--faithful", why)
    why = f"{collective} says which rank holds which part, so its ranks keep their order"
    ordered = gpu_indices is not None and collective in IN_RANK_ORDER
    faults.check(not ordered, "--gpu-indices", why)


def check_root(faults: Faults, root: int | None, collective: str, ranks: int | None) -> None:
    """Note a root that the collective does not have, or that is none of its ranks."""
    if root is None:
        return
    if collective not in ROOTED:
        faults.add(f"-r {root}", f"{collective} has no root; {' and '.join(ROOTED)} have")
    elif ranks is not None:
        faults.check(0 <= root < ranks, f"-r {root}", f"the ranks are 0 to {ranks - 1}")


device_options = options(
    click.option(
        "--backend",
        default="inproc",
        metavar="NAME",
        help="Run on inproc, cluster, shaped or gpu; default inproc. `validate` can ask nccl, too.",
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
