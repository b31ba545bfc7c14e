"""What `simreduce calibrate` prints of a session: a table of constants, or a document."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import simreduce as sr
from simreduce.calibrate import own_calibrations, unit_of
from simreduce.units import format_bandwidth, format_duration, format_size
from simreduce_validate.calibrating.provenance import kinds_without_constant, residual_text
from simreduce_validate.calibrating.session import Relay, Session
from simreduce_validate.report.accuracy import accuracy_document, accuracy_lines

_WORST = 3
"""Micro-plans to show, of those that the fit misses most."""


def session_lines(session: Session, path: Path) -> Iterator[str]:
    """The constants and how well they are determined, then how good predictions were."""
    calibration, fit = session.calibration, session.fit
    yield f"# simreduce {sr.__version__}: {calibration.title}"
    yield f"# {calibration.provenance['hardware']}"
    yield "#"
    yield "# constant                          value  standard error"
    for name, value in fit.values.items():
        error = fit.errors[name]
        yield f"  {name:28s}  {_in_unit(name, value):>12s}  {_in_unit(name, error):>12s}"
    for name, why in fit.vague.items():
        yield f"  {name:28s}  hardly determined: {why}"
    if "directions" in calibration.provenance:
        yield f"# directions of links: {calibration.provenance['directions']}"
    if missing := kinds_without_constant(fit):
        yield f"# no constant for: {', '.join(missing)}"
    yield "#"
    yield f"# fit: {len(fit.residuals)} micro-plans, {residual_text(fit)}"
    yield from _worst_lines(session)
    if session.relay:
        yield _relay_line(session.relay)
    if session.accuracy is not None:
        yield "# strategies that were not in the fit:"
        yield from (f"#   {line}" for line in accuracy_lines(session.accuracy))
    given = path.stem if path.parent == own_calibrations() else path
    yield f"# kept in {path}; use it with --calibration {given}"


def _worst_lines(session: Session) -> Iterator[str]:
    errors = [math.expm1(residual) for residual in session.fit.residuals]
    for i in sorted(range(len(errors)), key=lambda i: -abs(errors[i]))[:_WORST]:
        case, measured = session.timings[i].case, session.timings[i].measured.median
        yield (
            f"#   {case.algorithm}, {case.nbytes} bytes: measured {format_duration(measured)}, "
            f"predicted {errors[i]:+.1%}"
        )


def _relay_line(relay: Relay) -> str:
    queued, shared = (abs(math.log(relay.measured / s)) for s in (relay.queued, relay.shared))
    how = (
        "queue, as the simulator assumes"
        if queued < shared
        else "share the route, unlike in the simulator"
    )
    return (
        f"# two transfers from one device to another {how}: "
        f"{format_duration(relay.measured)} measured, predicted {format_duration(relay.queued)} "
        f"if they "
        f"queue, {format_duration(relay.shared)} if they share"
    )


def _in_unit(name: str, value: float) -> str:
    return _FORMATS[unit_of(name)](value)


_FORMATS = {
    "rate": format_bandwidth,
    "size": format_size,
    "number": "{:.3g}".format,
    "time": format_duration,
}
"""How a value is printed, by its unit."""


def session_document(session: Session, path: Path) -> dict[str, Any]:
    """The same for programs. Units stand in the keys, constants are in SI units."""
    calibration, fit, relay = session.calibration, session.fit, session.relay
    return {
        "command": "calibrate",
        "version": sr.__version__,
        "calibration": path.stem,
        "file": str(path),
        "title": calibration.title,
        "provenance": dict(calibration.provenance),
        "constants": {
            name: {"value": value, "standard_error": fit.errors[name]}
            for name, value in fit.values.items()
        },
        "ports": {name: c.bandwidth for name, c in calibration.links.items() if ">" in name},
        "without_constant": ", ".join(kinds_without_constant(fit)) or "nothing",
        "hardly_determined": dict(fit.vague),
        "one_pair_s": relay
        and {
            "measured": relay.measured,
            "one_after_the_other": relay.queued,
            "shared": relay.shared,
        },
        "fit": [
            {
                "plan": timing.case.algorithm,
                "size_bytes": timing.case.nbytes,
                "measured_us": timing.measured.median * 1e6,
                "error": math.expm1(residual),
            }
            for timing, residual in zip(session.timings, fit.residuals, strict=False)
        ],
        "controls": [
            {"plan": kind, "size_bytes": nbytes, "time_us": seconds * 1e6}
            for (kind, nbytes), seconds in calibration.controls.items()
        ],
        "held_out": accuracy_document(session.accuracy),
    }
