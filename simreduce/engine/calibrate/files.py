"""Reads a calibration from TOML, and writes one.

The kinds of plans in `[controls]`, which are timed again where a calibration is tried, with values
of float32:

- chains: a value goes back and forth between two devices: 48 hops if they are of one process, 11
  from one process to another
- copies: the same in 4 hops, between devices of one process
- transfers: the same in 3 hops, from one process to another
- sums: a value on the first device to which others are added, 8 times one after another

A time is compared with that of the same plan: a plan that is another one needs another name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from simreduce import units
from simreduce.engine import NOMINAL, Calibration, LinkConstants, Processor
from simreduce.engine.calibrate.nccl import NCCL, nccl_names, read_nccl, write_nccl
from simreduce.engine.calibration import NcclConstants
from simreduce.engine.lowering.cores import TRANSFER
from simreduce.errors import CalibrationError, did_you_mean, quote
from simreduce.files.formats import (
    ANYTHING,
    BANDWIDTH,
    DURATION,
    FLAG,
    LATENCY,
    LINE,
    RATE,
    SIZE,
    TEXT,
    Faults,
    Field,
    FieldValues,
    Format,
    MapOf,
    TableOf,
    ValueKind,
    number,
    quantity,
    toml_text,
)
from simreduce.files.textfiles import exists, flatten, parse_toml, read_text
from simreduce.plan import Kind
from simreduce.topology import DIRECTIONS

_SHIPPED = resources.files("simreduce") / "files" / "calibrations"
GENERATIONS = {
    ("nccl", 60): "nccl-pascal",
    ("nccl", 70): "nccl-volta",
    ("nccl", 80): "nccl-ampere",
    ("nccl", 90): "nccl-hopper",
    ("nccl", 100): "nccl-blackwell",
    ("rccl", 95): "rccl-cdna4",
    ("rccl", 94): "rccl-cdna3",
}
"""Shipped calibrations, by library and the first compute capability of their generation."""
KERNELS_OF = {"nccl-hopper": (90, "Hopper"), "nccl-blackwell": (103, "B300")}
"""The GPUs that constants of kernels were fitted on, by calibration: compute capability and name.
Others have Hopper's, and B200 has B300's: the only table of B200 takes no part in a fit.
"""
WITHOUT_TABLES = {("rccl", 90): "CDNA 2"}
"""Generations with the constants of another one, as no clean table of them is public."""
DISPATCHED = tuple(kind.name.lower() for kind in Kind)
"""Kinds of op that may have a dispatch cost."""
RATED = (*(kind for kind in DISPATCHED if kind not in ("input", "output")), TRANSFER)
"""Work that may have a rate of a core."""
CHAINS, COPIES, TRANSFERS, SUMS = "chains", "copies", "transfers", "sums"
CONTROLS = (CHAINS, COPIES, TRANSFERS, SUMS)
"""Plans that can be timed again; the module's docstring describes them."""
_ELEMENT, _LARGEST_CONTROL = 4, 1 << 30
"""Bytes of a control's values, which are float32: more would be no small plan."""
_CORES = number(1, 1024, "cores")
_CONTROL_TIME = quantity(
    units.duration, "a time", ("95 us",), (1e-9, 3600.0, "between 1 ns and 1 h")
)
_LINK = Format(
    "links.CLASS",
    "Replaces the topology's figures of a link class, per lane and direction. `qpi` is a class,"
    ' `"pcie3_x16:d2h"` its links from GPUs to their host, `h2d` those back, `"gpu0>gpu1"` one'
    " link.",
    Field("bandwidth", BANDWIDTH, "What a large copy reaches."),
    Field("latency", LATENCY, "Time one way."),
)
_CPU = Format(
    "cpu",
    "The cores that compute the ops of CPU devices and handle the messages between these.",
    Field("cores", _CORES, "How many work at a time.", default_words="`1`"),
    Field("moving", _CORES, "How many of them move bytes at a time.", default_words="all"),
    Field("shared", FLAG, "Whether one computer stands in for all machines.", default=False),
    Field("message", LATENCY, "Time of a core for each message to another machine.",
          default_words="none"),
    Field("own_cache", SIZE, "Cache of each core. What an op reads and writes beyond it takes the"
          " core longer.", default_words="none"),
    Field("past_own", BANDWIDTH, "Rate at which bytes beyond `own_cache` move.",
          default_words="unlimited"),
    Field("cache", SIZE, "How much of all values of a step stays near the cores.",
          default_words="none"),
    Field("memory", BANDWIDTH, "Rate at which all ops together write the rest of it.",
          default_words="unlimited"),
    Field("rates", MapOf(BANDWIDTH, RATED), "Bytes a second of one core by op kind: of copies and"
          " transfers to another machine what they move, of others what they read and write."),
)  # fmt: skip
CALIBRATION = Format(
    "calibration",
    "Constants of the model, with how they were measured.",
    Field("title", LINE, "What was fitted, to what.", ""),
    Field("step", LATENCY, "Cost of a step before its first op, on every machine that takes part.",
          default_words="none"),
    Field("provenance", MapOf(TEXT), "Hardware, date, versions, source and method, in free text."),
    Field("dispatch", MapOf(LATENCY, DISPATCHED), "Cost of an op, by op kind."),
    Field("links", MapOf(TableOf(_LINK), key="CLASS"), "Figures of link classes."),
    Field("cpu", TableOf(_CPU), "The cores of CPU devices."),
    Field("nccl", TableOf(NCCL), "What NCCL's collectives cost."),
    Field("errors", MapOf(ANYTHING), 'Standard error of a constant by its dotted name, such as'
          ' `"dispatch.copy" = "5 us"`, in the unit of the constant.'),
    Field("controls", MapOf(MapOf(_CONTROL_TIME, key="SIZE"), CONTROLS, key="PLAN"),
          "Times of small plans when this was measured, by the size of their values:"
          ' `"64 KiB" = "95 us"`.'),
)  # fmt: skip
_CPU_CONSTANTS = (
    *(f"cpu.{key}" for key in _CPU.keys if key not in ("shared", "rates")),
    *(f"cpu.rates.{kind}" for kind in RATED),
)
Unit = Literal["rate", "size", "number", "time"]
"""Bytes/s, bytes, a plain number, seconds."""
_ERRORS: Mapping[Unit, ValueKind[Any]] = {
    "rate": RATE, "size": SIZE, "number": number(0), "time": DURATION,
}  # fmt: skip
_EXACT: Mapping[Unit, Callable[[Any], object]] = {
    "rate": units.exact_bandwidth,
    "size": lambda nbytes: units.exact_size(int(nbytes)),
    "number": lambda value: value,
    "time": units.exact_duration,
}


