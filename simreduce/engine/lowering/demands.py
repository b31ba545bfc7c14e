"""What calls demand: lanes (queues), and resources with their weights: links, memories and cores.

Calls that differ in the names of nodes only are looked at together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, row_starts
from simreduce.engine.lowering.calls import Signatures
from simreduce.engine.lowering.gpu_kernels import (
    NET,
    Sends,
    drop_tolls,
    find_host_memory,
    find_sends,
)
from simreduce.engine.lowering.resources import CPU, CoreWork, Resources, Site, find_hosts
from simreduce.engine.runtime import Call, Runtime, named_lanes
from simreduce.plan import Executor, Kind
from simreduce.topology import Node, Routes
from simreduce.topology.routing import RouteRows, join_rows

_ENDS = ("\0a", "\0b", "\0m", "\0n")
"""Placeholders for the names of the source, of the target, and of their machines."""

_NAMED = re.compile("(\0[abmn])")


def number_alike(
    signatures: Signatures,
    far: Bools,
    nodes: Sequence[Node],
    runtime: Runtime,
    numbers: dict[str, int],
) -> tuple[Ints, Ints, Ints]:
    """Return where the lanes of each call begin and end, how many are no pipes, and their numbers.

    The first call is left out. A lane's number is found by its name in `numbers`, which is given
    the new ones in order.
    """
    names, ends = _ends(signatures, nodes)
    which, calls = _classes(signatures, far[1:], nodes, runtime, ends)
    found = [named_lanes(call, runtime) for call in calls]
    early, late = (np.array([len(each[i]) for each in found])[which] for i in (0, 1))
    start = row_starts(early + late)
    text = np.zeros(start[-1], dtype=np.int32)
    used = np.full((len(_ENDS), start[-1]), -1, dtype=np.int32)
    texts: dict[str, int] = {}
    order = np.argsort(which, kind="stable")
    edges = row_starts(np.bincount(which, minlength=len(found)))
    for i, each in enumerate(found):
        members = order[edges[i] : edges[i + 1]]
        for place, name in enumerate((*each[0], *each[1])):
            at = start[members] + place
            text[at] = texts.setdefault(name, len(texts))
            for end, mark in enumerate(_ENDS):
                if mark in name:
                    used[end, at] = ends[end][members]
    return start, early, _number(text, used, list(texts), names, numbers)


def _ends(signatures: Signatures, nodes: Sequence[Node]) -> tuple[list[str], tuple[Ints, ...]]:
    """Return names, and by call the places in them of its two nodes and their machines.

    The first call is left out.
    """
    source, target, away = signatures.source[1:], signatures.target[1:], signatures.away[1:]
    place: dict[str, int] = {}
    name = np.array([place.setdefault(node.name, len(place)) for node in nodes])
    machine = np.array([place.setdefault(node.machine, len(place)) for node in nodes])
    here, there = machine[source], machine[target]
    names = list(place)
    for call in np.flatnonzero((away > 1) & (here != there)).tolist():
        far = f"{names[here[call]]}+{away[call]}"
        if far not in place:
            place[far] = len(names)
            names.append(far)
        there[call] = place[far]
    return names, (name[source], name[target], here, there)


def _classes(
    signatures: Signatures,
    far: Bools,
    nodes: Sequence[Node],
    runtime: Runtime,
    ends: tuple[Ints, ...],
) -> tuple[Ints, list[Call]]:
    """Return the class of every call but the first, and a call of each class.

    The call's nodes have `_ends` for names where the class is of several nodes.
    """
    executor, kind, source, target, channel = (column[1:] for column in signatures[:5])
    plain = (executor != Executor.TF) | runtime.plain
    place: dict[Node, int] = {}
    like = np.array(
        [place.setdefault(replace(node, name="", machine=""), len(place)) for node in nodes]
    )
    near, joined = ends[0] == ends[1], ends[2] == ends[3]
    sides = (np.where(plain, like[end], len(nodes) + end) for end in (source, target))
    key = _key([executor, kind, channel, far.astype(np.int8), near, joined, *sides])
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    calls = []
    for i in first.tolist():
        here, there = nodes[source[i]], nodes[target[i]]
        if plain[i]:
            a, b, m, n = _ENDS
            here = replace(here, name=a, machine=m)
            there = replace(there, name=a if near[i] else b, machine=m if joined[i] else n)
        role = Executor(executor[i]), Kind(kind[i])
        calls.append(Call(*role, here, there, int(channel[i]), bool(far[i])))
    return which, calls


def _number(
    text: AnyInts,
    used: AnyInts,
    texts: Sequence[str],
    names: Sequence[str],
    numbers: dict[str, int],
) -> Ints:
    """The number of every lane, given by the place of its text and of the names in it."""
    _, first, which = np.unique(_key([text, *used]), return_index=True, return_inverse=True)
    found = np.empty(len(first), dtype=object)
    for i, each in enumerate(texts):
        some = np.flatnonzero(text[first] == i)
        found[some] = list(_write(each, used[:, first[some]], names))
    number = np.empty(len(first), dtype=np.int64)
    order = np.argsort(first)
    number[order] = [numbers.setdefault(name, len(numbers)) for name in found[order]]
    return number[which]


def _write(text: str, used: AnyInts, names: Sequence[str]) -> Iterator[str]:
    """The text with names in it, for each column of `used`."""
    columns = [
        [names[i] for i in used[_ENDS.index(part)].tolist()] if part in _ENDS else repeat(part)
        for part in _NAMED.split(text)
    ]
    return ("".join(parts) for _, *parts in zip(range(used.shape[1]), *columns, strict=False))


def _key(columns: Sequence[AnyInts]) -> Ints:
    """A number for each row of the columns; equal rows have equal ones."""
    key, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        least = int(column.min(initial=0))
        many = int(column.max(initial=0)) - least + 1
        if size * many > np.iinfo(np.int64).max:
            key = np.unique(key, return_inverse=True)[1]
            size = len(key)
        key, size = key * many + (column - least), size * many
    return key


_FEW = 256
"""Up to so many calls it takes less time to look at one after another."""


class Lanes(NamedTuple):
    """Row c of `lane` is [start[c], start[c + 1]): `early[c]` lanes, and then pipes."""

    start: Ints
    early: Ints
    lane: Ints


def number_lanes(
    signatures: Signatures,
    site: Site,
    runtime: Runtime,
    cores: CoreWork,
    sends: Sends,
    numbers: dict[str, int],
) -> Lanes:
    """The lanes of every call, followed by its pipes, as CSR rows; and how many of a row are lanes.

    `numbers` gives lanes their numbers by name. New names get the next numbers.
    """
    if not runtime.queues and not signatures.executor.any():
        none = np.zeros(len(signatures.kind) + 1, dtype=np.int64)
        return Lanes(none, none[1:], none[:0])
    turns = zip(cores.calls.tolist(), cores.owner, cores.in_turn.tolist(), strict=True)
    owner = {call: f"{name} {CPU}" for call, name, in_turn in turns if in_turn}
    far = np.zeros(len(signatures.kind), dtype=np.bool_)
    far[sends.calls[sends.kind == NET]] = True
    if len(signatures.kind) <= _FEW or owner:
        return _number_each(signatures, far, site.nodes, runtime, owner, numbers)
    none = np.zeros(1, dtype=np.int64)
    start, early, lane = number_alike(signatures, far, site.nodes, runtime, numbers)
    return Lanes(np.concatenate([none, start]), np.concatenate([none, early]), lane)


def _number_each(
    signatures: Signatures,
    far: Bools,
    nodes: Sequence[Node],
    runtime: Runtime,
    owner: dict[int, str],
    numbers: dict[str, int],
) -> Lanes:
    """`number_lanes`, one call after another; `owner` has the lanes of cores, by call."""
    rows: list[list[int]] = [[]]
    early = [0]
    rows_of_signatures = np.stack(signatures, axis=1)[1:].tolist()
    over_network = far.tolist()
    for number, (executor, kind, source, target, channel, _, away, *_) in enumerate(
        rows_of_signatures, start=1
    ):
        here, there = nodes[source], nodes[target]
        if away > 1 and here.machine != there.machine:
            there = replace(there, machine=f"{here.machine}+{away}")
        role = Executor(executor), Kind(kind)
        call = Call(*role, here, there, channel, over_network[number])
        lanes, pipes = named_lanes(call, runtime)
        if executor == Executor.TF and number in owner:
            lanes = (*lanes, owner[number])
        rows.append([numbers.setdefault(name, len(numbers)) for name in (*lanes, *pipes)])
        early.append(len(lanes))
    return Lanes(
        start=row_starts(np.array([len(row) for row in rows])),
        early=np.array(early, dtype=np.int64),
        lane=np.array([lane for row in rows for lane in row], dtype=np.int64),
    )


_IN_AND_OUT = 2.0
"""Bytes that pass a host's memory for each byte of a copy through it: written, and read."""


