"""Plans: SSA programs of copies and sums over values on devices, each with its contract."""

from simreduce.plan.builder import PlanBuilder
from simreduce.plan.contract import Contract, Homes, Promise
from simreduce.plan.independent import split_independent
from simreduce.plan.part import part_for
from simreduce.plan.plan import ZEROS, Executor, Kind, Plan
from simreduce.plan.processes import across_processes
from simreduce.plan.proof import Problem, verify, verify_part, wrong_elements
from simreduce.plan.repeat import repeat
from simreduce.plan.separate import SeparateBuilder
from simreduce.plan.side_by_side import results_last, side_by_side
from simreduce.plan.table import ValueTable
from simreduce.plan.values import Value, Values

__all__ = [
    "ZEROS",
    "Contract",
    "Executor",
    "Homes",
    "Kind",
    "Plan",
    "PlanBuilder",
    "Problem",
    "Promise",
    "SeparateBuilder",
    "Value",
    "ValueTable",
    "Values",
    "across_processes",
    "part_for",
    "repeat",
    "results_last",
    "side_by_side",
    "split_independent",
    "verify",
    "verify_part",
    "wrong_elements",
]
