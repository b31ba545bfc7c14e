"""How to reduce: packer and size ranges, as text and as a value; `compile` makes the plan."""

from simreduce.planners.strategy.automatic import AUTOMATIC, tensorflow_choice
from simreduce.planners.strategy.collectives import compile_collective
from simreduce.planners.strategy.compile import compile_plan, has_quirks
from simreduce.planners.strategy.few import proved_on_few
from simreduce.planners.strategy.multi_worker_spec import parse_multi_worker_spec
from simreduce.planners.strategy.spec import Range, parse_all_reduce_spec, parse_spec
from simreduce.planners.strategy.text import (
    ALL,
    SUMMING,
    Strategy,
    check_collective,
    misplaced,
    parse_strategy,
    resolve,
    split_strategies,
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
