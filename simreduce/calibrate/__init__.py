"""Calibrations as files: constants with their provenance, loaded by name."""

from simreduce.calibrate.files import (
    CALIBRATION,
    CHAINS,
    CONTROLS,
    COPIES,
    DISPATCHED,
    RATED,
    SUMS,
    TRANSFERS,
    load_calibration,
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
    "RATED",
    "SUMS",
    "TRANSFERS",
    "load_calibration",
    "own_calibrations",
    "shipped",
    "to_toml",
    "unit_of",
]
