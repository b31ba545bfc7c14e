"""Time: SimPy keeps the clock, one kernel moves the bytes."""

from simreduce.engine.background import traffic
from simreduce.engine.calibration import (
    NOMINAL,
    Calibration,
    LinkConstants,
    NcclConstants,
    Processor,
)
from simreduce.engine.disturbance import CALM, Disturbance, Fault
from simreduce.engine.fabric import Fabric
from simreduce.engine.lowering.lower import check_routes
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.rerun import Rerun
from simreduce.engine.resident import Resident
from simreduce.engine.results.path import CAUSES, LANE, PathOp, PathPart
from simreduce.engine.results.recording import Curve, Recording
from simreduce.engine.results.result import Floors, Result, Use
from simreduce.engine.runtime import IDEAL, NCCL, RUNTIMES, TENSORFLOW, Runtime, runtime_named
from simreduce.engine.simulation import (
    AtLeast,
    LeastSeconds,
    Simulator,
    Summary,
)
from simreduce.engine.submission import Timeline
from simreduce.engine.symmetry import Symmetry

__all__ = [
    "CALM",
    "CAUSES",
    "IDEAL",
    "LANE",
    "NCCL",
    "NOMINAL",
    "RUNTIMES",
    "TENSORFLOW",
    "AtLeast",
    "Calibration",
    "Curve",
    "Disturbance",
    "Fabric",
    "Fault",
    "Floors",
    "LeastSeconds",
    "LinkConstants",
    "NcclConstants",
    "PathOp",
    "PathPart",
    "Processor",
    "Recording",
    "Rerun",
    "Resident",
    "Resources",
    "Result",
    "Runtime",
    "Simulator",
    "Summary",
    "Symmetry",
    "Timeline",
    "Use",
    "check_routes",
    "runtime_named",
    "traffic",
]
