"""The matrices of CUDA's p2pBandwidthLatencyTest, predicted.

They are of copies between two GPUs at a time, nothing else running.

Bandwidths belong to one large copy from the row's GPU to the column's (`one_way`), and to one copy
each way at once, both together (`both_ways`); the latency is the time of a few bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from simreduce.engine import IDEAL, NOMINAL, Calibration
from simreduce.engine.setup import Setup
from simreduce.errors import TopologyError
from simreduce.plan import Contract, Plan, PlanBuilder
from simreduce.topology import Topology, route

LARGE = 1 << 30
"""Bytes of the copies that show a bandwidth: the latency is lost in them."""
SMALL = 16
"""Bytes of the copies that show a latency."""
MOST_GPUS = 128
"""Upper limit: a larger matrix takes long and is hard to read."""

Matrix: TypeAlias = tuple[tuple[float | None, ...], ...]
"""A row per sending GPU; None on the diagonal, and where there is no route."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """With peer access or without it: bytes/s one way, bytes/s both ways together, and seconds."""

    one_way: Matrix
    both_ways: Matrix
    latency: Matrix


@dataclass(frozen=True, slots=True)
class PeerToPeer:
    """The test's output.

    It has the GPUs, which pairs copy to each other directly, and the matrices without and with peer
    access.
    """

    devices: tuple[str, ...]
    peers: tuple[tuple[bool, ...], ...]
    disabled: Matrices
    enabled: Matrices


def peer_to_peer(topology: Topology, calibration: Calibration = NOMINAL) -> PeerToPeer:
    """The predicted matrices of a machine's GPUs. TopologyError for more than `MOST_GPUS`."""
    devices = topology.devices
    if len(devices) > MOST_GPUS:
        raise TopologyError(
            f"{topology.name}: all pairs of {len(devices)} GPUs are asked for, and at most "
            f"{MOST_GPUS} GPUs are compared; name fewer machines or GPUs on the same network"
        )
    return PeerToPeer(
        devices=devices,
        peers=tuple(
            tuple(a != b and topology.router.is_peer(a, b) for b in devices) for a in devices
        ),
        disabled=_matrices(topology.without_peers(), calibration),
        enabled=_matrices(topology, calibration),
    )


def _matrices(topology: Topology, calibration: Calibration) -> Matrices:
    setup, devices = Setup(topology, IDEAL, calibration), topology.devices
    known: dict[tuple[object, ...], float] = {}  # by all that decides the time of copies

    def seconds(a: str, b: str, nbytes: int, *, both: bool) -> float | None:
        """Seconds of the copy, or of the longer of the two; None if there is no route."""
        try:
            routes = [route(topology, *ends) for ends in ((a, b), (b, a))[: 1 + both]]
        except TopologyError:
            return None
        number: dict[int, int] = {}
        places = tuple(
            tuple(number.setdefault(link, len(number)) for link in each.links) for each in routes
        )
        links = [topology.links[link] for link in number]
        figures = tuple((x.link_class, x.bandwidth, x.latency, x.lanes) for x in links)
        key = nbytes, places, tuple(each.shares for each in routes), figures
        if key not in known:
            known[key] = setup.simulate(_copies(a, b, nbytes, both=both)).seconds
        return known[key]

    def matrix(nbytes: int, *, both: bool = False) -> Matrix:
        """Seconds of every pair's copies."""
        return tuple(
            tuple(None if a == b else seconds(a, b, nbytes, both=both) for b in devices)
            for a in devices
        )

    def rates(*, both: bool) -> Matrix:
        """Bytes/s of every pair's large copies."""
        moved = LARGE * (1 + both)
        return tuple(tuple(s and moved / s for s in row) for row in matrix(LARGE, both=both))

    return Matrices(rates(both=False), rates(both=True), matrix(SMALL))


def _copies(a: str, b: str, nbytes: int, *, both: bool) -> Plan:
    """A copy of float32 from `a` to `b`, and if `both` another one back, of other values."""
    builder, elements = PlanBuilder((a, b)), nbytes // 4
    for source in (0, 1)[: 1 + both]:
        value = builder.input(source, source * elements, (source + 1) * elements)
        builder.output(builder.copy(value, 1 - source))
    return builder.finish(Contract.broadcast([1], [(0, elements, 0)], 0))
