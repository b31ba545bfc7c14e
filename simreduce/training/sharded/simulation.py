"""Simulates a sharded step: a CPU that issues, and streams that carry out.

The CPU takes no time, and waits only where `limit_all_gathers` has it wait. What it issues queues
on streams: one of kernels on every device, one of the shard groups' collectives (two with
`streams` 2), and one of the replicas' all-reduces. On a stream, each begins when the one before it
has ended and when what it needs is there:

    forward and backward passes     the unit's parameters
    reduce-scatters                 the unit's last backward pass
    all-reduces                     the unit's reduce-scatter
    the update                      everything before it

PyTorch's FullyShardedDataParallel is like that: an unshard stream and a post-backward stream put
all-gathers and reduce-scatters on the one NCCL stream of their process group, in the order of
issue; the replicas of hybrid sharding have a process group of their own.

A collective that is alone on the fabric takes what it takes alone, so where none is ever in flight
beside another, each plan is simulated once. Otherwise the step is first put together like that; if
two that overlap then share a link or a queue, or if something disturbs the fabric, all collectives
are simulated together.

Passes lose a part of their speed beside NCCL's kernels (`interference`). Not modelled: copies into
and out of flat parameters, and the time of the CPU. Shard groups keep step with each other.

The execution of one rank stands for all. Every group of devices with a speed of its own has a lane
of kernels; a pass begins when the one before has ended on all of them. The CPU is no lane: what it
issues after a wait comes after what it waited for. A lane keeps the order of issue, so each node
comes after the one before it there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import simpy

from simreduce.engine import NCCL, Fabric
from simreduce.engine.lowering import Lowered
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import StrategyError
from simreduce.plan import Plan
from simreduce.training.calls import CallCost, busiest_of
from simreduce.training.executions import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    FORWARD,
    UPDATE,
    Execution,
    ExecutionNode,
    NodeList,
)
from simreduce.training.executor import Ran, Slows, length_of, run_nodes
from simreduce.training.interference import Channels, Loses
from simreduce.training.memory import measure_memory, shares_of
from simreduce.training.passes import (
    DeviceGroup,
    group_ranks,
    loses_of,
    nodes_of,
    slowdowns,
    slowest,
    spans_of,
    summarize,
)
from simreduce.training.path import run_path
from simreduce.training.sharded import Do, Instruction
from simreduce.training.sharded.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    COLLECTIVES,
    PlanCost,
    PlanKey,
    ShardedMethod,
    digest_of,
    measure_costs,
)
from simreduce.training.step import (
    Bucket,
    Ledger,
    MovedBucket,
    SimulatedStep,
    StepJob,
    StepRecording,
    StepResult,
)


class MemoryChange(NamedTuple):
    """Bytes that are held more or less from the begin or the end of nodes on, the latest of them.

    Without nodes it is the start of the step.
    """

    nodes: tuple[int, ...]
    nbytes: int
    begins: bool = False


@dataclass(slots=True)
class ShardedExecution(NodeList):
    """The nodes of a step, with what each is.

    `moved` has the collective and the unit of a node, and the nodes that it waits for besides its
    turn. `gathered` and `unreduced` say when memory changes.
    """

    moved: dict[int, tuple[PlanKey, int, Sequence[int]]] = field(default_factory=dict)
    gathered: list[MemoryChange] = field(default_factory=list)
    unreduced: list[MemoryChange] = field(default_factory=list)


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
        shares = shares_of(method)
        self._gathered, self._gradients = shares.gathered, shares.gradients
        self._cpu: tuple[int, ...] = ()
        self._computed: tuple[int, ...] = ()
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
            if not self.method.sharding.overlap:
                self._computed = done
            self._owed.discard(each.unit)
            self.found.unreduced.append(MemoryChange(done, -self._gradients[each.unit]))
        elif each.do == Do.UPDATE:
            after = (*self._computed, *self.found.last.values())
            self._cpu = (
                self._add("update", after, "update", COMPUTE, seconds=update, phase=UPDATE),
            )
        else:
            self._compute(each)

    def _add(self, lane: str, after: Sequence[int], name: str, kind: str, **more: Any) -> int:
        return self.found.add(lane, (*after, *self._cpu), name=name, kind=kind, **more)

    def _queue(self, key: PlanKey, unit: int, after: tuple[int, ...]) -> int:
        """Put a collective on its stream."""
        lane = self.method.stream(key)
        name = f"{key.collective} of {self.method.units[unit].name}"
        node = self._add(
            lane, after, name, COLLECTIVE, collective=key.collective, nbytes=key.nbytes
        )
        self.found.moved[node] = key, unit, (*after, *self._cpu)
        return node

    def _compute(self, each: Instruction) -> None:
        """Put layers on the kernels' lane of every group of devices."""
        backward, profile = each.do == Do.BACKWARD, self.job.profile
        phase = BACKWARD if backward else FORWARD
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
                    name = self.job.model.layers[layer].name
                    after = (
                        self._add(group.name, after, name, COMPUTE, seconds=seconds, phase=phase),
                    )
            if first == len(self.found.nodes):  # nothing to compute: it only keeps the order
                after = (self._add(group.name, after, each.do.value, COMPUTE, seconds=0.0),)
            if owes and group is self.groups[0]:
                self._owed.add(each.unit)
                change = MemoryChange((first,), self._gradients[each.unit], begins=True)
                self.found.unreduced.append(change)
            ended += after
        self._computed = tuple(ended)


