"""`simreduce accuracy`: published timings beside predictions; `simreduce nccl`: NCCL's choices.

`simreduce calibrate --from-nccl-tests LOG...
--topology T` fits NCCL's constants to logs, and needs no device and no TensorFlow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click

from simreduce import dtypes, units
from simreduce.app.cli import LazyGroup, command
from simreduce.app.cli.reply import (
    Progress,
    Reply,
    note,
    picture_options,
    report_options,
    show_until_stopped,
)
from simreduce.app.cli.setups import (
    calibration_option,
    is_typed,
    machine_argument,
    read_sizes,
    say_idle,
    sizes_options,
    workers_option,
)
from simreduce.engine import Calibration
from simreduce.engine.calibrate import load_calibration, to_toml
from simreduce.engine.calibrate.logs import NcclTestsLog, read_nccl_logs
from simreduce.engine.setup import Setup
from simreduce.errors import CalibrationError, InputError, StrategyError, near_or_all, quote
from simreduce.files import read_text, write_file
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import (
    COLLECTIVES as PUBLISHED,
    COMPUTE_SOURCE,
    CONGESTION_SOURCE as CRAB,
    INTERFERENCE_SOURCE,
    KERNEL_SETS,
    RCCL,
    SOURCES,
    PublishedTable,
    congested_calls,
    published_kernels,
    published_steps,
    slowed_kernels,
    tables_of,
    timed_compute,
)
from simreduce.planners.layouts import OPEN
from simreduce.planners.nccl import (
    DEFAULTS,
    SETTINGS,
    Settings,
    estimates,
    facts,
    graphs,
    load_conf,
    p2p,
    plan,
    read_settings,
)
from simreduce.planners.nccl.choice import SENDS, Decide, NcclPlan
from simreduce.planners.nccl.constants import COLLECTIVES as TUNED_COLLECTIVES
from simreduce.planners.nccl.environment import read_assignments, without
from simreduce.planners.nccl.nics import with_nics
from simreduce.planners.nccl.variables import RENAMED
from simreduce.report.accuracy import (
    COMPUTE,
    CONGESTION,
    FITTED,
    INTERFERENCE,
    KERNELS,
    LEFT_OUT,
    MESH,
    NCCL,
    ONE_GPU,
    SHARDED,
    THREE_SIZES,
    UNSEEN,
    Chapter,
    draw_points,
    fitted_lines,
)
from simreduce.report.plots import Plot
from simreduce.report.step_fit import FITTED_STEP, fitted_step_lines
from simreduce.report.topo import NCCL as NCCL_CHOICES, ChosenCall, ChosenCalls, nccl_text
from simreduce.study.accuracy import AccuracyComparison, order_machines
from simreduce.study.accuracy.fit import fit_logs
from simreduce.study.accuracy.kernels import SYSTEMS, System, congestible, predict_dispatches
from simreduce.study.accuracy.mesh import SERIES, steps_in
from simreduce.study.accuracy.one_gpu import SOURCES as GPU_SOURCES, timed_steps
from simreduce.study.accuracy.step_fit import fit_step
from simreduce.study.scenario_files import load_meshes
from simreduce.study.tune.sizes import parts_of, tensor
from simreduce.topology import Topology, copies_of, load_topology
from simreduce.topology.generators import is_shape
from simreduce.training.step_logs import read_steps

_NAMES = [series.name for series in SERIES]
_MODELS = list(dict.fromkeys(step.model for step in published_steps()))
_DEEPEP = "deepep"
_SETS = [*SOURCES, _DEEPEP]
_CHAPTERS = {
    "nccl": (
        "simreduce.app.cli.accuracy:accuracy_nccl",
        "Collectives of NCCL; what stands without a chapter.",
    ),
    "step": ("simreduce_validate.step_of_five:step", "Five all-reduces of ResNet-50, TensorFlow."),
    "throughput": ("simreduce_validate.throughput:throughput", "Training on a DGX-1, TensorFlow."),
    "sharded": ("simreduce.app.cli.accuracy:sharded", "Training by FSDP, PyTorch."),
    "mesh": (
        "simreduce.app.cli.accuracy:mesh",
        "Training on meshes, Megatron-LM and NeMo.",
    ),
    "kernels": (
        "simreduce.app.cli.accuracy:kernels",
        "All-reduces by kernels: vLLM, PyTorch, MSCCL++.",
    ),
    "compute": (
        "simreduce.app.cli.accuracy:compute",
        "What one GPU computes: kernels and layers, measured.",
    ),
    "gpu": (
        "simreduce.app.cli.accuracy:one_gpu",
        "Training on one GPU: steps, passes and memory, measured.",
    ),
    "interference": (
        "simreduce.app.cli.accuracy:interference",
        "Kernels beside blocks that hold SMs, measured.",
    ),
    "congestion": (
        "simreduce.app.cli.accuracy:congestion",
        "Collectives of MPI beside an incast, on three systems.",
    ),
    "p2p": ("simreduce_validate.p2p:p2p", "Copies between GPUs."),
}
_PARTS = ("held", "fit", "all")


@click.group(cls=LazyGroup, table=_CHAPTERS, default="nccl")
def accuracy() -> None:
    """Compare predictions with published timings, without devices.

    Each chapter has its own options: simreduce accuracy nccl --help.
    """


@command("nccl", examples="simreduce accuracy nccl --only bessemer")
@click.argument("file", default="", metavar="[FILE]")
@click.option(
    "--tables",
    type=click.Choice(_PARTS),
    default="held",
    help="Compare tables that no constant was fitted to (held), the others (fit) or all; default"
    " held.",
)
@click.option(
    "--library",
    type=click.Choice(("nccl", "rccl")),
    default="nccl",
    help="Compare tables of NCCL, or of RCCL on AMD's GPUs; default nccl.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="TEXT",
    help="Compare tables with TEXT in their name, topology or collective only. Repeatable.",
)
@click.option(
    "--most-machines",
    type=click.IntRange(1),
    default=64,
    help="Leave tables of more machines out, whose plans take minutes; default 64.",
)
@click.option(
    "--leave-one-out",
    is_flag=True,
    help="Print the errors on each machine by constants that were fitted without it; takes long.",
)
@click.option(
    "--left-out",
    type=click.Choice(("site", "generation")),
    default=None,
    help="Print the errors by constants and intervals without the site of each table, or without"
    " its generation; takes minutes.",
)
@click.option(
    "--three-sizes",
    is_flag=True,
    help="Print the errors on each table with constants fitted to three of its sizes; takes"
    " minutes.",
)
@calibration_option(None, "that of each machine's generation", load_calibration)
@workers_option
@picture_options("Predicted beside measured busbw over size")
@report_options
def accuracy_nccl(
    faults: Faults,
    file: str,
    tables: str,
    library: str,
    only: tuple[str, ...],
    most_machines: int,
    leave_one_out: bool,
    left_out: str | None,
    three_sizes: bool,
    calibration: Calibration | None,
    workers: int,
) -> Reply:
    """Compare predicted times of NCCL's collectives with published ones.

    FILE has other tables, as files of published timings have them: [[tables]] with a name, a
    source, a topology, a collective and times such as "1024 9.4", bytes and microseconds.

    On Ctrl-C or SIGTERM, prints the tables so far and exits with status 130.
    """
    given = tables_of(file)
    tables = "all" if file else tables
    for table in given if file else ():
        words = f"{quote(table.library)} of {quote(table.name)} is not predicted; leave it out for"
        faults.check(table.compared, f"{file}: library", f"{words} NCCL, or write {RCCL}")
    faults.check(not (file and leave_one_out), "--leave-one-out", "says nothing about a FILE")
    chosen = _chosen(given, tables, library, only, most_machines)
    where = f"table of {file}" if file else f"published table ({tables})"
    asked = f"--only {' '.join(only)}" if only else f"--library {library}"
    faults.check(chosen, asked, f"no {where} has this")
    faults.raise_any()
    if leave_one_out:
        with Progress(LEFT_OUT.progress):
            return _reply(LEFT_OUT, [*LEFT_OUT.predict()])
    if left_out:
        chosen = [table for table in chosen if table.compared]
        points, complete = _predicted(UNSEEN, chosen, left_out, workers)
        return _reply(UNSEEN, points, complete, what=left_out, order=order_machines(points))
    if three_sizes:
        return _reply(THREE_SIZES, *_predicted(THREE_SIZES, chosen, workers))
    points, complete = _predicted(NCCL, chosen, calibration, workers)
    done = len({point.of.name for point in points})
    notes = [] if complete else [f"# stopped after {done} of {len(chosen)} tables"]
    if larger := len(_chosen(given, tables, library, only, sys.maxsize)) - len(chosen):
        notes.append(
            f"# left out: {units.plural(larger, 'table')} of more than {most_machines} machines,"
            " which take minutes each (--most-machines)"
        )
    name = "by generation" if calibration is None else calibration.name
    about = {"calibration": name, "tables": tables, "notes": notes}
    return _reply(NCCL, points, complete, draw_points, **about)


def _predicted(
    chapter: Chapter, rows: Sequence[Any], *given: Any, count: int = 0
) -> tuple[list[Any], bool]:
    """The points of some of a chapter's rows, and whether it was not stopped."""
    found, complete = show_until_stopped(
        chapter.predict(rows, *given), count or len(rows), chapter.progress
    )
    several = (each if isinstance(each, list) else [each] for each in found)
    return [*chain(*several)], complete


