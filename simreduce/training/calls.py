"""What calls cost: a call alone on the machine, and calls at once on one fabric.

A call that nothing else is in flight beside takes what it takes alone (`Alone`). Calls that may be
in flight together share links, lanes and memories (`OnFabric`). Steps move their reductions by one
or the other. While a kernel of NCCL moves data, it has SMs of its own, one a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import simpy

from simreduce.computing.arrays import Ints
from simreduce.engine import Fabric
from simreduce.engine.results.path import waited_until
from simreduce.engine.simulation import step_cost
from simreduce.errors import InternalError
from simreduce.plan import Kind, Plan
from simreduce.plan.channels import ENGINE, count_blocks
from simreduce.training.group_plans import Lowering
from simreduce.training.reductions import Method, Reduction


class CallCost(NamedTuple):
    """Seconds of a call by itself, and the channels of its kernel, each a block on an SM."""

    seconds: float
    channels: int


NOTHING = CallCost(0.0, 0)


def channels_of(plan: Plan) -> int:
    """How many channels a kernel of NCCL has, at most; 0 of copy engines, and of others."""
    launches = (plan.kind == Kind.INPUT) & (plan.executor > 0) & (plan.stream >= 0)
    channels = plan.stream[launches] // len(plan.devices)
    return int(count_blocks(channels[channels & ENGINE == 0]).max(initial=0))


class Alone:
    """Moves reductions that take turns, each in the time that it takes alone."""

    launch = 0.0
    queued = False

    def __init__(self, cost: Callable[[Reduction], CallCost]) -> None:
        self.env = simpy.Environment()
        self._cost = cost

    def channels(self, what: Reduction) -> int:
        """The channels of its kernel."""
        return self._cost(what).channels

    def move(self, what: Reduction, held: Ints | None = None) -> simpy.Event:
        """Start a reduction; the event is its end."""
        if held is not None:
            raise InternalError("a call that takes turns begins when all ranks are there")
        return self.env.timeout(self._cost(what).seconds)

    def waited(self, what: Reduction, done: simpy.Event) -> float | None:  # noqa: ARG002 - as others
        """Nothing holds up a call that has its turn."""
        return None


class OnFabric:
    """Moves the reductions and `reads` of a method on a fabric.

    `queued`: they share queues of the devices with kernels. `launch` is the cost of starting a
    step, in seconds. `known` are plans that have been lowered before.
    """

    def __init__(
        self, fabric: Fabric, method: Method, reads: Sequence[Reduction], ranks: Sequence[str],
        known: Lowering | None = None,
    ) -> None:  # fmt: skip
        self.fabric, self.env = fabric, fabric.env
        plans = [each.moves for each in (*method.reductions, *reads)]
        self.lowering = known or Lowering(fabric, method.whole, plans)
        own = plans[: len(method.reductions)]
        self.queued = self.lowering.queues_behind(ranks, own)
        self.launch = step_cost(method.whole, fabric.unfolded(), fabric.runtime, fabric.calibration)
        self._channels: dict[int, tuple[Plan, int]] = {}

    def channels(self, what: Reduction) -> int:
        """The channels of its kernel."""
        plan = what.moves
        if id(plan) not in self._channels:
            self._channels[id(plan)] = plan, channels_of(plan)
        return self._channels[id(plan)][1]

    def move(self, what: Reduction, held: Ints | None = None) -> simpy.Event:
        """Start a reduction without the inputs at the places that are `held`."""
        lowered = self.lowering.of(what.moves)
        return self.fabric.submit(what.moves, lowered=lowered, held=held)

    def waited(self, what: Reduction, done: simpy.Event) -> float | None:
        """When the critical path of a reduction got a lane that something else had held."""
        timeline: Any = done.value
        return waited_until(self.lowering.of(what.moves), timeline)
