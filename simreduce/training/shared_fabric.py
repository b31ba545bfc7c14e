"""Several jobs on one fabric, each on ranks of its own, beside traffic that is no job's.

A job repeats what it does, a reduction or a training step, so many times from its start on; one
repetition begins when the one before it has ended. All jobs are SimPy processes on one fabric, so
what meets on a link shares it as transfers of one plan do. By itself a repetition of a reduction or
of a step without a mesh takes, to the bit, what simulating it alone predicts.

A step of a mesh is simulated with every call of every rank on the fabric, where `mesh.simulate`
lets one rank of a stage stand for all and takes each call's time alone.

Not modelled: jobs that share a GPU, and hosts that several jobs keep busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import simpy

from simreduce.computing import once
from simreduce.computing.arrays import Floats
from simreduce.computing.workers import Progress
from simreduce.engine import Fabric
from simreduce.engine.background import Stream, TrafficFlows, excess_messages
from simreduce.engine.bounds import resource_seconds
from simreduce.engine.disturbance import CALM
from simreduce.engine.lowering import Lowered
from simreduce.engine.setup import Setup
from simreduce.engine.simulator import likeness, step_cost
from simreduce.errors import InputError, refuse
from simreduce.plan import Plan
from simreduce.training.calls import GroupPlans, Lowering, Method, OnFabric
from simreduce.training.executions import Execution, ExecutionNode
from simreduce.training.executor import SLOWS_NOTHING, Run, Slows
from simreduce.training.gpus import least_gpu
from simreduce.training.passes import merged_reads, slowdowns
from simreduce.training.simulation import Process, Steps
from simreduce.training.step import StepJob

_STRETCHES = 240
"""Stretches of time whose mean loads are recorded."""
_LEAST = 1e-3
"""The part of a link's time below which a job does not count as its user."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedJob:
    """What each rank does, and the plans of what they move, which slows down compute beside it."""

    execution: Execution
    plans: GroupPlans
    slows: Slows = SLOWS_NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """`count` repetitions of a plan, of the steps of a job whose method has it, or of a `recorded`
    step; on `setup`, from `start` seconds on.
    """

    name: str
    setup: Setup
    plan: Plan | None
    step: tuple[StepJob, Method] | None = None
    start: float = 0.0
    count: int = 1
    recorded: RecordedJob | None = None


class Share(NamedTuple):
    """A link that a job uses beside others: the parts of its time, at full rate, that each needs
    while the job runs, by job or traffic; its `own` too.
    """

    link: str
    own: float
    others: Mapping[str, float]

    @property
    def total(self) -> float:
        """What all need; above 1 the link is too slow for all."""
        return self.own + sum(self.others.values())


class Load(NamedTuple):
    """The bytes/s that a job has on a link in each stretch of so many seconds, from the start."""

    link: str
    every: float
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Seconds of each repetition, of one `alone`, and the links `shared` with others, the one that
    all need for the longest first; its `load` on the link that all jobs need for the longest.
    `after` are the repetitions after a part has failed, if any does; infinite where that stops the
    job.
    """

    job: Job
    times: tuple[float, ...]
    alone: float
    shared: tuple[Share, ...]
    load: Load
    after: tuple[float, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all repetitions were simulated."""
        return len(self.times) == self.job.count

    @property
    def seconds(self) -> float:
        """A repetition, the mean."""
        return sum(self.times) / len(self.times)

    @property
    def failed(self) -> float | None:
        """A repetition after the failure, the mean; None without one."""
        return sum(self.after) / len(self.after) if self.after else None

    @property
    def by_neighbours(self) -> float:
        """How many times as long as alone a repetition takes beside the others."""
        return self.seconds / self.alone if self.alone else 1.0

    @property
    def by_failure(self) -> float:
        """How many times as long as before a repetition takes after the failure."""
        return (self.failed or self.seconds) / self.seconds if self.seconds else 1.0

    @property
    def slowdown(self) -> float:
        """How many times as long as alone on the whole machine a repetition takes, beside the
        others, and after the failure if there is one.
        """
        return (self.failed or self.seconds) / self.alone if self.alone else 1.0

    @property
    def worst(self) -> float:
        """The longest such repetition beside one alone."""
        return max(self.after or self.times) / self.alone if self.alone else 1.0


