"""Reads a calibration from TOML, and writes one.

title = "what was fitted, to what"
step = "0.6 ms"         # what a step costs before its first op, for every machine that takes part
[provenance]            # free text: hardware, date, versions, source, method
[dispatch]              # seconds per op, by op kind: copy, add, slice, concat, scale, cast, input, output
copy = "50 us"
[links.qpi]             # replaces the topology's figures for a link class (per lane and direction)
bandwidth = "7 GB/s"
latency = "1 us"
[links."pcie3_x16:d2h"] # or for its links that lead from GPUs to their host; h2d: that lead back
bandwidth = "12 GB/s"
[links."gpu0>gpu1"]     # or for one link
bandwidth = "20 GB/s"
[cpu]                   # the cores that do the ops of CPU devices, and handle what passes between these
cores = 2               # how many work at a time
moving = 1.5            # how many of them move bytes at a time
shared = true           # one computer stands in for all machines; false by default
message = "0.2 ms"      # of a core, for what one machine sends to another
own_cache = "1 MiB"     # of each core; what an op reads and writes beyond it takes this core longer:
past_own = "60 GB/s"    # so much longer as it moves at this rate
cache = "16 MiB"        # what stays near the cores of all values of a step
memory = "15 GB/s"      # how fast ops write the rest of it, all together
[cpu.rates]             # bytes/s of one core, by op kind; transfer: a copy to another machine
copy = "10 GB/s"        # of copies and transfers, what they move; of others, what they read and write
[errors]                # standard error of a constant, by its dotted name, in the constant's own unit
"dispatch.copy" = "5 us"
[controls.copies]       # what plans of this kind took when this was learnt, by the bytes of their values
"64 KiB" = "95 us"

The kinds of plans in `[controls]`, which are timed again where a calibration is tried; a value of float32:
chains      goes back and forth between two devices: 48 hops if they are of one process, 11 from one process to another
copies      the same in 4 hops, between devices of one process
transfers   the same in 3 hops, from one process to another
sums        has others added to it, 8 times one after another, on the first device
A time is compared with that of the same plan: a plan that is another one needs another name.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from simreduce import units
from simreduce.engine import NOMINAL, Calibration, LinkConstants, Processor
from simreduce.engine.lowering.processor import TRANSFER
from simreduce.errors import CalibrationError, did_you_mean, shown
from simreduce.plan import Kind
from simreduce.textfiles import exists, parse_toml, read_text, toml_text
from simreduce.topology import DIRECTIONS
from simreduce.topology.faults import BANDWIDTH_LIMITS, LATENCY_LIMITS

_SHIPPED = resources.files("simreduce") / "calibrations"
_TABLES = ("provenance", "dispatch", "links", "cpu", "errors", "controls")
_KEYS = ("title", "step", *_TABLES)
DISPATCHED = tuple(k.name.lower() for k in Kind)
"""Kinds of op that may have a dispatch cost."""
RATED = (*(k for k in DISPATCHED if k not in ("input", "output")), TRANSFER)
"""What may have a rate of a core."""
CHAINS, COPIES, TRANSFERS, SUMS = "chains", "copies", "transfers", "sums"
CONTROLS = (CHAINS, COPIES, TRANSFERS, SUMS)
"""Plans that can be timed again; what each is stands above."""
_MOST_CORES = 1024.0
_ELEMENT, _LARGEST_CONTROL = 4, 1 << 30
"""Bytes of a control's values, which are float32: more would be no small plan."""
_CONTROL_TIMES = (1e-9, 3600.0, "between 1 ns and 1 h")


def _rate(text: object) -> float:
    return _within(text, units.bandwidth(text), *BANDWIDTH_LIMITS)


def _delay(text: object) -> float:
    return _within(text, units.duration(text), *LATENCY_LIMITS)


def _within(text: object, value: float, low: float, high: float, words: str) -> float:
    if not low <= value <= high:
        raise ValueError(f"{shown(text)} must be {words}")
    return value


def _cores(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 1.0 <= value <= _MOST_CORES
    ):
        raise ValueError(
            f"expected a number of cores from 1 to {_MOST_CORES:g}, not {shown(value)}"
        )
    return float(value)


