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
from simreduce_validate.running.child import ENVIRONMENT
from simreduce_validate.running.computer import usable_cores

_PACKAGES = ("networkx", "numba", "numpy", "scipy", "simpy")


def provenance(backend: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of a result, from what a backend reports and a campaign's settings."""
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
