"""How near two devices are, in the words and the table of `nvidia-smi topo -m`."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from simreduce.errors import TopologyError
from simreduce.topology.graph import route
from simreduce.topology.naming import natural
from simreduce.topology.routing.equal_machines import EqualMachines
from simreduce.topology.routing.nvlink import XGMI, is_nvlink
from simreduce.topology.routing.reach import path_kind

if TYPE_CHECKING:
    from simreduce.topology.graph import Topology

NO_PATH = "-"
MOST_ROWS = 256
"""Upper limit of rows shown. Nobody reads a larger matrix, and it takes long."""
_FEW = 16

_LEGEND = {
    "X": "Self",
    "NET": "Connection that leaves the machine, or crosses a network link",
    "SYS": "Connection traversing PCIe as well as the interconnect between sockets "
    "(e.g. QPI or UPI)",
    "PHB": "Connection traversing PCIe as well as a PCIe host bridge (typically the CPU)",
    "PXB": "Connection traversing several PCIe switches without a PCIe host bridge",
    "PIX": "Connection traversing at most a single PCIe switch",
    "NV#": "Connection traversing a bonded set of # NVLinks",
    "XGMI#": "Connection traversing a bonded set of # xGMI links",
    NO_PATH: "No connection: GPUs do not forward traffic for others",
}


def path_class(topology: Topology, a: str, b: str) -> str:
    """How traffic from `a` to `b` goes: X, NV#, XGMI#, PIX, PXB, PHB, SYS, NET, or "-" when it
    cannot.

    Raises `TopologyError` for a name that the topology does not have.
    """
    for name in (a, b):
        if name not in topology.nodes:
            route(topology, name, name)
    if a == b:
        return "X"
    try:
        path = topology.router.path(a, b)
    except TopologyError:
        return NO_PATH
    used = [topology.router.link(*hop) for hop in itertools.pairwise(path)]
    kind = path_kind([topology.nodes[name] for name in path], used)
    if kind != "NV":
        return kind
    word = "XGMI" if used[0].link_class.startswith(XGMI) else "NV"
    return f"{word}{_nvlink_lanes(topology, a, b, direct=len(path) == 2)}"


def _nvlink_lanes(topology: Topology, a: str, b: str, *, direct: bool) -> int:
    """Lanes of the `direct` NVLinks between two devices, or the fewer of theirs to NVSwitches."""
    lanes = {a: 0, b: 0}
    for end in (a, b):
        for _, target, key in topology.graph.out_edges(end, keys=True):
            wanted = target in (a, b) if direct else topology.nodes[target].kind == "nvswitch"
            if wanted and is_nvlink(topology.links[key]):
                lanes[end] += topology.links[key].lanes
    return min(lanes.values())


def matrix_text(topology: Topology) -> str:
    """The table of `nvidia-smi topo -m` over GPUs and NICs, tab-separated, with the legend of what
    occurs.

    Above `MOST_ROWS` it has the rows of the first of equal machines, or else the first few rows,
    under a line that says so.
    """
    nics = [node.name for node in topology.nodes.values() if node.kind == "nic"]
    nics.sort(key=lambda name: (natural(topology.nodes[name].machine), natural(name)))
    names = [*topology.devices, *nics]
    if len(names) <= MOST_ROWS:
        return _table(topology, names)
    few, what = _excerpt(topology, names)
    note = f"{what}; the whole matrix has {len(names)} rows, and at most {MOST_ROWS} are shown."
    return f"{note}\n\n{_table(topology, few)}"


def _excerpt(topology: Topology, names: list[str]) -> tuple[list[str], str]:
    """Some of the names, and the words for which."""
    rule = topology.router.rule
    if isinstance(rule, EqualMachines):
        own = [
            name
            for name in names
            if topology.nodes[name].machine == topology.nodes[names[0]].machine
        ]
        if len(own) <= MOST_ROWS:
            return own, f"The first of {rule.count} equal machines"
    return names[:_FEW], f"The first {_FEW} rows and columns"


def _table(topology: Topology, names: list[str]) -> str:
    heads = [name.upper() if name in topology.devices else name for name in names]
    rows = [[path_class(topology, a, b) for b in names] for a in names]
    seen = {re.sub(r"(?<=NV|MI)[0-9]+$", "#", cell) for row in rows for cell in row}
    lines = ["\t".join(["", *heads])]
    lines += ["\t".join([head, *row]) for head, row in zip(heads, rows, strict=True)]
    width = max(4, *map(len, seen))
    legend = [f"  {word:<{width}} = {text}" for word, text in _LEGEND.items() if word in seen]
    return "\n".join([*lines, "", "Legend:", "", *legend]) + "\n"
