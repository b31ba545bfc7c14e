"""Pictures of machines, rings and trees: pure functions to a `Drawing`."""

from simreduce.report.pictures.picture import (
    RANKS_WORDS,
    Panel,
    heat_picture,
    machine_picture,
    patterns_picture,
    ranks_picture,
)

__all__ = [
    "RANKS_WORDS",
    "Panel",
    "heat_picture",
    "machine_picture",
    "patterns_picture",
    "ranks_picture",
]
