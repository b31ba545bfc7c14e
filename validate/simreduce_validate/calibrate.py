"""`simreduce calibrate`: learn the constants of real devices from micro-plans, then try them on
other strategies.

    simreduce calibrate switch:4 --backend cluster --name mine
    simreduce validate switch:4 --backend cluster --calibration mine

Constants of CPU devices apply where those are simulated: in `validate` and `run --measure`.
Constants of links and of GPUs' ops apply everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from simreduce.app.cli import command
from simreduce.app.cli.accuracy import calibrate_from_logs, calibrate_from_step
from simreduce.app.cli.reply import Reply, interruptible, report_options, say
from simreduce.app.cli.setups import (
    details_option,
    device_options,
    gpus_options,
    refuse,
    warmup_option,
)
from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.calibrate import load_calibration, own_calibrations, shipped, to_toml
from simreduce.errors import CalibrationError, InputError
from simreduce.files import check_place, write_file
from simreduce.files.formats.syntax import Faults
from simreduce_validate.calibrating import Design, cores_of, design
from simreduce_validate.calibrating.provenance import ROUGH, describe, residual_text
from simreduce_validate.calibrating.recorded import read_session
from simreduce_validate.calibrating.session import (
    Session,
    learn,
    measure_held_out,
    measure_micros,
    open_devices,
)
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Timing
from simreduce_validate.devices import Devices, read_devices
from simreduce_validate.measuring import overwrite_fault
from simreduce_validate.measuring.provenance import provenance
from simreduce_validate.report.calibration import session_document, session_lines
from simreduce_validate.report.validation import fault_lines
from simreduce_validate.running.computer import Computer

_WITH_SAMPLES = ("topology", "from_samples", "name", "out", "details", "wide", "as_json")
"""Parameters of the command that have a use where samples are read."""
_WITH_STEP = ("topology", "scenario", "out", "wide", "as_json")
"""Those that have one where a training step is read."""


@command(examples="simreduce calibrate switch:2 --backend inproc")
@click.argument("topology", nargs=-1, metavar="[TOPOLOGY | LOG... | step LOG]")
@click.option(
    "--from-nccl-tests",
    is_flag=True,
    help="Fit NCCL's constants to logs of nccl-tests, text or JSON, or to OSU's tables, instead of"
    " timing devices.",
)
@click.option(
    "--from-samples",
    is_flag=True,
    help="Fit the samples in the first file again, and try the constants on those in the others.",
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
@click.option(
    "--scenario",
    default=None,
    metavar="FILE",
    help="With step LOG: the scenario whose first mesh was measured.",
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
    from_samples: bool,
    machine: str | None,
    collective: str | None,
    scenario: str | None,
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
    Every sample is kept beside the calibration, in .fit.jsonl and .held-out.jsonl. Ctrl-C and
    SIGTERM end it with status 130, and keep the samples and the constants so far: rough ones after
    three rounds. The next run puts rough ones aside, as FILE.old.

    With --from-nccl-tests, LOG... are read instead, and no device is used:

        simreduce calibrate --from-nccl-tests all_reduce.log --topology dgx-h100 --name mine

    With --from-samples, LOG... are samples of earlier runs, and no device is used: the .fit.jsonl
    of a calibration, then its .held-out.jsonl or files of simreduce validate --out:

        simreduce calibrate --from-samples gpu.fit.jsonl gpu.held-out.jsonl --name mine

    With step, LOG is that of a training run on the first mesh of --scenario, of Megatron-LM, NeMo,
    torchtitan, Lightning or Hugging Face's Trainer, or a CSV of seconds,tokens. The rate of
    products, or the host's time, is fitted to its step, and the GPU kept in --out, gpu.toml unless
    named:

        simreduce calibrate step train.log --scenario mine.toml
    """
    if topology[:1] == ("step",):
        _refuse_others(faults, _WITH_STEP, "calibrate step reads a log, and no device is used")
        if len(topology) != 2:
            raise click.UsageError("calibrate step LOG --scenario FILE: name one log")
        return calibrate_from_step(faults, topology[1], scenario, out)
    if scenario is not None:
        raise click.UsageError("--scenario: calibrate step LOG --scenario FILE")
    if from_samples:
        _refuse_others(faults, _WITH_SAMPLES, "--from-samples reads files, and all is there")
    if from_nccl_tests:
        path = _read_path(name, out, "nccl")
        _make_room(path)
        return calibrate_from_logs(faults, topology, machine, collective or "", path)
    if from_samples:
        if not topology:
            raise click.UsageError("--from-samples: name the files")
        path = _read_path(name, out, "samples")
        _make_room(path)
        session, chosen, devices, about = read_session([Path(file) for file in topology])
        return _keep(session, chosen, devices, about, path, details=details)
    if machine is not None or collective is not None or len(topology) > 1:
        raise click.UsageError("several arguments, --topology, --collective: --from-nccl-tests")
    where = topology[0] if topology else "switch:4"
    devices, path = _read(faults, where, ngpus, gpus, name, out, options)
    _make_room(path)
    fit_file, held_out_file = (
        _set_aside(path.with_suffix(f".{kind}.jsonl")) for kind in ("fit", "held-out")
    )
    campaign = Campaign(devices, devices.setup(NOMINAL), iters, warmup_iters)
    micros = design(devices, cores_of([]))
    with (
        _stoppable(path, fit_file, held_out_file),
        open_devices(campaign, micros, held_out=held_out) as opened,
    ):
        about = provenance(opened.provenance, campaign.settings)
        # The micro-plans do not depend on the number of cores, which the workers have said by now.
        computers = [Computer(each["name"], each["cores"]) for each in about["hardware"]["workers"]]
        chosen = design(devices, cores_of(computers))

        def begin(timings: list[Timing]) -> None:
            first = learn(chosen, devices, timings, rough=True)
            _write(describe(first, path.stem, chosen, devices, about), path)
            off = residual_text(first.fit)
            say(f"first, rough constants are in {path}: {off}, of the fit; more rounds refine them")

        timings, about = measure_micros(campaign, micros, fit_file, opened, begin)
        if _print_faults(timings):
            path.unlink(missing_ok=True)
            return 1
        session = learn(chosen, devices, timings)
        if held_out:
            _write(describe(session, path.stem, chosen, devices, about), path)
            say(f"the fit: {residual_text(session.fit)}; now other strategies are timed")
            campaign = replace(campaign, setup=devices.setup(session.calibration))
            session = replace(session, tried=measure_held_out(campaign, held_out_file, opened))
    return _keep(session, chosen, devices, about, path, details=details)


