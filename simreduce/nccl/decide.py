"""NCCL's choice as planners ask for it: by the names of GPUs, around what a strategy fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simreduce.nccl.choice import choose
from simreduce.nccl.machine import facts

if TYPE_CHECKING:
    from simreduce.nccl.settings import Settings
    from simreduce.topology import Folded, Topology


@dataclass(frozen=True)
class Decide:
    """Fills in what a decision leaves open on one machine."""

    machine: Topology | Folded
    settings: Settings

    def __call__(self, gpus: tuple[str, ...], collective: str, nbytes: int, wanted: Any) -> Any:
        """The decision of NCCL for a collective among these GPUs. PAT is planned as a ring."""
        known = facts(self.machine, gpus, self.settings)
        found = choose(
            known, collective, nbytes, self.settings,
            algorithm=wanted.algorithm, protocol=wanted.protocol,
        )  # fmt: skip
        algorithm = "ring" if found.algorithm == "pat" else found.algorithm
        return wanted._replace(
            algorithm=wanted.algorithm or algorithm,
            protocol=wanted.protocol or found.protocol,
            channels=wanted.channels or found.channels,
        )
