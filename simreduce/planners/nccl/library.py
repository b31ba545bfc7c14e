"""A communication library as a value: how it searches a node, models time, and counts channels.

NCCL and RCCL are the libraries there are. RCCL is a fork of NCCL for AMD's GPUs, with its variables
and calls, and the name `nccl` in frameworks. What they share stands in this package; each
difference is a field here.
"""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.planners.nccl import rccl
from simreduce.planners.nccl.channel_search import Search
from simreduce.planners.nccl.machine import Facts
from simreduce.planners.nccl.symmetric import KERNELS, SymmetricKernel
from simreduce.planners.nccl.tables import Version
from simreduce.planners.nccl.time_model import Tuner


@dataclass(frozen=True)
class Library:
    """What a library does in its own way: `search` finds the graphs of a node, and `tuner` has the
    model of time and counts channels. It has the `symmetric` kernels from a version on, copy
    engines move its collectives from another, and from a third its blocks write to buffers of
    peers within a machine that applications register. None: it never does. Which rings it takes
    and how its kernels cut is in `planners.layouts.rings`.
    """

    name: str
    search: type[Search]
    tuner: type[Tuner]
    symmetric: tuple[SymmetricKernel, ...]
    symmetric_since: Version
    engines_since: Version | None = None
    registered_since: Version | None = None
    versioned: bool = False

    def title(self, version: str) -> str:
        """The library's name, with the version of NCCL whose rules it follows where it has many."""
        return f"{self.name} {version}" if self.versioned else self.name


_REGISTERED = (2, 23)
"""Over NVLink and PCIe (NVIDIA, "New Scaling Algorithm and Initialization with NVIDIA Collective
Communications Library 2.23", 2025).
"""

LIBRARIES = {
    "nccl": Library("NCCL", Search, Tuner, KERNELS, (2, 27), (2, 28), _REGISTERED, versioned=True),
    "rccl": Library("RCCL", rccl.RcclSearch, rccl.RcclTuner, rccl.SYMMETRIC, (2, 28)),
}


def library_of(facts: Facts) -> Library:
    """The library that a communicator's GPUs run."""
    return LIBRARIES[facts.library]