def fairness(slowdowns: Sequence[float]) -> float:
    """Jain's index of jobs' speeds beside alone: 1 if all lose the same part, 1/n if one has all.

    Jain, Chiu and Hawe 1984, DEC-TR-301.
    """
    speeds = [1.0 / each for each in slowdowns]
    return sum(speeds) ** 2 / (len(speeds) * sum(each * each for each in speeds))


def simulate_jobs(
    jobs: Sequence[Job],
    streams: Sequence[Stream] = (),
    alone: Mapping[str, float] = MappingProxyType({}),
    progress: Progress | None = None,
) -> tuple[JobOutcome, ...]:
    """All jobs on the machine that their setups share, until the last has ended; `alone` has the
    seconds of jobs by themselves, by name, where these are known.

    With `progress`, which is told how many repetitions of how many are done, Ctrl-C ends it with
    those, once every job has one.

    InputError if they need different runtimes, or streams devices that are not there, more than
    links carry, or more messages than can be simulated; Deadlock if one can never end.
    """
    together = _Together(jobs, streams)
    own = together.alone(alone)
    spans = (job.start + job.count * one for job, one in zip(jobs, own, strict=True))
    refuse(excess_messages([*zip(streams, together.flows, strict=True)], max(spans)))
    together.run(progress)
    return tuple(map(together.outcome, range(len(jobs)), own, together.loads()))


def _alone(job: Job) -> float:
    """Seconds of one repetition by itself; the last of those that a step needs to settle."""
    found = _Together([replace(job, start=0.0, count=_settling(job))], ())
    found.run()
    return found.times[0][-1]


def _settling(job: Job) -> int:
    """Repetitions until all take as long; of steps without a barrier, as many as there are."""
    return 1 if job.step is None or job.step[0].barrier else job.count


