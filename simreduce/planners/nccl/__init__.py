"""The choices that NCCL itself would make on a machine: channels, algorithm, protocol.

>>> from simreduce.topology import load_topology
>>> choose(load_topology("dgx-h100"), "all_reduce", 1 << 30).text
'nccl:nvls+simple+channels=16'
"""

from simreduce.planners.nccl.channel_search import Channel, Graph, Graphs
from simreduce.planners.nccl.choice import (
    NcclChoice,
    P2p,
    choose,
    estimates,
    graphs,
    is_measured,
    nominal_text,
    p2p,
    plan,
    ring_orders,
    tree_parents,
)
from simreduce.planners.nccl.communicator import Facts, facts
from simreduce.planners.nccl.environment import (
    DEFAULTS,
    SETTINGS,
    Settings,
    load_conf,
    read_settings,
)

__all__ = [
    "DEFAULTS",
    "SETTINGS",
    "Channel",
    "Facts",
    "Graph",
    "Graphs",
    "NcclChoice",
    "P2p",
    "Settings",
    "choose",
    "estimates",
    "facts",
    "graphs",
    "is_measured",
    "load_conf",
    "nominal_text",
    "p2p",
    "plan",
    "read_settings",
    "ring_orders",
    "tree_parents",
]
