"""What planners may know of a machine: ranks, tasks, hosts and which GPUs are linked.

No time, and bandwidth only as the capacities of a `Network`, for planners that search the graph at
hand. `layout` makes the `Layout` of a topology.
"""

from simreduce.layouts.of_topology import layout
from simreduce.layouts.values import OPEN, Decide, Decision, Layout, Reducer

__all__ = ["OPEN", "Decide", "Decision", "Layout", "Reducer", "layout"]
