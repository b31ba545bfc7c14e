"""The largest plan: a limit of memory."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from simreduce import units
from simreduce.errors import InputError, PlanTooLarge

BYTES = 200
"""Bytes that an op takes while its plan is built, lowered, simulated and proved.

Rings take 90, direct exchanges 150, halving-doubling on a fat tree 180.
"""

_VARIABLE = "SIMREDUCE_MEMORY"
_UNKNOWN = 16 << 30
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def most_ops() -> int:
    """The ops of the largest plan that fits into the memory."""
    return memory() // BYTES


def memory() -> int:
    """Bytes that a plan may take: SIMREDUCE_MEMORY, or what was free when it was first read."""
    text = os.environ.get(_VARIABLE)
    if text is None:
        return free_memory()
    try:
        return units.cli_size(text)
    except ValueError as error:
        raise InputError(f"{_VARIABLE}: {error}") from None


@cache
def free_memory() -> int:
    """Bytes that were free when this was first asked."""
    try:
        found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text("ascii"))
    except OSError:  # not Linux
        found = None
    least = int(found[1]) << 10 if found else _UNKNOWN
    for name in _CGROUPS:
        try:
            limit = Path(name).read_text("ascii").strip()
        except OSError:
            continue
        least = min(least, int(limit)) if limit.isdecimal() else least
    return least


def too_large(ops: int, about: str = "at least") -> PlanTooLarge:
    """The error for a plan of `ops` ops; the message says `about` before its figures."""
    return PlanTooLarge(
        f"the plan would have {about} {ops:,} ops and take {about} {_show(ops * BYTES)} of "
        f"memory, more than the {_show(memory())} there are; try fewer GPUs, fewer tensors or "
        f"larger chunks, or set {_VARIABLE}, such as {_VARIABLE}=32G"
    )


def _show(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 10**8 else f"{nbytes:,} bytes"
