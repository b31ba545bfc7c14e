"""Folding equal machines: of many equal GPUs, and for plans that are too large to hold."""

from __future__ import annotations

from dataclasses import replace

from simreduce.engine.setup import Setup
from simreduce.errors import NotFoldable, PlanTooLarge, TopologyError
from simreduce.planners.layouts import layout
from simreduce.topology import Folded, Topology, fold

MOST_UNFOLDED = 1 << 15
"""The most GPUs in machines of several: each takes 60 kB and 2 ms of a core."""

FOLDED_FROM = 64
"""From this many equal GPUs on one switch on, one is simulated for all."""


def folded_alike(setup: Setup) -> Setup | None:
    """Return the setup with its equal GPUs folded into one; None if they cannot be.

    They must be many, each a machine by itself, and undisturbed. Times are the same to the bit;
    times of machines with several GPUs may differ in the last bits.
    """
    machine, ranks = setup.machine, setup.layout.n
    if not isinstance(machine, Topology) or not setup.disturbance.calm:
        return None
    if ranks < max(FOLDED_FROM, len(machine.devices)):
        return None
    try:
        one = fold(machine)
    except TopologyError:
        return None
    return _on(setup, one) if len(one.devices) == 1 else None


def folded(setup: Setup, why: PlanTooLarge) -> Setup:
    """The setup with its equal machines as one, for a plan that is too large to hold.

    Raises `why`, with what keeps the machines from being folded.
    """
    if isinstance(setup.machine, Folded):
        raise why
    try:
        one = fold(setup.machine)
    except TopologyError as error:
        raise PlanTooLarge([*why.problems, *error.problems]) from None
    if setup.layout.n < len(setup.machine.devices):
        raise PlanTooLarge(
            [*why.problems, "and with some of the GPUs only, the machines cannot be folded"]
        )
    return _on(setup, one)


def unfolded(setup: Setup, why: NotFoldable) -> Setup:
    """Return the setup with all the equal machines that one represents.

    Raises `why` if they cannot be held.
    """
    if not isinstance(setup.machine, Folded) or setup.machine.whole is None:
        raise why
    if len(setup.machine.devices) > 1 and setup.layout.n > MOST_UNFOLDED:
        many = f"and {setup.layout.n} GPUs are too many to simulate one by one"
        raise NotFoldable([*why.problems, f"{many}; try {MOST_UNFOLDED} or fewer"])
    return _on(setup, setup.machine.whole())


def _on(setup: Setup, machine: Topology | Folded) -> Setup:
    """The setup on the same machine, folded or whole, with rings in the same order."""
    shape = replace(layout(machine), order=setup.layout.order)
    return setup.but(machine=machine, part=shape)
