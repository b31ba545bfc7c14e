"""Writes the passes of a step as nodes of a run: compute, reads of variables and reductions.

Every group of devices runs its layers forward, then backward; a layer's gradients are ready when
its backward pass ends. Compute is on the lane of its group, a layer after the one before it. With
Horovod a background thread (`Negotiation`) fuses the gradients that all devices have at every
cycle.

Ranks that do the same at the same time are a group, which is simulated as one; so are reads of one
layer. The steps that groups take are summed up here.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import ceil
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
import simpy

from simreduce import dtypes
from simreduce.computing import group_by, grouped, once
from simreduce.computing.arrays import Ints
from simreduce.engine import Disturbance
from simreduce.engine.fabric import LOW, Moment
from simreduce.engine.setup import Setup
from simreduce.plan import side_by_side
from simreduce.training.calls import (
    Alone,
    Fused,
    Method,
    OnFabric,
    Reduction,
    arriving,
    slowest_gpu,
)
from simreduce.training.executions import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    FORWARD,
    UPDATE,
    ExecutionNode,
)
from simreduce.training.executor import SLOWS_NOTHING, Ran, Run, length_of
from simreduce.training.gpus import Gpu, least_gpu, slowest_of
from simreduce.training.interference import (
    Beside,
    Channels,
    Law,
    Loses,
    by_share,
    slow_typical,
)
from simreduce.training.path import READ, SAME, TURN
from simreduce.training.step import (
    DATA,
    HOST,
    RELAXED,
    SLOWED,
    STAGED,
    Bucket,
    Ledger,
    PathPiece,
    Profile,
    Span,
    StepJob,
    StepResult,
    device_label,
)
from simreduce.workload import Gradient


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Ranks that compute `factor` times as long as the profile; `device` is their first."""

    ranks: frozenset[int]
    name: str
    device: str
    factor: float


def group_ranks(
    ranks: Sequence[str], factors: Sequence[float], *, apart: bool
) -> list[DeviceGroup]:
    """One group for each slowdown; one for each rank if ranks queue or wait apart."""
    equal = grouped(((factor, rank if apart else -1), rank) for rank, factor in enumerate(factors))
    return [
        DeviceGroup(
            frozenset(members),
            device_label([ranks[rank] for rank in members], len(ranks)),
            ranks[members[0]],
            factor,
        )
        for (factor, _), members in equal.items()
    ]


def nodes_of(
    nodes: Sequence[ExecutionNode], groups: Sequence[DeviceGroup]
) -> dict[int, tuple[ExecutionNode, ...]]:
    """The nodes of each rank, without what other groups compute on the lanes of their names.

    What only joins others takes no time and no lane: who comes after it comes after these.
    """
    found: dict[int, tuple[ExecutionNode, ...]] = {}
    for group in groups:
        others = {each.name for each in groups} - {group.name}
        own, stands_for = list[ExecutionNode](), list[tuple[int, ...]]()
        for node in nodes:
            after = tuple(dict.fromkeys(i for j in node.after for i in stands_for[j]))
            joins = node.kind == COMPUTE and node.seconds is None
            if not joins and node.lane not in others:
                own.append(node._replace(after=after))
                after = (len(own) - 1,)
            stands_for.append(after if node.lane not in others else ())
        found |= dict.fromkeys(group.ranks, tuple(own))
    return dict(sorted(found.items()))


def slowdowns(job: StepJob, disturbance: Disturbance, names: Sequence[str]) -> list[float]:
    """How many times as long as the profile says each of these devices takes; where they differ by
    chance, the slowest stands for all.
    """
    slow, all_ = disturbance.slow, slowest_of(len(names), job.spread, job.part)
    return [all_ * job.slow.get(name, 1.0) * slow.get(name, 1.0) for name in names]


def slowest(job: StepJob, setup: Setup) -> float:
    """How many times as long as the profile says the slowest rank takes."""
    return max(slowdowns(job, setup.disturbance, setup.layout.ranks))


def loses_of(job: StepJob, setup: Setup) -> Loses:
    """By what part of their speed a job's kernels slow down; nothing if a GPU is not known. Of
    several kinds the one with the fewest SMs counts.
    """
    gpu = job.gpu or least_gpu(setup)
    if gpu is None:
        return SLOWS_NOTHING.lose
    if job.interference is not None:
        return by_share(job.interference, gpu.units)
    return _law(gpu, job.kernels, arriving(setup), slowest_gpu(setup))


