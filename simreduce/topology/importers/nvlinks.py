"""Adds NVLinks to machines whose file shows none, such as the topology files of clouds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from simreduce.errors import TopologyError
from simreduce.topology.classes import LinkClass, link_classes
from simreduce.topology.graph import Topology, build
from simreduce.topology.importers.models import MODELS, UNKNOWN
from simreduce.topology.importers.parts import MachineBuilder
from simreduce.topology.routing.nvlink import is_nvlink

FORMS = (
    "switch, mesh, or the name of a machine whose NVLinks it has, with an order if it has "
    "one: dgx1v:0,3,1,2,4,7,5,6"
)


def with_nvlinks(
    topology: Topology,
    text: str,
    load: Callable[[str], Topology],
    classes: Mapping[str, LinkClass] | None = None,
) -> Topology:
    """The machine with NVLinks as `text` says; raises `TopologyError` when it has some, or when the
    two do not fit.

    `switch`: all links of each GPU to NVSwitches. `mesh`: all links of each GPU, shared out evenly
    to the others. `MACHINE[:ORDER]`: GPU i of the file has the links of GPU ORDER[i] of the
    machine. `classes` are the classes of links, the shipped ones unless given.
    """
    if any(is_nvlink(link) for link in topology.links):
        raise TopologyError(f"--nvlink {text}: {topology.name} shows NVLinks of its own")
    gpus = topology.devices
    model = MODELS.get(topology.nodes[gpus[0]].model, UNKNOWN)
    parts = MachineBuilder(classes or link_classes(), dict(topology.nodes))
    if text in ("switch", "mesh"):
        if not model.nvlink or not model.nvlinks:
            raise TopologyError(f"--nvlink {text}: name a model of GPU that has NVLinks with --gpu")
        if model.bridged and (text == "switch" or len(gpus) > 2):
            raise TopologyError(
                f"--nvlink {text}: a bridge of {model.name} joins two GPUs; write the pairs as "
                "[links] of the machine file"
            )
        if text == "switch":
            switch = parts.add("nvswitch0", "nvswitch")
            for gpu in gpus:
                parts.link(gpu, switch, model.nvlink, model.nvlinks)
        else:
            share = model.nvlinks // max(len(gpus) - 1, 1)
            if not share:
                raise TopologyError(
                    f"--nvlink mesh: {model.nvlinks} links do not reach {len(gpus) - 1} other GPUs"
                )
            for i, a in enumerate(gpus):
                for b in gpus[i + 1 :]:
                    parts.link(a, b, model.nvlink, share)
    else:
        _copy_nvlinks(parts, gpus, text, load)
    return build(
        topology.name,
        topology.title,
        topology.source,
        parts.nodes.values(),
        [*topology.links[::2], *parts.cables],
    )


def _copy_nvlinks(
    parts: MachineBuilder, gpus: tuple[str, ...], text: str, load: Callable[[str], Topology]
) -> None:
    """The NVLinks, and NVSwitches, of a machine."""
    name, _, order = text.partition(":")
    model = load(name)
    seats = order.split(",") if order else [str(i) for i in range(len(gpus))]
    if not all(re.fullmatch(r"[0-9]{1,4}", seat) for seat in seats) or sorted(
        map(int, seats)
    ) != list(range(len(model.devices))):
        raise TopologyError(
            f"--nvlink {text}: the order must hold each of 0 to {len(model.devices) - 1} once"
        )
    if len(model.devices) != len(gpus):
        raise TopologyError(
            f"--nvlink {text}: {name} has {len(model.devices)} GPUs, the file {len(gpus)}"
        )
    named = {model.devices[int(seat)]: gpu for seat, gpu in zip(seats, gpus, strict=True)}
    for node in model.nodes.values():
        if node.kind == "nvswitch":
            parts.nodes[node.name] = node
            named[node.name] = node.name
    for link in model.links[::2]:
        if is_nvlink(link):
            a, b = named[link.source], named[link.target]
            parts.cables.append(replace(link, source=a, target=b))