def shipped() -> list[str]:
    """Names of the calibrations that come with simreduce, `nominal` first."""
    return [
        NOMINAL.name,
        *sorted(p.name[:-5] for p in _SHIPPED.iterdir() if p.name.endswith(".toml")),
    ]


def generation_of(capability: int, library: str = "nccl") -> str:
    """The calibration that is for GPUs of a compute capability, 80 for 8.0, and their library."""
    known = [number for name, number in GENERATIONS if name == library]
    newest = max((each for each in known if each <= capability), default=min(known))
    return GENERATIONS[library, newest]


@cache
def nccl_constants(capability: int, library: str = "nccl") -> NcclConstants:
    """A library's shipped constants for GPUs of a compute capability, 80 for 8.0."""
    name = generation_of(capability, library)
    return load_calibration(name).nccl if name in shipped() else NcclConstants()


def own_calibrations() -> Path:
    """The folder of calibrations made on this computer, which are known by name."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "simreduce" / "calibrations"


def load_calibration(text: str) -> Calibration:
    """Return the calibration of that name, shipped or made here, or of that file.

    CalibrationError lists every fault.
    """
    if text == NOMINAL.name:
        return NOMINAL
    if text in shipped():
        return _parse(text, text, (_SHIPPED / f"{text}.toml").read_text("utf-8"))
    path, own = Path(text), own_calibrations()
    mine = own / f"{text}.toml"
    if path.name == text and exists(str(mine)):
        return _parse(text, str(mine), read_text(mine, CalibrationError))
    if path.suffix != ".toml" and not exists(text):
        known = [*shipped(), *sorted(p.stem for p in own.glob("*.toml"))]
        near = did_you_mean(text, known) or f"; known: {', '.join(known)}"
        raise CalibrationError(f"no calibration {quote(text)}{near}; a file ends in .toml")
    return _parse(path.stem, text, read_text(path, CalibrationError))


def _parse(name: str, source: str, content: str) -> Calibration:
    document = parse_toml(source, content, CalibrationError)
    faults = Faults(source)
    if not document:
        faults.add("", f"is empty; give any of {', '.join(CALIBRATION.keys)}")
    values = CALIBRATION.read(document, faults)
    links = values["links"] or {}
    for link in links:
        if fault := _misnamed(link):
            faults.add(f"links.{link}", fault)
    errors = _errors(flatten(values["errors"] or {}), _error_kinds(document), faults)
    nccl = NOMINAL.nccl if values["nccl"] is None else read_nccl(values["nccl"])
    controls = _controls(values["controls"] or {}, faults)
    faults.raise_any(CalibrationError)
    return Calibration(
        name,
        values["title"],
        values["dispatch"] or {},
        {link: LinkConstants(**figures) for link, figures in links.items()},
        values["step"] or 0.0,
        None if values["cpu"] is None else _processor(values["cpu"]),
        nccl=nccl,
        provenance=values["provenance"] or {},
        errors=errors,
        controls=controls,
    )


def _processor(cpu: FieldValues) -> Processor:
    given = {key: value for key, value in cpu.items() if value is not None}
    return Processor(**{"rates": {}, **given})


def _misnamed(link: str) -> str:
    """The fault of a link class's name that ends in a direction, "" if it has none.

    A link has a name of its own.
    """
    link_class, colon, way = link.partition(":")
    if not colon or "<" in link or ">" in link:
        return ""
    if way not in DIRECTIONS:
        near = did_you_mean(way, DIRECTIONS)
        return f"no direction {quote(way)}{near}; known: {', '.join(DIRECTIONS)}"
    return "" if link_class else f"a link class is missing before {quote(colon + way)}"


def _error_kinds(document: Mapping[str, Any]) -> dict[str, ValueKind[Any]]:
    """How the standard error of each constant in the file is read; it may be 0."""
    dispatch, links = (
        table if isinstance(table := document.get(key), dict) else {}
        for key in ("dispatch", "links")
    )
    names = [f"dispatch.{op}" for op in DISPATCHED if op in dispatch]
    for link in links:
        names += [f"links.{link}.bandwidth", f"links.{link}.latency"]
    names += ["step"] if "step" in document else []
    names += _CPU_CONSTANTS if "cpu" in document else ()
    names += nccl_names() if "nccl" in document else ()
    return {name: _ERRORS[unit_of(name)] for name in names}


def _errors(
    given: Mapping[str, object], kinds: Mapping[str, ValueKind[Any]], faults: Faults
) -> dict[str, float]:
    faults.unknown("errors", given, kinds)
    found = {
        key: kinds[key].take(value, faults, f"errors.{key}")
        for key, value in given.items()
        if key in kinds
    }
    return {key: value for key, value in found.items() if value is not None}


def _controls(
    given: Mapping[str, Mapping[str, float]], faults: Faults
) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for kind, times in given.items():
        for text, seconds in times.items():
            place = f"controls.{kind}.{text}"
            nbytes = faults.attempt(place, _control_size, text)
            if nbytes is not None and (kind, nbytes) in found:
                faults.add(place, f"a size that is there already: {units.exact_size(nbytes)}")
            elif nbytes is not None:
                found[kind, nbytes] = seconds
    return found


def _control_size(text: object) -> int:
    """Bytes of the values of a control."""
    nbytes = units.size(text)
    if nbytes % _ELEMENT or not _ELEMENT <= nbytes <= _LARGEST_CONTROL:
        raise ValueError(
            f"must be between 4 B and 1 GiB, of whole values of 4 B, got {quote(text)}"
        )
    return nbytes


def to_toml(calibration: Calibration) -> str:
    """The text of the file, which reads as the same value; its name is the file's own."""
    controls: dict[str, dict[str, str]] = {}
    for (kind, size), seconds in calibration.controls.items():
        times = controls.setdefault(kind, {})
        times[units.exact_size(size)] = units.exact_duration(seconds)
    errors = {key: _EXACT[unit_of(key)](value) for key, value in calibration.errors.items()}
    tables: dict[str, Any] = {
        "step": calibration.step and units.exact_duration(calibration.step),
        "provenance": calibration.provenance,
        "dispatch": {k: units.exact_duration(cost) for k, cost in calibration.dispatch.items()},
        "links": {name: _link_table(link) for name, link in calibration.links.items()},
        "cpu": calibration.cpu and _cpu_table(calibration.cpu),
        "nccl": write_nccl(calibration.nccl),
        "errors": errors,
        "controls": controls,
    }
    given = {key: table for key, table in tables.items() if table}
    return toml_text({"title": calibration.title, **given})


