"""`simreduce calibrate`: learn the constants of real devices from micro-plans, then try them on
other strategies.

    simreduce calibrate switch:4 --backend cluster --name mine
    simreduce validate switch:4 --backend cluster --calibration mine

Constants of CPU devices apply where those are simulated: in `validate` and `run --measure`.
Constants of links and of GPUs' ops apply everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from simreduce.app.cli import command
from simreduce.app.cli.accuracy import calibrate_from_logs
from simreduce.app.cli.reply import Reply, interruptible, report_options
from simreduce.app.cli.setups import details_option, device_options, gpus_options, warmup_option
from simreduce.engine import NOMINAL
from simreduce.engine.calibrate import own_calibrations, shipped, to_toml
from simreduce.errors import InputError
from simreduce.files import check_place, write_file
from simreduce.files.formats.syntax import Faults
from simreduce_validate.calibrating import cores_of, design
from simreduce_validate.calibrating.provenance import describe
from simreduce_validate.calibrating.session import learn, measure_held_out, measure_micros
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Timing
from simreduce_validate.devices import Devices, read_devices
from simreduce_validate.measuring import overwrite_fault
from simreduce_validate.report.calibration import session_document, session_lines
from simreduce_validate.report.validation import fault_lines
from simreduce_validate.running.computer import Computer


@command(examples="simreduce calibrate switch:2 --backend inproc")
@click.argument("topology", nargs=-1, metavar="[TOPOLOGY | LOG...]")
@click.option(
    "--from-nccl-tests",
    is_flag=True,
    help="Fit NCCL's constants to logs of nccl-tests, text or JSON, instead of timing devices.",
)
@click.option(
    "--topology",
    "machine",
    default=None,
    metavar="TOPOLOGY",
    help="With --from-nccl-tests: the machine, or machines, of the logs.",
)
@click.option(
    "--collective",
    default=None,
    metavar="NAME",
    help="With --from-nccl-tests: the collective of logs that do not say it.",
)
@gpus_options
@device_options
@click.option(
    "--name",
    default=None,
    metavar="NAME",
    help="Keep the constants under NAME, for --calibration NAME; default: the backend's.",
)
@click.option(
    "--out",
    default=None,
    metavar="FILE",
    help="Keep the constants in FILE, which ends in .toml.",
)
@click.option(
    "-n",
    "--iters",
    type=click.IntRange(3),
    default=None,
    help="Take this many samples of each plan; default: as many as a few seconds allow.",
)
@warmup_option
@click.option(
    "--held-out/--no-held-out",
    default=True,
    help="Then try the constants on strategies that are not in the fit; default --held-out.",
)
@details_option("Print all statistics after the five lines that sum them up.")
@report_options
def calibrate(
    faults: Faults,
    topology: tuple[str, ...],
    from_nccl_tests: bool,
    machine: str | None,
    collective: str | None,
    ngpus: int | None,
    gpus: str | None,
    name: str | None,
    out: str | None,
    iters: int | None,
    warmup_iters: int,
    held_out: bool,
    details: bool,
    **options: Any,
) -> Reply | int:
    """Learn the constants of real devices: time small plans, and fit what the simulator predicts
    for them.

    TOPOLOGY is a name, a file, an inline machine such as switch:4, or auto for this machine's GPUs.
    Every sample is kept beside the calibration, in .fit.jsonl and .held-out.jsonl, also after
    Ctrl-C or SIGTERM, which end it with status 130.

    With --from-nccl-tests, LOG... are read instead, and no device is used:

        simreduce calibrate --from-nccl-tests all_reduce.log --topology dgx-h100 --name mine
    """
    if from_nccl_tests:
        path = _read_path(name, out, "nccl")
        path.parent.mkdir(parents=True, exist_ok=True)
        return calibrate_from_logs(faults, topology, machine, collective or "", path)
    if machine is not None or collective is not None or len(topology) > 1:
        raise click.UsageError("several arguments, --topology, --collective: --from-nccl-tests")
    where = topology[0] if topology else "switch:4"
    devices, path = _read(faults, where, ngpus, gpus, name, out, options)
    path.parent.mkdir(parents=True, exist_ok=True)
    fit_file, held_out_file = (_set_aside(path, kind) for kind in ("fit", "held-out"))
    campaign = Campaign(devices, devices.setup(NOMINAL), iters, warmup_iters)
    with _stoppable(fit_file):
        timings, about = measure_micros(campaign, design(devices, cores_of([])), fit_file)
    if _print_faults(timings):
        return 1
    # The micro-plans do not depend on the number of cores, which the workers have said by now.
    computers = [Computer(each["name"], each["cores"]) for each in about["hardware"]["workers"]]
    chosen = design(devices, cores_of(computers))
    with _stoppable(fit_file, held_out_file):
        session = learn(chosen, devices, timings)
        if held_out:
            campaign = replace(campaign, setup=devices.setup(session.calibration))
            session = replace(session, tried=measure_held_out(campaign, held_out_file))
    calibration = describe(session, path.stem, chosen, devices, about)
    session = replace(session, calibration=calibration)
    write_file(str(path), [to_toml(calibration)])
    return Reply(
        partial(session_lines, session, path, details=details),
        partial(session_document, session, path),
        failed=_print_faults(session.tried),
    )


def _read(
    faults: Faults,
    topology: str,
    ngpus: int | None,
    gpus: str | None,
    name: str | None,
    out: str | None,
    options: dict[str, Any],
) -> tuple[Devices, Path]:
    """The devices, and where to keep the calibration. Raises InputError with every fault."""
    devices = faults.attempt("", read_devices, topology, ngpus, gpus, **options)
    path = faults.attempt("", _read_path, name, out, options["backend"])
    if devices is not None and devices.layout.n < 2:
        faults.add("calibrate", "needs two devices or more")
    if faults.problems or devices is None or path is None:
        raise InputError(faults.problems)
    return devices, path


def _read_path(name: str | None, out: str | None, backend: str) -> Path:
    """Where to keep the calibration. Raises InputError if a file is there, or cannot be."""
    if name is not None and out is not None:
        raise InputError(f"--name {name} and --out {out}: give one of the two")
    if out is None:
        name = name or backend
        if not name.replace("-", "").replace("_", "").isalnum():
            raise InputError(f"--name {name}: letters, digits, - and _ only; --out takes a file")
        if name in shipped():
            raise InputError(f"--name {name}: simreduce ships a calibration of that name")
        path = own_calibrations() / f"{name}.toml"
    else:
        path = Path(out)
        if path.suffix != ".toml":
            raise InputError(f"--out {out}: a calibration's file ends in .toml")
        check_place(out)
    if path.exists():
        other = "--name" if out is None else "--out"
        raise InputError(f"{overwrite_fault(path)}; choose another {other}")
    return path


def _set_aside(path: Path, kind: str) -> Path:
    """Where to keep samples. Renames those of an earlier run that made no calibration."""
    file = path.with_suffix(f".{kind}.jsonl")
    if file.exists():
        file.replace(file.with_name(f"{file.name}.old"))
    return file


@contextmanager
def _stoppable(*samples: Path) -> Iterator[None]:
    """On Ctrl-C and SIGTERM, print which of these files exist and exit with status 130."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        kept = " and ".join(str(file) for file in samples if file.exists())
        kept = f"the samples so far are in {kept}" if kept else "nothing was measured"
        click.echo(f"simreduce: stopped, without a calibration; {kept}", err=True)
        raise click.exceptions.Exit(130) from None


def _print_faults(timings: Sequence[Timing]) -> bool:
    """Print on stderr why timings mean nothing; returns whether any do."""
    faults = fault_lines(timings)
    for fault in faults:
        click.echo(f"simreduce: {fault}", err=True)
    return bool(faults)
