"""Plans of tf_cnn_benchmarks' `--variable_update` modes for one step: gradients in, variables out.

`training` adds timing, staging and relaxed consistency. A new mode is a file and a line: in
`STRATEGIES` if it all-reduces the gradients, else in `PLANNERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simreduce.errors import StrategyError, did_you_mean
from simreduce.plan import Contract, Plan, PlanBuilder
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy, compile_plan
from simreduce.training.variable_update.flags import Flags
from simreduce.training.variable_update.plans import (
    collective_all_reduce,
    distributed_all_reduce,
    distributed_replicated,
    horovod,
    parameter_server,
    replicated,
)
from simreduce.workload import Workload


def independent(workload: Workload, layout: Layout, flags: Flags) -> Plan:  # noqa: ARG001 - planners share a signature
    """No transfers: every GPU trains alone."""
    return PlanBuilder(layout.devices).finish(Contract.of("independent", []))


STRATEGIES: Mapping[str, Callable[[Layout, Flags], Strategy]] = {
    "replicated": replicated,
    "distributed_all_reduce": distributed_all_reduce,
    "collective_all_reduce": collective_all_reduce,
    "horovod": horovod,
}
"""The modes that are an all-reduce, with the strategy of each."""

PLANNERS: Mapping[str, Callable[[Workload, Layout, Flags], Plan]] = {
    "parameter_server": parameter_server,
    "distributed_replicated": distributed_replicated,
    "independent": independent,
}
"""The other modes."""

MODES = (*PLANNERS, *STRATEGIES)
"""The names that `--variable_update` takes."""


def variable_update(
    mode: str, workload: Workload, layout: Layout, flags: Flags | None = None
) -> Plan:
    """The plan of one step in `mode`; StrategyError for what the mode does not accept."""
    check_mode(mode)
    flags = flags or Flags()
    if mode in PLANNERS:
        return PLANNERS[mode](workload, layout, flags)
    return compile_plan(STRATEGIES[mode](layout, flags), workload, layout, faithful=flags.faithful)


def check_mode(mode: str) -> None:
    """Raise StrategyError, with the nearest mode, for a name that is none."""
    if mode not in MODES:
        raise StrategyError(
            f"unknown mode {mode!r}{did_you_mean(mode, MODES)}; one of {', '.join(MODES)}"
        )


__all__ = ["MODES", "STRATEGIES", "Flags", "check_mode", "variable_update"]
