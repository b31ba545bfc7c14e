"""A training step: compute, reductions and reads of variables as SimPy processes that share one fabric.

Every device runs its layers forward, then backward; a layer's gradients exist when its backward pass is done. A reduction
starts when the devices that give to it have all its gradients, and its turn has come (`launching`). With a barrier (`session.run`,
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
from collections.abc import Sequence
from math import inf

import simpy

from simreduce.engine import CALM, NOMINAL, TENSORFLOW, Calibration, Disturbance, Fabric, Runtime
from simreduce.topology import Topology
from simreduce.training.books import Books, Process
from simreduce.training.computing import Computing
from simreduce.training.launching import Launching
from simreduce.training.moving import Lowering, Moving
from simreduce.training.reductions import Method
from simreduce.training.step import STAGED, Bucket, Job, Step
from simreduce.training.together import by_layer, groups

MOST_STEPS = 100
_SAME = 1e-9


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
    env = simpy.Environment()
    fabric = Fabric(env, topology, calibration, runtime, disturbance)
    run = _Run(fabric, job, method, ranks)
    env.run(until=env.process(run.steps()))
    return run.described()


def _same(times: Sequence[float]) -> bool:
    return len(times) > 1 and abs(times[-1] - times[-2]) <= _SAME * times[-1]


class _Run:
    """A job on one fabric, step after step."""

    def __init__(self, fabric: Fabric, job: Job, method: Method, ranks: Sequence[str]) -> None:
        self.env, self.job, self.method, self.count = fabric.env, job, method, len(ranks)
        layers = job.model.layers
        self.layer_of = [i for i, layer in enumerate(layers) for _ in layer.gradients]
        nbytes = [g.nbytes for layer in layers for g in layer.gradients]
        self.reads = by_layer(method.reads, self.layer_of)
        lowering = Lowering(fabric)
        kernels = {lane for name in ranks for lane in fabric.compute_lanes(name)}
        queued = bool(kernels & lowering.lanes(r.plan for r in method.reductions))
        slow = fabric.disturbance.slow
        self.groups = groups(
            ranks,
            [job.slow.get(name, 1.0) * slow.get(name, 1.0) for name in ranks],
            apart=queued or bool(method.reads),
        )
        self.computing = Computing(fabric, job, self.groups, queued)
        self.moving = Moving(fabric, lowering, method.streams, nbytes, self.layer_of)
        self.launching = Launching(job, method, self.moving, self.layer_of)
        everything = [range(len(nbytes))] if method.fusion else [r.gradients for r in method.reductions]
        self.unreduced = Counter(self.layer_of[i] for some in everything for i in some)
        faults = fabric.disturbance.faults
        self.alike = job.barrier and method.fusion is None and not faults
        self.last_fault = max((fault.time for fault in faults), default=-inf)
        self.done: list[Books] = []

    def steps(self) -> Process:
        """One step after another."""
        before: Books | None = None
        times: list[float] = []
        while len(times) < (1 if self.alike else MOST_STEPS) and not (
            _same(times) and self.env.now > self.last_fault
        ):
            books = self._begin(before if not self.job.barrier else None)
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

    def _begin(self, before: Books | None) -> Books:
        """All processes of a step; `before` is the one that may still be under way."""
        books = Books.opened(self.env, self.groups, len(self.job.model.layers), self.unreduced)
        waits = self._reads(books, before)
        for number in range(len(self.groups)):
            if before is not None:
                for layer, updated in enumerate(before.updated):
                    waits.setdefault((number, layer), []).append(updated)
            books.working.append(self.env.process(self.computing.passes(number, books, waits)))
        books.moving += self.launching.begin(books)
        return books

    def _reads(self, books: Books, before: Books | None) -> dict[tuple[int, int], list[simpy.Event]]:
        """Start to read variables; by group and layer, what its forward pass waits for."""
        waits: dict[tuple[int, int], list[simpy.Event]] = {}
        for read in self.reads:
            done = self.env.process(self.moving.read(read, books, before))
            books.moving.append(done)
            if self.job.consistency == STAGED:
                continue
            for number, group in enumerate(self.groups):
                if group.ranks & set(read.ranks):
                    for layer in {self.layer_of[i] for i in read.gradients}:
                        waits.setdefault((number, layer), []).append(done)
        return waits

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
