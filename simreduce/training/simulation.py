"""Simulates training steps: compute, reductions and reads as one execution on one fabric.

`passes` writes the nodes of each step into a `Run`, one step after another; one rank stands for
all. With a barrier (`session.run`, `optimizer.step`) a step ends when all its work and the update
of the variables are done. Without one, a layer's next forward pass waits for that layer's variables
only. Then

    step time = launch + compute + interference + update + exposed,

where launch is the calibrated cost of a step (`step_cost`; hidden without a barrier), compute is
that of the slowest device, interference what it takes longer beside collectives, and exposed is its
wait for communication and for other devices.

With several passes to accumulate gradients, those before the last only compute, or with `no_sync`
off end like steps without an update.

Steps with a barrier are equal, so one is simulated. Without one, with Horovod's cycles or with
faults, steps are simulated until some in a row take equal times (`steady`) after the last fault, up
to `MOST_STEPS`; the last is the result. Long before a fault, equal steps are skipped.

While a kernel of NCCL moves data, passes beside it lose a part of their speed (`interference`),
except where kernels share a queue with TensorFlow's copies. Not modelled: copies do not wait for
kernels queued on their two ends. Links fail (`LinkFaults`) on a clock that skips equal steps.

Whether what a training step holds fits the memory of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import inf, log
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import simpy

from simreduce import units
from simreduce.computing.workers import as_piece
from simreduce.engine import Fabric, Fault
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, InternalError
from simreduce.planners.packing import Fusion
from simreduce.planners.strategy import Strategy
from simreduce.topology import Topology
from simreduce.training.calls import (
    ENDLESS,
    NOTHING,
    Alone,
    CallCost,
    Fused,
    Method,
    OnFabric,
    Reduction,
    is_calm,
)
from simreduce.training.executions import COMPUTE, UPDATE, Execution, ExecutionNode
from simreduce.training.executor import SLOWS_NOTHING, Run
from simreduce.training.gpus import memory_of
from simreduce.training.memory import Shares, replicated_memory
from simreduce.training.passes import (
    STREAM,
    Passes,
    group_ranks,
    loses_of,
    merged_reads,
    nodes_of,
    slowdowns,
    spans_of,
    steady,
    summarize,
)
from simreduce.training.path import LAUNCH, run_path
from simreduce.training.sharded import DDP, Sharding, wrap
from simreduce.training.step import (
    LEFT,
    SPREAD,
    UNCOUNTED,
    Activations,
    Ledger,
    Memory,
    MovedBucket,
    StepJob,
    StepRecording,
    StepResult,
)
from simreduce.workload import Gradient, Model, Workload

if TYPE_CHECKING:
    from simreduce.training.step_table import StepQuestion


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


def simulate_step(job: StepJob, method: Method, setup: Setup) -> StepResult:
    """One step of `job` on the ranks of the setup's layout, which `method` was made for.

    Deadlock if it can never end, InputError for faults of links that are not there, or so late that
    they are not among the steps that are simulated.
    """
    return record_step(job, method, setup, closely=False).step


def record_step(
    job: StepJob, method: Method, setup: Setup, *, closely: bool = True
) -> StepRecording:
    """`simulate_step`, for those who look closer."""
    topology, disturbance = setup.topology, setup.disturbance
    disturbance.check(topology)
    constants = setup.constants_of(method.whole)
    fixed = not (closely or disturbance.faults)
    calm = replace(disturbance, faults=())
    fabric = Fabric(simpy.Environment(), topology, constants, setup.runtime, calm, fixed=fixed)
    faults = LinkFaults(fabric, disturbance.faults)
    reads = merged_reads(job, method)
    mover = OnFabric(fabric, method, reads, setup)
    steps = Steps(mover, job, method, setup, reads, faults, closely=closely)
    step = steps.finish()
    moved = tuple(
        MovedBucket(bucket, what.moves, mover.lowering.of(what.moves))
        for bucket, what in steps.done[-1].moved
    )
    return StepRecording(step, moved, fabric.resources)


def compose_step(
    job: StepJob, method: Method, setup: Setup, cost: Callable[[tuple[int, ...]], CallCost],
    most: int = MOST_STEPS,
) -> StepResult:  # fmt: skip
    """The step of a method whose reductions take turns on one stream.

    A reduction has its `cost` alone, by the gradients that it has; no plan is made of it.
    Of `most` steps that do not become equal, it is the mean of the later half.
    """
    mover = Alone(lambda what: cost(what.gradients))
    return replace(Steps(mover, job, method, setup, most=most).finish(), composed=True)


def write_execution(job: StepJob, method: Method, setup: Setup) -> Execution:
    """What every rank does in a step; InputError where one step does not stand for all.

    That is where steps do not end before the next, read variables, or reduce what happens to be
    ready.
    """
    steps = Steps(Alone(lambda _: NOTHING), job, method, setup)
    if not steps.one or method.reads or method.streams > 1:
        words = "only steps that are alike, read no variables and have one stream are written"
        raise InputError(f"{method.name}: {words} as an execution")
    written = list[ExecutionNode]()
    steps.run.written = written
    steps.begin()
    nodes = nodes_of(written[: steps.last + 1], steps.groups)
    return Execution(method.name, nodes, setup.layout.n)


def step_seconds(method: Method, job: StepJob, setup: Setup, most: int = MOST_STEPS) -> float:
    """Seconds of a step. Of Horovod's whose buffers take turns on an undisturbed machine, at most
    so many steps are followed, and buffers that are alike are simulated once.
    """
    fused = method.fusion
    if fused is None or method.streams != 1 or not (job.reduces_once and is_calm(setup)):
        return simulate_step(job, method, setup).seconds
    # Whatever the threshold: what a buffer takes depends on what is in it.
    own, gradients = Fusion(ENDLESS, fused.fusion.fp16), fused.workload.gradients
    strategy = replace(fused.strategy, text=fused.strategy.spec, packing="fusion", packer=own)

    def cost(buffer: tuple[int, ...]) -> CallCost:
        held = tuple((gradients[i].elements, gradients[i].dtype) for i in buffer[::-1])
        return _buffer_cost(setup, strategy, held, faithful=fused.faithful)

    composed = replace(method, fusion=replace(fused, planned=False))
    return compose_step(job, composed, setup, cost, most).seconds


@as_piece
@lru_cache(maxsize=1 << 14)
def _buffer_cost(
    setup: Setup, strategy: Strategy, held: tuple[tuple[int, int], ...], *, faithful: bool
) -> CallCost:
    """The cost of a buffer with gradients of these elements and dtypes, in this order.

    Layers that are alike have buffers that are alike.
    """
    gradients = tuple(Gradient(f"g{i}", *each) for i, each in enumerate(held))
    assert isinstance(strategy.packer, Fusion)  # noqa: S101 - the caller has made it
    workload = Workload("buffer", gradients)
    fused = Fused(strategy.packer, strategy, workload, setup.layout, faithful=faithful)
    parts = fused.reductions(tuple(range(len(gradients))))
    return CallCost.in_turn([CallCost.alone(setup, part.moves) for part in parts])


def _move_nothing(node: ExecutionNode, _: object) -> simpy.Event:
    raise InternalError(f"{node.name} has no act")


class Steps:
    """A job on one fabric, step after step: `count` of them, or until they take equal times."""

    def __init__(
        self, mover: Alone | OnFabric, job: StepJob, method: Method, setup: Setup,
        reads: Sequence[Reduction] = (), faults: LinkFaults | None = None, *,
        closely: bool = False, count: int = 0, most: int = MOST_STEPS,
    ) -> None:  # fmt: skip
        self.count, self.most = count, most
        self.env, self.job, self.method = mover.env, job, method
        self.faults, ranks = faults, setup.layout.ranks
        self.faulty = bool(faults and faults.left)
        factors = partial(slowdowns, job, setup.disturbance)
        apart = mover.queued or bool(method.reads)
        self.groups = group_ranks(ranks, factors(ranks), apart=apart)
        self.launch = mover.launch if job.barrier else 0.0
        self.update = job.update * max(factors(method.servers or ranks))
        whole, streams = Execution(method.name, {0: ()}, 1), {STREAM: method.streams}
        slows = SLOWS_NOTHING._replace(lose=loses_of(job, setup))
        self.run = Run(whole, self.env, _move_nothing, streams=streams, slows=slows)
        self.passes = Passes(mover, self.run, job, method, reads, self.groups, closely)
        self.one = job.barrier and method.fusion is None and not self.faulty
        self.done: list[Ledger] = []
        self.times: list[float] = []  # of steps since the last fault
        self.over = self.env.event()

    @property
    def left(self) -> Sequence[Fault]:
        """Faults to come."""
        return self.faults.left if self.faults else ()

    def finish(self) -> StepResult:
        """Run all steps, and summarize them."""
        self.begin()
        self.env.run(until=self.over)
        passes, last = self.passes, (0, self.last)
        path = run_path(self.run.ran, last, self.done[-1].begin, passes.moved, passes.since)
        return summarize(
            self.job, self.method.name, self.groups, self.done, self.launch, self.update, path,
            one=self.one, faulty=self.faulty,
        )  # fmt: skip

    def begin(self, before: Ledger | None = None) -> None:
        """Begin a step; the step `before` may still be in flight.

        Passes before its last that reduce gradients end when that is done: DDP's backward pass
        does, and Horovod's optimizer waits for them.
        """
        ledger, job, run = Ledger(self.env.now, len(self.left)), self.job, self.run
        after: list[int] = []
        if self.launch > 0.0:
            after = [run.add(ExecutionNode("launch", COMPUTE, seconds=self.launch, phase=LAUNCH))]
        for _ in range(job.accumulate - 1):
            ends = self.passes.write(ledger, after, None, alone=job.no_sync)
            after = [run.add(ExecutionNode("pass", COMPUTE, (*ends, *ledger.transfers)))]
        ends = self.passes.write(ledger, after, before) + ledger.transfers * job.barrier
        act = partial(run.then, partial(self._end, ledger), seconds=self.update)
        node = ExecutionNode("update", COMPUTE, tuple(ends), seconds=self.update, phase=UPDATE)
        self.last = run.add(node, act)
        run.start()

    def _end(self, ledger: Ledger) -> None:
        """End a step, and begin the next if there is one."""
        ledger.end, left = self.env.now, self.left
        ledger.spans = spans_of(self.run.ran, self.passes.since, ledger.begin)
        if self.count and self.done:
            self.done[-1].spans.clear()
        self.done.append(ledger)
        same = len(left) == ledger.faults
        self.times = [*self.times, ledger.end - ledger.begin] if same else []
        settled, last = steady(self.job, self.times), self.one or len(self.done) == self.most
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
        if settled and self.faults:
            self.faults.approach(self.times[-1])
        self.passes.forget()  # as a job may have very many steps
        self.begin(None if self.job.barrier else ledger)


_SURE = 0.02
"""The chance of the other, below which a step is said to fit, or not, without one."""


class MemoryFit(NamedTuple):
    """Bytes that a GPU needs and has; 0 where nobody says how many it has.

    `activations` are those among what it needs, None where there is no step.
    """

    needed: int
    available: int
    activations: Activations | None = None

    @property
    def fits(self) -> bool | None:
        """Whether they fit; None where that is not known."""
        return self.needed <= self.available if self.available else None

    @property
    def chance(self) -> float | None:
        """The chance that they fit, by what published memory differs from predictions; None where
        nobody says how much there is.
        """
        if not self.available:
            return None
        margin = log(self.available / max(self.needed * (1.0 - LEFT), 1.0))
        return NormalDist(0.0, SPREAD).cdf(margin)

    @property
    def words(self) -> str:
        """Both as text: `needs 128 GB, and a GPU has 80 GB, 60 % too much`."""
        has = f"a GPU has {units.format_size(self.available)}"
        if not self.available:
            has = "nobody says how much a GPU has"
        short, chance = "", self.chance
        if self.fits is False:
            short = f", {self.needed / self.available - 1.0:.0%} too much"
        if chance is not None and _SURE < chance < 1.0 - _SURE:
            short += f" (it fits with a chance of {chance:.0%})"
        which = f"; {self.activations.words}" if self.activations else ""
        return f"needs {units.format_size(self.needed)}, and {has}{short}{which}"


def fit_of(memory: Memory, topology: Topology, names: Iterable[str]) -> MemoryFit:
    """Whether the smallest memory of these GPUs is enough."""
    return MemoryFit(memory.needed, device_memory(topology, names), memory.activations)


def device_memory(topology: Topology, names: Iterable[str]) -> int:
    """Bytes of the smallest memory of these GPUs, as `memory_of`; 0 if that of one is not known."""
    return min((memory_of(topology.nodes[name]) for name in names), default=0)


def least_memory(
    method: str,
    model: Model,
    sharding: Sharding,
    ranks: int,
    activations: Activations = UNCOUNTED,
) -> Memory:
    """Return a lower bound of a GPU's memory with a method, without a simulation.

    It counts parameters, gradients and optimizer states, where `ranks` GPUs share one copy; the
    least that a pass gathers and has to reduce; and `activations`. A simulated step holds no less.
    """
    if method == DDP:
        found = replicated_memory(model.workload, sharding)
    else:
        listed = {g.dtype for layer in model.layers for g in layer.gradients}
        param, reduce = sharding.wire(min(listed, default=0))
        shared = wrap(model, sharding.units)
        optimizer, pure = sharding.optimizer, sharding.pure
        found = Shares(method, shared, ranks, param, reduce, optimizer, pure).least
    return found.plus(activations)


def least_fit(
    step: StepQuestion, topology: Topology, ranks: Iterable[str], method: str
) -> MemoryFit:
    """What a GPU needs at least for a step with a method, as `least_memory`, and what it has."""
    names = [*ranks]
    memory = least_memory(method, step.job.model, step.numerics, len(names), step.activations)
    return fit_of(memory, topology, names)
