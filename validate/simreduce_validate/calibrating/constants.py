"""Calibrations with some constants replaced, by their names in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simreduce.engine import Calibration, LinkConstants, Processor
from simreduce.engine.calibrate import DISPATCHED, RATED
from simreduce.engine.runtime import ISSUED


def assemble(base: Calibration, values: Mapping[str, float]) -> Calibration:
    """`base` with these constants in the place of its own. KeyError for a name that no calibration
    has.
    """
    found = base
    for name, value in values.items():
        found = _with(found, name, value)
    return found


def _with(base: Calibration, name: str, value: float) -> Calibration:
    match name.split("."):
        case ["step"]:
            return replace(base, step=value)
        case ["issue", what] if what in ISSUED:
            return replace(base, issue={**base.issue, what: value})
        case ["dispatch", kind] if kind in DISPATCHED:
            return replace(base, dispatch={**base.dispatch, kind: value})
        case ["links", *parts, "bandwidth" | "latency" as figure] if any(parts):
            link = ".".join(parts)
            changed = replace(base.links.get(link, LinkConstants()), **{figure: value})
            return replace(base, links={**base.links, link: changed})
        case ["cpu", "rates", kind] if kind in RATED:
            cpu = base.cpu or Processor()
            return replace(base, cpu=replace(cpu, rates={**cpu.rates, kind: value}))
        case ["cpu", "cores" | "moving" | "message" | "past_own" | "cache" | "memory" as figure]:
            change: dict[str, Any] = {figure: round(value) if figure == "cache" else value}
            return replace(base, cpu=replace(base.cpu or Processor(), **change))
    raise KeyError(name)
