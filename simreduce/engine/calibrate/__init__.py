"""Calibrations as files: constants with their provenance, loaded by name.

Calibrations as TOML, read and written, with the `[nccl]` table of what NCCL's collectives cost.

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

import functools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from simreduce import units
from simreduce.engine import NOMINAL, Calibration, LinkConstants, Processor
from simreduce.engine.calibrate.intervals import COLLECTIVES, SHIPPED
from simreduce.engine.lowering.resources import TRANSFER
from simreduce.engine.runtime import (
    ISSUED,
    LINK_KINDS,
    MISFIT,
    NVLS,
    PROTOCOLS,
    KernelConstants,
    NcclConstants,
)
from simreduce.errors import CalibrationError, did_you_mean, near_or_all, quote
from simreduce.files import exists, flatten, parse_toml, read_text
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
    Field,
    FieldValues,
    Format,
    ListOf,
    MapOf,
    TableOf,
    ValueKind,
    number,
    quantity,
    whole,
)
from simreduce.files.formats.syntax import Faults, toml_text
from simreduce.plan import Kind
from simreduce.topology import DIRECTIONS

_SHARE = number(0.001, 1.5)
KERNELS = Format(
    "nccl.kernels",
    "Costs of kernels whose GPUs read and write each other's memory: `oneshot`, `twoshot`,"
    " `multimem`, `symmetric`. What is left out keeps its default.",
    Field("launch", LATENCY, "From the last GPU's arrival to the kernel."),
    Field("barrier", LATENCY, "Of a barrier of all GPUs."),
    Field("release", LATENCY, "More of one after which others read what was written."),
    Field("release_multicast", LATENCY, "The same, of what a switch multicasts."),
    Field("load", LATENCY, "Until the first bytes of a read arrive."),
    Field("flag", LATENCY, "Until bytes with flags beside them are seen."),
    Field("block", BANDWIDTH, "Bytes a second that 512 threads move at most, a load each under"
          " way."),
    Field("efficiency", MapOf(_SHARE, LINK_KINDS, "LINK"),
          "Part of a link's achievable rate, flags included, by link."),
    Field("engine_launch", LATENCY, "From the last GPU's arrival to copies by copy engines."),
    Field("engine_copy", LATENCY, "More of it for each GPU."),
    Field("engine_multicast_launch", LATENCY, "The same, where a switch multicasts."),
    Field("engine_multicast_copy", LATENCY, "More of it for each GPU."),
    Field("engine_rate", BANDWIDTH, "Bytes a second that a GPU's copy engines move."),
)  # fmt: skip
_BY_PROTOCOL = ", by protocol: simple, ll, ll128"
NCCL = Format(
    "nccl",
    "Costs of NCCL's collectives. What is left out keeps its default. LINK is nvlink, pci, shm (the"
    " host's memory, without peer access), net or nvls.",
    Field("launch", LATENCY, "From the last GPU's arrival to the first step, with a process for"
          " each GPU."),
    Field("launch_each", LATENCY, "More of it for each GPU of a machine that one process drives."),
    Field("launch_channel", LATENCY, "More of it for each channel of a collective."),
    Field("post", LATENCY, "What a process takes to issue a send or a receive."),
    Field("message", LATENCY, "Of a GPU's proxy thread, for each message over a network."),
    Field("start", MapOf(LATENCY, (*PROTOCOLS, NVLS), "PROTOCOL"),
          f"More of it{_BY_PROTOCOL}, nvls."),
    Field("latency", MapOf(MapOf(LATENCY, PROTOCOLS, "PROTOCOL"), LINK_KINDS, "LINK"),
          f"Of a step, by link{_BY_PROTOCOL}."),
    Field("efficiency", MapOf(MapOf(_SHARE, PROTOCOLS, "PROTOCOL"), LINK_KINDS, "LINK"),
          f"Part of a link's achievable rate, flags of the protocol included{_BY_PROTOCOL}."),
    Field("slice", MapOf(LATENCY, LINK_KINDS, "LINK"),
          "What a block of Simple takes for a slice besides moving it, by link."),
    Field("copy_out", MapOf(number(0.0, 10.0), LINK_KINDS, "LINK"),
          "Of the time of a send to a block that does not send on, how long its next send waits, by"
          " link."),
    Field("join", MapOf(LATENCY, PROTOCOLS, "PROTOCOL"),
          f"More of a step over a network in a tree{_BY_PROTOCOL}."),
    Field("channel_rate", MapOf(BANDWIDTH, (*PROTOCOLS, NVLS), "PROTOCOL"),
          f"Bytes of data a second that one channel moves at most{_BY_PROTOCOL}, nvls."),
    Field("unaligned_peer", BANDWIDTH,
          "Bytes a second that a user's send by Simple moves at most where the parts of ranks begin"
          " at no multiple of 16 bytes.", default_words="unlimited"),
    Field("kernels", TableOf(KERNELS), "Costs of kernels without channels."),
    Field("measured", MapOf(ListOf(whole(2), 1), COLLECTIVES, "COLLECTIVE"),
          "The numbers of GPUs whose times of a collective, on this very machine, the constants are"
          " fitted to: `all_reduce = [8]`."),
    Field("misfit", number(0.0, 100.0), "How far off these times were before the fit: the root mean"
          " square of log(predicted / measured). Intervals widen with it.", MISFIT),
)  # fmt: skip
_PLAIN = ("launch", "launch_each", "launch_channel", "post", "message")
_LIMIT = "unaligned_peer"
_BY_NAME = ("start", "slice", "copy_out", "join", "channel_rate")
_PAIRED = ("latency", "efficiency")


def read_nccl(table: FieldValues) -> NcclConstants:
    """The constants of a table that `NCCL` has read."""
    found = NcclConstants()
    plain = {key: table[key] for key in (*_PLAIN, _LIMIT) if table[key] is not None}
    for key in _BY_NAME:
        plain[key] = {**getattr(found, key), **(table[key] or {})}
    for key in _PAIRED:
        given = {
            (link, protocol): value
            for link, values in (table[key] or {}).items()
            for protocol, value in values.items()
        }
        plain[key] = {**getattr(found, key), **given}
    if table["kernels"] is not None:
        plain["kernels"] = _read_kernels(table["kernels"])
    measured = {name: tuple(counts) for name, counts in (table["measured"] or {}).items()}
    return replace(found, **plain, measured=measured, misfit=table["misfit"])


def _read_kernels(table: FieldValues) -> KernelConstants:
    found = KernelConstants()
    given = {key: value for key, value in table.items() if value is not None}
    given["efficiency"] = {**found.efficiency, **(table["efficiency"] or {})}
    return replace(found, **given)


def _exact(kind: ValueKind[Any], value: Any) -> object:
    """A value, or a table of values, of a kind, so that it reads as the same."""
    if isinstance(kind, MapOf):
        return {key: _exact(kind.kind, each) for key, each in value.items()}
    return _EXACT_OF[kind](value) if kind in _EXACT_OF else value


def _changed(form: Format, constants: object, usual: object) -> dict[str, Any]:
    """The table of the constants that are not the usual ones."""
    keys = [key for key in form.keys if getattr(constants, key) != getattr(usual, key)]
    return {key: _exact(form[key].kind, getattr(constants, key)) for key in keys}


def write_nccl(constants: NcclConstants) -> dict[str, Any]:
    """The table that reads as the constants; empty for the defaults."""
    table, usual = dict[str, Any](), nccl_names()
    for name, value in nccl_names(constants).items():
        if usual.get(name) != value:
            _, *path, last = name.split(".")
            inner = functools.reduce(lambda at, part: at.setdefault(part, {}), path, table)
            inner[last] = _EXACT[unit_of(name)](value)
    if math.isfinite(constants.unaligned_peer):
        table[_LIMIT] = units.exact_bandwidth(constants.unaligned_peer)
    if kernels := _changed(KERNELS, constants.kernels, KernelConstants()):
        table["kernels"] = kernels
    if constants.measured:
        table["measured"] = {name: list(counts) for name, counts in constants.measured.items()}
        table["misfit"] = constants.misfit
    return table


def nccl_names(constants: NcclConstants | None = None) -> dict[str, float]:
    """Every constant by its dotted name in the file, in SI units."""
    found = constants or NcclConstants()
    names = {f"nccl.{key}": getattr(found, key) for key in _PLAIN}
    for key in (*_BY_NAME, *_PAIRED):
        for parts, value in getattr(found, key).items():
            path = (parts,) if isinstance(parts, str) else parts
            names[".".join(("nccl", key, *path))] = value
    return names


def with_values(base: NcclConstants, values: Mapping[str, float]) -> NcclConstants:
    """The constants with some others by their dotted names. KeyError for a name there is not."""
    changed: dict[str, Any] = {}
    for name, value in values.items():
        key, *parts = name.removeprefix("nccl.").split(".")
        if name not in nccl_names(base):
            raise KeyError(name)
        if parts:
            own = changed.setdefault(key, dict(getattr(base, key)))
            own[parts[0] if len(parts) == 1 else tuple(parts)] = value
        else:
            changed[key] = value
    return replace(base, **changed)


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
    Field("issue", MapOf(LATENCY, tuple(ISSUED)),
          "What the host of a machine takes to issue an op of its"
          " GPUs, one after another, by what it issues. `to_host`, `from_host` and `message` are"
          " `copy` unless given, `output` is `input`, other ops `add`.",
          default_words="it takes no time"),
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
    "number": float,
    "time": units.exact_duration,
}


_EXACT_OF: Mapping[ValueKind[Any], Callable[[Any], object]] = {
    BANDWIDTH: _EXACT["rate"], SIZE: _EXACT["size"], LATENCY: _EXACT["time"],
}  # fmt: skip
_CPU_ALWAYS = ("cores", "shared", "message", "rates")
"""What a file says of cores even where it is the default."""


def shipped() -> list[str]:
    """Names of the calibrations that come with simreduce, `nominal` first."""
    return [
        NOMINAL.name,
        *sorted(p.name[:-5] for p in SHIPPED.iterdir() if p.name.endswith(".toml")),
    ]


def generation_of(capability: int, library: str = "nccl") -> str:
    """The calibration that is for GPUs of a compute capability, 80 for 8.0, and their library."""
    known = [number for name, number in GENERATIONS if name == library]
    newest = max((each for each in known if each <= capability), default=min(known))
    return GENERATIONS[library, newest]


_ADA, _HOPPER = 89, 90


@cache
def nccl_constants(capability: int, library: str = "nccl") -> NcclConstants:
    """A library's shipped constants for GPUs of a compute capability, 80 for 8.0.

    Ada has A100's, but Hopper's rate of a channel by Simple: its SMs clock at 2.5 GHz, Hopper's at
    2.0 and A100's at 1.4. Eight RTX 4090 (Panlichen/nccl-tests) are then 3 % off, not 5 %.
    """
    name = generation_of(capability, library)
    found = load_calibration(name).nccl if name in shipped() else NcclConstants()
    if capability == _ADA:
        rate = nccl_constants(_HOPPER).channel_rate["simple"]
        found = replace(found, channel_rate={**found.channel_rate, "simple": rate})
    return found


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
        return _parse(text, text, (SHIPPED / f"{text}.toml").read_text("utf-8"))
    path, own = Path(text), own_calibrations()
    mine = own / f"{text}.toml"
    if path.name == text and exists(str(mine)):
        return _parse(text, str(mine), read_text(mine, CalibrationError))
    if path.suffix != ".toml" and not exists(text):
        known = [*shipped(), *sorted(p.stem for p in own.glob("*.toml"))]
        near = near_or_all(text, known, "; known: ")
        raise CalibrationError(f"no calibration {quote(text)}{near}; a file ends in .toml")
    return _parse(path.stem, text, read_text(path, CalibrationError))


def _parse(name: str, source: str, content: str) -> Calibration:
    document = parse_toml(source, content, CalibrationError)
    faults = Faults(source)
    faults.check(document, "", f"is empty; give any of {', '.join(CALIBRATION.keys)}")
    values = CALIBRATION.read(document, faults)
    links = values["links"] or {}
    for link in links:
        faults.check(not (fault := _misnamed(link)), f"links.{link}", fault)
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
        issue=values["issue"] or {},
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
    dispatch, issue, links = (
        table if isinstance(table := document.get(key), dict) else {}
        for key in ("dispatch", "issue", "links")
    )
    names = [f"dispatch.{op}" for op in DISPATCHED if op in dispatch]
    names += [f"issue.{what}" for what in ISSUED if what in issue]
    names += [f"links.{link}.{key}" for link in links for key in ("bandwidth", "latency")]
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
        controls.setdefault(kind, {})[units.exact_size(size)] = units.exact_duration(seconds)
    errors = {key: _EXACT[unit_of(key)](value) for key, value in calibration.errors.items()}
    tables: dict[str, Any] = {
        "step": calibration.step and units.exact_duration(calibration.step),
        "provenance": calibration.provenance,
        "dispatch": {k: units.exact_duration(cost) for k, cost in calibration.dispatch.items()},
        "issue": {what: units.exact_duration(cost) for what, cost in calibration.issue.items()},
        "links": {
            name: _changed(_LINK, link, LinkConstants()) for name, link in calibration.links.items()
        },
        "cpu": calibration.cpu and _cpu_table(calibration.cpu),
        "nccl": write_nccl(calibration.nccl),
        "errors": errors,
        "controls": controls,
    }
    given = {key: table for key, table in tables.items() if table}
    return toml_text({"title": calibration.title, **given})


def _cpu_table(cpu: Processor) -> dict[str, Any]:
    found = _changed(_CPU, cpu, Processor())
    found |= {key: _exact(_CPU[key].kind, getattr(cpu, key)) for key in _CPU_ALWAYS}
    return {key: found[key] for key in _CPU.keys if key in found}


def unit_of(name: str) -> Unit:
    """The unit of a constant, by its dotted name."""
    numbers = ("nccl.efficiency.", "nccl.copy_out.")
    if name in ("cpu.cores", "cpu.moving") or name.startswith(numbers):
        return "number"
    if name in ("cpu.own_cache", "cpu.cache"):
        return "size"
    rates = ("cpu.memory", "cpu.past_own")
    starts = ("cpu.rates.", "nccl.channel_rate.")
    is_rate = name in rates or name.startswith(starts) or name.endswith(".bandwidth")
    return "rate" if is_rate else "time"
