"""How to reduce: packer and size ranges, as text and as a value; `compile` makes the plan."""

from simreduce.strategy.compile import compile_plan
from simreduce.strategy.spec import Range, parse_all_reduce_spec, parse_spec
from simreduce.strategy.text import Strategy, parse_strategy

__all__ = ["Range", "Strategy", "compile_plan", "parse_all_reduce_spec", "parse_spec", "parse_strategy"]
