"""Files that make other systems run a strategy, for each target, or why there are none."""

from simreduce.export.choice import Choice, Shards
from simreduce.export.settings import StrategySettings, as_typed, settings
from simreduce.export.targets import (
    LAUNCHERS,
    TARGETS,
    Target,
    export,
    find_target,
    nearest,
    why_not,
)
from simreduce.export.tensorflow import mode_files

__all__ = [
    "LAUNCHERS",
    "TARGETS",
    "Choice",
    "Shards",
    "StrategySettings",
    "Target",
    "as_typed",
    "export",
    "find_target",
    "mode_files",
    "nearest",
    "settings",
    "why_not",
]
