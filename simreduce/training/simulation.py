"""A training step: compute, reductions and reads of variables as SimPy processes that share one fabric.

Every device runs its layers forward, then backward; a layer's gradients exist when its backward pass is done. A reduction
starts when all devices that give to it have all its gradients, and its turn has come. With a barrier (`session.run`,
`optimizer.step`) a step ends when everything in it is done, and with it the update of the variables; without one, a layer's
next forward pass waits only for that layer's variables. Then

    step time = compute + update + exposed,

where compute is that of the slowest device, and exposed is what it waited for communication, or for other devices.

A step that ends with a barrier leaves nothing behind, so that all are like the first. Without a barrier, with Horovod's
cycles or with faults, which go on beside the steps, so many are simulated until two in a row take the same time after the
last fault, `MOST_STEPS` at most; the last is described.

Not modelled: kernels do not slow down while NCCL's use a few of the GPU's multiprocessors, and copies do not wait for the
kernels that are queued on their two ends.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

import simpy

from simreduce.engine import CALM, NOMINAL, TENSORFLOW, Calibration, Disturbance, Fabric, Runtime
from simreduce.engine.lower import Lowered
from simreduce.plan import Plan
from simreduce.topology import Topology
from simreduce.training.reductions import Fused, Method, Reduction
from simreduce.training.step import RELAXED, STAGED, Bucket, Job, Span, Step
from simreduce.training.together import by_layer, groups

MOST_STEPS = 100
_SAME = 1e-9
_LOW: Any = 2
"""SimPy's priorities are 0 (urgent) and 1 (normal); its types know no other."""

Process = Generator[simpy.Event, Any, None]


def _same(times: Sequence[float]) -> bool:
    return len(times) > 1 and abs(times[-1] - times[-2]) <= _SAME * times[-1]


def simulate_step(
    job: Job,
    method: Method,
    topology: Topology,
    ranks: Sequence[str],
    runtime: Runtime = TENSORFLOW,
    calibration: Calibration = NOMINAL,
    disturbance: Disturbance = CALM,
) -> Step:
    """One step of `job` on the GPUs `ranks`, which are those that `method` was made for. Deadlock if it can never end."""
    run = _Run(job, method, topology, ranks, runtime, calibration, disturbance)
    run.env.run(until=run.env.process(run.steps()))
    return run.described()


@dataclass(slots=True)
class _Books:
    """What happens in one step. `computed[g][layer]` is when group g has that layer's gradients, `updated[layer]` when the
    variables of a layer are ready for the next step.
    """

    begin: float
    computed: list[list[simpy.Event]]
    updated: list[simpy.Event]
    unreduced: Counter[int]  # by layer, gradients that are still on their way
    working: list[simpy.Event] = field(default_factory=list)
    moving: list[simpy.Event] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)
    reads: list[Bucket] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    end: float = 0.0


class _Cycle(simpy.Event):
    """After `delay` seconds, and after all else at that instant: what is ready just then is in time."""

    def __init__(self, env: simpy.Environment, delay: float) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority=_LOW, delay=delay)


