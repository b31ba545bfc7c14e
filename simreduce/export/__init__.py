"""Files that make other systems run a strategy, for each target, or why there are none."""

from simreduce.export.framework import Choice
from simreduce.export.frameworks.tensorflow import as_typed
from simreduce.export.frameworks.tf_cnn_benchmarks import mode_files
from simreduce.export.targets import (
    StrategySettings,
    export,
    find_target,
    nearest,
    settings,
    why_not,
)

__all__ = [
    "Choice",
    "StrategySettings",
    "as_typed",
    "export",
    "find_target",
    "mode_files",
    "nearest",
    "settings",
    "why_not",
]
