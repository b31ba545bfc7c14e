"""The resources that calls use: links, memories and cores, with their weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simreduce.computing.arrays import AnyInts, Bools, Floats, Ints, ranges, row_starts
from simreduce.engine.lowering.cores import CoreWork
from simreduce.engine.lowering.nccl import Sends, drop_tolls, find_sends
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.lowering.signatures import Signatures
from simreduce.engine.lowering.sites import Site, find_hosts
from simreduce.engine.runtime import Runtime
from simreduce.plan import Executor, Kind
from simreduce.topology import Routes


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
    memory = np.array([resources.memory.get(node.name, -1) for node in site.nodes], dtype=np.int64)
    memory = memory[signatures.target]
    local = ~np.isin(signatures.kind, (Kind.INPUT, Kind.OUTPUT, Kind.COPY))
    local &= (memory >= 0) & runtime.local & (signatures.executor == Executor.TF)
    local &= signatures.passes > 0
    count = local.astype(np.int64)
    count[is_copy] = hops
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
    seconds = resources.delays[routes.links]
    seconds = seconds * routes.crossing
    total: Floats = np.bincount(rows, seconds, minlength=len(hops)).astype(float, copy=False)
    return total


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
    hops = np.stack([np.diff(leg.start) for leg in legs])
    start = row_starts(hops.sum(axis=0))
    links, shares = np.empty(start[-1], dtype=np.int32), np.ones(start[-1])
    at = start[:-1]
    for leg, count in zip(legs, hops, strict=True):
        entry = ranges(at, count)
        links[entry] = leg.links
        shares[entry] = 1.0 if leg.shares is None else leg.shares
        at = at + count
    staged = np.count_nonzero(hops, axis=0) > 1
    holding = staged | np.all([leg.holds_lane for leg in legs], axis=0)
    whole = all(leg.shares is None for leg in legs)
    return Routes(start, links, holding, None if whole else shares, legs[0].bundled)
