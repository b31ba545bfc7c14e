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
    in_its_unit,
    load_calibration,
    own_calibrations,
    shipped,
    to_toml,
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
    "in_its_unit",
    "load_calibration",
    "own_calibrations",
    "shipped",
    "to_toml",
]
