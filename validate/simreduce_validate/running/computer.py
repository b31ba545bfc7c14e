"""Identifies the computer of a process; workers and driver may run on different ones."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class Computer(NamedTuple):
    """A computer and its cores that the process may use.

    `name` identifies the computer: the kernel's boot id, or the host's name.
    """

    name: str
    cores: int


def this_computer() -> Computer:
    """The computer that runs this process."""
    name = platform.node()
    with suppress(OSError):
        name = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return Computer(name, usable_cores())


def own_cache() -> int:
    """Bytes of a core's second-level cache, on most computers its largest private one; 0 if
    unknown.
    """
    fields = ("level", "type", "size", "shared_cpu_map")
    for about in sorted(_CACHES.glob("index*")):
        with suppress(OSError, ValueError):
            level, kind, size, sharers = (
                (about / field).read_text("ascii").strip() for field in fields
            )
            if level == "2" and kind in ("Unified", "Data"):
                return (int(size.removesuffix("K")) << 10) // int(
                    sharers.replace(",", ""), 16
                ).bit_count()
    return 0


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
