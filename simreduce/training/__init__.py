"""Training steps: compute, reductions and reads of variables on one fabric."""

from simreduce.training.calls import Method, Reduction, method_for_mode, method_for_strategy
from simreduce.training.recorded import load_model, load_profile
from simreduce.training.simulation import record_step, simulate_step
from simreduce.training.step import (
    CONSISTENCIES,
    PROFILE,
    Bucket,
    Memory,
    MovedBucket,
    PathPiece,
    Profile,
    SimulatedStep,
    Span,
    StepJob,
    StepRecording,
    StepResult,
    device_label,
    lane,
    profile_from_rate,
    profile_from_seconds,
)
from simreduce.training.step_table import STEP, StepQuestion, parse_step

__all__ = [
    "CONSISTENCIES",
    "PROFILE",
    "STEP",
    "Bucket",
    "Memory",
    "Method",
    "MovedBucket",
    "PathPiece",
    "Profile",
    "Reduction",
    "SimulatedStep",
    "Span",
    "StepJob",
    "StepQuestion",
    "StepRecording",
    "StepResult",
    "device_label",
    "lane",
    "load_model",
    "load_profile",
    "method_for_mode",
    "method_for_strategy",
    "parse_step",
    "profile_from_rate",
    "profile_from_seconds",
    "record_step",
    "simulate_step",
]
