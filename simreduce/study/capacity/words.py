"""Configurations in plain words: what to order, how it is joined, and how the job uses it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from functools import lru_cache

from simreduce.study.capacity.choose import Configuration
from simreduce.study.frameworks import METHODS
from simreduce.topology import shipped

_PRODUCT = re.compile(r"(?:NVIDIA )?((?!One )[A-Za-z][^:,(]*?)(?: with |:|,| \(|$)")
"""What a title begins with, such as `AWS p4d.24xlarge` or `DGX H100`."""


_NICS = {"ib": "InfiniBand", "roce": "RoCE", "efa": "EFA", "tcp": "TCP", "tcpxo": "GPUDirect-TCPXO"}
_RATE = re.compile(r"(\d+)(?:x(\d+))?")
"""Gbit/s of a port, and how many ports serve one GPU."""


def plain(key: Configuration, varied: Collection[str]) -> str:
    """`4 DGX H100, 2:1 fat tree, batch 2 a GPU`.

    A method and a strategy, and the plain switch, are named where options differ in them: `varied`
    are the parts of keys in which they do.
    """
    parts = [f"{key.nodes} {product(key.machine)}"]
    if key.name and "name" in varied:
        parts.append(key.name)
    if key.network and (key.network != "switch" or "network" in varied):
        parts.append(_network(key.network))
    if key.method and "method" in varied:
        parts.append(METHODS.get(key.method, key.method))
    if key.strategy and "strategy" in varied:
        parts.append(key.strategy.replace("_", " "))
    if key.batch:
        parts.append(f"batch {key.batch} a GPU")
    return ", ".join(parts)


def product(machine: str) -> str:
    """What a shipped machine is called by who sells it; the name of another one."""
    return _products().get(machine, machine.removesuffix(".toml"))


@lru_cache(1)
def _products() -> dict[str, str]:
    found = {
        name: match[1]
        for name, title in shipped()
        if (match := _PRODUCT.match(title)) and len(match[1].split()) <= 3
    }
    often = Counter(found.values())
    return {name: each if often[each] == 1 else f"{each} ({name})" for name, each in found.items()}


def _network(text: str) -> str:
    """`2:1 fat tree`, `switch of 100 Gbit/s TCP ports`, from a network as options write it."""
    fabric, *settings = (part.strip() for part in text.split(","))
    pairs = dict(each.partition("=")[::2] for each in settings)
    words = fabric.replace("rail_", "rail-").replace("_", " ")
    if ratio := pairs.pop("oversubscription", ""):
        words = f"{ratio}:1 {words}"
    if nic := pairs.pop("nic", ""):
        words += f" of {_ports(nic)} ports"
    rest = ", ".join(f"{name} {value}" for name, value in pairs.items())
    return f"{words} ({rest})" if rest else words


def _ports(nic: str) -> str:
    """`100 Gbit/s TCP`, `InfiniBand NDR`, from the name of a class of network links."""
    kind, _, rate = nic.partition("_")
    if kind not in _NICS:
        return nic
    if match := _RATE.fullmatch(rate):
        many = f"{match[2]} x " if match[2] else ""
        return f"{many}{match[1]} Gbit/s {_NICS[kind]}"
    return f"{_NICS[kind]} {rate.upper()}".rstrip()
