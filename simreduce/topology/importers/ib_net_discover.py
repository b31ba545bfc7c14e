"""Reads what `ibnetdiscover` prints: every switch and every channel adapter, with their ports.

A paragraph begins with `Switch` or `Ca`, the number of ports, a GUID, and a description in quotes
behind a #; lines with ports follow, each with the GUID at the other end (ibnetdiscover(8),
infiniband-diags of rdma-core, https://manpages.ubuntu.com/manpages/noble/man8/ibnetdiscover.8.html).

Hosts whose adapters are on the same switches are together below these; switches that are linked to
the same other switches are together below those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from simreduce.errors import quote
from simreduce.files.formats import Faults
from simreduce.files.names import Name

_HEAD = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*(?:#\s*"([^"]*)")?')
_PORT = re.compile(r'^\[\s*\d+\]\S*\s+"([^"]+)"\s*\[')
_ADAPTER = re.compile(r"[\s_-]+(HCA-?\d+|mlx\d+_\d+|mlx\d+_bond_?\d+)\b.*$")
_IN_SWITCH = "Aggregation Node"
"""In the description of an adapter that is part of a switch."""


class _Device(NamedTuple):
    kind: str
    name: str
    line: int
    ends: list[str]


def is_ib_net_discover(text: str) -> bool:
    """Whether a text is such output."""
    return bool(re.search(r'^(Switch|Ca)\s+\d+\s+"[SH]-', text, re.MULTILINE))


def read_ib_net_discover(text: str, faults: Faults) -> Mapping[Name, tuple[str, ...]]:
    """The switches above each host: those above its own, then its own."""
    devices = _devices(text, faults)
    switches = {guid: each for guid, each in devices.items() if each.kind == "Switch"}
    leaves: dict[Name, set[str]] = {}
    for each in devices.values():
        if each.kind != "Ca" or _IN_SWITCH in each.name:
            continue
        host = _ADAPTER.sub("", each.name).strip() or each.name
        if not host:
            faults.add(f"line {each.line}", "this adapter has no description to tell its host by")
            continue
        for end in each.ends:
            if end not in switches:
                why = f"{host} is linked to {end}, which is no switch here"
                faults.add(f"line {each.line}", why)
        if not each.ends:
            continue  # a port that is down
        if name := faults.attempt(f"line {each.line}", Name, host):
            leaves.setdefault(name, set()).update(end for end in each.ends if end in switches)
    below = set().union(*leaves.values()) if leaves else set()
    hosts: dict[Name, tuple[str, ...]] = {}
    for host, own in leaves.items():
        over = {end for leaf in own for end in switches[leaf].ends if end in switches} - below
        paths = [own] if not over else [over, own]
        hosts[host] = tuple(_label(path, switches) for path in paths if path)
    return hosts


def _devices(text: str, faults: Faults) -> dict[str, _Device]:
    devices: dict[str, _Device] = {}
    current: _Device | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if head := _HEAD.match(line):
            kind, guid, about = head[1], head[2], head[3] or ""
            if guid in devices:
                faults.add(f"line {number}", f"{guid} is there twice")
            current = devices[guid] = _Device(kind, about, number, [])
        elif line.startswith("["):
            port = _PORT.match(line)
            if port is None or current is None:
                faults.add(f"line {number}", f"no port of a device: {quote(line)}")
            else:
                current.ends.append(port[1])
    return devices


def _label(guids: set[str], switches: Mapping[str, _Device]) -> str:
    """The names of switches, in one word."""
    return "+".join(sorted(_short(switches[guid].name, guid) for guid in guids))


def _short(about: str, guid: str) -> str:
    """`leaf1` of `MF0;leaf1:MQM8700/U1`; the GUID of a switch whose description is that of all."""
    match = re.match(r"MF\d+;([^:]+)", about)
    name = match[1] if match else about
    return guid if not name or "Technologies" in name or " " in name else name
