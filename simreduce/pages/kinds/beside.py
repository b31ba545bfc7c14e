"""What a page may have beside its document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simreduce.engine import Calibration
from simreduce.export.targets import Exported
from simreduce.pages.timeline import Timeline
from simreduce.topology import Topology


@dataclass(frozen=True, slots=True)
class Beside:
    """The machine, its calibration, and other documents on the same question; None or empty for
    what is not at hand.

    `explanation` is of `simreduce explain --json`, for the recommended strategy; `sizes` of `bench
    --json`. `commands` are what to type to repeat it, with a word on each; `files` the content of
    the user's files by name; `versions` those of the programs that computed it. `factor` says that
    80 % of predictions of NCCL are within it, for a document that does not say so. `look` is a
    closer look at a step or an update: the load of each link, the critical path, what would help.
    `exports` are what other systems can be told of the recommended strategy.
    """

    machine: Topology | None = None
    calibration: Calibration | None = None
    explanation: Mapping[str, Any] | None = None
    timeline: Timeline | None = None
    sizes: Mapping[str, Any] | None = None
    commands: tuple[tuple[str, tuple[str, ...]], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    factor: float | None = None
    look: Mapping[str, Any] | None = None
    exports: tuple[Exported, ...] = ()
    missing: str = ""