def _reply(
    chapter: Chapter,
    points: Sequence[Any],
    complete: bool = True,
    draw: Callable[[AccuracyComparison[Any]], Plot] | None = None,
    **about: Any,
) -> Reply:
    """The text and the document of a chapter, and what `draw` makes of it."""
    found = AccuracyComparison(points, complete, about)
    return Reply(
        partial(chapter.lines, found),
        partial(chapter.document.write, found),
        picture=draw and partial(draw, found),
        complete=complete,
    )


def _chosen(
    given: Sequence[PublishedTable],
    tables: str,
    library: str,
    only: tuple[str, ...],
    most_machines: int,
) -> list[PublishedTable]:
    return [
        table
        for table in given
        if tables in ("all", "held" if table.held else "fit")
        and (library == "rccl") == (table.library == RCCL)
        and copies_of(table.topology) <= most_machines
        and (
            not only
            or any(text in (table.name + table.topology + table.collective) for text in only)
        )
    ]


@command(examples="simreduce accuracy sharded --model 760m")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(_NAMES),
    metavar="NAME",
    help=f"Compare this model only: {', '.join(_NAMES)}. Repeatable; default all.",
)
@report_options
def sharded(models: tuple[str, ...]) -> Reply:
    """Compare predicted throughputs of MPT models, trained by FSDP on 16 to 128 A100, with those
    that MosaicML published. The compute is fitted to the first number of GPUs.

    On Ctrl-C or SIGTERM, prints the rows so far and exits with status 130.
    """
    chosen = [series for series in SERIES if not models or series.name in models]
    count = sum(len(series.tokens) for series in chosen)
    return _reply(SHARDED, *_predicted(SHARDED, chosen, count=count))


