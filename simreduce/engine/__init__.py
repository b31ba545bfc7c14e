"""Time: SimPy keeps the clock, one kernel moves the bytes."""

from simreduce.engine.disturbance import CALM, Disturbance, Fault
from simreduce.engine.fabric import Fabric
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.recording import Curve, Recording
from simreduce.engine.result import CAUSES, CHANNELS, LANE, Floors, PathOp, PathPart, Result, Use
from simreduce.engine.runtime import (
    IDEAL,
    NCCL,
    NOMINAL,
    RUNTIMES,
    TENSORFLOW,
    Calibration,
    LinkConstants,
    NcclConstants,
    Processor,
    Runtime,
    runtime_named,
)
from simreduce.engine.simulator import AtLeast, LeastSeconds, Rerun, Simulator, Summary, Symmetry
from simreduce.engine.submission import Resident, Timeline

__all__ = [
    "CALM",
    "CAUSES",
    "CHANNELS",
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
    "runtime_named",
]
