"""Training steps: compute, reductions and reads of variables on one fabric, as SimPy processes."""

from simreduce.training.profile import Profile, from_rate, from_seconds, load_profile
from simreduce.training.question import Question, look_at_step, read_step
from simreduce.training.reductions import Method, Reduction, by_mode, by_strategy
from simreduce.training.simulation import simulate_step
from simreduce.training.step import CONSISTENCIES, Bucket, Job, Span, Step, named

__all__ = [
    "CONSISTENCIES",
    "Bucket",
    "Job",
    "Method",
    "Profile",
    "Question",
    "Reduction",
    "Span",
    "Step",
    "by_mode",
    "by_strategy",
    "from_rate",
    "from_seconds",
    "load_profile",
    "look_at_step",
    "named",
    "read_step",
    "simulate_step",
]
