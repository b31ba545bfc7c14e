"""The options that say on which machine something is simulated, and how; what they mean.

Others say on which real devices plans are timed, by `calibrate`, `validate`, and by `run` and
`tune` with `--measure K`. The code that runs devices loads when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import click

from simreduce import dtypes
from simreduce.app.cli.options import (
    calibration_option,
    gpus_options,
    read_gpu_indices,
    read_sizes,
    refuse,
    shape_of,
)
from simreduce.app.cli.reply import Decorator, Reply, options, output_paths, wants_json
from simreduce.app.cli.terminal import show
from simreduce.engine import CALM, NOMINAL, RUNTIMES, Disturbance
from simreduce.engine.calibrate import load_calibration
from simreduce.engine.disturbance import parse_disturbance
from simreduce.engine.setup import BY_STRATEGY, Setup, read_runtime
from simreduce.errors import InputError, did_you_mean
from simreduce.files.formats import Faults
from simreduce.files.published import ITERATIONS
from simreduce.planners.algorithms import NAMES
from simreduce.planners.algorithms.families import IN_RANK_ORDER
from simreduce.planners.layouts import layout
from simreduce.planners.nccl import DEFAULTS, Settings, read_settings
from simreduce.planners.nccl.environment import read_assignments
from simreduce.study.tune.sizes import BY_DEFAULT, DIVIDED, ROOTED, BenchCalls
from simreduce.topology import Topology, load_machine

if TYPE_CHECKING:
    from simreduce.study.scenario import Meshes, Scenario
    from simreduce.study.tune.rank import StrategyRanking

S = TypeVar("S")

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
class Collective(Generic[S]):
    """One collective of one tensor, of several sizes, on a machine. `strategies` are what the
    command's `--algo` means.
    """

    setup: Setup
    name: str
    strategies: S
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
    machine = attempt("", load_machine, text, folded=folded)
    order = attempt("", read_gpu_indices, given.get("gpu_indices"))
    whole = layout(machine) if machine else None
    gpus = given.get("ngpus"), given.get("gpus"), order, given.get("nthreads")
    shape = attempt("", shape_of, whole, *gpus) if whole else None
    runtime = attempt("--runtime", read_runtime, given.get("runtime") or BY_STRATEGY)
    constants = attempt("--calibration", load_calibration, "nominal" if name is None else name)
    disturbance = attempt("", read_disturbance, given, machine)
    settings = read_nccl(faults, given["nccl"])
    if not (machine and shape):
        return None
    known = runtime or BY_STRATEGY, constants or NOMINAL, disturbance or CALM
    return Setup(machine, *known, shape, settings)


def read_collective(
    faults: Faults,
    text: str,
    read_algo: Callable[[str], S],
    sizes: tuple[str | None, str | None, str | None, float | None],
    given: Given,
    *,
    folded: bool = False,
    iters: int = ITERATIONS,
) -> Collective[S]:
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
        parts = ranks or 1 if name in DIVIDED else 1
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
    found = read_settings(read_assignments([("", text) for text in texts], own), own, "", base)
    faults.problems += own.problems
    return found


def _whole_elements(nbytes: Sequence[int], unit: int) -> list[int]:
    """The sizes rounded down to multiples of `unit` bytes, each once; stderr says so of the
    first size.
    """
    rounded = list(dict.fromkeys(size // unit * unit for size in nbytes))
    if rounded[0] != nbytes[0]:
        why = f"the nearest multiple of {unit} bytes below {nbytes[0]}"
        click.echo(f"simreduce: sizes begin with {rounded[0]} bytes, {why}", err=True)
    return rounded


def read_scenario(
    faults: Faults,
    text: str,
    given: Given,
    strategies: Sequence[str] = (),
    batch: int | None = None,
) -> Scenario | None:
    """The scenario with what the options say instead; None if there is a fault."""
    from simreduce.study.scenario_files import look_at_scenario  # noqa: PLC0415 - other commands do without

    scenario, machine, found = look_at_scenario(
        text,
        batch,
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
