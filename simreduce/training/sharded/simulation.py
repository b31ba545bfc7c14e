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

Not modelled: copies into and out of flat parameters, the time of the CPU, and NCCL's kernels do
not slow down others. Shard groups keep step with each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import simpy

from simreduce import dtypes
from simreduce.engine import NCCL, Fabric
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import StrategyError
from simreduce.training.groups import DeviceGroup, group_ranks
from simreduce.training.ledger import Process
from simreduce.training.sharded.collectives import Key, ShardedMethod
from simreduce.training.sharded.costs import Cost, digest_of, measure_costs
from simreduce.training.sharded.exposure import exposed_by
from simreduce.training.sharded.memory import gathered_sizes, gradient_sizes, measure_memory
from simreduce.training.sharded.schedule import Do, Instruction
from simreduce.training.step import (
    Bucket,
    Moved,
    Span,
    StepJob,
    StepPrediction,
    StepRecording,
)
from simreduce.training.summary import time_in_flight

Move = Callable[[Key], simpy.Event]
"""Starts a collective; the event is its end."""


@dataclass(frozen=True, slots=True)
class ShardedStep:
    """A step with the collectives that it was simulated with.

    It has the time of all its collectives one after another, alone; the wrong elements and the
    digest of their plans; and the link or memory that they need for the longest.
    """

    step: StepPrediction
    alone: float
    wrong: int
    digest: str
    bottleneck: str = ""


def record_sharded_step(step: StepPrediction, method: ShardedMethod, setup: Setup) -> StepRecording:
    """A step that was simulated, for those who look closer, with its plans.

    These are not folded, so they are large where there are many ranks.
    """
    plans = {key: method.plan(key, keep=True) for key in method.distinct}
    fabric = Fabric(
        simpy.Environment(),
        setup.topology,
        setup.constants_of(next(iter(plans.values()))),
        setup.runtime,
        setup.disturbance,
    )
    moved = {
        (key.collective, _nbytes(key)): (plan, fabric.lower(plan, i))
        for i, (key, plan) in enumerate(plans.items())
    }
    found = (Moved(b, *moved[b.collective, b.nbytes]) for b in step.buckets)
    return StepRecording(step, tuple(found), fabric.resources)


def _nbytes(key: Key) -> int:
    return key.elements * dtypes.SIZES[key.dtype]


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


def simulate_sharded_step(job: StepJob, method: ShardedMethod, setup: Setup) -> ShardedStep:
    """One step of `job` on the ranks of the method's layout."""
    setup.disturbance.check(setup.topology)
    keep = not method.alone_in_line or bool(setup.disturbance.jitter)
    costs = measure_costs(method, setup, keep=keep)
    run = _Run(job, method, setup)
    if not setup.disturbance.jitter:
        run.alone(costs)
    if setup.disturbance.jitter or _meet(run.moved, costs):
        run = _Run(job, method, setup)
        run.together()
    count = [key for each in method.instructions for key in method.keys(each)]
    return ShardedStep(
        run.prediction(),
        sum(costs[key].seconds for key in count),
        sum(cost.wrong for cost in costs.values()),
        digest_of(costs),
        _busiest([costs[key] for key in count]),
    )


def _busiest(costs: Sequence[Cost]) -> str:
    """The link or memory that is the busiest for the longest; "" if nothing moves."""
    seconds: dict[str, float] = {}
    for name, busy in (cost.busiest for cost in costs):
        seconds[name] = seconds.get(name, 0.0) + busy
    return max(seconds, key=seconds.__getitem__, default="")


def _meet(moved: Sequence[tuple[Key, float, float]], costs: dict[Key, Cost]) -> bool:
    """Whether two collectives that overlap share something."""
    flying: list[tuple[Key, float]] = []
    for key, start, finish in sorted(moved, key=lambda each: each[1:]):
        flying = [(other, end) for other, end in flying if end > start]
        if any(costs[key].meets(costs[other]) for other, _ in flying):
            return True
        flying.append((key, finish))
    return False


