"""Calibrations as files: constants with their provenance, loaded by name."""

from simreduce.engine.calibrate.files import (
    CALIBRATION,
    CHAINS,
    CONTROLS,
    COPIES,
    DISPATCHED,
    GENERATIONS,
    RATED,
    SUMS,
    TRANSFERS,
    generation_of,
    load_calibration,
    nccl_constants,
    own_calibrations,
    shipped,
    to_toml,
    unit_of,
)

__all__ = [
    "CALIBRATION",
    "CHAINS",
    "CONTROLS",
    "COPIES",
    "DISPATCHED",
    "GENERATIONS",
    "RATED",
    "SUMS",
    "TRANSFERS",
    "generation_of",
    "load_calibration",
    "nccl_constants",
    "own_calibrations",
    "shipped",
    "to_toml",
    "unit_of",
]
