"""Traffic of others: flows between devices that come at random while plans run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import count, permutations
from math import inf, log

import numpy as np
import simpy

from simreduce.computing.arrays import uniform
from simreduce.engine.fabric import Fabric
from simreduce.engine.lowering.lower import lower
from simreduce.engine.lowering.lowered import Lowered
from simreduce.engine.runtime import IDEAL
from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Contract, Plan, PlanBuilder

Sizes = Callable[[float], float]
"""From a number in [0, 1) to bytes: `lambda u: -1e6 * log(1 - u)` gives exponential sizes of 1 MB
on average.
"""


class _Arrival(simpy.Timeout):
    """The time to the next flow."""


def traffic(
    fabric: Fabric,
    rate: float,
    size: float | Sizes,
    pairs: Sequence[tuple[str, str]] | None = None,
    seed: int = 0,
    until: simpy.Event | None = None,
) -> simpy.Process:
    """Send flows at random times between GPUs, `rate` a second.

    Each has `size` bytes (or what `size` makes of an even random number), and goes between one of
    `pairs` (any two GPUs, unless given). Flows take links and latency, but no lanes.

    It ends when `until` has happened, when the process is interrupted, and when there is nobody to
    disturb: no event but traffic's is to come, and no plan can go on. What is under way then moves
    on to its end.

    Flows pile up on a link that is offered more than it carries, and a plan that needs that link
    then gets an ever smaller share: it may take for ever, unless `until` or an interrupt ends the
    traffic.
    """
    topology = fabric.changeable()
    pairs = list(permutations(topology.devices, 2)) if pairs is None else list(pairs)
    nodes = topology.nodes
    problems = [
        f"{fabric.topology.name}: no device {name!r}{did_you_mean(name, nodes)}"
        for name in dict.fromkeys(name for pair in pairs for name in pair)
        if name not in nodes
    ]
    problems += [f"traffic from {a!r} to itself" for a, b in pairs if a == b]
    if not 0.0 <= rate < inf:
        problems.append(f"the rate must be 0 flows a second or more, not {rate}")
    if not callable(size) and not 0.0 <= size < inf:
        problems.append(f"the size must be 0 bytes or more, not {size}")
    if problems:
        raise InputError(problems)
    return fabric.env.process(_flows(fabric, rate, size, pairs, seed, until))


def _flows(
    fabric: Fabric,
    rate: float,
    size: float | Sizes,
    pairs: Sequence[tuple[str, str]],
    seed: int,
    until: simpy.Event | None,
) -> Generator[simpy.Event, None, None]:
    if rate == 0.0 or not pairs or size == 0.0:
        return
    known: dict[tuple[str, str], tuple[Plan, Lowered]] = {}
    try:
        for flow in count():
            gap, which, much = uniform(seed, 3 * flow, 3).tolist()
            yield _Arrival(fabric.env, -log(1.0 - gap) / rate)
            if (until is not None and until.triggered) or not fabric.busy(_Arrival):
                return
            source, target = pairs[int(which * len(pairs))]
            nbytes = round(size(much) if callable(size) else size)
            if nbytes > 0:
                if (source, target) not in known:
                    known[source, target] = _flow(fabric, source, target)
                plan, lowered = known[source, target]
                lowered = replace(lowered, amount=np.array([0.0, float(nbytes)]))
                fabric.submit(plan, lowered=lowered, background=True)
    except simpy.Interrupt:
        return


def _flow(fabric: Fabric, source: str, target: str) -> tuple[Plan, Lowered]:
    """One copy, of whatever size."""
    b = PlanBuilder((source, target))
    b.copy(b.input(0, 0, 1), 1)
    plan = b.finish(Contract.of("traffic", []))
    return plan, lower(plan, fabric.topology, IDEAL, fabric.calibration, fabric.resources)