class Uses(NamedTuple):
    """Resources that calls use. Row c of `resource` and `weight` is [start[c], start[c + 1])."""

    start: Ints
    resource: Ints
    weight: Floats
    latency: Floats  # s, of the links on the way
    holds: Bools  # whether lanes are kept on the way
    sends: Sends  # NCCL's


def find_uses(
    signatures: Signatures, site: Site, runtime: Runtime, resources: Resources, cores: CoreWork
) -> Uses:
    """Return the resources of every call.

    These are its links or its device's memory, then for ops on CPU devices the computer's memory,
    the cores that move bytes, and last all cores.

    `cores` come with weight 1: `add_core_flows` computes their weights.
    """
    is_copy = signatures.kind == Kind.COPY
    copies = Signatures(*(column[is_copy] for column in signatures))
    routes = _find_routes(copies, site, runtime, bundled=resources.home is not None)
    routes = drop_tolls(routes, signatures.executor[is_copy] != Executor.TF, site)
    sends = find_sends(signatures, routes, site, resources)
    latency, holds = np.zeros(len(is_copy)), np.ones(len(is_copy), dtype=np.bool_)
    latency[is_copy], holds[is_copy] = _latency(routes, resources), routes.holds_lane
    hops, links, often = _at_home(routes, site)
    staged, through_host = find_host_memory(sends, routes, np.flatnonzero(is_copy), site, resources)
    memory = np.array([resources.memory.get(node.name, -1) for node in site.nodes], dtype=np.int64)
    memory = memory[signatures.target]
    local = ~np.isin(signatures.kind, (Kind.INPUT, Kind.OUTPUT, Kind.COPY))
    local &= (memory >= 0) & runtime.local & (signatures.executor == Executor.TF)
    local &= signatures.passes > 0
    count = local.astype(np.int64)
    count[is_copy] = hops
    count[staged] += 1
    rated, through = cores.per_byte > 0.0, cores.through > 0.0
    working = rated | (cores.at_once > 0.0)
    moving = rated & bool(resources.moving)
    for has in (working, moving, through):
        count[cores.calls[has]] += 1
    start = row_starts(count)
    resource, weight = np.empty(start[-1], dtype=np.int32), np.ones(start[-1])
    on_links = np.ones(len(resource), dtype=np.bool_)
    at_memory = start[:-1][local]
    resource[at_memory], weight[at_memory] = memory[local], signatures.passes[local]
    on_links[at_memory] = False
    at_host = start[1:][staged] - 1
    resource[at_host], weight[at_host], on_links[at_host] = through_host, _IN_AND_OUT, False
    last = start[1:][cores.calls] - 1
    for has, at, index, each in (
        (working, last, resources.cores, np.ones(len(working))),
        (moving, last - working, resources.moving, np.ones(len(moving))),
        (through, last - working - moving, resources.shared_memory, cores.through),
    ):
        owners = [owner for owner, one in zip(cores.owner, has, strict=True) if one]
        resource[at[has]] = [index[owner] for owner in owners]
        weight[at[has]], on_links[at[has]] = each[has], False
    resource[on_links], weight[on_links] = links, often
    return Uses(start, resource, weight, latency, holds, sends)


