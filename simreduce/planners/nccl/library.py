"""A communication library as a value: how it searches a node, models time, and counts channels.

NCCL and RCCL are the libraries there are. RCCL is a fork of NCCL for AMD's GPUs, with its variables
and calls, and the name `nccl` in frameworks. What they share stands in this package; each
difference is a field here.
"""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.errors import StrategyError
from simreduce.planners.nccl import rccl
from simreduce.planners.nccl.channel_search import ChannelSearch
from simreduce.planners.nccl.machine import Facts
from simreduce.planners.nccl.settings import Settings
from simreduce.planners.nccl.symmetric import KERNELS, SymmetricKernel
from simreduce.planners.nccl.tables import CURRENT, CURRENT_RCCL, Version
from simreduce.planners.nccl.time_model import Tuner


@dataclass(frozen=True)
class Library:
    """What a library does in its own way: `search` finds the graphs of a node, and `tuner` has the
    model of time and counts channels. It has the `symmetric` kernels from a version on, copy
    engines move its collectives from another, and from a third its blocks write to buffers of
    peers within a machine that applications register. None: it never does. Unless settings say its
    version, it is the `current` one, and none after the `newest` is known: `why` says what that one
    has. Which rings it takes and how its kernels cut is in `planners.layouts.rings`.
    """

    name: str
    search: type[ChannelSearch]
    tuner: type[Tuner]
    symmetric: tuple[SymmetricKernel, ...]
    symmetric_since: Version
    engines_since: Version | None = None
    registered_since: Version | None = None
    current: Version = CURRENT
    newest: Version = CURRENT
    why: str = ""

    def version(self, settings: Settings) -> Version:
        """The library's version; StrategyError for one that is newer than what is known."""
        found = settings.version or self.current
        if found > self.newest:
            known = f"{self.name} is known up to {_text(self.newest)}"
            raise StrategyError(f"version {_text(found)}: {known}{self.why}")
        return found

    def version_text(self, settings: Settings) -> str:
        """The version as users write it: 2.27."""
        return _text(self.version(settings))

    def title(self, settings: Settings) -> str:
        """The library's name and version."""
        return f"{self.name} {self.version_text(settings)}"


def _text(version: Version) -> str:
    return ".".join(map(str, version))


_REGISTERED = (2, 23)
"""Over NVLink and PCIe (NVIDIA, "New Scaling Algorithm and Initialization with NVIDIA Collective
Communications Library 2.23", 2025).
"""

LIBRARIES = {
    "nccl": Library("NCCL", ChannelSearch, Tuner, KERNELS, (2, 27), (2, 28), _REGISTERED),
    "rccl": Library(
        "RCCL", rccl.RcclSearch, rccl.RcclTuner, rccl.SYMMETRIC, (2, 28),
        current=CURRENT_RCCL, newest=(2, 28),
        why=", as later ones have direct kernels of their own (RCCL_DDA_ENABLE)",
    ),
}  # fmt: skip
"""RCCL's direct kernels came with 2.30.4 for ROCm 7.14 (ROCm/rocm-systems pull 4958 and
projects/rccl/CHANGELOG.md, read 2026-11); there is no RCCL 2.29.
"""


def library_of(facts: Facts) -> Library:
    """The library that a communicator's GPUs run."""
    return LIBRARIES[facts.library]
