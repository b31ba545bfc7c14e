"""What `simreduce calibrate` prints of a session: a table of constants, or a document."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simreduce.engine.calibrate import own_calibrations, unit_of
from simreduce.files.formats.documents import (
    BYTES,
    BYTES_PER_SECOND,
    MICROSECONDS,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    or_null,
)
from simreduce.units import format_bandwidth, format_duration, format_size
from simreduce.version import __version__
from simreduce_validate.calibrating.provenance import kinds_without_constant, residual_text
from simreduce_validate.calibrating.session import Relay, Session
from simreduce_validate.report.accuracy import ACCURACY, accuracy_document, accuracy_lines
from simreduce_validate.report.answer import answer_lines

_WORST = 3
"""Micro-plans to show, of those that the fit misses most."""


def session_lines(session: Session, path: Path, *, details: bool) -> Iterator[str]:
    """What was fitted, and how good predictions with it are in five lines. With `details`, the
    constants, how well they are determined, and all statistics too.
    """
    calibration = session.calibration
    yield f"# simreduce {__version__}: {calibration.title}"
    yield f"# {calibration.provenance['hardware']}"
    given = path.stem if path.parent == own_calibrations() else path
    kept = f"{path}; use it with --calibration {given}"
    hint = "" if details else "; --details has all constants"
    if session.tried:
        answer = answer_lines(session.tried, session.accuracy, kept + hint)
    else:
        off = f"{residual_text(session.fit)}, of the fit itself; no other strategy was tried"
        answer = [f"off by   {off}", f"kept     {kept}{hint}"]
    yield from (f"# {line}" for line in answer)
    if details:
        yield from _detail_lines(session)


def _detail_lines(session: Session) -> Iterator[str]:
    calibration, fit = session.calibration, session.fit
    yield "#"
    yield "# constant                          value  standard error"
    for name, value in fit.values.items():
        error = _in_unit(name, fit.errors[name]) if name in fit.errors else "-"
        yield f"  {name:28s}  {_in_unit(name, value):>12s}  {error:>12s}"
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


CALIBRATE = Document(
    "calibrate",
    "`simreduce calibrate --json`: the constants of real devices, and how sure they are.",
    Key("calibration", TEXT, "Its name."),
    Key("file", TEXT, "The file that keeps it."),
    Key("title", TEXT, "What it is of."),
    Key("provenance", map_of(TEXT), "What it ran on, as the file has it."),
    Key(
        "constants",
        map_of(
            Record(
                "constant",
                "A constant in SI units.",
                Key("value", RATIO, "Its value."),
                Key(
                    "standard_error",
                    or_null(RATIO),
                    "Its standard error; null if it keeps its usual value.",
                ),
            )
        ),
        "The constants by name.",
    ),
    Key("ports", map_of(or_null(BYTES_PER_SECOND)), "What each port of a shaped link carries."),
    Key("without_constant", TEXT, "Kinds of op that no micro-plan has."),
    Key("hardly_determined", map_of(TEXT), "Constants that times hardly determine, and why."),
    Key(
        "one_pair_s",
        or_null(
            Record(
                "relay",
                "Two values that one pair sends at once.",
                Key("measured", SECONDS, "What they take."),
                Key("one_after_the_other", SECONDS, "Predicted, if they queue."),
                Key("shared", SECONDS, "Predicted, if they share."),
            )
        ),
        "Whether a pair's values queue; null if that was not measured.",
    ),
    Key(
        "fit",
        list_of(
            Record(
                "timing",
                "A micro-plan of the fit.",
                Key("plan", TEXT, "The plan."),
                Key("size_bytes", BYTES, "What it moves."),
                Key("measured_us", MICROSECONDS, "The median of its samples."),
                Key("error", RATIO, "Predicted over measured, less 1."),
            )
        ),
        "What constants were fitted to.",
    ),
    Key(
        "controls",
        list_of(
            Record(
                "control",
                "A plan that validations may time again.",
                Key("plan", TEXT, "The plan."),
                Key("size_bytes", BYTES, "What it moves."),
                Key("time_us", MICROSECONDS, "Its time."),
            )
        ),
        "The controls that the file keeps.",
    ),
    Key("held_out", or_null(ACCURACY), "How good predictions of other plans are, or null."),
)


def session_document(session: Session, path: Path) -> dict[str, Any]:
    """The same for programs: `CALIBRATE`."""
    calibration, fit, relay = session.calibration, session.fit, session.relay
    return {
        **CALIBRATE.head(),
        "calibration": path.stem,
        "file": str(path),
        "title": calibration.title,
        "provenance": dict(calibration.provenance),
        "constants": {
            name: {"value": value, "standard_error": fit.errors.get(name)}
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