@command(examples="simreduce accuracy mesh --set table-5")
@click.argument("file", default="", metavar="[FILE]")
@click.option(
    "--set",
    "sets",
    multiple=True,
    type=click.Choice(_SETS),
    metavar="NAME",
    help=f"Compare this set only: {', '.join(_SETS)}. Repeatable; default all.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(_MODELS),
    metavar="NAME",
    help=f"Compare this model only: {', '.join(_MODELS)}. Repeatable; default all.",
)
@report_options
def mesh(faults: Faults, file: str, sets: tuple[str, ...], models: tuple[str, ...]) -> Reply:
    """Compare predicted times of training steps on meshes with published ones: Megatron-DeepSpeed
    and Megatron-LM on 2 to 512 A100, and NeMo on 8 to 2,048 H100, B200 and GB200. The compute of a
    GPU is fitted to the other models. `deepep` has calls that bring tokens to experts and back.

    FILE has other steps, in the columns model, topology, gpu, stack, gpus, tp, cp, pp, ep, virtual,
    global_batch, micro_batch, sequence, recompute, sequence_parallel, precision and seconds. Those
    with a default may be left out or empty.

    On Ctrl-C or SIGTERM, prints the steps so far and exits with status 130.
    """
    faults.check(not (file and sets), "--set", "says nothing about a FILE, which is one set")
    chosen = [
        step
        for step in steps_in(file)
        if (not sets or step.set in sets) and (not models or step.model in models)
    ]
    calls = not file and not models and (not sets or _DEEPEP in sets)
    faults.check(chosen or calls, "", f"no step of {', '.join(models)} is in {', '.join(sets)}")
    faults.raise_any()
    points, complete = _predicted(MESH, chosen)
    dispatches = [*predict_dispatches()] if calls and complete else []
    return _reply(MESH, points, complete, dispatches=dispatches)