def exposed_by(
    busy: Iterable[tuple[float, float]], buckets: Sequence[Bucket]
) -> tuple[tuple[str, float], ...]:
    """Seconds that each collective, by name, is exposed beside what is busy.

    Where several are in flight, it is the first of all-gather, reduce-scatter and all-reduce, which
    the others wait for or run beside.
    """
    covered, found = [*busy], list[tuple[str, float]]()
    for collective in COLLECTIVES:
        mine = [(b.start, b.finish) for b in buckets if b.collective == collective]
        if mine:
            before = length_of(covered)
            covered += mine
            found.append((collective, length_of(covered) - before))
    return tuple(found)


def record_sharded_step(step: StepResult, method: ShardedMethod, setup: Setup) -> StepRecording:
    """A step that was simulated, for those who look closer, with its plans.

    These are not folded, so they are large where there are many ranks.
    """
    plans, fabric, lowered = _lower_all(method, setup, fixed=False)
    moved = {(key.collective, key.nbytes): (plan, lowered[key]) for key, plan in plans.items()}
    found = (MovedBucket(b, *moved[b.collective, b.nbytes]) for b in step.buckets)
    return StepRecording(step, tuple(found), fabric.resources)


def running_sharded(setup: Setup, name: str) -> Setup:
    """The setup in which a sharded step runs: libraries that shard use NCCL.

    StrategyError for a runtime without such libraries, with the `name` of method and strategy, and
    for faults.
    """
    if setup.runtime == BY_STRATEGY:
        setup = setup.but(runtime=NCCL)
    if setup.runtime.dispatch:
        words = f"the runtime {setup.runtime.name} has no sharded methods"
        raise StrategyError(f"{name}: {words}; use nccl, ideal or by_strategy")
    if setup.disturbance.faults:
        raise StrategyError(
            "links that fail during a step (--fault) are simulated for ddp only; [link_factors] of "
            "a scenario slows or cuts links for all of the step, by any method"
        )
    return setup


def simulate_sharded_step(job: StepJob, method: ShardedMethod, setup: Setup) -> SimulatedStep:
    """One step of `job` on the ranks of the method's layout."""
    setup.disturbance.check(setup.topology)
    alone = method.replicas == 1 and method.sharding.streams == 1  # none beside another
    keep = not alone or bool(setup.disturbance.jitter)
    costs = measure_costs(method, setup, keep=keep)
    run = _Run(job, method, setup)
    if not setup.disturbance.jitter:
        run.alone(costs)
    if setup.disturbance.jitter or _meet(run.moved, costs):
        run = _Run(job, method, setup)
        run.together()
    made = [costs[key] for each in method.instructions for key in method.keys(each)]
    return SimulatedStep(
        run.prediction(),
        sum(each.call.seconds for each in made),
        sum(cost.wrong for cost in costs.values()),
        digest_of(costs),
        busiest_of(each.busiest for each in made),
    )


def write_sharded_execution(job: StepJob, method: ShardedMethod, setup: Setup) -> Execution:
    """What every rank does in a sharded step, of the collectives in its own groups."""
    run, n, size = _Run(job, method, setup), method.layout.n, method.group

    def members(node: ExecutionNode, rank: int) -> tuple[int, ...]:
        if size == n or not node.collective:
            return ()
        first = rank // size * size
        replicas = node.collective == ALL_REDUCE
        return tuple(range(rank % size, n, size) if replicas else range(first, first + size))

    def given(node: ExecutionNode) -> int:
        """Bytes that a rank gives: of an all-gather its shard."""
        return node.nbytes // size if node.collective == ALL_GATHER else node.nbytes

    found = {
        rank: tuple(each._replace(group=members(each, rank), nbytes=given(each)) for each in nodes)
        for rank, nodes in nodes_of(run.written.nodes, run.groups).items()
    }
    return Execution(method.name, found, n)


def _meet(moved: Sequence[tuple[PlanKey, float, float]], costs: dict[PlanKey, PlanCost]) -> bool:
    """Whether two collectives that overlap share something."""
    flying: list[tuple[PlanKey, float]] = []
    for key, start, finish in sorted(moved, key=lambda each: each[1:]):
        flying = [(other, end) for other, end in flying if end > start]
        if any(costs[key].takes & costs[other].takes for other, _ in flying):
            return True
        flying.append((key, finish))
    return False


