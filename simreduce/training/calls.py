"""What calls cost: a call alone on the machine, and calls at once on one fabric.

A call that nothing else is in flight beside takes what it takes alone (`Alone`). Calls that may be
in flight together share links, lanes and memories (`OnFabric`). Steps move their reductions by one
or the other. While a kernel of NCCL moves data, it has SMs of its own, one a channel.

`GroupPlans` has the plans of collectives in groups of a machine's ranks, and of sends between two
of them; `Lowering` lowers the plans of a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import simpy

from simreduce import dtypes
from simreduce.computing.arrays import Ints
from simreduce.engine import Fabric, Use
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.lowering.lowering import Lowered
from simreduce.engine.result import waited_until
from simreduce.engine.setup import Setup, read_strategy
from simreduce.engine.simulator import step_cost
from simreduce.errors import InternalError
from simreduce.plan import Kind, Plan, part_for, side_by_side
from simreduce.plan.ops import ENGINE, count_blocks
from simreduce.training.executions import COLLECTIVE, ExecutionNode
from simreduce.training.reductions import Method, Reduction
from simreduce.workload import Gradient, Workload

_UNIT = dtypes.SIZES[0]


@dataclass
class GroupPlans:
    """A plan for each collective, group and size, made once; `calls` are those of NCCL in them."""

    setup: Setup
    algorithm: str
    made: dict[tuple[str, int, tuple[int, ...], int], Plan] = field(default_factory=dict)
    calls: set[NcclCall] = field(default_factory=set)

    def plan(self, collective: str, nbytes: int, group: tuple[int, ...], root: int = 0) -> Plan:
        """The plan of a collective in a group; `nbytes` are those that a rank gives."""
        key = collective, nbytes, group, root
        if key not in self.made:
            self.made[key] = self._compile(*key)
        return self.made[key]

    def transfer(self, nbytes: int, source: int, target: int) -> Plan:
        """The plan of a send, which is one way of an exchange of two ranks."""
        key = "send_receive", nbytes, (source, target), 0
        if key not in self.made:
            self.made[key] = _one_way(self._compile(*key), self.setup.layout.ranks[source])
        return self.made[key]

    def of(self, node: ExecutionNode, group: tuple[int, ...]) -> Plan | None:
        """The plan of what a node moves in a group or between a pair; None if that is nothing."""
        if len(group) < 2 or not node.nbytes:
            return None
        if node.kind == COLLECTIVE:
            return self.plan(node.collective, node.nbytes, group, node.root)
        return self.transfer(node.nbytes, *group)

    def _compile(self, collective: str, nbytes: int, group: tuple[int, ...], root: int) -> Plan:
        n = len(group)
        whole = nbytes * n if collective == "all_gather" else nbytes
        unit = _UNIT * (1 if collective in ("all_reduce", "broadcast", "reduce") else n)
        elements = -(-whole // unit) * unit // _UNIT  # each rank has a part, of whole elements
        layout = self.setup.layout.only(sorted(group))  # which has its ranks in that order
        root = sorted(group).index(group[root])
        tensor = Workload("recorded", (Gradient("tensor", elements),))
        setup, strategy = self.setup.but(part=layout), read_strategy(self.algorithm, collective)
        plan = setup.compile(strategy, tensor, root=root)
        self.calls |= {*setup.calls_of(strategy, tensor)}
        return plan


def _one_way(exchange: Plan, source: str) -> Plan:
    """Return the part of an exchange that `source` sends: all that the other's result needs.

    It begins after both have arrived.
    """
    home = exchange.devices.index(source)
    results = (exchange.kind == Kind.OUTPUT) & (exchange.device != home)
    return part_for(exchange, np.flatnonzero(results))


class Lowering:
    """Lowers each plan once.

    Plans known from the start are lowered together, which is faster; with jitter, which depends on
    op numbers, each alone. All share the working set of the `whole` step.
    """

    def __init__(self, fabric: Fabric, whole: Plan, plans: Sequence[Plan]) -> None:
        self._fabric = fabric
        self._working_set = fabric.measure_working_set(whole)
        self._known: dict[int, tuple[Plan, Lowered]] = {}
        plans = list({id(plan): plan for plan in plans}.values())
        if not plans or fabric.disturbance.jitter:
            return
        devices = dict.fromkeys(name for plan in plans for name in plan.devices)
        joint = fabric.lower(side_by_side(plans, tuple(devices)), working_set=self._working_set)
        first = 0
        for plan in plans:
            self._known[id(plan)] = plan, joint.part(plan, first)
            first += len(plan)

    def of(self, plan: Plan) -> Lowered:
        """A lowered plan."""
        if id(plan) not in self._known:
            lowered = self._fabric.lower(plan, len(self._known), self._working_set)
            self._known[id(plan)] = plan, lowered
        return self._known[id(plan)][1]

    def queues_behind(self, ranks: Iterable[str], plans: Iterable[Plan]) -> bool:
        """Whether `plans` take lanes of the kernels of `ranks`."""
        kernels = {lane for name in ranks for lane in self._fabric.compute_lanes(name)}
        return any(
            lowered.lane_names[i] in kernels
            for lowered in map(self.of, plans)
            for i in np.unique(lowered.calls.lanes).tolist()
        )


_BITS = 11
"""Leading bits of the size of a call that is simulated for those of about its size."""

PRECISION = 2.0 ** (1 - _BITS)
"""The part of its size by which a simulated call may be smaller than the one it represents."""


def leading(size: int) -> int:
    """The size of the call that is simulated for one of this size: at most `PRECISION` smaller."""
    shift = max(size.bit_length() - _BITS, 0)
    return size >> shift << shift


class CallCost(NamedTuple):
    """Seconds of a call by itself, and the channels of its kernel, each a block on an SM."""

    seconds: float
    channels: int

    @staticmethod
    def in_turn(calls: Sequence[CallCost], more: float = 0.0) -> CallCost:
        """Calls one after another, which with what comes between them take `more` seconds."""
        seconds = sum(each.seconds for each in calls) + more
        return CallCost(seconds, max(each.channels for each in calls))

    @staticmethod
    def alone(setup: Setup, plan: Plan) -> CallCost:
        """The cost of a plan by itself on a machine."""
        return CallCost(setup.find_seconds(plan), channels_of(plan))


NOTHING = CallCost(0.0, 0)

Busy = tuple[str, float]
"""A link, a memory or a lane, and the seconds that bytes need of it."""


def busiest_use(uses: Sequence[Use], seconds: float) -> Busy:
    """The first of what is used in so many seconds, the busiest first; "" if there is nothing."""
    return (uses[0].name, uses[0].share * seconds) if uses else ("", 0.0)


def busiest_of(needed: Iterable[Busy]) -> str:
    """The link or memory that calls need for the longest; "" if nothing moves."""
    seconds = defaultdict[str, float](float)
    for name, busy in needed:
        seconds[name] += busy
    return max(seconds, key=seconds.__getitem__, default="")


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
        self.queued = self.lowering.queues_behind(ranks, plans[: len(method.reductions)])
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
        return self.fabric.submit(what.moves, lowered=self.lowering.of(what.moves), held=held)

    def waited(self, what: Reduction, done: simpy.Event) -> float | None:
        """When the critical path of a reduction got a lane that something else had held."""
        timeline: Any = done.value
        return waited_until(self.lowering.of(what.moves), timeline)