@command(examples="simreduce accuracy kernels --set vllm-42324")
@click.option(
    "--set",
    "sets",
    multiple=True,
    type=click.Choice(list(KERNEL_SETS)),
    metavar="NAME",
    help=f"Compare this set only: {', '.join(KERNEL_SETS)}. Repeatable; default all.",
)
@report_options
def kernels(sets: tuple[str, ...]) -> Reply:
    """Compare predicted times of all-reduces by one kernel on every GPU with published ones, on 2
    to 8 H100, H200 and B200: one-shot, two-shot, multimem, and NCCL beside them. Constants are
    fitted to the sets that are not held out.

    On Ctrl-C or SIGTERM, prints the calls so far and exits with status 130.
    """
    chosen = [call for call in published_kernels() if not sets or call.set in sets]
    return _reply(KERNELS, *_predicted(KERNELS, chosen))


@command(examples="simreduce accuracy compute")
@click.argument("file", default="", metavar="[FILE]")
@report_options
def compute(file: str) -> Reply:
    """Compare predicted times of what a GPU computes in a training step with measured ones:
    products, attention, kernels that move bytes, and layers of Llama, on one H100 and one H200. No
    constant is fitted to them: those of H100 are fitted to published steps.

    FILE has times of another GPU, from `python -m simreduce_validate.computing FILE`. The last
    column has what a file for `gpu` in [step] would say of it.
    """
    return _reply(COMPUTE, [*COMPUTE.predict(timed_compute(file))], source=file or COMPUTE_SOURCE)


@command(name="gpu", examples="simreduce accuracy gpu")
@click.argument("file", default="", metavar="[FILE]")
@report_options
def one_gpu(file: str) -> Reply:
    """Compare predicted training steps of one GPU with measured ones: models of Hugging Face on one
    H200, and image models on V100 and A100. The column of gradients is the largest error of the
    time at which a layer's gradients are ready, as a part of backward.

    FILE has other steps, in the columns gpu, workload, batch, kernels, precision, forward_ms,
    backward_ms, update_ms, step_ms, peak_mb, the most that PyTorch allocates, and source. Passes,
    peak_mb and source may be empty, and update_ms is 0 if step_ms has no update.
    """
    source = file or "; ".join(GPU_SOURCES.values())
    return _reply(ONE_GPU, [*ONE_GPU.predict(timed_steps(file))], source=source)


@command(examples="simreduce accuracy interference")
@click.argument("file", default="", metavar="[FILE]")
@report_options
def interference(file: str) -> Reply:
    """Compare how many times as long kernels take beside blocks that hold SMs, as a collective's
    do, with what was measured on one H200: products, attention, a convolution and kernels that move
    bytes, beside 1 to 32 blocks that wait or copy, and beside copies from and to the host.

    FILE has other times, in the columns gpu, kind, shape, beside (wait, paced20, copy, h2d or d2h),
    blocks, alone_us, beside_us, low_us, high_us and copied_GBps.
    """
    found = INTERFERENCE.predict(slowed_kernels(file))
    return _reply(INTERFERENCE, [*found], source=file or INTERFERENCE_SOURCE)


@command(examples="simreduce accuracy congestion")
@click.argument("file", default="", metavar="[FILE]")
@click.option(
    "--machine",
    "machines",
    multiple=True,
    metavar="SYSTEM=TOPOLOGY",
    help="The network of another system, such as mine=fat_tree:256,radix=32,congestion=tree; its"
    " nodes are neighbours. Repeatable.",
)
@report_options
def congestion(faults: Faults, file: str, machines: tuple[str, ...]) -> Reply:
    """Compare how much an incast of other nodes slows collectives of MPI with what was measured: on
    Leonardo and CRESCO8, where what is held stops others, and on LUMI, where it does not. One
    constant of it is read off Leonardo's times, the part of the time that this is so, and the
    constants of MPI are read off all times alone. Calls of less than 32 KiB are left out.

    FILE has other times, in the columns of CRAB's: system, case (with `Inc-Congested` in it beside
    the incast), nodes, victim_nodes, victim (a2a_comm_only or agtr_comm_only), msg_size_bytes and
    median_avg_us.

    On Ctrl-C or SIGTERM, prints the calls so far and exits with status 130.
    """
    systems = dict(SYSTEMS)
    for text in machines:
        name, equals, network = text.partition("=")
        if not (name and equals and network):
            faults.add("--machine", f"must be SYSTEM=TOPOLOGY, not {text!r}")
        elif is_shape(network):
            if faults.attempt(f"--machine {name}", load_topology, network):
                systems[name] = System(network)
        else:
            words = "must be a network of single hosts, such as fat_tree:256 or dragonfly_plus:720"
            faults.add(f"--machine {name}", f"{words}, not {network!r}")
    faults.raise_any()
    calls, left_out = congestible(congested_calls(file), systems)
    return _reply(
        CONGESTION, *_predicted(CONGESTION, calls, systems), source=file or CRAB, left_out=left_out
    )


