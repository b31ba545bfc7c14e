"""Topologies written inline: `NAME:SIZE[,key=value...]` and `MACHINExN[,key=value...]`.

    ring:8         GPUs in a circle, each linked to its two neighbours
    full:8         a link for every pair of GPUs
    switch:64      every GPU on one switch; `reduce=yes`: the switch can sum
    fat_tree:1024  two levels: `radix=` GPUs under each leaf (32, or all when they are fewer), and
                   radix / `oversubscription=` up-links of each leaf (as many as GPUs unless
                   stated), one to each spine. Traffic between two leaves takes the spine of number
                   d mod spines, where d is the place of its destination. `levels=3`: leaves,
                   spines and cores are switches with `radix=` ports (as few as hold all GPUs
                   unless stated), half of them down and half up, in `pods=` pods;
                   `oversubscription=` is that of the leaves. `reduce=yes`: the switches can sum
    dragonfly:1056 `a=` routers in a group, each with `p=` GPUs and `h=` global cables, in `g=`
                   groups; balanced, a = 2p = 2h, unless stated. Traffic takes the fewest global
                   cables: one
    torus:8x8      or 4x4x4: a router for every GPU, linked to its neighbours in each dimension and
                   round the ends; traffic goes along x first, then y, then z, the shorter way
                   round, forwards when both are as long

`bandwidth=` is per cable (per port of a switch) and direction, 25 GB/s unless stated; the cable
from a GPU to its router in a torus carries as much as all the router's others together. `latency=`
is from end to end of two GPUs that are neighbours or share the switch or leaf, the alpha of the
textbooks, 1 us unless stated: half of it on each cable of a switch, fat tree or dragonfly, all of
it on a cable between GPUs or the routers of a torus. Memory is unlimited. All nodes count as one
machine. `shuffle=SEED`, of networks but a switch, seats the GPUs in a random order instead of by
number.

A host `cpu0` is linked to every GPU (to the switch, the last leaf or router, the first router of a
torus) in the same way but passes nothing on, so that two GPUs of a ring that are no neighbours have
no route.

    dgx1vx4        four copies of a machine, each of its NICs linked to the network; nodes are
                   named n0.gpu0 and so on

`fabric=` is the shape of the network over the NICs, machine by machine: `switch`, `fat_tree` and
`dragonfly` with the settings above; `torus`, a router for every machine, `dims=4x4`;
`rail_optimised`, where the i-th NICs of `unit=` machines share a leaf, with `oversubscription=`,
`levels=` and `reduce=`; `rail_only`, a switch for all i-th NICs and nothing between those. `nic=`
is the link class of all cables, that of the machine's NICs unless stated; a cable between switches
has `switch_latency=` instead, 0.1 us unless stated. `nics=` is how many NICs of each machine are on
the network, evenly spread over it; all unless stated. The module of each shape says how many
switches and cables it has.

`equal_cost=split`, `hashed` (with a `seed=`) or `first` says what transfers do that have several
equal paths (`topology.routing.switching`). A torus takes the first unless stated, all others split.
`queue_pairs=` of hashed paths, `congestion=` and `congested=` are in `topology.routing.switching`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from simreduce.errors import did_you_mean
from simreduce.topology.generators.inline import (
    DEVICES_LIMIT,
    WHOLE_LIMIT,
    Inline,
    InlineSettings,
    split_inline,
    textbook,
)
from simreduce.topology.generators.machines import build_cluster
from simreduce.topology.generators.networks import (
    DRAGONFLY_KEYS,
    FULL_LIMIT,
    PLUS_KEYS,
    TREE_KEYS,
    dragonfly_plus,
    every_pair,
    linked,
    neighbours,
    read_dragonfly,
    read_switch,
    read_tree,
    torus,
)
from simreduce.topology.graph import Topology, build
from simreduce.topology.routing.switching import DEFAULT, FIRST, KEYS, Switching
from simreduce.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simreduce.topology.generators.inline import Shape

__all__ = [
    "GENERATORS", "Generator", "Inline", "build_cluster", "generate", "is_shape", "split_inline",
]  # fmt: skip

_COMMON = ("bandwidth", "latency", *KEYS)


@dataclass(frozen=True, slots=True)
class Generator:
    """A family of shapes: what makes one, how its size is written, the settings it has besides the
    figures, and what it does with equal paths.
    """

    shape: Callable[[InlineSettings], Shape]
    form: str
    keys: tuple[str, ...] = ()
    switching: Switching = DEFAULT


GENERATORS: dict[str, Generator] = {
    "dragonfly": Generator(
        partial(textbook, read=read_dragonfly), "dragonfly:N", (*DRAGONFLY_KEYS, "shuffle")
    ),
    "dragonfly_plus": Generator(dragonfly_plus, "dragonfly_plus:N", (*PLUS_KEYS, "shuffle")),
    "fat_tree": Generator(
        partial(textbook, read=read_tree, limit=WHOLE_LIMIT), "fat_tree:N", (*TREE_KEYS, "shuffle")
    ),
    "full": Generator(
        partial(linked, limit=FULL_LIMIT, words=", every pair linked", pairs=every_pair), "full:N"
    ),
    "ring": Generator(
        partial(linked, limit=DEVICES_LIMIT, words=" in a ring", pairs=neighbours), "ring:N"
    ),
    "switch": Generator(partial(textbook, read=read_switch), "switch:N", ("reduce",)),
    "torus": Generator(torus, "torus:AxB", ("shuffle",), Switching(FIRST)),
}


def is_shape(text: str) -> bool:
    """Whether a text is a textbook shape, `NAME:SIZE`, with a name that is known or like one."""
    inline = split_inline(text, ":")
    return inline is not None and bool(
        inline.name in GENERATORS or did_you_mean(inline.name, GENERATORS)
    )


def generate(
    inline: Inline, overrides: Mapping[str, str | int], limit: int = DEVICES_LIMIT
) -> Topology:
    """The topology of `NAME:SIZE,...`; overrides have the keys of the settings and win over them.

    `limit` is the most devices on one switch.
    """
    generator = GENERATORS[inline.name]
    settings = InlineSettings(inline, dict(inline.settings) | dict(overrides), limit)
    settings.faults.unknown("", settings.values, (*_COMMON, *generator.keys))
    switching = settings.switching(generator.switching)
    shape = generator.shape(settings)
    return build(
        inline.text,
        f"{shape.title}, {format_bandwidth(settings.bandwidth())}, "
        f"{format_duration(settings.latency())}",
        inline.text,
        shape.nodes,
        shape.cables,
        shape.rule,
        switching,
    )
