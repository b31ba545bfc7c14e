"""NCCL's choice as planners ask for it: by the names of GPUs, around what a strategy fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simreduce.errors import StrategyError
from simreduce.planners.nccl.choice import choose, nvls_channels, plan
from simreduce.planners.nccl.machine import Facts, facts
from simreduce.planners.nccl.symmetric import SYMMETRIC, choose_symmetric

if TYPE_CHECKING:
    from simreduce.planners.layouts import Decision
    from simreduce.planners.nccl.settings import Settings
    from simreduce.topology import Folded, Topology


STEPS = 8
"""Parts of a buffer."""


@dataclass(frozen=True)
class Decide:
    """Fills in what a decision leaves open on one machine."""

    machine: Topology | Folded
    settings: Settings

    def __call__(
        self, gpus: tuple[str, ...], collective: str, nbytes: int, wanted: Decision
    ) -> Decision:
        """The decision of NCCL for a collective among these GPUs. What has no plan, PAT and NVLS of
        a gather, is decided as a ring.
        """
        wanted = wanted._replace(step=self.settings.buffer // STEPS)
        if wanted.channels and wanted.algorithm in ("nvls", "nvlstree"):
            most = nvls_channels(plan(facts(self.machine, gpus, self.settings), self.settings))
            if wanted.channels > most:
                raise StrategyError(
                    f"{wanted.algorithm} has up to {most} channels here, not {wanted.channels}: "
                    f"take +channels={most}"
                )
        if not wanted.is_open:
            return wanted
        known = facts(self.machine, gpus, self.settings)
        if wanted.algorithm == SYMMETRIC:
            return symmetric(known, nbytes, self.settings, wanted)
        algorithm, protocol = wanted.algorithm, wanted.protocol
        found = choose(
            known, collective, nbytes, self.settings, algorithm=algorithm, protocol=protocol
        )
        if found.algorithm == "pat" or (found.algorithm == "nvls" and collective != "all_reduce"):
            found = choose(
                known, collective, nbytes, self.settings, algorithm="ring", protocol=protocol
            )
        return wanted._replace(
            algorithm=algorithm or found.algorithm,
            protocol=protocol or found.protocol,
            channels=wanted.channels or found.channels,
            part=0 if wanted.channels else found.part,
        )


def symmetric(known: Facts, nbytes: int, settings: Settings, wanted: Decision) -> Decision:
    """The symmetric kernel that NCCL takes for an all-reduce."""
    multicast = known.multicast and settings.nvls
    name = choose_symmetric(known.n, nbytes, known.capability, multicast=multicast)
    return wanted._replace(algorithm=SYMMETRIC, protocol=name)
