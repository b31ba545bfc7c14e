"""The parts of a machine that planners may know: ranks, tasks, hosts and linked GPUs.

No time, and bandwidth only as the capacities of a `Network`, for planners that search the graph at
hand. `layout` makes the `Layout` of a topology.
"""

from simreduce.planners.layouts.layout import (
    OPEN,
    Decide,
    Decision,
    Layout,
    Reducer,
    joined,
    layout,
    node_names,
)

__all__ = ["OPEN", "Decide", "Decision", "Layout", "Reducer", "joined", "layout", "node_names"]
