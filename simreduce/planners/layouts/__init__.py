"""The parts of a machine that planners may know: ranks, tasks, hosts and linked GPUs.

No time, and bandwidth only as the capacities of a `Network`, for planners that search the graph at
hand. `layout` makes the `Layout` of a topology.
"""

from simreduce.planners.layouts.of_topology import joined, layout, node_names
from simreduce.planners.layouts.values import OPEN, Decide, Decision, Layout, Reducer

__all__ = ["OPEN", "Decide", "Decision", "Layout", "Reducer", "joined", "layout", "node_names"]
