"""`simreduce calibrate`: the constants of real devices, learnt from micro-plans and tried on
strategies that were not among them.

    simreduce calibrate switch:4 --backend cluster --name mine
    simreduce validate switch:4 --backend cluster --calibration mine

What is learnt of CPU devices counts where those are simulated: by `validate` and `run --measure`.
Links and ops of GPUs count everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

import simreduce as sr
from simreduce.arrays import Floats
from simreduce.calibrate import in_its_unit, own_calibrations, shipped, to_toml
from simreduce.cli.devices import device_options
from simreduce.cli.options import (
    as_json,
    echo_json,
    gather,
    gpus_options,
)
from simreduce.cli.progress import interruptible
from simreduce.engine import NOMINAL, Calibration, runtime_named
from simreduce.engine.runtime import no_lanes
from simreduce.errors import InputError
from simreduce.outputs import check_place, write_file
from simreduce.plan import Kind
from simreduce.strategy import parse_strategy
from simreduce.tune.bench import tensor
from simreduce.units import format_bandwidth, format_duration, format_size
from simreduce_validate.accuracy import Accuracy, assess
from simreduce_validate.calibrating import (
    Constant,
    Design,
    Fit,
    Micro,
    assemble,
    cores_of,
    design,
    fit_constants,
    slow_ports,
)
from simreduce_validate.calibrating.controls import Key, repeated
from simreduce_validate.calibrating.design import WHOLE, whole
from simreduce_validate.campaign import RUNTIME, Campaign, Case, Timing
from simreduce_validate.devices import Devices, read_devices, refusals
from simreduce_validate.measuring.provenance import processors
from simreduce_validate.running.computer import Computer
from simreduce_validate.tables import accuracy_document, accuracy_lines, fault_lines

HELD_OUT = (
    "ring",
    "halving_doubling",
    "direct",
    "double_tree",
    "reduce_to_one",
    "hierarchical_copy",
    "xring",
    "pscpu",
)
"""Strategies that the constants are tried on, where their plans are not in the fit."""

_IN_TURNS = 8
"""Plans that are timed in turns: as many as strategies are, since a step takes longer the more
others have come between.
"""

_TARGETS = (1 << 14, 1 << 18, 1 << 22)
_WIDELY = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26)
"""Bytes at which: within one process, where that takes seconds, from the smallest to the largest.
"""

_LARGE = 1 << 20
"""Bytes from which sizes take turns by themselves."""

_PATIENCE = 3.0
"""Seconds of a step; what is predicted to take longer is not tried."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("topology", default="switch:4")
@gpus_options
@device_options
@click.option(
    "--name", default=None, metavar="NAME", help="Keep it under this name, for --calibration NAME."
)
@click.option(
    "--out", default=None, metavar="FILE", help="Keep it in this file, which ends in .toml."
)
@click.option(
    "-n",
    "--iters",
    type=click.IntRange(3),
    default=None,
    help="Samples of each plan; default: what some seconds have room for.",
)
@click.option(
    "-w",
    "--warmup_iters",
    "--warmup-iters",
    type=click.IntRange(0),
    default=2,
    help="Steps before; default 2.",
)
@click.option(
    "--held-out/--no-held-out",
    default=True,
    help="Then try the constants on strategies; the default.",
)
@as_json
def calibrate(
    topology: str, ngpus: int | None, gpus: str | None, name: str | None, out: str | None, iters: int | None, warmup_iters: int,
    held_out: bool, as_json: bool, **devices: Any,
) -> int:  # fmt: skip
    """Learn the constants of real devices: small plans are timed, and fitted by what the simulator
    predicts for them.

    All that is measured is kept beside the file, in .fit.jsonl and .held-out.jsonl, also if it is
    stopped (Ctrl-C, SIGTERM; status 130).
    """
    problems: list[str] = []
    asked = gather(problems, read_devices, topology, ngpus, gpus, **devices)
    path = gather(problems, _path, name, out, devices["backend"])
    if asked is not None and asked.layout.n < 2:
        problems.append("calibrate: needs two devices or more")
    if problems or asked is None or path is None:
        raise InputError(problems)
    path.parent.mkdir(parents=True, exist_ok=True)
    fit_file, tried_file = (_beside(path, kind) for kind in ("fit", "held-out"))
    plan = design(asked, cores_of([]))
    campaign = Campaign(asked, NOMINAL, iters, warmup_iters)
    with _stoppable(fit_file):
        rows, provenance = _measured(campaign, _cases(asked, plan), fit_file)
    if _told(rows):
        return 1
    # What is measured is the same, whatever cores the workers say that they have.
    computers = [
        Computer(each["name"], each["cores"]) for each in provenance["hardware"]["workers"]
    ]
    plan = design(asked, cores_of(computers))
    with _stoppable(fit_file, tried_file):
        found, fit = _learnt(plan, asked, rows)
        found = replace(found, controls=_controls(plan, asked, rows))
        tried = _tried(replace(campaign, calibration=found), tried_file) if held_out else []
    accuracy = assess(tried)
    found = replace(
        found,
        name=path.stem,
        title=_title(asked),
        provenance=_provenance(provenance, plan, fit, accuracy, asked),
    )
    write_file(str(path), [to_toml(found)])
    serial = _serial(plan, asked, rows, found)
    if as_json:
        echo_json(_document(found, fit, accuracy, serial, path, rows))
    else:
        click.echo("\n".join(_lines(found, fit, accuracy, serial, path, rows)))
    return int(_told(tried))


