"""The provenance of a result: hardware, versions and settings, as far as known."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import simreduce as sr
from simreduce import units
from simreduce.files.formats.documents import (
    ANYTHING,
    BYTES,
    COUNT,
    RATIO,
    TEXT,
    Key,
    Record,
    list_of,
    map_of,
    or_null,
)
from simreduce_validate.running.child import ENVIRONMENT
from simreduce_validate.running.computer import usable_cores

_PACKAGES = ("networkx", "numba", "numpy", "scipy", "simpy")


PROVENANCE = Record(
    "provenance",
    "What a measurement ran on, as far as known.",
    Key("started", TEXT, "When it began, in UTC, as ISO 8601 has it."),
    Key(
        "hardware",
        Record(
            "hardware",
            "The computer.",
            Key("cpu", TEXT, "Its processor."),
            Key("cores", or_null(COUNT), "Its cores."),
            Key("usable_cores", COUNT, "Of these, the ones that may be used."),
            Key("memory_bytes", or_null(BYTES), "Its memory; null if it is not known."),
            Key("gpus", TEXT, 'Its GPUs; "" for none.'),
            Key("workers", list_of(map_of(ANYTHING)), "Processes, of a cluster."),
            Key("load_average", or_null(list_of(RATIO, 3)), "Of 1, 5 and 15 minutes."),
        ),
        "The hardware.",
    ),
    Key("versions", map_of(TEXT), "Versions of programs and libraries."),
    Key("settings", map_of(ANYTHING), "Settings of the measurement and of its devices."),
)


def provenance(backend: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a result, from what a backend reports and a campaign's settings:
    `PROVENANCE`.
    """
    about = dict(backend)
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {
            "cpu": cpu_model(_text("/proc/cpuinfo")) or platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "usable_cores": usable_cores(),
            "memory_bytes": memory(_text("/proc/meminfo")),
            "gpus": about.pop("gpus", ""),
            "workers": about.pop("workers", []),
            "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        },
        "versions": {
            "simreduce": sr.__version__,
            "python": about.pop("python", platform.python_version()),
            "tensorflow": about.pop("tensorflow", ""),
            "kernel": about.pop("machine", platform.platform()),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
        "settings": {**settings, **about, "environment": dict(ENVIRONMENT)},
    }  # fmt: skip


def processors(hardware: Mapping[str, Any]) -> str:
    """The cores of a result's hardware in words: of workers on several computers, those of each."""
    mine, workers = (
        f"{hardware['cpu']}, {units.plural(hardware['usable_cores'], 'core')}",
        hardware.get("workers", []),
    )
    if len({worker["name"] for worker in workers}) < 2:
        return mine
    return f"{mine}; workers: " + ", ".join(
        f"{w['address']} {units.plural(w['cores'], 'core')}" for w in workers
    )


def software(provenance: Mapping[str, Any]) -> str:
    """Processors and TensorFlow of a result in words."""
    version = provenance["versions"]["tensorflow"]
    return f"{processors(provenance['hardware'])}, TensorFlow {version}"


def links_text(provenance: Mapping[str, Any]) -> str:
    """The shaped links of a result behind a comma; "" without."""
    links = provenance["settings"].get("links")
    return f", {links}" if links else ""


def cpu_model(cpuinfo: str) -> str:
    """The first model name of /proc/cpuinfo; "" without one."""
    named = (
        line.partition(":")[2].strip()
        for line in cpuinfo.splitlines()
        if line.startswith("model name")
    )
    return next(named, "")


def memory(meminfo: str) -> int | None:
    """Bytes of memory by /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""
