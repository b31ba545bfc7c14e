"""How to reduce: packer and size ranges, as text and as a value; `compile` makes the plan."""

from simreduce.planners.strategy.compiler import (
    compile_collective,
    compile_plan,
    has_quirks,
    proved_on_few,
)
from simreduce.planners.strategy.text import (
    ALL,
    AUTOMATIC,
    SUMMING,
    Range,
    Strategy,
    check_collective,
    misplaced,
    parse_all_reduce_spec,
    parse_multi_worker_spec,
    parse_spec,
    parse_strategy,
    resolve,
    split_strategies,
    tensorflow_choice,
)

__all__ = [
    "ALL",
    "AUTOMATIC",
    "SUMMING",
    "Range",
    "Strategy",
    "check_collective",
    "compile_collective",
    "compile_plan",
    "has_quirks",
    "misplaced",
    "parse_all_reduce_spec",
    "parse_multi_worker_spec",
    "parse_spec",
    "parse_strategy",
    "proved_on_few",
    "resolve",
    "split_strategies",
    "tensorflow_choice",
]