def least_losses(job: StepJob, setup: Setup) -> Callable[[int], float]:
    """The same of the passes, forward or backward, that lose less beside so many channels of a
    collective of all ranks.
    """
    lose = loses_of(job, setup)
    return lambda n: min(lose((Channels(n),), phase) for phase in (FORWARD, BACKWARD))


@lru_cache(maxsize=64)
def _law(gpu: Gpu, kernels: Callable[[Gpu], Profile] | None, rate: float, most: float) -> Law:
    """That of kernels that are known on any GPU, or of typical ones.

    Each pass loses what its own kernels do: one that waits for its host loses less. Other phases
    lose as much as both passes together.
    """

    def passes(beside: Beside, only: str) -> Mapping[str, float]:
        slow = gpu.next_to(beside, only)
        if kernels is None:
            return {"": slow_typical(slow.slowed)}
        found = kernels(slow)
        both = {FORWARD: sum(found.forward), BACKWARD: sum(found.backward)}
        return both | {"": found.seconds}

    return Law(passes, rate, most)


def merged_reads(job: StepJob, method: Method) -> list[Reduction]:
    """The reads of a step, with the same ranks' reads of one layer as one.

    A layer waits for all of them, and simulating one is faster.
    """
    layer_of = job.layer_of
    equal = group_by(
        method.reads, lambda read: (read.ranks, frozenset(layer_of[i] for i in read.gradients))
    )
    return [
        Reduction(
            side_by_side([read.moves for read in each], each[0].moves.devices),
            tuple(sorted(i for read in each for i in read.gradients)),
            ranks,
        )
        for (ranks, _), each in equal.items()
    ]


def steady(job: StepJob, times: Sequence[float]) -> bool:
    """Whether the last steps took equal times.

    These are two, or four without a barrier, where a step affects the next two.
    """
    last = times[-2:] if job.barrier else times[-4:]
    return len(last) == (2 if job.barrier else 4) and max(last) - min(last) <= SAME * times[-1]