class _Run:
    """One step: its execution, and when its nodes run."""

    def __init__(self, job: StepJob, method: ShardedMethod, setup: Setup) -> None:
        self.job, self.method, self.setup = job, method, setup
        factors = slowdowns(job, setup.disturbance, method.layout.ranks)
        self.groups = group_ranks(method.layout.ranks, factors, apart=False)
        self.update = job.update * max(factors) / method.group
        self.written = write_sharded(job, method, self.groups, self.update)
        self.ran: list[Ran] = []

    @property
    def moved(self) -> list[tuple[PlanKey, float, float]]:
        """Each collective with its begin and its end."""
        ran = self.ran
        return [(key, ran[i].begin, ran[i].end) for i, (key, *_) in self.written.moved.items()]

    def alone(self, costs: Mapping[PlanKey, PlanCost]) -> None:
        """Run with the time that each collective takes alone."""
        self.ran = _run_alone(self.job, self.setup, self.written, lambda key: costs[key].call)

    def together(self) -> None:
        """Run with all collectives on one fabric."""
        plans, fabric, lowered = _lower_all(self.method, self.setup, fixed=True)
        channels = {key: self.method.held(self.setup, key, plan) for key, plan in plans.items()}
        self.ran = _run(
            self.written, fabric.env,
            lambda key: fabric.submit(plans[key], lowered=lowered[key]),
            channels.__getitem__, loses_of(self.job, self.setup),
        )  # fmt: skip

    def _changes(self, changes: Sequence[MemoryChange]) -> list[tuple[float, int]]:
        times = [([self.ran[i] for i in each.nodes], each) for each in changes]
        return [
            (max((r.begin if each.begins else r.end for r in ran), default=0.0), each.nbytes)
            for ran, each in times
        ]

    def prediction(self) -> StepResult:
        """The step, once it is over."""
        ranks, ran = tuple(range(self.method.layout.n)), self.ran
        moved = dict[int, Bucket]()
        for i, (key, unit, waits) in self.written.moved.items():
            ready = max((ran[j].end for j in waits), default=0.0)
            moved[id(ran[i].node)] = Bucket(
                self.method.units[unit].gradients, ranks, key.nbytes, ready, ran[i].begin,
                ran[i].end, key.collective,
            )  # fmt: skip
        slow = max(self.groups, key=lambda group: group.factor).name
        busy = [(r.begin, r.end) for r in ran if r.node.lane == slow or r.node.phase == UPDATE]
        done = Ledger(0.0, 0, buckets=[*moved.values()], spans=spans_of(ran))
        done.end = max((each.end for each in ran), default=0.0)
        step = summarize(
            self.job, self.method.name, self.groups, [done], 0.0, self.update,
            run_path(ran, buckets=moved), one=True, faulty=False,
        )  # fmt: skip
        memory = measure_memory(
            self.method, self._changes(self.written.gathered), self._changes(self.written.unreduced)
        )
        return replace(step, exposed_by=exposed_by(busy, done.buckets), held=(memory,))


def _run(
    written: ShardedExecution, env: simpy.Environment, move: Callable[[PlanKey], simpy.Event],
    channels: Callable[[PlanKey], Channels], loses: Loses,
) -> list[Ran]:  # fmt: skip
    """The nodes by index, with what moves a collective, its channels, and by what part of their
    speed kernels of a phase slow down beside these.
    """
    keys = {id(written.nodes[i]): key for i, (key, *_) in written.moved.items()}
    whole = Execution("a sharded step", {0: tuple(written.nodes)}, 1)
    slows = Slows(lambda node, _: channels(keys[id(node)]), loses)
    ran = run_nodes(whole, env, lambda node, _: move(keys[id(node)]), slows)
    return sorted(ran, key=lambda each: each.number)


def _run_alone(
    job: StepJob, setup: Setup, written: ShardedExecution, cost: Callable[[PlanKey], CallCost]
) -> list[Ran]:
    env = simpy.Environment()
    return _run(
        written, env, lambda key: env.timeout(cost(key).seconds),
        lambda key: cost(key).held, loses_of(job, setup),
    )  # fmt: skip


def _lower_all(
    method: ShardedMethod, setup: Setup, *, fixed: bool
) -> tuple[dict[PlanKey, Plan], Fabric, dict[PlanKey, Lowered]]:
    """The plans of a step, not folded, and all of them on one fabric."""
    plans = {key: method.plan(key, keep=True) for key in method.distinct}
    fabric = setup.fabric(next(iter(plans.values())), fixed=fixed)
    return (
        plans,
        fabric,
        {key: fabric.lower(plan, i) for i, (key, plan) in enumerate(plans.items())},
    )


def compose(
    job: StepJob, method: ShardedMethod, setup: Setup, cost: Callable[[PlanKey], CallCost]
) -> float:
    """The seconds of a step whose collectives have their `cost`.

    It gives the bits of the simulation where no two collectives share a link while both are in
    flight. Elsewhere it is a lower bound if no call has channels: sharing only delays then, but a
    call that takes longer may slow fewer kernels down. So it is with lower bounds of their times.
    """
    factor = slowest(job, setup)
    group = DeviceGroup(frozenset((0,)), "kernels", "kernels", factor)
    written = write_sharded(job, method, (group,), job.update * factor / method.group)
    return max((each.end for each in _run_alone(job, setup, written, cost)), default=0.0)
