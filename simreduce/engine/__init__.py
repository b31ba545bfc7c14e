"""Time: SimPy keeps the clock, one kernel moves the bytes."""

from simreduce.engine.alike import Alike
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
from simreduce.engine.results.path import CAUSES, LANE, PathOp, PathPart
from simreduce.engine.results.recording import Curve, Recording, record
from simreduce.engine.results.result import Floors, Result, Use
from simreduce.engine.runtime import IDEAL, NCCL, RUNTIMES, TENSORFLOW, Runtime, runtime_named
from simreduce.engine.simulation import (
    AtLeast,
    Rates,
    Summary,
    compare_parts,
    find_floor,
    find_rates,
    find_seconds,
    simulate,
    simulate_within,
    summarise_within,
)
from simreduce.engine.standing import Standing
from simreduce.engine.submission import Timeline

__all__ = [
    "CALM",
    "CAUSES",
    "IDEAL",
    "LANE",
    "NCCL",
    "NOMINAL",
    "RUNTIMES",
    "TENSORFLOW",
    "Alike",
    "AtLeast",
    "Calibration",
    "Curve",
    "Disturbance",
    "Fabric",
    "Fault",
    "Floors",
    "LinkConstants",
    "NcclConstants",
    "PathOp",
    "PathPart",
    "Processor",
    "Rates",
    "Recording",
    "Rerun",
    "Resources",
    "Result",
    "Runtime",
    "Standing",
    "Summary",
    "Timeline",
    "Use",
    "check_routes",
    "compare_parts",
    "find_floor",
    "find_rates",
    "find_seconds",
    "record",
    "runtime_named",
    "simulate",
    "simulate_within",
    "summarise_within",
    "traffic",
]
