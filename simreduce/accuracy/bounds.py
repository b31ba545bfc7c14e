"""What any algorithm takes on a machine: the bytes that must leave a GPU or a machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from simreduce.layouts import Layout
from simreduce.topology import Topology


def bound(machine: Topology, shape: Layout, collective: str, nbytes: int) -> float:
    """Seconds that no algorithm can beat: M bytes over the cuts that part one GPU, or one machine,
    from the rest.

    GPUs without a switch that sums also need 2 (n - 1) M bytes of ports for an all-reduce.
    Figures are those that a large copy reaches.
    """
    n = shape.n
    if n < 2 or collective == "send_receive":
        return 0.0
    rates = list(_cuts(machine, shape))
    seconds = [_bytes_out(collective, nbytes, n, inside) / rate for inside, rate in rates]
    if collective == "all_reduce" and not shape.reducers:
        ports = sum(rate for inside, rate in rates[:n] if inside == 1)
        seconds.append(2 * (n - 1) * nbytes / ports)
    return max(seconds)


@lru_cache(maxsize=32)
def _cuts(machine: Topology, shape: Layout) -> tuple[tuple[int, float], ...]:
    """Ranks inside, and the lesser of the rates out of and into them: each rank, each machine."""
    return (*_ranks(machine, shape), *_machines(machine, shape))


def _ranks(machine: Topology, shape: Layout) -> Iterator[tuple[int, float]]:
    for rank in shape.ranks:
        yield 1, _rate(machine, frozenset([rank]))


def _machines(machine: Topology, shape: Layout) -> Iterator[tuple[int, float]]:
    if len(shape.tasks) < 2:
        return
    for task in shape.tasks:
        name = machine.nodes[shape.ranks[task[0]]].machine
        inside = frozenset(node for node, each in machine.nodes.items() if each.machine == name)
        yield len(task), _rate(machine, inside)


def _rate(machine: Topology, inside: frozenset[str]) -> float:
    """Bytes/s out of these nodes or into them, whichever is less."""
    crossing = [k for k in machine.links if not k.is_toll]
    out = sum(k.bandwidth for k in crossing if k.source in inside and k.target not in inside)
    into = sum(k.bandwidth for k in crossing if k.target in inside and k.source not in inside)
    return min(out, into)


def _bytes_out(collective: str, nbytes: int, n: int, inside: int) -> float:
    """Bytes that must cross a cut with `inside` of `n` ranks on one side, in one direction."""
    part = nbytes / n
    return {
        "all_reduce": nbytes,
        "reduce": nbytes,
        "broadcast": nbytes,
        "all_gather": part * max(inside, n - inside),
        "reduce_scatter": part * max(inside, n - inside),
        "all_to_all": part * inside * (n - inside),
    }[collective]
