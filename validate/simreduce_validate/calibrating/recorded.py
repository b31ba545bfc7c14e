"""Sessions from the samples that others have kept: no device is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simreduce import dtypes
from simreduce.computing.arrays import Floats
from simreduce.engine import Calibration
from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import tensor
from simreduce_validate.calibrating.design import Design, cores_of, design
from simreduce_validate.calibrating.session import Session, all_micros, learn, measurement_of
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Case, Timing
from simreduce_validate.devices import Devices, read_devices
from simreduce_validate.measuring import Forecast, RecordedResult, read_record
from simreduce_validate.running.computer import Computer

_BACKENDS = ("gpu", "inproc", "cluster")
"""Backends whose devices a record describes whole: rates of shaped links are not in it."""

_NEEDED = {
    "started": str, "versions": Mapping, "hardware.cpu": str, "hardware.gpus": str,
    "hardware.usable_cores": int, "hardware.workers": list, "settings.topology": str,
    "settings.backend": str, "settings.route": str, "settings.chained": int,
}  # fmt: skip
"""What a provenance must have, by key."""


def read_session(files: Sequence[Path]) -> tuple[Session, Design, Devices, Mapping[str, Any]]:
    """The constants of the micro-plans in the first file, tried on the strategies in the others;
    with what was measured on which devices. Raises InputError with every fault.
    """
    file, *others = files
    fitted = read_record(file)
    about = fitted.provenance
    devices = _devices(file, about)
    for other in others:  # before the fit, which takes long
        _read_alike(other, devices)
    workers = about["hardware"]["workers"]
    chosen = design(devices, cores_of([Computer(w["name"], w["cores"]) for w in workers]))
    adapt = devices.stage.adapt
    samples = dict(_samples(fitted))
    there = {micro.name: samples.get(adapt(micro.plan).digest) for micro in all_micros(chosen)}
    micros = tuple(micro for micro in chosen.micros if there[micro.name] is not None)
    if not micros:
        raise InputError(f"{file}: has no micro-plan that simreduce calibrate times there")
    chosen = replace(chosen, micros=micros, pairs=(), relay=None, controls=())
    timings = [
        Timing(
            Case(micro.name, adapt(micro.plan), micro.nbytes // 4, 0, "sum", math.nan),
            measurement_of(*samples[adapt(micro.plan).digest]),
        )
        for micro in micros
    ]
    session = learn(chosen, devices, timings)
    tried = try_constants(session.calibration, devices, others)
    return replace(session, tried=tried), chosen, devices, about


def try_constants(calibration: Calibration, fitted: Devices, files: Sequence[Path]) -> list[Timing]:
    """The strategies that were timed in these files beside what constants of the devices `fitted`
    predict for them, each file on its own devices.

    Raises InputError for other kinds of devices, and for plans that are not those that were timed.
    """
    found: list[Timing] = []
    for file in files:
        record, devices = _read_alike(file, fitted)
        chained = record.provenance["settings"]["chained"]
        campaign = Campaign(devices, devices.setup(calibration), chained=chained)
        found += _tried(file, campaign, record)
    return found


def _read_alike(file: Path, fitted: Devices) -> tuple[RecordedResult, Devices]:
    """A file and its devices, of any number but of the same kind."""
    record = read_record(file)
    devices = _devices(file, record.provenance)
    for option, own, first in (
        ("--backend", devices.stage.backend, fitted.stage.backend),
        ("--route", devices.route, fitted.route),
        ("--pretend", devices.pretend, fitted.pretend),
    ):
        if own != first:
            raise InputError(f"{file}: was timed with {option} {own}, the first file with {first}")
    return record, devices


def _devices(file: Path, about: Mapping[str, Any]) -> Devices:
    _check(file, about)
    settings = about["settings"]
    backend = settings["backend"]
    if backend not in _BACKENDS:
        raise InputError(f"{file}: samples of --backend {backend} do not say what its links carry")
    try:
        return read_devices(
            settings["topology"], None, None, backend=backend, route=settings["route"], hosts=None,
            launch="", rate=None, delay=None, slow_port=(), split=1,
            pretend=backend == "gpu" and not about["hardware"]["gpus"], timeout=1.0,
        )  # fmt: skip
    except InputError as error:
        raise InputError([f"{file}: {problem}" for problem in error.problems]) from None


def _check(file: Path, about: Mapping[str, Any]) -> None:
    """Raises InputError with every key that is needed and not there."""
    faults = Faults(str(file))
    for key, kind in _NEEDED.items():
        value: Any = about
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        faults.check(isinstance(value, kind), f"provenance.{key}", "is missing, or no such value")
    faults.raise_any()
    whole = all(
        isinstance(worker, Mapping) and {"name", "cores"} <= worker.keys()
        for worker in about["hardware"]["workers"]
    )
    faults.check(whole, "provenance.hardware.workers", "each needs name and cores")
    faults.raise_any()


def _samples(record: RecordedResult) -> Iterator[tuple[str, tuple[Floats, tuple[str, ...]]]]:
    """The samples and faults of each plan that has any."""
    rows = zip(record.forecasts, record.seconds, record.faults, strict=True)
    for forecast, seconds, faults in rows:
        if len(seconds) and forecast.plan:
            yield forecast.plan, (seconds, faults or ())


def _tried(file: Path, campaign: Campaign, record: RecordedResult) -> Iterator[Timing]:
    """The strategies of a record beside what is now predicted for them."""
    rows = zip(record.forecasts, record.seconds, record.faults, strict=True)
    for forecast, seconds, faults in rows:
        if len(seconds) and forecast.plan and forecast.then_us is None:
            case = _case(file, campaign, forecast)
            yield Timing(case, measurement_of(seconds, faults or ()))


def _case(file: Path, campaign: Campaign, forecast: Forecast) -> Case:
    try:
        workload = tensor(forecast.size_bytes, dtypes.code(forecast.type))
        case = campaign.cases(workload, [parse_strategy(forecast.algorithm)])[0]
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    if case.forecast.plan != forecast.plan:
        raise InputError(
            f"{file}: {forecast.algorithm} of {forecast.size_bytes} bytes: the plan that was timed"
            f" is {forecast.plan}, on {campaign.devices.topology.name} it is {case.forecast.plan}"
        )
    return replace(case, repeats=forecast.repeats)