def _spread(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0.0:
        raise ValueError(f"expected a number of 0 or more, not {shown(value)}")
    return float(value)


_CPU_KEYS: Mapping[str, Callable[[object], float]] = {
    "cores": _cores, "moving": _cores, "message": _delay, "own_cache": units.size, "past_own": _rate, "cache": units.size,
    "memory": _rate,
}  # fmt: skip
_LINK_KEYS: Mapping[str, Callable[[object], float]] = {"bandwidth": _rate, "latency": _delay}
_ERRORS = {"bandwidth": units.bandwidth, "latency": units.duration}
"""How the standard error of a constant is read; it may be 0."""
_NUMBERS = ("cpu.cores", "cpu.moving")
_CPU_ERRORS: Mapping[str, Callable[[object], float]] = {
    **dict.fromkeys(_NUMBERS, _spread),
    "cpu.message": units.duration,
    "cpu.past_own": units.bandwidth,
    "cpu.cache": units.size,
    "cpu.memory": units.bandwidth,
    **{f"cpu.rates.{kind}": units.bandwidth for kind in RATED},
}


def shipped() -> list[str]:
    """Names of the calibrations that come with simreduce, `nominal` first."""
    return [
        NOMINAL.name,
        *sorted(p.name[:-5] for p in _SHIPPED.iterdir() if p.name.endswith(".toml")),
    ]


def own_calibrations() -> Path:
    """The folder of calibrations made on this computer, which are known by name."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "simreduce" / "calibrations"


def load_calibration(text: str) -> Calibration:
    """The calibration of that name, shipped or made here, or of that file; CalibrationError lists
    every fault.
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
        raise CalibrationError(f"no calibration {shown(text)}{near}; a file ends in .toml")
    return _parse(path.stem, text, read_text(path, CalibrationError))


def _parse(name: str, source: str, content: str) -> Calibration:
    document = parse_toml(source, content, CalibrationError)
    problems = [f"unknown key {k!r}{did_you_mean(k, _KEYS)}" for k in document if k not in _KEYS]
    tables = {s: _table(document.get(s, {}), s, problems) for s in _TABLES}
    step = _quantities(
        {k: v for k, v in document.items() if k == "step"}, "", {"step": _delay}, problems
    )
    dispatch = _quantities(
        tables["dispatch"], "dispatch", dict.fromkeys(DISPATCHED, _delay), problems
    )
    links = {}
    for link_class, fields in tables["links"].items():
        place = f"links.{link_class}"
        if fault := _misnamed(link_class):
            problems.append(f"{place}: {fault}")
        links[link_class] = LinkConstants(
            **_quantities(_table(fields, place, problems), place, _LINK_KEYS, problems)
        )
    cpu = _processor(tables["cpu"], problems) if "cpu" in document else None
    known = {f"dispatch.{k}": units.duration for k in DISPATCHED if k in tables["dispatch"]} | {
        f"links.{c}.{k}": read for c in links for k, read in _ERRORS.items()
    }
    known |= {"step": units.duration} if step else {}
    known |= _CPU_ERRORS if cpu else {}
    errors = _quantities(tables["errors"], "errors", known, problems)
    controls = _controls(tables["controls"], problems)
    title = _text(document.get("title", ""), "title", problems)
    provenance = {k: _text(v, f"provenance.{k}", problems) for k, v in tables["provenance"].items()}
    if problems:
        raise CalibrationError([f"{source}: {p}" for p in problems])
    return Calibration(
        name, title, dispatch, links, step.get("step", 0.0), cpu, provenance, errors, controls
    )


def _misnamed(link: str) -> str:
    """What is wrong with the name of a link class, if it is that of a direction; links have names
    of their own.
    """
    link_class, colon, way = link.partition(":")
    if not colon or "<" in link or ">" in link:
        return ""
    if way not in DIRECTIONS:
        return f"no direction {shown(way)}{did_you_mean(way, DIRECTIONS)}; known: {', '.join(DIRECTIONS)}"
    return "" if link_class else f"a link class is missing before {shown(colon + way)}"


def _processor(table: Mapping[str, object], problems: list[str]) -> Processor:
    table = dict(table)
    rates = _table(table.pop("rates", {}), "cpu.rates", problems)
    shared = table.pop("shared", False)
    if not isinstance(shared, bool):
        problems.append(f"cpu.shared: expected true or false, not {shown(shared)}")
    found = _quantities(table, "cpu", _CPU_KEYS, problems)
    moved = _quantities(rates, "cpu.rates", dict.fromkeys(RATED, _rate), problems)
    own_cache, cache = (int(found.pop(name, 0)) for name in ("own_cache", "cache"))
    return Processor(**found, own_cache=own_cache, cache=cache, shared=bool(shared), rates=moved)


def _controls(table: Mapping[str, object], problems: list[str]) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for kind, times in table.items():
        place = f"controls.{kind}"
        if kind not in CONTROLS:
            problems.append(
                f"{place}: unknown key{did_you_mean(kind, CONTROLS)}; known: {', '.join(CONTROLS)}"
            )
        for size, text in _table(times, place, problems).items():
            try:
                key = kind, _values(size)
                if key in found:
                    raise ValueError(f"a size that is there already: {units.exact_size(key[1])}")  # noqa: TRY301
                found[key] = _within(text, units.duration(text), *_CONTROL_TIMES)
            except ValueError as error:
                problems.append(f"{place}.{size}: {error}")
    return found


def _values(text: object) -> int:
    """Bytes of the values of a control."""
    nbytes = units.size(text)
    if nbytes % _ELEMENT or not _ELEMENT <= nbytes <= _LARGEST_CONTROL:
        raise ValueError(f"{shown(text)} must be between 4 B and 1 GiB, of whole values of 4 B")
    return nbytes


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
            problems.append(f"{f'{place}.' * bool(place)}{key}: {error}")
    return values


def to_toml(calibration: Calibration) -> str:
    """The text of the file, which reads as the same value; its name is the file's own."""
    lines = [f"title = {toml_text(calibration.title)}"]
    lines += [f"step = {_time(calibration.step)}"] if calibration.step else []
    lines += _section(
        "provenance", {k: toml_text(text) for k, text in calibration.provenance.items()}
    )
    lines += _section("dispatch", {k: _time(cost) for k, cost in calibration.dispatch.items()})
    for name, link in calibration.links.items():
        figures = {
            "bandwidth": link.bandwidth and _rate_text(link.bandwidth),
            "latency": None if link.latency is None else _time(link.latency),
        }
        lines += [
            "",
            f"[links.{_key(name)}]",
            *(f"{k} = {text}" for k, text in figures.items() if text),
        ]
    if cpu := calibration.cpu:
        numbers = {"cores": f"{cpu.cores!r}"}
        numbers |= {"moving": f"{cpu.moving!r}"} if math.isfinite(cpu.moving) else {}
        numbers |= {"shared": toml_text(cpu.shared), "message": _time(cpu.message)}
        numbers |= (
            {"own_cache": toml_text(units.exact_size(cpu.own_cache))} if cpu.own_cache else {}
        )
        numbers |= {"past_own": _rate_text(cpu.past_own)} if math.isfinite(cpu.past_own) else {}
        numbers |= {"cache": toml_text(units.exact_size(cpu.cache))} if cpu.cache else {}
        numbers |= {"memory": _rate_text(cpu.memory)} if math.isfinite(cpu.memory) else {}
        lines += _section("cpu", numbers)
        lines += _section("cpu.rates", {kind: _rate_text(rate) for kind, rate in cpu.rates.items()})
    lines += _section(
        "errors", {toml_text(k): _error(k, value) for k, value in calibration.errors.items()}
    )
    for kind in dict.fromkeys(kind for kind, _ in calibration.controls):
        times = {
            size: seconds for (each, size), seconds in calibration.controls.items() if each == kind
        }
        sizes = {
            toml_text(units.exact_size(size)): _time(seconds) for size, seconds in times.items()
        }
        lines += _section(f"controls.{kind}", sizes)
    return "\n".join(lines) + "\n"


def _section(name: str, entries: Mapping[str, str]) -> list[str]:
    return (
        ["", f"[{name}]", *(f"{key} = {value}" for key, value in entries.items())]
        if entries
        else []
    )


def _rate_text(rate: float) -> str:
    return toml_text(units.exact_bandwidth(rate))


def _time(seconds: float) -> str:
    return toml_text(units.exact_duration(seconds))


def _error(name: str, value: float) -> str:
    """The standard error of a constant, in its own unit."""
    return in_its_unit(
        name, value, _rate_text, lambda size: toml_text(units.exact_size(int(size))), repr, _time
    )


def in_its_unit(
    name: str, value: float, rate: Callable[[float], str], size: Callable[[float], str],
    number: Callable[[float], str], time: Callable[[float], str],
) -> str:  # fmt: skip
    """A constant, by its dotted name, written as what it is: bytes/s, bytes, a number or seconds."""
    if (
        name.startswith("cpu.rates.")
        or name.endswith(".bandwidth")
        or name in ("cpu.memory", "cpu.past_own")
    ):
        return rate(value)
    if name == "cpu.cache":
        return size(value)
    return number(value) if name in _NUMBERS else time(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)