class _Run:
    """One step, in an environment of its own."""

    def __init__(self, job: StepJob, method: ShardedMethod, setup: Setup) -> None:
        self.env, self.job, self.method, self.setup = simpy.Environment(), job, method, setup
        slow, ranks = setup.disturbance.slow, method.layout.ranks
        factors = [job.slow.get(name, 1.0) * slow.get(name, 1.0) for name in ranks]
        self.factors = factors
        self.groups: list[DeviceGroup] = group_ranks(ranks, factors, apart=False)
        self.update = job.update * max(factors) / method.group
        self._gathered_sizes, self._gradient_sizes = gathered_sizes(method), gradient_sizes(method)
        self.moved: list[tuple[Key, float, float]] = []
        self._buckets: list[Bucket] = []
        self._spans: list[Span] = []
        self._busy: list[tuple[float, float]] = []  # of the slowest devices, and the update
        self._gathered_bytes: list[tuple[float, int]] = []
        self._unreduced_bytes: list[tuple[float, int]] = []
        self._tails: dict[str, simpy.Event] = {}
        self._freed: deque[simpy.Event] = deque()
        self._there: dict[int, simpy.Event] = {}
        self._owed: set[int] = set()  # units whose gradients are not reduced
        self._computed = self.env.event().succeed()
        self._move: Move

    def alone(self, costs: dict[Key, Cost]) -> None:
        """Run with the time that each collective takes alone."""
        self._move = lambda key: self.env.timeout(costs[key].seconds)
        self.env.run(until=self.env.process(self._issue()))

    def together(self) -> None:
        """Run with all collectives on one fabric."""
        plans = {key: self.method.plan(key, keep=True) for key in self.method.distinct}
        first = next(iter(plans.values()))
        setup = self.setup
        fabric = Fabric(
            self.env,
            setup.topology,
            setup.constants_of(first),
            setup.runtime,
            setup.disturbance,
            fixed=True,
        )
        lowered = {key: fabric.lower(plan, i) for i, (key, plan) in enumerate(plans.items())}
        self._move = lambda key: fabric.submit(plans[key], lowered=lowered[key])
        self.env.run(until=self.env.process(self._issue()))

    def _issue(self) -> Process:
        """The CPU."""
        limit = self.method.sharding.limit_all_gathers
        for each in self.method.instructions:
            if each.do == Do.GATHER:
                if limit and len(self._freed) >= limit:
                    yield self._freed.popleft()
                self._gather(each)
            elif each.do == Do.FREE:
                self._free(each.unit)
            elif each.do == Do.REDUCE:
                self._reduce(each)
            elif each.do == Do.UPDATE:
                yield self.env.all_of([self._computed, *self._tails.values()])
                begin = self.env.now
                yield self.env.timeout(self.update)
                self._busy.append((begin, self.env.now))
            else:
                self._compute(each)
        yield self.env.all_of([self._computed, *self._tails.values()])

    def _gather(self, each: Instruction) -> None:
        size = self._gathered_sizes[each.unit]
        self._gathered_bytes.append((self.env.now, size))
        (key,) = self.method.keys(each)
        self._there[each.unit] = self._queue(key, each.unit, ())

    def _free(self, unit: int) -> None:
        self._freed.append(self._computed)
        del self._there[unit]
        size = self._gathered_sizes[unit]
        self._then(self._computed, lambda: self._gathered_bytes.append((self.env.now, -size)))

    def _reduce(self, each: Instruction) -> None:
        done: simpy.Event = self._computed
        for key in self.method.keys(each):
            done = self._queue(key, each.unit, (done,))
        size = self._gradient_sizes[each.unit]
        self._owed.discard(each.unit)
        self._then(done, lambda: self._unreduced_bytes.append((self.env.now, -size)))

    def _then(self, event: simpy.Event, act: Callable[[], None]) -> None:
        """Act when the event has happened."""
        if event.callbacks is None:
            act()
        else:
            event.callbacks.append(lambda _: act())

    def _queue(self, key: Key, unit: int, waits: Sequence[simpy.Event]) -> simpy.Event:
        """Put a collective on its stream; the event is its end."""
        stream = self.method.stream(key)
        before = self._tails.get(stream)
        self._tails[stream] = done = self.env.process(self._carry_out(before, key, unit, waits))
        return done

    def _carry_out(
        self, before: simpy.Event | None, key: Key, unit: int, waits: Sequence[simpy.Event]
    ) -> Process:
        yield self.env.all_of(waits)
        ready = self.env.now
        if before is not None:
            yield before
        start = self.env.now
        yield self._move(key)
        self.moved.append((key, start, self.env.now))
        self._buckets.append(
            Bucket(
                self.method.units[unit].gradients,
                tuple(range(self.method.layout.n)),
                _nbytes(key),
                ready,
                start,
                self.env.now,
                key.collective,
            )
        )

    def _compute(self, each: Instruction) -> None:
        """Put layers on the kernels' stream of every device."""
        before, there = self._computed, self._there.get(each.unit)
        waits = [before] if there is None else [before, there]
        backward = each.do == Do.BACKWARD
        owes = backward and each.unit not in self._owed and bool(self._gradient_sizes)
        if owes:
            self._owed.add(each.unit)
        passes = [
            self.env.process(self._kernels(group, each, waits, owes=owes and i == 0))
            for i, group in enumerate(self.groups)
        ]
        self._computed = self.env.all_of(passes) if len(passes) > 1 else passes[0]

    def _kernels(
        self, group: DeviceGroup, each: Instruction, waits: Sequence[simpy.Event], *, owes: bool
    ) -> Process:
        yield self.env.all_of(waits)
        begin = self.env.now
        if owes:
            self._unreduced_bytes.append((begin, self._gradient_sizes[each.unit]))
        backward, profile = each.do == Do.BACKWARD, self.job.profile
        for layer in each.layers:
            seconds = (profile.backward if backward else profile.forward)[layer] * group.factor
            if seconds > 0.0:
                since = self.env.now
                yield self.env.timeout(seconds)
                name = self.job.model.layers[layer].name
                self._spans.append(Span(group.name, name, backward, since, self.env.now))
        if group.factor == max(self.factors):
            self._busy.append((begin, self.env.now))

    def prediction(self) -> StepPrediction:
        """The step, once it is over."""
        seconds, factors, job = float(self.env.now), self.factors, self.job
        place = {group.name: i for i, group in enumerate(self.groups)}
        buckets = sorted(self._buckets, key=lambda b: (b.start, b.finish))
        return StepPrediction(
            method=self.method.name,
            devices=len(factors),
            batch=job.batch,
            seconds=seconds,
            compute=job.compute * max(factors),
            update=self.update,
            communication=time_in_flight(buckets),
            buckets=tuple(buckets),
            reads=(),
            spans=tuple(sorted(self._spans, key=lambda s: (place[s.device], s.begin))),
            simulated=(seconds,),
            settled=True,
            waiting=job.compute * (max(factors) - sum(factors) / len(factors)),
            accumulate=job.accumulate,
            exposed_by=exposed_by(self._busy, buckets, seconds),
            memory=measure_memory(self.method, self._gathered_bytes, self._unreduced_bytes),
        )
