"""Calibrations as files: constants with their provenance, loaded by name."""

from simreduce.calibrate.files import (
    CONTROLS,
    DISPATCHED,
    RATED,
    in_its_unit,
    load_calibration,
    own_calibrations,
    shipped,
    to_toml,
)

__all__ = [
    "CONTROLS",
    "DISPATCHED",
    "RATED",
    "in_its_unit",
    "load_calibration",
    "own_calibrations",
    "shipped",
    "to_toml",
]
