"""The options that say on which machine something is simulated, and how; what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from simreduce import dtypes
from simreduce.algorithms import NAMES
from simreduce.algorithms.families import IN_RANK_ORDER
from simreduce.calibrate import load_calibration
from simreduce.cli.options import (
    F,
    calibration_option,
    gpus_options,
    options,
    read_gpu_indices,
    shape_of,
)
from simreduce.cli.sizes import read_sizes
from simreduce.engine import RUNTIMES, Disturbance
from simreduce.engine.disturbance_text import parse_disturbance
from simreduce.errors import InputError, did_you_mean
from simreduce.formats import Faults
from simreduce.layouts import layout
from simreduce.nccl import DEFAULTS, Settings, read_settings
from simreduce.nccl.settings import read_assignments
from simreduce.setup import BY_STRATEGY, Setup, read_runtime
from simreduce.topology import Topology, load_machine
from simreduce.tune.bench import DIVIDED, ROOTED, tensor
from simreduce.workload import Workload

if TYPE_CHECKING:
    from simreduce.scenario import Scenario

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


def nccl_option(about: str = "this, such as NCCL_ALGO=Ring or version=2.18") -> Callable[[F], F]:
    """`--nccl`; `about` says what NCCL is told."""
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


def setup_options(
    runtime: str = "the strategy's", calibration: str = "nominal"
) -> Callable[[F], F]:
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
            help="Let ops end early by up to this part of their own time where that saves work, "
            "such as 0.1%; the total may be off by several times that; default 0: exact.",
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

    @property
    def workloads(self) -> list[Workload]:
        """The tensor of each size."""
        parts = self.setup.layout.n if self.name in DIVIDED else 1
        return [tensor(size, self.dtype, parts) for size in self.nbytes]


def read_collective(
    faults: Faults,
    text: str,
    read_algo: Callable[[str], S],
    sizes: tuple[str | None, str | None, str | None, float | None],
    *,
    folded: bool = False,
    collective: str | None,
    root: int | None,
    ngpus: int | None,
    gpus: str | None,
    datatype: str | None,
    runtime: str | None,
    calibration: str | None,
    gpu_indices: str | None,
    faithful: bool | None,
    nccl: Sequence[str] = (),
    **disturb: Any,
) -> Collective[S] | None:
    """What the options say of the machine `text`; None if one of them has a fault. `read_algo`
    reads the strategies of a collective; `sizes` are `-b`, `-e`, `-i` and `-f`.
    """
    name, attempt = collective or "all_reduce", faults.attempt
    machine = attempt("", load_machine, text, folded=folded)
    order = attempt("", read_gpu_indices, gpu_indices)
    whole = layout(machine) if machine else None
    shape = attempt("", shape_of, whole, ngpus, gpus, order) if whole else None
    dtype = attempt("--datatype", dtypes.code, "float" if datatype is None else datatype)
    nbytes = attempt("", read_sizes, *sizes)
    known = attempt("--collective", check_collective, name)
    check_used(faults, name, faithful, gpu_indices)
    strategies = attempt("", read_algo, name) if known else None
    chosen = BY_STRATEGY if runtime is None else attempt("--runtime", read_runtime, runtime)
    constants = attempt(
        "--calibration", load_calibration, "nominal" if calibration is None else calibration
    )
    disturbance = attempt("", read_disturbance, machine, **disturb)
    settings = read_nccl(faults, nccl)
    if known:
        check_root(faults, root, name, shape.n if shape else None)
    parts = shape.n if shape and name in DIVIDED else 1
    if dtype is not None and nbytes and nbytes[0] < dtypes.SIZES[dtype] * parts:
        each = f" for each of {parts} ranks" if parts > 1 else ""
        faults.add(f"-b {sizes[0]}", f"less than one element of {dtypes.NAMES[dtype]}{each}")
    elif dtype is not None and nbytes:
        nbytes = _whole_elements(nbytes, dtypes.SIZES[dtype] * parts)
    if faults.problems or not (machine and chosen and constants and disturbance and nbytes):
        return None
    assert strategies is not None  # noqa: S101 - else there is a fault
    assert dtype is not None  # noqa: S101
    setup = Setup(machine, chosen, constants, disturbance, shape, settings)
    return Collective(setup, name, strategies, root or 0, dtype, nbytes, bool(faithful))


def read_nccl(faults: Faults, texts: Sequence[str], base: Settings = DEFAULTS) -> Settings:
    """What `--nccl NAME=VALUE` tells NCCL, over `base`."""
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
    *,
    strategies: Sequence[str] = (),
    batch: int | None = None,
    ngpus: int | None = None,
    gpus: str | None = None,
    runtime: str | None,
    calibration: str | None,
    gpu_indices: str | None,
    faithful: bool | None,
    nccl: Sequence[str] = (),
    **disturb: Any,
) -> Scenario | None:
    """The scenario with what the options say instead; None if there is a fault."""
    from simreduce.scenario import look_at_scenario  # noqa: PLC0415 - other commands do without

    order = faults.attempt("", read_gpu_indices, gpu_indices)
    scenario, machine, found = look_at_scenario(
        text,
        batch,
        runtime=runtime,
        calibration=calibration,
        gpu_indices=order,
        faithful=faithful,
        strategies=list(strategies) or None,
    )
    faults.problems += found
    whole = scenario.setup.layout if scenario else layout(machine) if machine else None
    shape = faults.attempt("", shape_of, whole, ngpus, gpus) if whole else None
    disturbance = faults.attempt("", read_disturbance, machine, **disturb)
    settings = read_nccl(faults, nccl, scenario.setup.nccl if scenario else DEFAULTS)
    if faults.problems or scenario is None:
        return None
    part = shape if (ngpus, gpus) != (None, None) else ...
    return scenario.but(disturbance=disturbance, part=part, nccl=settings)


def check_collective(name: str) -> str:
    """The name of a collective; InputError names the nearest."""
    if name not in NAMES:
        raise InputError(f"unknown {name!r}{did_you_mean(name, NAMES)}; one of {', '.join(NAMES)}")
    return name


def check_used(
    faults: Faults, collective: str, faithful: bool | None, gpu_indices: str | None
) -> None:
    """Note the options that the collective would ignore."""
    if faithful and collective != "all_reduce":
        faults.add(
            "--faithful", f"upstream's quirks are in its all-reduces, and this is {collective}"
        )
    if gpu_indices is not None and collective in IN_RANK_ORDER:
        why = f"{collective} says which rank holds which part, so its ranks keep their order"
        faults.add("--gpu-indices", why)


def check_root(faults: Faults, root: int | None, collective: str, ranks: int | None) -> None:
    """Note a root that the collective does not have, or that is none of its ranks."""
    if root is None:
        return
    if collective not in ROOTED:
        faults.add(f"-r {root}", f"{collective} has no root; {' and '.join(ROOTED)} have")
    elif ranks is not None and not 0 <= root < ranks:
        faults.add(f"-r {root}", f"the ranks are 0 to {ranks - 1}")


def read_disturbance(
    machine: object,
    jitter: str | None,
    seed: int | None,
    slow: Sequence[str],
    fault: Sequence[str],
    tolerance: str | None = None,
) -> Disturbance:
    """What goes wrong on a machine. InputError lists every fault, with what a topology lacks."""
    faults = Faults()
    disturbance = parse_disturbance(faults, "--", jitter, seed, slow, fault, tolerance)
    if isinstance(machine, Topology):
        faults.attempt("", disturbance.check, machine)
    faults.raise_any()
    return disturbance
