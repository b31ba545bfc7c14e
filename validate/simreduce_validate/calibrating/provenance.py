"""The provenance that a calibration file keeps of its session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from simreduce.engine import Calibration
from simreduce.engine.calibrate.fit import Fit
from simreduce.plan import Kind
from simreduce_validate.calibrating.design import Design
from simreduce_validate.calibrating.session import FIRST_ROUNDS, Session
from simreduce_validate.devices import Devices
from simreduce_validate.measuring.provenance import processors
from simreduce_validate.report.accuracy import accuracy_lines

ROUGH = "rough"
"""How the method of a fit begins that more rounds were to refine."""


def describe(
    session: Session, name: str, design: Design, devices: Devices, about: Mapping[str, Any]
) -> Calibration:
    """The calibration of a session under its name, with title and provenance."""
    links = f", {devices.links.text}" if devices.links else ""
    title = f"{devices.layout.n} devices of backend {devices.stage.backend}{links}"
    found = _provenance(session, design, devices, about)
    return replace(session.calibration, name=name, title=title, provenance=found)


def _provenance(
    session: Session, design: Design, devices: Devices, about: Mapping[str, Any]
) -> dict[str, str]:
    hardware, versions, fit = about["hardware"], about["versions"], session.fit
    gpus = f", {hardware['gpus']}" if hardware["gpus"] else ""
    backend = f"--backend {devices.stage.backend} --route {devices.route}"
    rough = f"{ROUGH}, {FIRST_ROUNDS} rounds, unchecked: " if session.rough else ""
    method = (
        f"robust least squares on log(predicted / measured) of {len(fit.residuals)} micro-plans"
    )
    found = {
        "date": about["started"],
        "hardware": processors(hardware) + gpus,
        "software": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "source": f"simreduce calibrate {devices.topology.name} {backend}",
        "method": rough + method,
        "residuals": residual_text(fit),
        "without_constant": ", ".join(kinds_without_constant(fit)) or "nothing",
        "hardly_determined": "; ".join(f"{constant}: {why}" for constant, why in fit.vague.items())
        or ("not known" if rough else "nothing"),
    }
    if design.directions:
        found["directions"] = design.directions
    if session.accuracy is not None:
        found["held_out"] = accuracy_lines(session.accuracy)[0].removeprefix("predictions: ")
    return found


def kinds_without_constant(fit: Fit) -> list[str]:
    """The kinds of op that no micro-plan has. They cost nothing in predictions."""
    named = {*fit.values, *fit.vague}
    return [
        kind.name.lower()
        for kind in Kind
        if not {f"dispatch.{kind.name.lower()}", f"issue.{kind.name.lower()}"} & named
        and kind != Kind.COPY
    ]


def residual_text(fit: Fit) -> str:
    """Median and 90th percentile of the fit's errors."""
    errors = np.abs(np.expm1(fit.residuals))
    median, high = np.median(errors), np.quantile(errors, 0.9)
    return f"|error| {median:.1%} in the median, {high:.1%} at the 90th percentile"
