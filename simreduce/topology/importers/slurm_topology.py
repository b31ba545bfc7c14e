"""Reads Slurm's topology.conf, and what `scontrol show topology` prints.

A line has a switch, and the nodes or switches below it; of a switch with both, the nodes are those
of the switches below (topology.conf(5), https://slurm.schedmd.com/topology.conf.html). A block
(`BlockName`) is read as a switch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from simreduce.errors import did_you_mean, nearest
from simreduce.files.formats import Faults
from simreduce.files.names import Name
from simreduce.topology.naming import expand_hosts

_PAIR = re.compile(r"(\w+)=(\S*)")
_NOTHING = ("", "(null)")
_HEADS = ("SwitchName", "BlockName")
_BELOW = ("Switches", "Nodes")
_MORE = ("LinkSpeed", "Level", "BlockSize", "BlockSizes", "BlockIndex")
"""What else a line has."""
_KNOWN = {key.lower(): key for key in (*_HEADS, *_BELOW, *_MORE)}


def is_slurm(text: str) -> bool:
    """Whether a text is one of both."""
    heads = dict.fromkeys(re.findall(r"^\s*(\w+)=", text, re.MULTILINE))
    return any(nearest(head, _HEADS) for head in heads)


def read_slurm(text: str, faults: Faults) -> Mapping[Name, tuple[str, ...]]:
    """The switches above each host."""
    nodes: dict[str, list[Name]] = {}
    below: dict[str, list[str]] = {}
    joined = re.sub(r"\\\n", " ", text)
    for number, line in enumerate(joined.splitlines(), 1):
        found = _PAIR.findall(line.partition("#")[0])
        pairs = {_KNOWN.get(key.lower(), key): value for key, value in found}
        if not pairs or pairs.keys() <= {"BlockSizes"}:
            continue
        where = f"line {number}"
        head = _HEADS if not pairs.keys() & {*_HEADS} else ()
        pairs = faults.respell(where, pairs, (*head, *_BELOW), (*_HEADS, *_MORE))
        name = pairs.get("SwitchName", pairs.get("BlockName", ""))
        if not name:
            faults.add(where, "has no SwitchName")
            continue
        if name in nodes or name in below:
            faults.add(where, f"there are two switches named {name}")
            continue
        used = next((key for key in _BELOW if pairs.get(key, "") not in _NOTHING), "")
        if not used:
            faults.add(where, f"{name} has neither Nodes nor Switches")
        members = (faults.attempt(where, expand_hosts, pairs[used]) if used else None) or []
        if used == "Switches":
            below[name] = members
        else:
            names = [faults.attempt(where, Name, each) for each in members]
            nodes[name] = [each for each in names if each is not None]
    above = _above(nodes, below, faults)
    hosts: dict[Name, tuple[str, ...]] = {}
    for name, own in nodes.items():
        path = _path(name, above, faults)
        for host in own:
            if host in hosts:
                faults.add("", f"{host} is below both {hosts[host][-1]} and {name}")
            hosts[host] = path
    return hosts


def _above(
    nodes: Mapping[str, list[Name]], below: Mapping[str, list[str]], faults: Faults
) -> Mapping[str, str]:
    """The switch above each switch."""
    above: dict[str, str] = {}
    for name, parts in below.items():
        for part in parts:
            if part not in nodes and part not in below:
                near = did_you_mean(part, [*nodes, *below])
                faults.add("", f"{name} has a switch {part}, and no line is about that{near}")
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
