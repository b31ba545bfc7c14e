"""Reads Slurm's topology.conf, and what `scontrol show topology` prints.

A line has a switch, and the nodes or switches below it; of a switch with both, the nodes are those
of the switches below (topology.conf(5), https://slurm.schedmd.com/topology.conf.html). A block
(`BlockName`) is read as a switch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from simreduce.files.formats import Faults
from simreduce.topology.naming import expand_hosts

_PAIR = re.compile(r"(\w+)=(\S*)")
_NOTHING = ("", "(null)")


def is_slurm(text: str) -> bool:
    """Whether a text is one of both."""
    return bool(re.search(r"^\s*(switch|block)name=", text, re.IGNORECASE | re.MULTILINE))


def read_slurm(text: str, faults: Faults) -> Mapping[str, tuple[str, ...]]:
    """The switches above each host."""
    nodes: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    joined = re.sub(r"\\\n", " ", text)
    for number, line in enumerate(joined.splitlines(), 1):
        pairs = {key.lower(): value for key, value in _PAIR.findall(line.partition("#")[0])}
        if not pairs or pairs.keys() <= {"blocksizes"}:
            continue
        where, name = f"line {number}", pairs.get("switchname", pairs.get("blockname", ""))
        if not name:
            faults.add(where, "has no SwitchName")
            continue
        if name in nodes or name in below:
            faults.add(where, f"there are two switches named {name}")
            continue
        parts = {key: pairs.get(key, "") for key in ("switches", "nodes")}
        used = next((key for key, value in parts.items() if value not in _NOTHING), "")
        if not used:
            faults.add(where, f"{name} has neither Nodes nor Switches")
            continue
        found = faults.attempt(where, expand_hosts, parts[used])
        (below if used == "switches" else nodes)[name] = found or []
    above = _above(nodes, below, faults)
    hosts: dict[str, tuple[str, ...]] = {}
    for name, members in nodes.items():
        path = _path(name, above, faults)
        for host in members:
            if host in hosts:
                faults.add("", f"{host} is below both {hosts[host][-1]} and {name}")
            hosts[host] = path
    return hosts


def _above(
    nodes: Mapping[str, list[str]], below: Mapping[str, list[str]], faults: Faults
) -> Mapping[str, str]:
    """The switch above each switch."""
    above: dict[str, str] = {}
    for name, parts in below.items():
        for part in parts:
            if part not in nodes and part not in below:
                faults.add("", f"{name} has a switch {part}, and no line is about that")
            elif part in above:
                faults.add("", f"{part} is below both {above[part]} and {name}")
            else:
                above[part] = name
    return above


def _path(name: str, above: Mapping[str, str], faults: Faults) -> tuple[str, ...]:
    path = [name]
    while path[-1] in above:
        if above[path[-1]] in path:
            faults.add("", f"{above[path[-1]]} is above itself")
            break
        path.append(above[path[-1]])
    return tuple(path[::-1])
