"""Training steps: compute, reductions and reads of variables on one fabric, as SimPy processes."""

from simreduce.training.profile import (
    Profile,
    load_profile,
    profile_from_rate,
    profile_from_seconds,
)
from simreduce.training.question import StepQuestion, look_at_step, read_step
from simreduce.training.reductions import Method, Reduction, method_for_mode, method_for_strategy
from simreduce.training.simulation import simulate_step
from simreduce.training.step import (
    CONSISTENCIES,
    Bucket,
    Span,
    StepJob,
    StepPrediction,
    device_label,
)

__all__ = [
    "CONSISTENCIES",
    "Bucket",
    "Method",
    "Profile",
    "Reduction",
    "Span",
    "StepJob",
    "StepPrediction",
    "StepQuestion",
    "device_label",
    "load_profile",
    "look_at_step",
    "method_for_mode",
    "method_for_strategy",
    "profile_from_rate",
    "profile_from_seconds",
    "read_step",
    "simulate_step",
]
