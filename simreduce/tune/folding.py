"""Folding equal machines: of many equal GPUs, and for plans that are too large to hold."""

from __future__ import annotations

from dataclasses import replace

from simreduce.errors import NotFoldable, PlanTooLarge, TopologyError
from simreduce.layouts import layout
from simreduce.setup import Setup
from simreduce.topology import Folded, Topology, fold

MOST_UNFOLDED = 1 << 15
"""GPUs in machines of several, each of which takes 60 kB and 2 ms of a core."""

FOLDED_FROM = 64
"""Of so many equal GPUs on one switch, one is simulated for all."""


def folded_alike(setup: Setup) -> Setup | None:
    """The setup with its GPUs as one, if they are many, equal, each a machine by itself, and
    nothing disturbs one of them. Its times are the same to the bit; those of machines with several
    GPUs may differ in the last bits.
    """
    machine = setup.machine
    ranks = setup.layout.n
    if not isinstance(machine, Topology) or ranks < FOLDED_FROM or not setup.disturbance.calm:
        return None
    if ranks < len(machine.devices):
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
    """The setup with all the equal machines that one stands for. Raises `why` if they cannot be
    held, or were to be folded.
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