def summarize(
    job: StepJob,
    name: str,
    groups: Sequence[DeviceGroup],
    done: Sequence[Ledger],
    launch: float,
    update: float,
    path: tuple[PathPiece, ...],
    *,
    one: bool,
    faulty: bool,
) -> StepResult:
    """The prediction from the last step, or the only `one`; with faults, the slowest too."""
    ends = [0.0, *(ledger.end for ledger in done)]
    times = tuple(end - begin for begin, end in itertools.pairwise(ends))
    factors = [group.factor for group in groups for _ in group.ranks]
    mean = fmean(factors) / slowest_of(len(factors), job.spread, job.part)
    place = {group.name: i for i, group in enumerate(groups)}
    settled = one or steady(job, times)

    def step(ledger: Ledger, seconds: float) -> StepResult:
        moved, lost = [*ledger.buckets, *ledger.reads], lost_beside(job, groups, ledger.spans)
        own = {HOST: launch, COMPUTE: job.compute * max(factors), UPDATE: update, SLOWED: lost}
        spent = own | {DATA: max(seconds - sum(own.values()), 0.0)}
        return StepResult(
            method=name,
            devices=len(factors),
            samples=job.batch * job.accumulate * len(factors),
            seconds=seconds,
            spent=tuple(pair for pair in spent.items() if pair[1]),
            communication=length_of((b.start, b.finish) for b in moved),
            buckets=tuple(sorted(ledger.buckets, key=lambda b: (b.start, b.finish))),
            reads=tuple(sorted(ledger.reads, key=lambda b: (b.start, b.finish))),
            spans=tuple(sorted(ledger.spans, key=lambda span: (place[span.device], span.begin))),
            simulated=times,
            settled=settled,
            waiting=job.compute * (max(factors) - mean),
        )

    seconds = times[-1] if settled else fmean(times[len(times) // 2 :])
    last = replace(step(done[-1], seconds), path=path)
    longest = max(times)
    if faulty and longest > last.seconds * (1.0 + SAME):
        last = replace(last, slowest=step(done[times.index(longest)], longest))
    return last


def spans_of(
    ran: Iterable[Ran], since: Mapping[int, float] = MappingProxyType({}), begun: float = 0.0
) -> list[Span]:
    """The passes of layers among what has run, in seconds from when the step has `begun`.

    Those that waited in queues go on `since` then, by the identity of nodes.
    """
    return [
        Span(
            each.node.lane, each.node.name, each.node.phase == BACKWARD,
            since.get(id(each.node), each.begin) - begun, each.end - begun, each.lost,
        )
        for each in ran
        if each.node.phase in (FORWARD, BACKWARD)
    ]  # fmt: skip


def lost_beside(job: StepJob, groups: Sequence[DeviceGroup], spans: Iterable[Span]) -> float:
    """Seconds that the slowest devices' passes take longer than alone, beside collectives."""
    slowest = max(groups, key=lambda group: group.factor)
    busy = sum(span.end - span.begin for span in spans if span.device == slowest.name)
    lost = busy - job.compute * slowest.factor
    return lost if lost > SAME * busy else 0.0


ROUNDING = 1e-12
"""Relative error of sums of times, allowed at the boundary of a cycle."""

Buffers = dict[tuple[int, ...], list[Reduction]]


class Negotiation:
    """The thread in one pass. `known` has reductions by buffer, which are compiled on first use.
    `start` adds the reduction of gradients that a node let go, and that are there since then, to
    the run, and returns its node.

    `updated` are the nodes that update each layer: first one that waits for the thread, then the
    reductions of its gradients too.
    """

    def __init__(
        self, run: Run, rule: Fused, layer_of: Sequence[int], updated: Mapping[int, list[int]],
        known: Buffers, start: Callable[[Reduction, int, float], int],
    ) -> None:  # fmt: skip
        self._run, self._rule, self._layer_of = run, rule, layer_of
        self._of_layer = group_by(reversed(range(len(layer_of))), layer_of.__getitem__)
        self._updated, self._known, self._start = updated, known, start
        self._arrived: list[int] = []
        self._since: dict[int, float] = {}
        self._next = run.env.event()

    def arrive(self, layer: int, now: float) -> simpy.Event:
        """Note that all devices have a layer's gradients; the event is when the thread looks."""
        if not self._arrived:
            # After all else at that instant: what is ready just then is in time.
            self._next = Moment(self._run.env, now + to_cycle(now, self._rule.cycle), LOW)
            self._next.callbacks.append(self._tick)
        mine = self._of_layer[layer]
        self._arrived += mine
        self._since.update(dict.fromkeys(mine, now))
        return self._next

    def _tick(self, _: simpy.Event) -> None:
        """Start the buffers of what has arrived."""
        ready, self._arrived = self._arrived, []
        for buffer in self._rule.buffers(ready):
            for reduction in once(self._known, buffer, partial(self._rule.reductions, buffer)):
                last = max(reduction.gradients, key=self._since.__getitem__)
                gate = self._updated[self._layer_of[last]][0]
                node = self._start(reduction, gate, self._since[last])
                for layer in {self._layer_of[i] for i in reduction.gradients}:
                    self._run.join(self._updated[layer][0], node)
                    self._updated[layer].append(node)
        self._run.start()


def to_cycle(now: float, cycle: float) -> float:
    """Seconds from `now` to the next whole multiple of `cycle`, 0 at one."""
    if not cycle:
        return 0.0
    return max(ceil(now / cycle * (1.0 - ROUNDING)) * cycle - now, 0.0)


STREAM = "stream"
"""The lane of reductions where only so many are in flight."""

Nodes = Sequence[int]


@dataclass(slots=True)
class Passes:
    """What moves reductions and reads gets them one by one.

    Nodes that others held up went on `since` then; who looks `closely` learns that of reductions
    too. Nodes have `moved` buckets. Both are by the identity of nodes.
    """

    mover: Alone | OnFabric
    run: Run
    job: StepJob
    method: Method
    reads: Sequence[Reduction]
    groups: Sequence[DeviceGroup]
    closely: bool
    buffers: Buffers = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    moved: dict[int, Bucket] = field(default_factory=dict)
    layer_of: Sequence[int] = field(init=False)
    gradients: Sequence[Gradient] = field(init=False)
    nbytes: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self.layer_of = self.job.layer_of
        self.gradients = self.job.model.workload.gradients
        self.nbytes = [gradient.nbytes for gradient in self.gradients]

    def write(
        self, ledger: Ledger, after: Nodes, before: Ledger | None, *, alone: bool = False
    ) -> list[int]:
        """Write a pass, which begins `after` these nodes, and return the last of each group.

        The step `before` may still be in flight. A pass that is `alone` moves nothing.
        """
        ledger.transfers, ledger.fetched, ledger.updated = [], defaultdict(list), defaultdict(list)
        if not alone:
            self._read(ledger, after, before)
        groups = range(len(self.groups))
        computed = [self._compute(number, ledger, after, before) for number in groups]
        if not alone:
            self._reduce(ledger, after, computed)
        return [node for layers in computed for node in layers[0]]

    def _read(self, ledger: Ledger, after: Nodes, before: Ledger | None) -> None:
        """Write the reads. A step that is in flight has to update the variables first."""
        for read in self.reads:
            layers = {self.layer_of[i] for i in read.gradients}
            updates = [node for layer in layers for node in before.updated[layer]] if before else []
            node = ExecutionNode("reads", COLLECTIVE, (*after, *updates), phase=READ)
            done = self.run.add(node, partial(self._move, read, node, ledger, ledger.reads))
            ledger.transfers.append(done)
            for number, group in enumerate(self.groups):
                if group.ranks & set(read.ranks):
                    for layer in layers:
                        ledger.fetched[number, layer].append(done)

    def _compute(
        self, number: int, ledger: Ledger, after: Nodes, before: Ledger | None
    ) -> list[Nodes]:
        """Write every layer forward, then backward; return what gives the gradients of each.

        A forward pass waits for the reads of its variables, with staged consistency for those of
        the step before, or else for the updates of a step that is in flight.
        """
        profile, group = self.job.profile, self.groups[number]
        last = before if self.job.consistency == STAGED else ledger
        updates = before.updated if before and last is ledger else None
        layers = range(len(profile.forward))
        given = [after for _ in layers]
        order = [(layer, FORWARD, profile.forward[layer]) for layer in layers]
        order += [(layer, BACKWARD, profile.backward[layer]) for layer in reversed(layers)]
        for layer, phase, seconds in order:
            if phase == FORWARD:
                waits = last.fetched.get((number, layer), ()) if last else ()
                if waits or updates is not None:
                    waits = (*after, *waits, *(updates[layer] if updates else ()))
                    after = [self.run.add(ExecutionNode("variables", COMPUTE, waits))]
            if seconds > 0.0:
                name, took = self.job.model.layers[layer].name, seconds * group.factor
                node = ExecutionNode(name, COMPUTE, tuple(after), group.name, took, phase=phase)
                act = partial(self._kernel, group, node) if self.mover.queued else None
                after = [self.run.add(node, act)]
            given[layer] = after
        return given

    def _kernel(self, group: DeviceGroup, node: ExecutionNode, _: float) -> simpy.Event:
        """Run one pass of a layer in the queue of its device."""
        assert isinstance(self.mover, OnFabric)  # noqa: S101 - only there are queues
        done = self.mover.fabric.compute(group.device, node.seconds or 0.0)

        def begin(event: Any) -> None:
            self.since[id(node)] = float(event.value.start[0])

        done.callbacks.append(begin)
        return done

    def forget(self) -> None:
        """Let go of the nodes that have run."""
        for each in self.run.ran:
            self.moved.pop(id(each.node), None)
            self.since.pop(id(each.node), None)
        self.run.ran.clear()

    def _reduce(self, ledger: Ledger, after: Nodes, computed: Sequence[Sequence[Nodes]]) -> None:
        """Write the reductions of a pass.

        With relaxed consistency these are of the step before, whose gradients are ready from the
        beginning. Where ranks do not meet and streams have no limit, one starts with the first rank
        that has its gradients.
        """
        method, relaxed = self.method, self.job.consistency == RELAXED
        if method.fusion is not None:
            start = partial(self._reduce_buffer, ledger)
            thread = Negotiation(
                self.run, method.fusion, self.layer_of, ledger.updated, self.buffers, start
            )
            for layer in sorted(set(self.layer_of), reverse=True):
                there = after if relaxed else [node for each in computed for node in each[layer]]
                node = ExecutionNode("reductions", COMPUTE, tuple(there), phase=TURN)
                gate = self.run.add(node, partial(thread.arrive, layer))
                ledger.transfers.append(gate)
                ledger.updated[layer].append(gate)
            return
        ready, known = after, dict[tuple[bool, Nodes], Nodes]()
        for each in method.reductions:
            layers = {self.layer_of[i] for i in each.gradients}
            last = min(layers)  # nearest to the input
            given = [
                (group, nodes[last])
                for group, nodes in zip(self.groups, computed, strict=True)
                if group.ranks & set(each.ranks)
            ]
            early = not (relaxed or method.in_order or method.streams or each.meets)
            if not relaxed:
                there = tuple(node for _, nodes in given for node in nodes)
                if early and not all(nodes for _, nodes in given):
                    there = ()  # some rank has them from the beginning
                if method.in_order:
                    there += tuple(ready)
                if (early, there) not in known:
                    node = ExecutionNode("ready", COMPUTE, there, early=early)
                    known[early, there] = [self.run.add(node)]
                ready = known[early, there]
            node = self._node(each, tuple(ready))
            early_of = given if early else ()
            act = partial(self._move, each, node, ledger, ledger.buckets, given=early_of)
            done = self.run.add(node, act)
            ledger.transfers.append(done)
            for layer in layers:
                ledger.updated[layer].append(done)

    def _reduce_buffer(self, ledger: Ledger, what: Reduction, gate: int, since: float) -> int:
        """Write the reduction of a buffer of gradients that a gate let go, there `since` then."""
        node = self._node(what, ())
        act = partial(self._move, what, node, ledger, ledger.buckets)
        ledger.transfers.append(self.run.add(node, lambda _: act(since), cause=gate))
        return ledger.transfers[-1]

    def _node(self, what: Reduction, after: tuple[int, ...]) -> ExecutionNode:
        """A reduction as programs that read executions know it."""
        first = self.gradients[what.gradients[0]] if what.gradients else None
        whole = len(what.ranks) == sum(len(group.ranks) for group in self.groups)
        return ExecutionNode(
            f"all-reduce of {first.name}" if first else "all-reduce", COLLECTIVE, after,
            STREAM if self.method.streams else "",
            collective="all_reduce", nbytes=sum(self.nbytes[i] for i in what.gradients),
            group=() if whole else what.ranks, dtype=dtypes.NAMES[first.dtype] if first else "",
        )  # fmt: skip

    def _move(
        self, what: Reduction, node: ExecutionNode, ledger: Ledger, into: list[Bucket],
        ready: float, given: Sequence[tuple[DeviceGroup, Nodes]] = (),
    ) -> simpy.Event:  # fmt: skip
        """Start a transfer that was `ready` then, and note it in the ledger when it ends.

        Inputs of the groups whose `given` nodes are not done follow when they are.
        """
        env = self.mover.env
        start = float(env.now)
        due = [each for each in given if not all(map(self.run.is_done, each[1]))]
        inputs: dict[int, list[int]] = defaultdict(list)  # their places, by rank
        if due:
            for index, rank in enumerate(what.moves.device[what.moves.inputs].tolist()):
                inputs[rank].append(index)
        late = [
            (np.array(sorted(i for rank in group.ranks for i in inputs[rank]), np.int64), nodes)
            for group, nodes in due
        ]
        held = np.concatenate([places for places, _ in late]) if late else None
        done = self.mover.move(what, held)
        self.run.slow_beside(done, self.mover.channels(what))
        for places, nodes in late:
            release = partial(self._release, node, done, places)
            self.run.add(
                ExecutionNode("late", COMPUTE, tuple(nodes)), partial(self.run.then, release)
            )

        def end(event: Any) -> None:
            begin, nbytes = ledger.begin, sum(self.nbytes[i] for i in what.gradients)
            times = ready - begin, start - begin, env.now - begin
            bucket = self.moved[id(node)] = Bucket(what.gradients, what.ranks, nbytes, *times)
            look = self.closely and into is ledger.buckets
            if look and (since := self.mover.waited(what, event)) is not None:
                self.since[id(node)] = since
            into.append(bucket)
            ledger.moved.append((bucket, what))

        done.callbacks.append(end)
        return done

    def _release(self, node: ExecutionNode, done: simpy.Event, places: Ints) -> None:
        """Let a reduction go on with the inputs at these places."""
        assert isinstance(self.mover, OnFabric)  # noqa: S101 - else all begin together
        self.since[id(node)] = float(self.mover.env.now)
        self.mover.fabric.release(done, places)
