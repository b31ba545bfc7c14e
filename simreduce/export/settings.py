"""The tf_cnn_benchmarks flags and the TensorFlow call that run a strategy, where there are any."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce.export.frameworks.tensorflow import call_of
from simreduce.export.frameworks.tf_cnn_benchmarks import flags_of
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy, resolve


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """Text to type; None where that system cannot run the strategy."""

    tf_cnn_benchmarks: str | None
    tensorflow: str | None


def settings(strategy: Strategy, layout: Layout, *, faithful: bool = False) -> StrategySettings:
    """Return settings for one process per machine, as both systems are run.

    They are for the plan that `faithful` gives, or for the plan without it.
    """
    strategy = resolve(strategy, layout)
    flags = flags_of(strategy, layout, faithful=faithful)
    return StrategySettings(flags, call_of(strategy, layout))
