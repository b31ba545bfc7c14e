"""Writes a sharded step as an execution of one rank, which stands for all.

Every group of devices with a speed of its own has a lane of kernels; a pass begins when the one
before has ended on all of them. The CPU is no lane: what it issues after a wait comes after what it
waited for. A lane keeps the order of issue, so each node comes after the one before it there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simreduce import dtypes
from simreduce.training.executions import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    FORWARD,
    UPDATE,
    ExecutionNode,
)
from simreduce.training.groups import DeviceGroup
from simreduce.training.sharded.collectives import PlanKey, ShardedMethod
from simreduce.training.sharded.memory import gathered_sizes, gradient_sizes
from simreduce.training.sharded.schedule import Do, Instruction
from simreduce.training.step import StepJob


class MemoryChange(NamedTuple):
    """Bytes that are held more or less from the begin or the end of nodes on, the latest of them.

    Without nodes it is the start of the step.
    """

    nodes: tuple[int, ...]
    nbytes: int
    begins: bool = False


@dataclass
class ShardedExecution:
    """The nodes of a step, with what each is.

    `moved` has the collective and the unit of a node, `ready` the nodes that a collective waits
    for besides its turn; `layers` the group of devices and the layer of kernels. `gathered` and
    `unreduced` say when memory changes.
    """

    nodes: list[ExecutionNode] = field(default_factory=list)
    moved: dict[int, tuple[PlanKey, int]] = field(default_factory=dict)
    ready: dict[int, tuple[int, ...]] = field(default_factory=dict)
    layers: dict[int, tuple[DeviceGroup, int]] = field(default_factory=dict)
    gathered: list[MemoryChange] = field(default_factory=list)
    unreduced: list[MemoryChange] = field(default_factory=list)
    update: int = -1


def write_sharded(
    job: StepJob, method: ShardedMethod, groups: Sequence[DeviceGroup], update: float
) -> ShardedExecution:
    """The execution of one step whose update takes `update` seconds."""
    writer = _Writer(job, method, groups)
    for each in method.instructions:
        writer.issue(each, update)
    return writer.found


class _Writer:
    def __init__(self, job: StepJob, method: ShardedMethod, groups: Sequence[DeviceGroup]) -> None:
        self.job, self.method, self.groups = job, method, groups
        self.found = ShardedExecution()
        self._gathered, self._gradients = gathered_sizes(method), gradient_sizes(method)
        self._cpu: tuple[int, ...] = ()
        self._computed: tuple[int, ...] = ()
        self._tails: dict[str, int] = {}
        self._there: dict[int, int] = {}
        self._freed: deque[tuple[int, ...]] = deque()
        self._owed: set[int] = set()

    def issue(self, each: Instruction, update: float) -> None:
        """Write what an instruction does."""
        if each.do == Do.GATHER:
            limit = self.method.sharding.limit_all_gathers
            if limit and len(self._freed) >= limit:
                self._cpu = (*self._cpu, *self._freed.popleft())
            self.found.gathered.append(MemoryChange(self._cpu, self._gathered[each.unit]))
            (key,) = self.method.keys(each)
            self._there[each.unit] = self._queue(key, each.unit, ())
        elif each.do == Do.FREE:
            self._freed.append(self._computed)
            del self._there[each.unit]
            self.found.gathered.append(MemoryChange(self._computed, -self._gathered[each.unit]))
        elif each.do == Do.REDUCE:
            done = self._computed
            for key in self.method.keys(each):
                done = (self._queue(key, each.unit, done),)
            self._owed.discard(each.unit)
            self.found.unreduced.append(MemoryChange(done, -self._gradients[each.unit]))
        elif each.do == Do.UPDATE:
            after = (*self._computed, *self._tails.values())
            node = self._add("update", after, "update", COMPUTE, update, phase=UPDATE)
            self.found.update, self._cpu = node, (node,)
        else:
            self._compute(each)

    def _add(
        self, lane: str, after: Sequence[int], name: str, kind: str,
        seconds: float | None = None, **more: object,
    ) -> int:  # fmt: skip
        before = (*after, *self._cpu)
        if lane in self._tails:
            before += (self._tails[lane],)
        node = ExecutionNode(name, kind, tuple(dict.fromkeys(before)), lane, seconds, **more)  # type: ignore[arg-type]
        self.found.nodes.append(node)
        return len(self.found.nodes) - 1

    def _queue(self, key: PlanKey, unit: int, after: tuple[int, ...]) -> int:
        """Put a collective on its stream."""
        lane, nbytes = self.method.stream(key), key.elements * dtypes.SIZES[key.dtype]
        name = f"{key.collective} of {self.method.units[unit].name}"
        node = self._add(lane, after, name, COLLECTIVE, collective=key.collective, nbytes=nbytes)
        self._tails[lane] = node
        self.found.moved[node] = key, unit
        self.found.ready[node] = (*after, *self._cpu)
        return node

    def _compute(self, each: Instruction) -> None:
        """Put layers on the kernels' lane of every group of devices."""
        backward, profile = each.do == Do.BACKWARD, self.job.profile
        there = self._there.get(each.unit)
        waits = self._computed if there is None else (*self._computed, there)
        owes = backward and each.unit not in self._owed and bool(self._gradients)
        ended: list[int] = []
        for group in self.groups:
            after: Sequence[int] = waits
            first = len(self.found.nodes)
            for layer in each.layers:
                seconds = (profile.backward if backward else profile.forward)[layer] * group.factor
                if seconds > 0.0:
                    name, phase = (
                        self.job.model.layers[layer].name,
                        BACKWARD if backward else FORWARD,
                    )
                    node = self._add(group.name, after, name, COMPUTE, seconds, phase=phase)
                    self.found.layers[node] = group, layer
                    after = (node,)
            if first == len(self.found.nodes):  # nothing to compute: it only keeps the order
                after = (self._add(group.name, after, each.do.value, COMPUTE, 0.0),)
            if owes and group is self.groups[0]:
                self._owed.add(each.unit)
                change = MemoryChange((first,), self._gradients[each.unit], begins=True)
                self.found.unreduced.append(change)
            ended += after
        self._computed = tuple(ended)