class _Together:
    """Jobs and traffic on a fabric of their own."""

    def __init__(self, jobs: Sequence[Job], streams: Sequence[Stream]) -> None:
        self.jobs, self.streams, setup = jobs, streams, jobs[0].setup
        names = {each.setup.runtime.name for each in jobs}
        if len(names) > 1:
            raise InputError(
                f"jobs run on {' and on '.join(sorted(names))}, and one fabric has one runtime"
                "; a runtime for all is set by `runtime`"
            )
        found = [e.setup.constants_of(e.plan) if e.plan else e.setup.constants for e in jobs]
        constants = next((each for each in found if each != setup.calibration), setup.calibration)
        disturbance = setup.disturbance
        disturbance.check(setup.topology)
        self.fabric = Fabric(
            simpy.Environment(), setup.topology, constants, setup.runtime, disturbance,
            fixed=not (streams or disturbance.faults),
        )  # fmt: skip
        self.needed: list[Floats] = [np.zeros(0) for _ in jobs]
        self.times: list[list[float]] = [[] for _ in jobs]
        self.moved: list[list[tuple[float, float, Lowered]]] = [[] for _ in jobs]
        self.spans = [(inf, inf) for _ in jobs]
        self.steps: dict[int, Steps] = {}
        self.movers: dict[int, OnFabric] = {}
        self.flows = [TrafficFlows(self.fabric) for _ in streams]
        pairs = zip(streams, self.flows, strict=True)
        refuse(each for stream, flows in pairs for each in stream.problems(flows))
        self.sent: list[list[Floats]] = [[] for _ in jobs]
        self._lower = cache(self.fabric.lower)
        self._lowerings: dict[int, Lowering] = {}

    def alone(self, known: Mapping[str, float]) -> list[float]:
        """Seconds of a repetition of each job by itself, where they are not `known` by its name; of
        jobs that are alike one is simulated.
        """
        found, alike = list[float](), list[tuple[Any, float]]()
        for i, job in enumerate(self.jobs):
            seconds = known.get(job.name)
            if seconds is None:
                what = self._likeness(i, job) if len(self.jobs) > 1 else None
                seconds = next((each for other, each in alike if other == what), None)
                if seconds is None:
                    seconds = _alone(job)
                    alike += [(what, seconds)] if what else []
            found.append(seconds)
        return found

    def _likeness(self, i: int, job: Job) -> Any:
        """What is equal only of jobs that take the same time by themselves; None if unknown."""
        fabric = self.fabric
        if job.recorded is not None or fabric.disturbance != CALM:
            return None
        if job.step is None:
            assert job.plan is not None  # noqa: S101 - it has something to do
            return self._cost(job.plan), likeness(self._lower(job.plan, i), fabric.resources)
        step, method = job.step
        # Where reductions are in flight together, they may meet on links: parts say nothing of it.
        if method.streams != 1 or method.fusion or method.reads:
            return None
        ranks, lowering = job.setup.layout.ranks, self._lower_step(i, method)
        if lowering.queues_behind(ranks, (each.moves for each in method.reductions)):
            return None
        parts = [
            (each.gradients, each.ranks, likeness(lowering.of(each.moves), fabric.resources))
            for each in method.reductions
        ]
        slow = slowdowns(step, fabric.disturbance, (*ranks, *method.servers))
        return (
            self._cost(method.whole), _settling(job), replace(step, slow={}), slow, len(ranks),
            step.gpu or least_gpu(job.setup),
            method.in_order, parts,
        )  # fmt: skip

    def _cost(self, plan: Plan) -> float:
        at = self.fabric
        return step_cost(plan, at.topology, at.runtime, at.calibration)

    def _lower_step(self, i: int, method: Method) -> Lowering:
        """The reductions of job i, without reads."""
        plans = [each.moves for each in method.reductions]
        return once(self._lowerings, i, lambda: Lowering(self.fabric, method.whole, plans))

    def run(self, progress: Progress | None = None) -> None:
        """Run until the last job has ended, or as `simulate_jobs` says."""
        env = self.fabric.env
        over = env.all_of([env.process(self._job(i, job)) for i, job in enumerate(self.jobs)])
        for stream, flows in zip(self.streams, self.flows, strict=True):
            stream.send_on(flows, over)
        if progress is None:
            env.run(until=over)
            return
        count = sum(job.count for job in self.jobs)
        try:
            while not over.processed:
                env.step()
                progress(sum(map(self._done, range(len(self.jobs)))), count)
        except KeyboardInterrupt:
            if not all(map(self._done, range(len(self.jobs)))):
                raise
            for i, (_, until) in enumerate(self.spans):
                if until == inf:
                    self._end(i)

    def _done(self, i: int) -> int:
        """How many repetitions of a job are done."""
        return len(self.steps[i].done if i in self.steps else self.times[i])

    def _job(self, i: int, job: Job) -> Process:
        env = self.fabric.env
        if job.start > 0.0:
            yield env.timeout(job.start)
        self.spans[i] = float(env.now), inf
        self.sent[i] = [each.needed.copy() for each in self.flows]  # by then; `_end` subtracts it
        if job.recorded is not None:
            yield from self._replays(i, job, job.recorded)
        elif job.step is not None:
            yield from self._steps(i, job, *job.step)
        elif job.plan is not None:
            yield from self._reductions(i, job, job.plan)
        self._end(i)

    def _end(self, i: int) -> None:
        """Count what a job has done by now."""
        self.spans[i] = self.spans[i][0], float(self.fabric.env.now)
        self.sent[i] = [each.needed - k for each, k in zip(self.flows, self.sent[i], strict=True)]
        if (steps := self.steps.get(i)) is not None:
            self.times[i] = [ledger.end - ledger.begin for ledger in steps.done]
            best, nothing = self.fabric.resources.best, np.zeros(len(self.fabric.resources.names))
            of = self.movers[i].lowering.of
            lowered = [of(what.moves) for _, what in steps.done[-1].moved]
            self.moved[i] = [
                (each.begin + bucket.start, each.begin + bucket.finish, of(what.moves))
                for each in steps.done
                for bucket, what in each.moved
            ]
            self.needed[i] = sum((resource_seconds(each, best) for each in lowered), nothing)

    def loads(self) -> Iterator[Load]:
        """What each job has on the link that all need for the longest; of links that several jobs
        use, if there are such. A transfer counts with its mean rate.
        """
        best, now = self.fabric.resources.best, float(self.fabric.env.now)
        known = {id(low): resource_seconds(low, best) for some in self.moved for *_, low in some}
        nothing, edges = np.zeros(len(best.names)), np.linspace(0.0, now, _STRETCHES + 1)
        needed = np.array(
            [sum((known[id(low)] for *_, low in some), nothing) for some in self.moved]
        )
        link = int(np.lexsort((needed.sum(0), np.count_nonzero(needed, axis=0) > 1))[-1])
        rate = best.rates[link] if needed[:, link].any() else 0.0
        for some in self.moved:
            moved = np.zeros(len(edges))
            for begin, end, lowered in some:
                moved += np.interp(edges, (begin, end), (0.0, rate * known[id(lowered)][link]))
            rates = np.diff(moved) / (edges[1] or 1.0)
            yield Load(best.names[link], float(edges[1]), tuple(rates.tolist()))

    def _reductions(self, i: int, job: Job, plan: Plan) -> Process:
        fabric, env = self.fabric, self.fabric.env
        lowered = self._lower(plan, i)
        self.needed[i] = resource_seconds(lowered, fabric.resources.best)
        ready = self._cost(plan)
        for _ in range(job.count):
            begin = float(env.now)
            timeline = yield fabric.submit(plan, ready, lowered)
            self.moved[i].append((begin, float(env.now), lowered))
            self.times[i].append(float(timeline.finish.max(initial=0.0)) - begin)

    def _steps(self, i: int, job: Job, step: StepJob, method: Method) -> Process:
        reads = merged_reads(step, method)
        mover = OnFabric(self.fabric, method, reads, job.setup, self._lowerings.get(i))
        steps = Steps(mover, step, method, job.setup, reads, count=job.count)
        self.steps[i], self.movers[i] = steps, mover
        steps.begin()
        yield steps.over

    def _replays(self, i: int, job: Job, recorded: RecordedJob) -> Process:
        fabric, env, best = self.fabric, self.fabric.env, self.fabric.resources.best
        seconds_of = cache(lambda plan: resource_seconds(self._lower(plan), best))
        needed, moved = np.zeros(len(best.names)), self.moved[i]

        def move(node: ExecutionNode, group: tuple[int, ...]) -> simpy.Event:
            plan = recorded.plans.of(node, group)
            if plan is None:
                return env.timeout(0.0)
            np.add(needed, seconds_of(plan), out=needed)
            lowered, begin = self._lower(plan), float(env.now)
            done = fabric.submit(plan, lowered=lowered)
            done.callbacks.append(lambda _: moved.append((begin, float(env.now), lowered)))
            return done

        for _ in range(job.count):
            begin = float(env.now)
            run = Run(recorded.execution, env, move, slows=recorded.slows)
            run.start()
            yield run.over
            self.times[i].append(float(env.now) - begin)
            self.needed[i] = needed / len(self.times[i])

    def outcome(self, i: int, alone: float, load: Load) -> JobOutcome:
        """What came of a job."""
        job, (begin, end) = self.jobs[i], self.spans[i]
        at = np.flatnonzero(self.needed[i])  # of few links, where there are many jobs
        used = {
            other.name: self.needed[k][at] * len(self.times[k]) * self._overlap(i, k)
            for k, other in enumerate(self.jobs)
        }
        sent = zip(self.streams, self.sent[i], strict=True)
        used |= {stream.name: needed[at] for stream, needed in sent}
        parts = {name: each / max(end - begin, 1e-30) for name, each in used.items()}
        own, names = parts.pop(job.name), self.fabric.resources.names
        shares = [
            Share(
                names[at[place]], float(own[place]),
                {name: float(p[place]) for name, p in parts.items() if p[place] >= _LEAST},
            )
            for place in np.flatnonzero(own >= _LEAST).tolist()
        ]  # fmt: skip
        met = sorted((s for s in shares if s.others), key=lambda each: (-each.total, each.link))
        return JobOutcome(job, tuple(self.times[i]), alone, tuple(met), load)

    def _overlap(self, i: int, k: int) -> float:
        """The part of the time of job k in which job i runs."""
        (begin, end), (other, until) = self.spans[i], self.spans[k]
        both = max(min(end, until) - max(begin, other), 0.0)
        return both / (until - other) if until > other else 0.0
