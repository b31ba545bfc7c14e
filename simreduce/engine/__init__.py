"""Time: SimPy keeps the clock, one kernel moves the bytes."""

from simreduce.engine.calibration import NOMINAL, Calibration, LinkConstants
from simreduce.engine.fabric import Fabric, Timeline
from simreduce.engine.lower import check_routes
from simreduce.engine.result import Floors, Result, Use
from simreduce.engine.runtime import IDEAL, RUNTIMES, TENSORFLOW, Runtime, runtime_named
from simreduce.engine.simulation import simulate

__all__ = [
    "IDEAL",
    "NOMINAL",
    "RUNTIMES",
    "TENSORFLOW",
    "Calibration",
    "Fabric",
    "Floors",
    "LinkConstants",
    "Result",
    "Runtime",
    "Timeline",
    "Use",
    "check_routes",
    "runtime_named",
    "simulate",
]
