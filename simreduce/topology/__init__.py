"""Topology: what the machine is. Nothing here knows of plans.

>>> machine = load_topology("dgx1v")
>>> route(machine, "gpu0", "gpu5").path
('gpu0', 'plx0', 'cpu0', 'cpu1', 'plx2', 'gpu5')
"""

from __future__ import annotations

from simreduce.topology.elements import (
    DIRECTIONS,
    STAGED,
    Cable,
    Link,
    LinkClass,
    Node,
    NodeKind,
    direction,
    link_classes,
    natural,
)
from simreduce.topology.graph import Folded, Topology, build, find_links, fold, route
from simreduce.topology.importers.topo_m import matrix_text, path_class
from simreduce.topology.loader import copies_of, load_machine, load_topology, machine_of, shipped
from simreduce.topology.routing import Route, Routes

__all__ = [
    "DIRECTIONS",
    "STAGED",
    "Cable",
    "Folded",
    "Link",
    "LinkClass",
    "Node",
    "NodeKind",
    "Route",
    "Routes",
    "Topology",
    "build",
    "copies_of",
    "direction",
    "find_links",
    "fold",
    "link_classes",
    "load_machine",
    "load_topology",
    "machine_of",
    "matrix_text",
    "natural",
    "path_class",
    "route",
    "shipped",
]
