"""Simulates training steps: compute, reductions and reads as one execution on one fabric.

`passes` writes the nodes of each step into a `Run`, one step after another; one rank stands for
all. With a barrier (`session.run`, `optimizer.step`) a step ends when all its work and the update
of the variables are done. Without one, a layer's next forward pass waits for that layer's variables
only. Then

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

Link faults while steps run, on a clock that skips equal steps.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import simpy

from simreduce.engine import Fabric, Fault
from simreduce.engine.setup import Setup
from simreduce.engine.simulation import step_cost
from simreduce.errors import InputError, InternalError
from simreduce.training.executions import COMPUTE, Execution, ExecutionNode
from simreduce.training.executor import Run
from simreduce.training.group_plans import Lowering
from simreduce.training.groups import group_ranks, merge_reads, slowdowns, steady, summarize
from simreduce.training.passes import STREAM, Passes
from simreduce.training.reductions import Method
from simreduce.training.step import Ledger, MovedBucket, StepJob, StepPrediction, StepRecording

Process = Generator[simpy.Event, Any, None]

_BEFORE = 2
"""Whole steps to simulate before a fault."""


class LinkFaults:
    """Faults in order of time, in seconds since the first step began, skipped steps included."""

    def __init__(self, fabric: Fabric, faults: Sequence[Fault]) -> None:
        self._fabric, self._env = fabric, fabric.env
        self.left = sorted(faults, key=lambda fault: fault.time)
        """Those to come."""
        self._skipped = 0.0
        self._process = self._env.process(self._play())

    def _play(self) -> Process:
        while self.left:
            delay = self._to_come()
            if delay > 0.0:
                try:
                    yield self._env.timeout(delay)
                except simpy.Interrupt:
                    continue
            self._fabric.schedule([replace(self.left.pop(0), time=0.0)])

    def _to_come(self) -> float:
        """Seconds to the next fault; inf if there is none."""
        return self.left[0].time - self._skipped - self._env.now if self.left else inf

    def approach(self, period: float) -> None:
        """Skip whole steps of `period` seconds up to the last few before the next fault."""
        if not self.left or period <= 0.0:
            return
        steps = self._to_come() // period - _BEFORE
        if steps > 0:
            self._skipped += steps * period
            self._process.interrupt()


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
    steps = Steps(fabric, job, method, setup.layout.ranks, faults, closely=closely)
    faulty = bool(disturbance.faults)
    steps.begin()
    env.run(until=steps.over)
    step = summarize(
        job,
        method,
        steps.groups,
        steps.done,
        steps.launch,
        steps.update,
        one=steps.one,
        faulty=faulty,
    )
    moved = tuple(
        MovedBucket(bucket, plan, steps.lowering.of(plan), since)
        for bucket, plan, since in steps.done[-1].moved
    )
    return StepRecording(step, moved, fabric.resources)


def _move_nothing(node: ExecutionNode, _: object) -> simpy.Event:
    raise InternalError(f"{node.name} has no act")


class Steps:
    """A job on one fabric, step after step: `count` of them, or until they take equal times."""

    def __init__(
        self,
        fabric: Fabric,
        job: StepJob,
        method: Method,
        ranks: Sequence[str],
        faults: LinkFaults,
        *,
        closely: bool = False,
        count: int = 0,
        lowering: Lowering | None = None,
    ) -> None:
        self.count = count
        self.env, self.job, self.faults = fabric.env, job, faults
        layers = job.model.layers
        layer_of = [i for i, layer in enumerate(layers) for _ in layer.gradients]
        nbytes = [g.nbytes for layer in layers for g in layer.gradients]
        reads = merge_reads(method.reads, layer_of)
        plans = [each.plan for each in (*method.reductions, *reads)]
        self.lowering = lowering = lowering or Lowering(fabric, method.plan, plans)
        queued = lowering.queues_behind(ranks, (r.plan for r in method.reductions))
        factors = partial(slowdowns, job, fabric.disturbance)
        self.groups = group_ranks(ranks, factors(ranks), apart=queued or bool(method.reads))
        self.launch = (
            step_cost(method.plan, fabric.unfolded(), fabric.runtime, fabric.calibration)
            if job.barrier
            else 0.0
        )
        self.update = job.update * max(factors(method.servers or ranks))
        whole, streams = Execution(method.name, {0: ()}, 1), {STREAM: method.streams}
        self.run = run = Run(whole, self.env, _move_nothing, streams=streams)
        self.passes = Passes(
            fabric, run, job, method, reads, self.groups, layer_of, nbytes, lowering,
            queued, closely,
        )  # fmt: skip
        self.one = job.barrier and method.fusion is None and not faults.left
        self.done: list[Ledger] = []
        self.times: list[float] = []  # of steps since the last fault
        self.over = self.env.event()

    def begin(self, before: Ledger | None = None) -> None:
        """Begin a step; the step `before` may still be in flight.

        Passes before its last that reduce gradients end when that is done: DDP's backward pass
        does, and Horovod's optimizer waits for them.
        """
        ledger, job, run = Ledger(self.env.now, len(self.faults.left)), self.job, self.run
        after: list[int] = []
        if self.launch > 0.0:
            after = [run.add(ExecutionNode("launch", COMPUTE, seconds=self.launch))]
        for _ in range(job.accumulate - 1):
            ends = self.passes.write(ledger, after, None, alone=job.no_sync)
            after = [run.add(ExecutionNode("pass", COMPUTE, (*ends, *ledger.transfers)))]
        ends = self.passes.write(ledger, after, before) + ledger.transfers * job.barrier
        act = partial(run.then, partial(self._end, ledger), seconds=self.update)
        run.add(ExecutionNode("update", COMPUTE, tuple(ends)), act)
        run.start()

    def _end(self, ledger: Ledger) -> None:
        """End a step, and begin the next if there is one."""
        ledger.end, left = self.env.now, self.faults.left
        self.done.append(ledger)
        same = len(left) == ledger.faults
        self.times = [*self.times, ledger.end - ledger.begin] if same else []
        settled, last = steady(self.job, self.times), self.one or len(self.done) == MOST_STEPS
        if self.count:
            settled, last = False, len(self.done) == self.count
        if left and last:
            raise InputError(
                f"{left[0].link} at {left[0].time:g} s: later than {MOST_STEPS} steps,"
                " which do not come to take the same time"
            )
        if last or (settled and not left):
            transfers = tuple(ledger.transfers)
            self.run.add(
                ExecutionNode("the end", COMPUTE, transfers), lambda _: self.over.succeed()
            )
            self.run.start()
            return
        if settled:
            self.faults.approach(self.times[-1])
        self.begin(None if self.job.barrier else ledger)
