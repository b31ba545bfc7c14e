"""NCCL's choice as planners ask for it: by the names of GPUs, around what a strategy fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simreduce.errors import StrategyError
from simreduce.planners.layouts import joined
from simreduce.planners.layouts.rings import NCCL, LibraryRules
from simreduce.planners.nccl.choice import (
    BY_ENGINE,
    SYMMETRIC,
    NcclChoice,
    choose,
    nvls_channels,
    plan,
)
from simreduce.planners.nccl.library import library_of
from simreduce.planners.nccl.machine import Facts, facts
from simreduce.planners.nccl.symmetric import (
    BY_ENGINES,
    choose_engine,
    choose_symmetric,
)
from simreduce.planners.nccl.tables import ALL_PAIRS, COLLNET

if TYPE_CHECKING:
    from simreduce.planners.layouts import Decision
    from simreduce.planners.nccl.settings import NcclSettings
    from simreduce.topology import Folded, Topology


STEPS = 8
"""Parts of a buffer."""

_ZERO = 2
"""NCCL_CTA_POLICY of no SM."""
SUMMED = ("all_reduce", "reduce_scatter")
"""Collectives whose symmetric kernels add."""


@dataclass(frozen=True)
class Decide:
    """Fills in what a decision leaves open on one machine."""

    machine: Topology | Folded
    settings: NcclSettings
    rules: LibraryRules = NCCL

    def __call__(
        self, gpus: tuple[str, ...], collective: str, nbytes: int, wanted: Decision
    ) -> Decision:
        """The decision of NCCL for a collective among these GPUs. NVLS of a gather, which has no
        plan, is decided as a ring.
        """
        wanted = wanted._replace(step=self.settings.buffer // STEPS, rules=self.rules)
        if wanted.channels and wanted.algorithm in ("nvls", "nvlstree"):
            most = nvls_channels(plan(facts(self.machine, gpus, self.settings), self.settings))
            if wanted.channels > most:
                raise StrategyError(
                    f"{wanted.algorithm} has up to {most} channels here, not {wanted.channels}: "
                    f"take +channels={most}"
                )
        if not wanted.is_open and wanted.algorithm != ALL_PAIRS:
            return wanted
        if wanted.algorithm == COLLNET:
            return self._collnet(gpus, wanted)
        found = self.choice(gpus, collective, nbytes, wanted)
        if found.algorithm == "nvls" and collective != "all_reduce":
            found = self.choice(gpus, collective, nbytes, wanted._replace(algorithm="ring"))
        return wanted._replace(
            algorithm=wanted.algorithm or found.algorithm,
            protocol=wanted.protocol or found.protocol,
            channels=wanted.channels or found.channels,
            part=found.part if wanted.channels in (0, found.channels) else 0,
        )

    def choice(
        self, gpus: tuple[str, ...], collective: str, nbytes: int, wanted: Decision
    ) -> NcclChoice:
        """What NCCL runs for a collective of floats or others among these GPUs, of what is wanted:
        a symmetric kernel where applications allow it, else what `choose` finds.
        """
        known = facts(self.machine, gpus, self.settings)
        by = wanted.algorithm or self._takes_symmetric(known, collective, wanted)
        if by in (SYMMETRIC, BY_ENGINE):
            take = _symmetric if by == SYMMETRIC else _by_engines
            name = take(known, collective, nbytes, self.settings, wanted)
            return NcclChoice(by, name, 0, 0, why="buffers are symmetric windows")
        return choose(
            known, collective, nbytes, self.settings,
            algorithm=wanted.algorithm, protocol=wanted.protocol,
        )  # fmt: skip

    def _collnet(self, gpus: tuple[str, ...], wanted: Decision) -> Decision:
        """CollNet where a strategy asks for it, whatever NCCL_COLLNET_ENABLE is."""
        if wanted.protocol not in ("", "simple"):
            raise StrategyError(f"CollNet runs by Simple only, not by {wanted.protocol}")
        at = plan(facts(self.machine, gpus, self.settings), self.settings)
        return wanted._replace(
            protocol="simple", channels=wanted.channels or max(at.model.channels, 1)
        )

    def _takes_symmetric(self, known: Facts, collective: str, wanted: Decision) -> str:
        """`symmetric` or `engine` where NCCL takes one: buffers are symmetric windows, and nothing
        asks for an algorithm; else "".
        """
        settings = self.settings
        asked = wanted.algorithm or wanted.protocol or settings.algorithms or settings.protocols
        library = library_of(known)
        by_engines = collective in BY_ENGINES and settings.cta_policy == _ZERO
        has = any(kernel.collective == collective for kernel in library.symmetric)
        if not settings.symmetric or asked or not known.nodes == 1 < known.n:
            return ""
        if not joined(self.machine, known.ranks):
            return ""
        engines, version = library.engines_since, library.version(settings)
        if by_engines and engines is not None and version >= engines:
            return "engine"
        sums = collective in SUMMED and not wanted.floats
        return "symmetric" if has and not sums and version >= library.symmetric_since else ""


def _symmetric(
    known: Facts, collective: str, nbytes: int, settings: NcclSettings, wanted: Decision
) -> str:
    """The name of the symmetric kernel that a library takes, unless one is wanted."""
    library, what = library_of(known), collective.replace("_", "-")
    among = [kernel for kernel in library.symmetric if kernel.collective == collective]
    if not among:
        raise StrategyError(f"{library.name} has no symmetric kernel for an {what}")
    if wanted.protocol and wanted.protocol not in {kernel.name for kernel in among}:
        has = ", ".join(kernel.name for kernel in among)
        raise StrategyError(f"{library.name} has no {wanted.protocol}; its kernel is {has}")
    if library.version(settings) < library.symmetric_since:
        since = ".".join(map(str, library.symmetric_since))
        own = library.version_text(settings)
        raise StrategyError(f"{library.name} has symmetric kernels from {since} on; this is {own}")
    if collective in SUMMED and not wanted.floats:
        raise StrategyError(f"NCCL's symmetric {what}s are of floats of at most 32 bits")
    multicast = known.multicast and settings.nvls
    name = choose_symmetric(known.n, nbytes, known.capability, among, multicast=multicast)
    return wanted.protocol or name


def _by_engines(
    known: Facts, collective: str, nbytes: int, settings: NcclSettings, _: Decision
) -> str:
    """Which way copy engines go."""
    library = library_of(known)
    if library.engines_since is None:
        raise StrategyError(f"{library.name} has no collectives by copy engines")
    multicast = known.multicast and settings.nvls and collective == "all_gather"
    return choose_engine(known.n, nbytes // known.n, known.capability, multicast=multicast)