@contextmanager
def _stoppable(*samples: Path) -> Iterator[None]:
    """What is stopped says which of these files there are, and ends with status 130."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        kept = " and ".join(str(file) for file in samples if file.exists())
        kept = f"the samples until then are in {kept}" if kept else "nothing was measured"
        click.echo(f"simreduce: stopped, without a calibration; {kept}", err=True)
        raise click.exceptions.Exit(130) from None


def _told(rows: Sequence[Timing]) -> bool:
    """Whether anything makes the times of rows meaningless; says so."""
    faults = fault_lines(rows)
    for fault in faults:
        click.echo(f"simreduce: {fault}", err=True)
    return bool(faults)


def _beside(path: Path, kind: str) -> Path:
    """Where samples are kept; those of a run that came to no calibration are put aside."""
    file = path.with_suffix(f".{kind}.jsonl")
    if file.exists():
        file.replace(file.with_name(f"{file.name}.old"))
    return file


def _path(name: str | None, out: str | None, backend: str) -> Path:
    """Where the calibration is kept. InputError if something is there, or nothing can be."""
    if name is not None and out is not None:
        raise InputError(f"--name {name} and --out {out}: give one of the two")
    if out is None:
        name = name or backend
        if not name.replace("-", "").replace("_", "").isalnum():
            raise InputError(f"--name {name}: letters, digits, - and _ only; --out takes a file")
        if name in shipped():
            raise InputError(f"--name {name}: simreduce has a calibration of that name")
        path = own_calibrations() / f"{name}.toml"
    else:
        path = Path(out)
        if path.suffix != ".toml":
            raise InputError(f"--out {out}: a calibration's file ends in .toml")
        check_place(out)
    if path.exists():
        raise InputError(
            f"{path}: is there already, and results are not overwritten; choose another --name"
        )
    return path


def _micros(plan: Design) -> list[Micro]:
    pairs = [micro for _, *both in plan.pairs for micro in both]
    return [*plan.micros, *pairs, *([plan.relay] if plan.relay else [])]


def _cases(devices: Devices, plan: Design) -> list[Case]:
    return [
        Case(micro.name, devices.stage.adapt(micro.plan), micro.nbytes // 4, 0, "sum", math.nan)
        for micro in _micros(plan)
    ]


def _measured(
    campaign: Campaign, cases: Sequence[Case], out: Path
) -> tuple[list[Timing], dict[str, Any]]:
    """The cases, timed in turns with others that move about as much: what comes after a large one
    finds cold caches. Where steps settle, all take turns, so that a slow minute is everybody's.
    """
    order = sorted(range(len(cases)), key=lambda i: int(cases[i].plan.nbytes.sum()))
    many = len(order) if campaign.devices.stage.one_process else _IN_TURNS
    groups = [[cases[i] for i in order[at : at + many]] for at in range(0, len(order), many)]
    rows, provenance = campaign.measure(groups, out)
    back = dict(zip(order, rows, strict=True))
    return [back[i] for i in range(len(cases))], provenance


def _controls(plan: Design, devices: Devices, rows: Sequence[Timing]) -> dict[Key, float]:
    """What the controls took, among all that was measured."""
    taken = {row.case.plan.digest: row.measured.median for row in rows}
    micros = repeated(devices, plan.controls)
    return {key: taken[devices.stage.adapt(micro.plan).digest] for key, micro in micros.items()}


def _learnt(plan: Design, devices: Devices, rows: Sequence[Timing]) -> tuple[Calibration, Fit]:
    """The calibration that fits best, and the fit. Ports that differ have constants of their own,
    and what showed them is then fitted too.
    """
    ports = _ports(plan, rows)
    many = len(plan.micros) + (2 * len(plan.pairs) if ports else 0)
    constants = (*plan.constants, *(Constant.about(name, rate) for name, rate in ports.items()))
    machine, plans = devices.stage.machine, [row.case.plan for row in rows[:many]]

    def predict(values: Mapping[str, float]) -> list[float]:
        found = assemble(plan.base, values)
        return [sr.simulate(each, machine, RUNTIME, found).seconds for each in plans]

    fit = fit_constants(constants, predict, [row.measured.median for row in rows[:many]])
    return replace(assemble(plan.base, fit.values), errors=fit.errors), fit


def _ports(plan: Design, rows: Sequence[Timing]) -> dict[str, float]:
    """About what rate those links have that differ, by the names of the constants: what does not
    depend on the size of a transfer cancels.
    """
    if not plan.pairs:
        return {}
    medians = [
        row.measured.median
        for row in rows[len(plan.micros) : len(plan.micros) + 2 * len(plan.pairs)]
    ]
    seconds = {
        pair: large - small
        for (pair, *_), small, large in zip(plan.pairs, medians[::2], medians[1::2], strict=True)
    }
    _, small, large = plan.pairs[0]
    out, into = slow_ports(seconds, large.nbytes - small.nbytes)
    names = large.plan.devices
    return {f"links.{names[i]}>switch0.bandwidth": rate for i, rate in out.items()} | {
        f"links.switch0>{names[i]}.bandwidth": rate for i, rate in into.items()
    }


def _tried(campaign: Campaign, out: Path) -> list[Timing]:
    """Strategies that the constants were not learnt from, measured beside what they predict."""
    devices, groups = campaign.devices, []
    for nbytes in _WIDELY if devices.stage.one_process else _TARGETS:
        cases = [case for case in _held_out(campaign, nbytes) if case.predicted < _PATIENCE]
        groups += [cases] if cases else []
    # A slow second is everybody's, and large ones would leave the others few rounds.
    if devices.stage.one_process:
        quick = [case for group in groups for case in group if case.nbytes < _LARGE]
        groups = [quick, *(group for group in groups if group[0].nbytes >= _LARGE)]
    return campaign.measure([campaign.with_controls(group) for group in groups], out)[0]


def _held_out(campaign: Campaign, nbytes: int) -> list[Case]:
    """The strategies of one size, without those that are in the fit by another name: on two or
    three devices, some are a chain.
    """
    devices, workload = campaign.devices, tensor(nbytes, 0)
    learnt = WHOLE if devices.stage.one_process else ()
    plans = {devices.stage.adapt(whole(devices, name, nbytes).plan).digest for name in learnt}
    strategies = [s for s in map(parse_strategy, HELD_OUT) if not refusals(s, devices, [workload])]
    return [case for case in campaign.cases(workload, strategies) if case.plan.digest not in plans]


def _serial(
    plan: Design, devices: Devices, rows: Sequence[Timing], found: Calibration
) -> dict[str, float] | None:
    """Of two transfers from one device to another at once, of which the first goes on: seconds as
    measured, and as predicted if they go one after the other, or share the way.
    """
    if plan.relay is None:
        return None
    row, machine = rows[-1], devices.stage.machine
    runtime = runtime_named(RUNTIME)
    queued = sr.simulate(row.case.plan, machine, runtime, found).seconds
    shared = sr.simulate(row.case.plan, machine, replace(runtime, pipes=no_lanes), found).seconds
    return {"measured": row.measured.median, "one_after_the_other": queued, "shared": shared}


def _title(devices: Devices) -> str:
    links = f", {devices.links.text}" if devices.links else ""
    return f"{devices.layout.n} devices of backend {devices.stage.backend}{links}"


def _provenance(
    provenance: Mapping[str, Any],
    plan: Design,
    fit: Fit,
    accuracy: Accuracy | None,
    devices: Devices,
) -> dict[str, str]:
    hardware, versions = provenance["hardware"], provenance["versions"]
    off = np.abs(np.expm1(fit.residuals))
    found = {
        "date": provenance["started"],
        "hardware": processors(hardware) + (f", {hardware['gpus']}" if hardware["gpus"] else ""),
        "software": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "source": f"simreduce calibrate {devices.topology.name} --backend {devices.stage.backend} --route {devices.route}",
        "method": f"robust least squares on log(predicted / measured) of {len(fit.residuals)} micro-plans",
        "residuals": _off(off),
        "without_constant": ", ".join(_missing(fit)) or "nothing",
        "hardly_determined": "; ".join(f"{name}: {why}" for name, why in fit.vague.items())
        or "nothing",
    }
    if plan.directions:
        found["directions"] = plan.directions
    if accuracy is not None:
        found["held_out"] = accuracy_lines(accuracy)[0].removeprefix("predictions: ")
    return found


def _missing(fit: Fit) -> list[str]:
    """The kinds of op that no micro-plan has, and that are therefore free."""
    named = {*fit.values, *fit.vague}
    return [
        kind.name.lower()
        for kind in Kind
        if f"dispatch.{kind.name.lower()}" not in named and kind != Kind.COPY
    ]


def _off(errors: Floats) -> str:
    return f"|error| {np.median(errors):.1%} in the median, {np.quantile(errors, 0.9):.1%} at the 90th percentile"


def _lines(
    found: Calibration, fit: Fit, accuracy: Accuracy | None, serial: Mapping[str, float] | None, path: Path, rows: Sequence[Timing]
) -> list[str]:  # fmt: skip
    off = np.abs(np.expm1(fit.residuals))
    lines = [
        f"# simreduce {sr.__version__}: {found.title}",
        f"# {found.provenance['hardware']}",
        "#",
        "# constant                          value  standard error",
    ]
    lines += [
        f"  {name:28s}  {_shown(name, value):>12s}  {_shown(name, fit.errors[name]):>12s}"
        for name, value in fit.values.items()
    ]
    lines += [f"  {name:28s}  hardly determined: {why}" for name, why in fit.vague.items()]
    if "directions" in found.provenance:
        lines.append(f"# directions of links: {found.provenance['directions']}")
    if missing := _missing(fit):
        lines.append(f"# nothing is known of what these cost: {', '.join(missing)}")
    lines += [
        "#",
        f"# fit: {len(off)} micro-plans, {_off(off)}",
    ]
    worst = sorted(range(len(off)), key=lambda i: -off[i])[:3]
    lines += [
        f"#   {rows[i].case.algorithm}, {rows[i].case.nbytes} bytes: measured {format_duration(rows[i].measured.median)}, "
        f"predicted {math.expm1(fit.residuals[i]):+.1%}"
        for i in worst
    ]
    if serial:
        one, both = serial["one_after_the_other"], serial["shared"]
        nearer = abs(math.log(serial["measured"] / one)) < abs(math.log(serial["measured"] / both))
        how = (
            "go one after the other, as the simulator has it"
            if nearer
            else "share the way, which the simulator does not have"
        )
        lines.append(
            f"# two transfers from one device to another {how}: {format_duration(serial['measured'])} measured, "
            f"{format_duration(one)} one after the other, {format_duration(both)} shared"
        )
    if accuracy is not None:
        lines += [
            "# strategies that were not in the fit:",
            *(f"#   {line}" for line in accuracy_lines(accuracy)),
        ]
    return [
        *lines,
        f"# kept in {path}; use it with --calibration {path.stem if path.parent == own_calibrations() else path}",
    ]


def _shown(name: str, value: float) -> str:
    return in_its_unit(name, value, format_bandwidth, format_size, "{:.3g}".format, format_duration)


def _document(
    found: Calibration, fit: Fit, accuracy: Accuracy | None, serial: Mapping[str, float] | None, path: Path, rows: Sequence[Timing]
) -> dict[str, Any]:  # fmt: skip
    return {
        "command": "calibrate",
        "version": sr.__version__,
        "calibration": path.stem,
        "file": str(path),
        "title": found.title,
        "provenance": dict(found.provenance),
        "constants": {name: {"value": value, "standard_error": fit.errors[name]} for name, value in fit.values.items()},
        "ports": {name: c.bandwidth for name, c in found.links.items() if ">" in name},
        "without_constant": ", ".join(_missing(fit)) or "nothing",
        "hardly_determined": dict(fit.vague),
        "one_pair_s": serial and dict(serial),
        "fit": [
            {
                "plan": row.case.algorithm, "size_bytes": row.case.nbytes, "measured_us": row.measured.median * 1e6,
                "error": math.expm1(residual),
            }
            for row, residual in zip(rows, fit.residuals, strict=False)
        ],
        "controls": [
            {"plan": kind, "size_bytes": nbytes, "time_us": seconds * 1e6}
            for (kind, nbytes), seconds in found.controls.items()
        ],
        "held_out": accuracy_document(accuracy),
    }  # fmt: skip