def _latency(routes: Routes, resources: Resources) -> Floats:
    """Return the seconds of every route, summed from left to right.

    So the bits do not depend on how many routes there are.
    """
    hops = np.diff(routes.start)
    rows = np.repeat(np.arange(len(hops), dtype=np.int32), hops)
    seconds = resources.delays[routes.links] * routes.crossing
    return np.bincount(rows, seconds, minlength=len(hops)).astype(float, copy=False)


def _at_home(routes: Routes, site: Site) -> tuple[Ints, AnyInts, Floats | float]:
    """How many links each route has, the links, and the weight of each.

    In a folded topology a link represents its copies in other machines. It carries a transfer's way
    out and another's way in, so it may have weight 2.
    """
    hops = np.diff(routes.start)
    if routes.shares is not None or site.home is None:
        return hops, routes.links, 1.0 if routes.shares is None else routes.shares
    row = np.repeat(np.arange(len(hops)), hops)
    key, often = np.unique(row * len(site.home) + site.home[routes.links], return_counts=True)
    count = np.bincount(key // len(site.home), minlength=len(hops))
    return count.astype(np.int64), key % len(site.home), often.astype(np.float64)


def _find_routes(signatures: Signatures, site: Site, runtime: Runtime, *, bundled: bool) -> Routes:
    """The routes of copies. A staged copy goes through the hosts of both machines."""
    if site.by_nccl is not site.topology:
        mine = (signatures.executor != Executor.TF) & (signatures.executor < Executor.KERNEL)
        parts = [
            (some, _find_routes(
                Signatures(*(column[some] for column in signatures)),
                site._replace(topology=machine, by_nccl=machine), runtime, bundled=bundled,
            ))
            for some, machine in ((mine, site.by_nccl), (~mine, site.topology))
        ]  # fmt: skip
        rows, holding = join_rows(len(mine), *parts), np.empty(len(mine), dtype=np.bool_)
        holding[mine], holding[~mine] = (part.holds_lane for _, part in parts)
        return Routes(rows.start, rows.links, holding, rows.shares, parts[0][1].bundled)
    router = site.topology.router
    source, target = site.place[signatures.source], site.place[signatures.target]
    machines, host = find_hosts(site.topology)
    crosses = (machines[source] != machines[target]) & (signatures.executor == Executor.TF)
    if not (runtime.staged and crosses.any()):
        return router.routes(source, target, bundled=bundled)
    # Where there is no host to stop at, or the copy begins or ends there, a leg is empty.
    out = np.where(crosses & (host[source] >= 0), host[source], source)
    into = np.where(crosses & (host[target] >= 0), host[target], out)
    legs = [
        router.routes(a, b, bundled=bundled)
        for a, b in ((source, out), (out, into), (into, target))
    ]
    every = np.ones(len(source), dtype=np.bool_)
    rows = join_rows(
        len(source), *((every, RouteRows(leg.start, leg.links, leg.shares)) for leg in legs)
    )
    staged = np.count_nonzero([np.diff(leg.start) for leg in legs], axis=0) > 1
    holding = staged | np.all([leg.holds_lane for leg in legs], axis=0)
    return Routes(rows.start, rows.links, holding, rows.shares, legs[0].bundled)
