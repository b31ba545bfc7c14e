"""What moves and adds, and where: an SSA program over device-resident values, with its contract."""

from simreduce.plan.builder import PlanBuilder, Value
from simreduce.plan.chain import repeat
from simreduce.plan.contract import Contract
from simreduce.plan.plan import ZEROS, Executor, Kind, Plan
from simreduce.plan.proof import Problem, verify, wrong_elements

__all__ = [
    "ZEROS",
    "Contract",
    "Executor",
    "Kind",
    "Plan",
    "PlanBuilder",
    "Problem",
    "Value",
    "repeat",
    "verify",
    "wrong_elements",
]
