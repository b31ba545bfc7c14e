"""Reads a calibration from TOML.

title = "what was fitted, to what"
[provenance]            # free text: hardware, date, versions, source, method
[dispatch]              # seconds per op, by op kind: copy, add, slice, concat, scale, cast
copy = "50 us"
[links.qpi]             # replaces the topology's figures for a link class (per lane and direction)
bandwidth = "7 GB/s"
latency = "1 us"
[errors]                # standard error of a constant, by its dotted name, in the constant's own unit
"dispatch.copy" = "5 us"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from simreduce import units
from simreduce.engine import NOMINAL, Calibration, LinkConstants
from simreduce.errors import CalibrationError, did_you_mean, shown
from simreduce.plan import Kind
from simreduce.textfiles import exists, parse_toml, read_text
from simreduce.topology.faults import BANDWIDTH_LIMITS, LATENCY_LIMITS

_SHIPPED = resources.files("simreduce") / "calibrations"
_SECTIONS = ("title", "provenance", "dispatch", "links", "errors")
_DISPATCHED = tuple(k.name.lower() for k in Kind if k not in (Kind.INPUT, Kind.OUTPUT))


def _rate(text: object) -> float:
    return _within(text, units.bandwidth(text), *BANDWIDTH_LIMITS)


def _delay(text: object) -> float:
    return _within(text, units.duration(text), *LATENCY_LIMITS)


def _within(text: object, value: float, low: float, high: float, words: str) -> float:
    if not low <= value <= high:
        raise ValueError(f"{shown(text)} must be {words}")
    return value


_LINK_KEYS: Mapping[str, Callable[[object], float]] = {"bandwidth": _rate, "latency": _delay}
_ERRORS = {"bandwidth": units.bandwidth, "latency": units.duration}
"""How the standard error of a constant is read; it may be 0."""


def shipped() -> list[str]:
    """Names of the calibrations that come with simreduce, `nominal` first."""
    return [NOMINAL.name, *sorted(p.name[:-5] for p in _SHIPPED.iterdir() if p.name.endswith(".toml"))]


def load_calibration(text: str) -> Calibration:
    """The calibration of that name, or of that file; CalibrationError lists every fault."""
    if text == NOMINAL.name:
        return NOMINAL
    if text in shipped():
        return _parse(text, text, (_SHIPPED / f"{text}.toml").read_text("utf-8"))
    path = Path(text)
    if path.suffix != ".toml" and not exists(text):
        near = did_you_mean(text, shipped()) or f"; shipped: {', '.join(shipped())}"
        raise CalibrationError(f"no calibration {shown(text)}{near}; a file ends in .toml")
    return _parse(path.stem, text, read_text(path, CalibrationError))


def _parse(name: str, source: str, content: str) -> Calibration:
    document = parse_toml(source, content, CalibrationError)
    problems = [f"unknown key {k!r}{did_you_mean(k, _SECTIONS)}" for k in document if k not in _SECTIONS]
    tables = {s: _table(document.get(s, {}), s, problems) for s in _SECTIONS[1:]}
    dispatch = _quantities(tables["dispatch"], "dispatch", dict.fromkeys(_DISPATCHED, _delay), problems)
    links = {}
    for link_class, fields in tables["links"].items():
        place = f"links.{link_class}"
        links[link_class] = LinkConstants(
            **_quantities(_table(fields, place, problems), place, _LINK_KEYS, problems)
        )
    known = {f"dispatch.{k}": units.duration for k in _DISPATCHED if k in tables["dispatch"]} | {
        f"links.{c}.{k}": read for c in links for k, read in _ERRORS.items()
    }
    errors = _quantities(tables["errors"], "errors", known, problems)
    title = _text(document.get("title", ""), "title", problems)
    provenance = {k: _text(v, f"provenance.{k}", problems) for k, v in tables["provenance"].items()}
    if problems:
        raise CalibrationError([f"{source}: {p}" for p in problems])
    return Calibration(name, title, dispatch, links, provenance, errors)


def _text(value: object, place: str, problems: list[str]) -> str:
    if isinstance(value, (str, date)):
        return str(value)
    problems.append(f"{place}: expected text, not {shown(value)}")
    return ""


def _table(value: object, place: str, problems: list[str]) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    problems.append(f"{place}: expected a table")
    return {}


def _quantities(
    table: Mapping[str, object],
    place: str,
    known: Mapping[str, Callable[[object], float]],
    problems: list[str],
) -> dict[str, float]:
    """Every known quantity of a table; faults go to `problems`."""
    values = {}
    for key, text in table.items():
        if key not in known:
            problems.append(
                f"{place}.{key}: unknown key{did_you_mean(key, known)}; known: {', '.join(known)}"
            )
            continue
        try:
            values[key] = known[key](text)
        except ValueError as error:
            problems.append(f"{place}.{key}: {error}")
    return values
