"""Simulates training steps: compute, reductions and reads as SimPy processes on one fabric.

Every device runs its layers forward, then backward; a layer's gradients are ready when its backward
pass ends. `launcher` starts each reduction. With a barrier (`session.run`, `optimizer.step`) a step
ends when all its work and the update of the variables are done. Without one, a layer's next forward
pass waits for that layer's variables only. Then

    step time = launch + compute + update + exposed,

where launch is the calibrated cost of a step (`step_cost`; hidden without a barrier), compute is
that of the slowest device, and exposed is its wait for communication and for other devices.

With several passes to accumulate gradients, those before the last only compute, or with `no_sync`
off end like steps without an update.

Steps with a barrier are equal, so one is simulated. Without one, with Horovod's cycles or with
faults, steps are simulated until some in a row take equal times (`steady`) after the last fault, up
to `MOST_STEPS`; the last is the result. Long before a fault, equal steps are skipped.

Not modelled: NCCL's kernels do not slow down others, and copies do not wait for kernels queued on
their two ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import simpy

from simreduce.engine import Fabric
from simreduce.engine.setup import Setup
from simreduce.engine.simulation import step_cost
from simreduce.errors import InputError
from simreduce.training.faults import LinkFaults
from simreduce.training.groups import group_ranks, merge_reads, slowdowns
from simreduce.training.launcher import Launcher
from simreduce.training.ledger import Ledger, Process, Waits
from simreduce.training.passes import Passes
from simreduce.training.reductions import Method
from simreduce.training.step import STAGED, Moved, StepJob, StepPrediction, StepRecording
from simreduce.training.summary import steady, summarize
from simreduce.training.transfers import Lowering, Transfers

MOST_STEPS = 100


def simulate_step(job: StepJob, method: Method, setup: Setup) -> StepPrediction:
    """One step of `job` on the ranks of the setup's layout, which `method` was made for.

    Deadlock if it can never end, InputError for faults of links that are not there, or so late that
    they are not among the steps that are simulated.
    """
    return _simulate(job, method, setup, closely=False).step


def record_step(job: StepJob, method: Method, setup: Setup) -> StepRecording:
    """`simulate_step`, for those who look closer."""
    return _simulate(job, method, setup, closely=True)


def _simulate(job: StepJob, method: Method, setup: Setup, *, closely: bool) -> StepRecording:
    env = simpy.Environment()
    topology, disturbance = setup.topology, setup.disturbance
    disturbance.check(topology)
    constants = setup.constants_of(method.plan)
    fixed = not (closely or disturbance.faults)
    fabric = Fabric(
        env, topology, constants, setup.runtime, replace(disturbance, faults=()), fixed=fixed
    )
    faults = LinkFaults(fabric, disturbance.faults)
    run = _StepSimulation(fabric, job, method, setup.layout.ranks, faults, closely=closely)
    faulty = bool(disturbance.faults)
    env.run(until=env.process(run.steps()))
    step = summarize(
        job, method, run.groups, run.done, run.launch, run.update, one=run.one, faulty=faulty
    )
    moved = tuple(
        Moved(bucket, plan, run.lowering.of(plan), since)
        for bucket, plan, since in run.done[-1].moved
    )
    return StepRecording(step, moved, fabric.resources)


class _StepSimulation:
    """A job on one fabric."""

    def __init__(
        self,
        fabric: Fabric,
        job: StepJob,
        method: Method,
        ranks: Sequence[str],
        faults: LinkFaults,
        *,
        closely: bool,
    ) -> None:
        self.env, self.job, self.faults = fabric.env, job, faults
        layers = job.model.layers
        self.layer_of = [i for i, layer in enumerate(layers) for _ in layer.gradients]
        nbytes = [g.nbytes for layer in layers for g in layer.gradients]
        self.reads = merge_reads(method.reads, self.layer_of)
        lowering = self.lowering = Lowering(
            fabric, method.plan, [r.plan for r in (*method.reductions, *self.reads)]
        )
        kernels = {lane for name in ranks for lane in fabric.compute_lanes(name)}
        queued = bool(kernels & lowering.lanes(r.plan for r in method.reductions))
        factors = partial(slowdowns, job, fabric.disturbance)
        self.groups = group_ranks(ranks, factors(ranks), apart=queued or bool(method.reads))
        self.launch = (
            step_cost(method.plan, fabric.unfolded(), fabric.runtime, fabric.calibration)
            if job.barrier
            else 0.0
        )
        self.update = job.update * max(factors(method.servers or ranks))
        self.passes = Passes(fabric, job, self.groups, queued)
        self.transfers = Transfers(
            fabric, lowering, method.streams, nbytes, self.layer_of, closely=closely
        )
        self.launcher = Launcher(job, method, self.transfers, self.layer_of)
        everything = (
            [range(len(nbytes))] if method.fusion else [r.gradients for r in method.reductions]
        )
        self.unreduced = Counter(self.layer_of[i] for some in everything for i in some)
        self.one = job.barrier and method.fusion is None and not faults.left
        self.done: list[Ledger] = []

    def steps(self) -> Process:
        """Run one step after another."""
        before: Ledger | None = None
        times: list[float] = []  # of steps since the last fault
        while len(self.done) < (1 if self.one else MOST_STEPS):
            if steady(self.job, times):
                if not self.faults.left:
                    break
                self.faults.approach(times[-1])
            begin, to_come = self.env.now, len(self.faults.left)
            if self.launch > 0.0:
                yield self.env.timeout(self.launch)
            earlier = yield from self._earlier_passes(begin)
            ledger = self._begin(begin, before if not self.job.barrier else None)
            yield self.env.all_of(ledger.passes)
            if self.job.barrier:
                yield self.env.all_of(ledger.transfers)
                if self.update > 0.0:
                    yield self.env.timeout(self.update)
            ledger.add(earlier)
            ledger.end = self.env.now
            self.done.append(ledger)
            times = [*times, ledger.end - begin] if len(self.faults.left) == to_come else []
            before = ledger
        if self.faults.left:
            late = self.faults.left[0]
            raise InputError(
                f"{late.link} at {late.time:g} s: later than {MOST_STEPS} steps,"
                " which do not come to take the same time"
            )
        yield self.env.all_of(ledger.transfers)

    def _earlier_passes(self, begin: float) -> Generator[simpy.Event, Any, list[Ledger]]:
        """The passes of a step that began at `begin`, but for the last.

        Those that reduce gradients end when that is done: DDP's backward pass does, and Horovod's
        optimizer waits for them.
        """
        ledgers = []
        for _ in range(self.job.accumulate - 1):
            if self.job.no_sync:
                layers = len(self.job.model.layers)
                ledger = Ledger.open(self.env, begin, self.groups, layers, Counter())
                for number in range(len(self.groups)):
                    ledger.passes.append(self.env.process(self.passes.run(number, ledger, {})))
            else:
                ledger = self._begin(begin, None)
            yield self.env.all_of([*ledger.passes, *ledger.transfers])
            ledgers.append(ledger)
        return ledgers

    def _begin(self, begin: float, before: Ledger | None) -> Ledger:
        """Start the processes of a step; the step `before` may still be in flight."""
        ledger = Ledger.open(
            self.env, begin, self.groups, len(self.job.model.layers), self.unreduced
        )
        waits = self._reads(ledger, before)
        for number in range(len(self.groups)):
            if before is not None and self.job.consistency != STAGED:
                for layer, updated in enumerate(before.updated):
                    waits.setdefault((number, layer), []).append(updated)
            ledger.passes.append(self.env.process(self.passes.run(number, ledger, waits)))
        ledger.transfers += self.launcher.begin(ledger)
        return ledger

    def _reads(self, ledger: Ledger, before: Ledger | None) -> Waits:
        """Start the reads, and return the reads that each forward pass waits for.

        With staged consistency, these are the reads of the step before.
        """
        waits: Waits = {}
        for read in self.reads:
            done = self.env.process(self.transfers.read(read, ledger, before))
            ledger.transfers.append(done)
            for number, group in enumerate(self.groups):
                if group.ranks & set(read.ranks):
                    for layer in {self.layer_of[i] for i in read.gradients}:
                        waits.setdefault((number, layer), []).append(done)
        ledger.fetched = waits
        if self.job.consistency == STAGED:
            waits = before.fetched if before else {}
        return {key: list(events) for key, events in waits.items()}