class _Run:
    """A job on one fabric."""

    def __init__(
        self,
        job: Job,
        method: Method,
        topology: Topology,
        ranks: Sequence[str],
        runtime: Runtime,
        calibration: Calibration,
        disturbance: Disturbance,
    ) -> None:
        self.job, self.method = job, method
        self.env = simpy.Environment()
        self.fabric = Fabric(self.env, topology, calibration, runtime, disturbance)
        self.queue = simpy.Resource(self.env, method.streams) if method.streams else None
        self.nbytes = [g.nbytes for layer in job.model.layers for g in layer.gradients]
        self.layer_of = [i for i, layer in enumerate(job.model.layers) for _ in layer.gradients]
        self.reads = by_layer(method.reads, self.layer_of)
        self._lowered: dict[int, tuple[Plan, Lowered]] = {}
        self._buffers: dict[tuple[int, ...], list[Reduction]] = {}
        self.queued = self._kernels_queue(ranks)
        self.groups = groups(
            ranks,
            [job.slow.get(name, 1.0) * disturbance.slow.get(name, 1.0) for name in ranks],
            apart=self.queued or bool(method.reads),
        )
        gradients = range(len(self.nbytes))
        everything = [gradients] if method.fusion else [r.gradients for r in method.reductions]
        self.unreduced = Counter(self.layer_of[i] for some in everything for i in some)
        self.alike = job.barrier and method.fusion is None and not disturbance.faults
        self.last_fault = max((fault.time for fault in disturbance.faults), default=-inf)
        self.count = len(ranks)
        self.done: list[_Books] = []

    def _kernels_queue(self, ranks: Sequence[str]) -> bool:
        """Whether a reduction sums or packs in the queue of the kernels that compute."""
        lanes = {lane for name in ranks for lane in self.fabric.compute_lanes(name)}
        used: set[str] = set()
        for plan in {id(r.plan): r.plan for r in self.method.reductions}.values():
            lowered = self._lower(plan)
            names = lowered.lane_names
            used |= {names[i] for i in set(lowered.calls.lanes.tolist())}
        return bool(lanes & used)

    def _lower(self, plan: Plan) -> Lowered:
        """What the fabric makes of a plan, once."""
        key = id(plan)
        if key not in self._lowered:
            self._lowered[key] = plan, self.fabric.lower(plan, len(self._lowered))
        return self._lowered[key][1]

    def steps(self) -> Process:
        """One step after another."""
        before: _Books | None = None
        times: list[float] = []
        while len(times) < (1 if self.alike else MOST_STEPS) and not (
            _same(times) and self.env.now > self.last_fault
        ):
            books = self._begin(before)
            yield self.env.all_of(books.working)
            if self.job.barrier:
                yield self.env.all_of(books.moving)
                if self.job.update > 0.0:
                    slowest = max(group.factor for group in self.groups)
                    yield self.env.timeout(self.job.update * slowest)
            books.end = self.env.now
            self.done.append(books)
            times.append(books.end - (before.end if before else 0.0))
            before = books
        yield self.env.all_of(books.moving)

    def _begin(self, before: _Books | None) -> _Books:
        """All processes of a step."""
        env, layers = self.env, self.job.model.layers
        books = _Books(
            env.now,
            [[env.event() for _ in layers] for _ in self.groups],
            [env.event() for _ in layers],
            Counter(self.unreduced),
        )
        for layer in range(len(layers)):
            if not books.unreduced[layer]:
                books.updated[layer].succeed()
        reads = self._reads(books, before)
        for number in range(len(self.groups)):
            books.working.append(env.process(self._compute(number, books, before, reads)))
        if self.method.fusion is not None:
            books.moving.append(env.process(self._negotiate(self.method.fusion, books)))
        elif self.method.in_order:
            books.moving.append(env.process(self._launch(self.method.reductions, books)))
        else:
            books.moving += [env.process(self._launch([r], books)) for r in self.method.reductions]
        return books

    def _reads(self, books: _Books, before: _Books | None) -> dict[tuple[int, int], list[simpy.Event]]:
        """Start to read variables; by group and layer, what its forward pass waits for."""
        waits: dict[tuple[int, int], list[simpy.Event]] = {}
        for read in self.reads:
            done = self.env.process(self._read(read, books, before))
            books.moving.append(done)
            if self.job.consistency == STAGED:
                continue
            for number, group in enumerate(self.groups):
                if group.ranks & set(read.ranks):
                    for layer in {self.layer_of[i] for i in read.gradients}:
                        waits.setdefault((number, layer), []).append(done)
        return waits

    def _compute(
        self,
        number: int,
        books: _Books,
        before: _Books | None,
        reads: dict[tuple[int, int], list[simpy.Event]],
    ) -> Process:
        """The layers of one group, forward and backward."""
        profile, computed = self.job.profile, books.computed[number]
        for layer, seconds in enumerate(profile.forward):
            waits = reads.get((number, layer), [])
            if before is not None and not self.job.barrier:
                waits = [*waits, before.updated[layer]]
            if waits:
                yield self.env.all_of(waits)
            yield from self._kernel(number, layer, seconds, books, backward=False)
        for layer in reversed(range(len(profile.backward))):
            yield from self._kernel(number, layer, profile.backward[layer], books, backward=True)
            computed[layer].succeed()

    def _kernel(self, number: int, layer: int, seconds: float, books: _Books, *, backward: bool) -> Process:
        """One pass of a layer; in the queue of the device's kernels if something else is, too."""
        group, begin = self.groups[number], self.env.now
        if seconds <= 0.0:
            return
        seconds *= group.factor
        if self.queued:
            timeline = yield self.fabric.compute(group.device, seconds)
            begin = float(timeline.start[0])
        else:
            yield self.env.timeout(seconds)
        name = self.job.model.layers[layer].name
        books.spans.append(Span(group.name, name, backward, begin - books.begin, self.env.now - books.begin))

    def _launch(self, reductions: Sequence[Reduction], books: _Books) -> Process:
        """Start reductions one after another, each when all its gradients are there, and wait for them."""
        moving = []
        for reduction in reductions:
            if self.job.consistency != RELAXED:
                # The layer that is nearest the input comes last.
                yield self._everywhere(
                    min(self.layer_of[i] for i in reduction.gradients), reduction.ranks, books
                )
            moving.append(self.env.process(self._move(reduction, books, self.env.now)))
        yield self.env.all_of(moving)

    def _negotiate(self, rule: Fused, books: _Books) -> Process:
        """Horovod's background thread: every cycle, start what has become ready on all ranks since the one before."""
        arrived: list[int] = []
        times: dict[int, float] = {}
        bell = [self.env.event()]

        def arrive(layer: int) -> Process:
            if self.job.consistency != RELAXED:
                yield self._everywhere(layer, range(self.count), books)
            mine = [i for i in reversed(range(len(self.layer_of))) if self.layer_of[i] == layer]
            arrived.extend(mine)
            times.update(dict.fromkeys(mine, self.env.now))
            if not bell[0].triggered:
                bell[0].succeed()

        for layer in sorted(set(self.layer_of), reverse=True):
            self.env.process(arrive(layer))
        moving: list[simpy.Event] = []
        left = len(self.layer_of)
        while left:
            yield bell[0]
            yield _Cycle(self.env, self._to_cycle(rule.cycle))
            ready, bell[0] = list(arrived), self.env.event()
            arrived.clear()
            left -= len(ready)
            for reduction in (r for buffer in rule.buffers(ready) for r in self._fused(rule, buffer)):
                waited_since = max(times[i] for i in reduction.gradients)
                moving.append(self.env.process(self._move(reduction, books, waited_since)))
        yield self.env.all_of(moving)

    def _fused(self, rule: Fused, buffer: tuple[int, ...]) -> list[Reduction]:
        """The reductions of a buffer, compiled when it first occurs."""
        if buffer not in self._buffers:
            self._buffers[buffer] = rule.reductions(buffer)
        return self._buffers[buffer]

    def _to_cycle(self, cycle: float) -> float:
        """Seconds to the next cycle; they begin at whole multiples."""
        return max(ceil(self.env.now / cycle) * cycle - self.env.now, 0.0) if cycle else 0.0

    def _everywhere(self, layer: int, ranks: Collection[int], books: _Books) -> simpy.Event:
        """When all `ranks` have a layer's gradients."""
        giving = set(ranks)
        return self.env.all_of(
            [computed[layer] for group, computed in zip(self.groups, books.computed, strict=True) if group.ranks & giving]
        )  # fmt: skip

    def _read(self, read: Reduction, books: _Books, before: _Books | None) -> Process:
        """Bring variables to those that compute with them."""
        if before is not None and not self.job.barrier:
            yield self.env.all_of(
                [before.updated[layer] for layer in {self.layer_of[i] for i in read.gradients}]
            )
        begin = self.env.now
        yield self.fabric.submit(read.plan, lowered=self._lower(read.plan))
        books.reads.append(self._bucket(read, books, begin, begin))

    def _move(self, reduction: Reduction, books: _Books, ready: float) -> Process:
        """Reduce, when there is a turn; with its last gradient a layer is up to date."""
        turn = self.queue.request() if self.queue is not None else None
        if turn is not None:
            yield turn
        start = self.env.now
        yield self.fabric.submit(reduction.plan, lowered=self._lower(reduction.plan))
        if self.queue is not None and turn is not None:
            self.queue.release(turn)
        books.buckets.append(self._bucket(reduction, books, ready, start))
        for i in reduction.gradients:
            layer = self.layer_of[i]
            books.unreduced[layer] -= 1
            if not books.unreduced[layer]:
                books.updated[layer].succeed()

    def _bucket(self, what: Reduction, books: _Books, ready: float, start: float) -> Bucket:
        """What has just ended."""
        return Bucket(
            what.gradients,
            what.ranks,
            sum(self.nbytes[i] for i in what.gradients),
            ready - books.begin,
            start - books.begin,
            self.env.now - books.begin,
        )

    def described(self) -> Step:
        """The last step."""
        job, books = self.job, self.done[-1]
        ends = [0.0, *(each.end for each in self.done)]
        slowest = max(group.factor for group in self.groups)
        simulated = tuple(end - begin for begin, end in itertools.pairwise(ends))
        place = {group.name: i for i, group in enumerate(self.groups)}
        return Step(
            method=self.method.name,
            devices=self.count,
            batch=job.batch,
            seconds=ends[-1] - ends[-2],
            compute=job.profile.seconds * slowest,
            update=job.update * slowest,
            communication=_covered([*books.buckets, *books.reads]),
            buckets=tuple(sorted(books.buckets, key=lambda b: (b.start, b.finish))),
            reads=tuple(sorted(books.reads, key=lambda b: (b.start, b.finish))),
            spans=tuple(sorted(books.spans, key=lambda span: (place[span.device], span.begin))),
            simulated=simulated,
            settled=self.alike or _same(simulated),
        )


def _covered(buckets: Sequence[Bucket]) -> float:
    """Seconds during which at least one of them was under way."""
    total, until = 0.0, -inf
    for start, finish in sorted((b.start, b.finish) for b in buckets):
        total += max(finish - max(start, until), 0.0)
        until = max(until, finish)
    return total
