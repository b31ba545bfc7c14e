"""Links of a machine by what users call them, and the machine with some of them slower or gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from simreduce.errors import InputError, TopologyError, did_you_mean

if TYPE_CHECKING:
    from simreduce.topology.elements import Link
    from simreduce.topology.graph import Topology

BOTH = "<>"
"""Between the names of two nodes: the links in both directions."""
LEAST = 1e-6
"""The smallest factor of a link, but for 0; what is closer to 0 is no number to divide by."""


def find_links(topology: Topology, text: str) -> list[int]:
    """The links that `text` means: one by its name (`gpu0>gpu3`), those between two nodes
    (`gpu0<>gpu3`), all from and to a node, or all of a class. InputError names the nearest.
    """
    ends = set(text.split(BOTH)) if BOTH in text else set()
    for chosen in (
        [each.id for each in topology.links if each.name == text],
        [
            each.id
            for each in topology.links
            if {each.source, each.target} == ends and not each.is_toll
        ],
        [each.id for each in topology.links if text in (each.source, each.target)],
        [each.id for each in topology.links if each.link_class == text],
    ):
        if chosen:
            return chosen
    names = [each.name for each in topology.links]
    if BOTH in text:
        known = [f"{each.source}{BOTH}{each.target}" for each in topology.links]
    elif ">" in text:
        known = names
    else:
        known = [*names, *topology.nodes, *(each.link_class for each in topology.links)]
    near = did_you_mean(text, dict.fromkeys(known))
    raise InputError(f"{topology.name}: no link, node or link class {text!r}{near}")


def scaled(topology: Topology, factors: Mapping[str, float]) -> list[Link]:
    """The links with their bandwidth times the factors of what `find_links` reads; those times 0
    are not there. TopologyError lists what the machine does not have, cuts of one direction, and
    factors too far from 1.
    """
    total = [1.0] * len(topology.links)
    problems: list[str] = []
    for text, factor in factors.items():
        try:
            found = find_links(topology, text)
        except InputError as error:
            problems += error.problems
            continue
        for each in found:
            total[each] *= factor
    far = [k for k in topology.links if total[k.id] and not LEAST <= total[k.id] <= 1.0 / LEAST]
    if far:
        words = f"{far[0].name} would have {total[far[0].id]:g} times its bandwidth"
        problems.append(
            f"{topology.name}: {words}; 0 cuts it, else from {LEAST:g} to {1 / LEAST:g}"
        )
    cut = {(k.source, k.target) for k in topology.links if not total[k.id]}
    left = {(k.source, k.target) for k in topology.links if total[k.id]}
    problems += [
        f"{topology.name}: {a}>{b} is cut and {b}>{a} is not; cut both: {a}{BOTH}{b}"
        for a, b in sorted(cut)
        if (b, a) in left
    ]
    if problems:
        raise TopologyError(problems)
    kept = [link for link in topology.links if total[link.id]]
    return [
        replace(
            link,
            id=i,
            nominal=link.nominal * total[link.id],
            bandwidth=link.bandwidth * total[link.id],
        )
        for i, link in enumerate(kept)
    ]