def _refuse_others(faults: Faults, known: Collection[str], why: str) -> None:
    """Raises InputError with every option but those that are `known`, and why it has no use."""
    others = {param.name or "" for param in click.get_current_context().command.params}
    refuse(faults, sorted(others - {*known}), why)
    faults.raise_any()


def _keep(
    session: Session,
    chosen: Design,
    devices: Devices,
    about: Mapping[str, Any],
    path: Path,
    *,
    details: bool,
) -> Reply:
    """Write the calibration of a session; returns what to print of it."""
    calibration = describe(session, path.stem, chosen, devices, about)
    session = replace(session, calibration=calibration)
    _write(calibration, path)
    return Reply(
        partial(session_lines, session, path, details=details),
        partial(session_document, session, path),
        failed=_print_faults(session.tried),
    )


def _write(calibration: Calibration, path: Path) -> None:
    write_file(str(path), [to_toml(calibration)])


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
    if path.exists() and not _is_rough(path):
        other = "--name" if out is None else "--out"
        raise InputError(f"{overwrite_fault(path)}; choose another {other}")
    return path


def _is_rough(path: Path) -> bool:
    """Whether a file has the rough constants of a run that was stopped."""
    with suppress(CalibrationError):
        return load_calibration(str(path)).provenance.get("method", "").startswith(ROUGH)
    return False


def _make_room(path: Path) -> None:
    """Make the folder of a calibration, and put rough constants of an earlier run aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _set_aside(path)


def _set_aside(file: Path) -> Path:
    """The same file, after what an earlier run left there was renamed."""
    if file.exists():
        file.replace(file.with_name(f"{file.name}.old"))
    return file


@contextmanager
def _stoppable(calibration: Path, *samples: Path) -> Iterator[None]:
    """On Ctrl-C and SIGTERM, print which of these files exist and exit with status 130. After any
    other exception, name the calibration if it exists.
    """
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        kept = " and ".join(str(file) for file in samples if file.exists())
        kept = f"the samples so far are in {kept}" if kept else "nothing was measured"
        made = "without a calibration"
        if calibration.exists():
            made = f"the constants so far are in {calibration}"
        click.echo(f"simreduce: stopped, {made}; {kept}", err=True)
        raise click.exceptions.Exit(130) from None
    except Exception:
        if calibration.exists():
            say(f"simreduce: the constants so far are in {calibration}")
        raise


def _print_faults(timings: Sequence[Timing]) -> bool:
    """Print on stderr why timings mean nothing; returns whether any do."""
    faults = fault_lines(timings)
    for fault in faults:
        click.echo(f"simreduce: {fault}", err=True)
    return bool(faults)
