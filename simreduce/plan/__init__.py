"""Plans: SSA programs of copies and sums over values on devices, each with its contract."""

from simreduce.plan.builder import PlanBuilder
from simreduce.plan.composition import (
    SeparateBuilder,
    repeat,
    results_last,
    side_by_side,
    split_independent,
)
from simreduce.plan.plan import ZEROS, Contract, Executor, Homes, Kind, Plan, Promise, part_for
from simreduce.plan.proof import Problem, verify, verify_part, wrong_elements
from simreduce.plan.values import Value, Values, ValueTable

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
    "part_for",
    "repeat",
    "results_last",
    "side_by_side",
    "split_independent",
    "verify",
    "verify_part",
    "wrong_elements",
]