@command(examples="simreduce nccl dgx-h100 NCCL_ALGO=Ring")
@machine_argument
@click.argument("variables", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--collective",
    type=click.Choice((*TUNED_COLLECTIVES, *SENDS)),
    default="all_reduce",
    help="Show what runs for this collective; default all_reduce.",
)
@sizes_options("1K")
@click.option(
    "--version",
    default=None,
    metavar="2.N",
    help="Of this NCCL; default 2.32. Kernels of all versions count as equally fast.",
)
@click.option(
    "--conf", default=None, metavar="FILE", help="Read variables from an nccl.conf first."
)
@click.option(
    "--tuner", default=None, metavar="FILE", help="Apply the CSV of NCCL's example tuner plugin."
)
@click.option("--simulate", is_flag=True, help="Also simulate each choice.")
@calibration_option("nominal", read=load_calibration)
@report_options
def nccl(
    faults: Faults,
    machine: Topology,
    variables: tuple[str, ...],
    collective: str,
    minbytes: str,
    maxbytes: str | None,
    stepbytes: str,
    stepfactor: float | None,
    version: str | None,
    conf: str | None,
    tuner: str | None,
    simulate: bool,
    calibration: Calibration,
) -> Reply:
    """Show what NCCL itself chooses on a machine: channels, graphs, tuning table, and the algorithm
    and protocol of each size, in the words of NCCL's log.

    Variables are NCCL's own, such as NCCL_ALGO=Ring or NCCL_P2P_DISABLE=1. Without -b and -e the
    sizes go up to 1G by a factor of 4.
    """
    settings = _settings(faults, variables, version, conf, tuner)
    if maxbytes is None and not is_typed("minbytes"):
        maxbytes, stepfactor = "1G", stepfactor or 4.0
    sizes = faults.attempt("", read_sizes, minbytes, maxbytes, stepbytes, stepfactor)
    sizes = faults.require(sizes)
    whole, machine = machine, with_nics(machine, settings)
    at = plan(facts(machine, settings=settings), settings)
    setup, decide = (
        Setup(machine, calibration=faults.require(calibration), nccl=settings),
        Decide(machine, settings),
    )
    calls = []
    with Progress("simulated {} of {} sizes") as progress:
        for nbytes in progress.watch(sizes, len(sizes)):
            found = decide.choice(machine.devices, collective, nbytes, OPEN)
            seconds = _simulated(setup, found.text, collective, nbytes) if simulate else None
            calls.append(ChosenCall(nbytes, found, seconds))
        _say_what_is_faster(setup, at, collective, calls[-1])
    given = f"variables {' '.join(variables)}" if variables else ""
    asked = ChosenCalls(machine, at, collective, calls)
    if not simulate and conf is None:
        _say_what_is_idle(asked, whole, variables)
    return Reply(partial(nccl_text, asked, given), partial(NCCL_CHOICES.write, asked))


def _say_what_is_idle(asked: ChosenCalls, machine: Topology, variables: tuple[str, ...]) -> None:
    """Names on stderr the variables without which all that is printed of a machine, with all its
    NICs, is the same.
    """
    settings = asked.plan.settings
    names = [each.partition("=")[0].strip() for each in variables]

    def shown(settings: Settings) -> tuple[object, ...] | None:
        at = plan(facts(machine, settings=settings), settings)
        decide, devices = Decide(machine, settings), machine.devices
        sizes = [call.nbytes for call in asked.calls]
        try:
            chosen = [decide.choice(devices, asked.collective, size, OPEN) for size in sizes]
        except StrategyError:
            return None
        model, nvls = at.model, at.graphs.nvls and at.model.running_nvls()
        table = model.latency, model.bandwidth, model.threads, model.channels
        return graphs(at.facts, settings), table, nvls, p2p(at.facts, settings), chosen

    own = shown(settings) if names else None
    for name in dict.fromkeys(names):
        known = RENAMED.get(name, name)
        acts = known.startswith("NCCL_") and known in SETTINGS.keys
        if acts and shown(without(settings, known)) == own:
            note(f"{name} changes nothing of this")


_FASTER = 1.25
"""Times as fast from which on another algorithm is named."""


