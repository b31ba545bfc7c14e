"""What tf_cnn_benchmarks' `--variable_update` modes move in one step: gradients in, variables out.

Timing, staging and relaxed consistency are not here: these are the plans. Adding a mode is a file and a line in
`MODES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simreduce.errors import StrategyError, did_you_mean
from simreduce.layouts import Layout
from simreduce.plan import Plan
from simreduce.variable_update.all_reduce import (
    collective_all_reduce,
    distributed_all_reduce,
    horovod,
    independent,
    replicated,
)
from simreduce.variable_update.distributed_replicated import distributed_replicated
from simreduce.variable_update.flags import Flags
from simreduce.variable_update.parameter_server import parameter_server
from simreduce.workload import Workload

MODES: Mapping[str, Callable[[Workload, Layout, Flags], Plan]] = {
    "parameter_server": parameter_server,
    "replicated": replicated,
    "distributed_replicated": distributed_replicated,
    "distributed_all_reduce": distributed_all_reduce,
    "collective_all_reduce": collective_all_reduce,
    "horovod": horovod,
    "independent": independent,
}
"""Planner by the name that `--variable_update` takes."""


def variable_update(mode: str, workload: Workload, layout: Layout, flags: Flags | None = None) -> Plan:
    """The plan of one step in `mode`; StrategyError for what the mode does not accept."""
    if mode not in MODES:
        raise StrategyError(f"unknown mode {mode!r}{did_you_mean(mode, MODES)}; one of {', '.join(MODES)}")
    return MODES[mode](workload, layout, flags or Flags())


__all__ = ["MODES", "Flags", "variable_update"]