def _link_table(link: LinkConstants) -> dict[str, str | None]:
    return {
        "bandwidth": units.exact_bandwidth(link.bandwidth) if link.bandwidth else None,
        "latency": None if link.latency is None else units.exact_duration(link.latency),
    }


def _cpu_table(cpu: Processor) -> dict[str, Any]:
    table: dict[str, Any] = {
        "cores": cpu.cores,
        "moving": cpu.moving if math.isfinite(cpu.moving) else None,
        "shared": cpu.shared,
        "message": units.exact_duration(cpu.message),
    }
    for key in ("own_cache", "past_own", "cache", "memory"):
        value = getattr(cpu, key)
        exact = units.exact_size if key in ("own_cache", "cache") else units.exact_bandwidth
        table[key] = exact(value) if value and math.isfinite(value) else None
    table["rates"] = {kind: units.exact_bandwidth(rate) for kind, rate in cpu.rates.items()}
    return table


def unit_of(name: str) -> Unit:
    """The unit of a constant, by its dotted name."""
    if name in ("cpu.cores", "cpu.moving") or name.startswith("nccl.efficiency."):
        return "number"
    if name in ("cpu.own_cache", "cpu.cache"):
        return "size"
    rates = ("cpu.memory", "cpu.past_own")
    starts = ("cpu.rates.", "nccl.channel_rate.")
    is_rate = name in rates or name.startswith(starts) or name.endswith(".bandwidth")
    return "rate" if is_rate else "time"