def _say_what_is_faster(setup: Setup, at: NcclPlan, collective: str, call: ChosenCall) -> None:
    """Names on stderr the algorithm that is simulated as faster than NCCL's choice for the largest
    call, which its own estimate does not show.
    """
    if call.simulated is None:
        return
    took = {
        f"nccl:{algorithm}+{protocol}": seconds
        for algorithm, protocol in estimates(at, collective, call.nbytes)
        for seconds in [_simulated(setup, f"nccl:{algorithm}+{protocol}", collective, call.nbytes)]
        if seconds
    }
    best = min(took, key=took.__getitem__, default="")
    if best and _FASTER * took[best] < call.simulated:
        note(
            f"{best} is simulated as {call.simulated / took[best]:.2g} times as fast for "
            f"{units.format_size(call.nbytes)}; `simreduce tune` says whether to set it"
        )


def _simulated(setup: Setup, strategy: str, collective: str, nbytes: int) -> float | None:
    """The seconds of a choice; None where it has no plan."""
    try:
        workload = tensor(nbytes, dtypes.code("float"), parts_of(collective, setup.layout.n))
        return setup.simulate(setup.compile(strategy, workload, collective)).seconds
    except InputError:
        return None


def _settings(
    faults: Faults,
    variables: tuple[str, ...],
    version: str | None,
    conf: str | None,
    tuner: str | None,
) -> Settings:
    """The settings of a file, overridden by the command line."""
    base = Settings()
    if conf is not None:
        table = faults.attempt("--conf", load_conf, conf) or {}
        own = Faults(conf)
        left_out = [name for name in table if name not in (*SETTINGS.keys, *RENAMED)]
        for name in left_out:
            why = {**SETTINGS.refused, **SETTINGS.idle}.get(name, "unknown")
            note(f"{conf}: {name} is left out: {why}")
        base = read_settings({k: v for k, v in table.items() if k not in left_out}, own, "")
        faults.problems += own.problems
    given = dict(read_assignments([("", each) for each in variables], faults))
    say_idle(given)
    options = {"version": version, "tuner": tuner}
    given |= {key: value for key, value in options.items() if value is not None}
    placed = Faults(options={key: f"--{key}" for key in options})
    settings = read_settings(given, placed, "", base)
    faults.problems += placed.problems
    return settings


def calibrate_from_logs(
    faults: Faults, logs: Sequence[str], machine: str | None, collective: str, path: Path
) -> Reply:
    """Fit NCCL's constants to logs, and keep them at `path`."""
    faults.check(logs, "--from-nccl-tests", "name one log or more")
    given = machine is not None
    faults.check(given, "--from-nccl-tests", "needs --topology, the machine of the logs")
    known = not collective or collective in PUBLISHED
    near = near_or_all(collective, PUBLISHED)
    faults.check(known, f"--collective {collective}", f"unknown{near}")
    topology = machine and faults.attempt("", load_topology, machine)
    read = list[NcclTestsLog]()
    for name in logs:
        text = faults.attempt("", read_text, Path(name), CalibrationError)
        if text is not None:
            read += faults.attempt("", read_nccl_logs, text, name, note) or ()
    whole = faults.require(topology or None)
    with Progress("fitting"):
        found = fit_logs(read, whole, DEFAULTS, collective, path)
    write_file(str(path), [to_toml(found.calibration)])
    return Reply(partial(fitted_lines, found), partial(FITTED.write, found))


def calibrate_from_step(faults: Faults, log: str, scenario: str | None, out: str | None) -> Reply:
    """Fit a constant of a GPU to a log's step of a scenario's first mesh, and keep it in a file."""
    path = out or "gpu.toml"
    faults.check(
        bool(scenario), "calibrate step", "needs --scenario, a file with the mesh of the log"
    )
    faults.check(path.endswith(".toml"), f"--out {path}", "the file of a GPU ends in .toml")
    faults.check(not Path(path).exists(), f"--out {path}", "is there already; choose another")
    text = faults.attempt("", read_text, Path(log), InputError)
    steps = faults.attempt("", read_steps, text, log) if text is not None else None
    question = faults.attempt("", load_meshes, scenario) if scenario else None
    measured, asked = faults.require(steps), faults.require(question)
    with Progress("fitting"):
        found = fit_step(measured, asked, path)
    write_file(path, [found.text])
    return Reply(partial(fitted_step_lines, found), partial(FITTED_STEP.write, found))
